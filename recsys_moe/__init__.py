"""Multi-task recommenders with a sparse mixture of experts. Importing this costs nothing."""

__version__ = "0.1.0"
