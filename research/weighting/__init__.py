"""Methods that weigh tasks, on equal terms with fixed weights: `python -m research.weighting`."""
