"""Commands: each file parses words, calls the library and prints."""
