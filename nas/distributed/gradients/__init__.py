"""How gradients travel: hooks, strategies, batch norms of all processes."""
