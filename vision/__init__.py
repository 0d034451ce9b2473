"""What all vision tasks share: operators, layers, files, pictures, the hub, export."""
