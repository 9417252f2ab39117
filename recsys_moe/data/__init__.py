"""Prepared rows -> batches, from memory or by row group from disk."""
