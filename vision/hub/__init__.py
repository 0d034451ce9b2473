"""The hub: networks by name, and the files their weights live in."""
