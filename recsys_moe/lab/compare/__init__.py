"""Routers x task weights x seeds, a table with tests."""
