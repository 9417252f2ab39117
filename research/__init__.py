"""Evidence: results, the scripts that made them, studies of causes; no package imports it."""
