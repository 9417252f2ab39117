"""Where runs are executed: processes here, or a Ray cluster."""
