"""The comparison of all routers, by equal trials and seeds: `python -m research.routers`."""
