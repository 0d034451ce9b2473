"""What a network costs: measured, counted, and predicted from the architecture alone."""
