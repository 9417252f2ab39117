"""Settings: validated, explained, merged, compared."""
