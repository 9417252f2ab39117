"""Scores of pairs of indices."""
