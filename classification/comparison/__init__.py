"""Networks made by hand, found by searches and drawn at random, trained alike and compared."""
