"""The search for the settings of a router."""
