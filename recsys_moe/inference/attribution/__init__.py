"""Which features, histories and experts moved a score."""
