"""Predict a period, then learn it: how often a model should be trained."""
