"""When messages go: links measured, groups planned, steps simulated."""
