"""The only place that writes prepared data, atomically."""
