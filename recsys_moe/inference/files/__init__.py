"""Predictions and ranked lists of whole files, in pieces."""
