"""Raw files in: downloads and dialects."""
