"""The processes of a run: how they start, meet, stop, and use the machine. Imports no Lightning
but in `joining`."""
