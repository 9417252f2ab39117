"""The studies of the MOESART paper as recipes: what is trained, and the figure it makes."""
