"""Models that read the order of events, on the future: one row per run."""
