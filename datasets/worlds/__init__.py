"""Generated worlds: rooms, homes, streets, tables with exact geometry, seen by any camera."""
