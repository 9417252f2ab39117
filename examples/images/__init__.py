"""The image experiments of the MOESART paper on the public layer: see research/examples.md."""
