"""Who goes where: protocols, splits, negatives."""
