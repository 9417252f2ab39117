"""The processes of a run: how they start, meet, stop, and use the machine. No Lightning."""
