"""Encoders: what is added to the embedding of the id of a user or item. One file each."""
