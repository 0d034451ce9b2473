"""Search spaces of classifiers."""
