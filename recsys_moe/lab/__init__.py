"""Routers side by side: many runs, and what they say."""
