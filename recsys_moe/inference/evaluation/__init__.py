"""Top-N evaluation of a split."""
