"""The catalogue ranked, filtered and shown."""
