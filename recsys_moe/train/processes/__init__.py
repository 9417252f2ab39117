"""Processes of a run: start, communication, signals, memory. No Lightning."""
