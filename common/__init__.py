"""What every room needs and none owns: files, progress, timing, counts, devices, ranks."""
