"""The mixture-of-experts layer, the network around it, and losses."""
