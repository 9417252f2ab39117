"""Executes runs in local processes or on a Ray cluster."""
