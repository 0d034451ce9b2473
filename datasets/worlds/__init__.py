"""Generated worlds: rooms, streets, tables with exact geometry, seen by any camera."""
