"""What `vizoo demo` measures and draws."""
