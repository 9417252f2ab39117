"""The language experiment of the MOESART paper on the public layer: see docs/examples.md."""
