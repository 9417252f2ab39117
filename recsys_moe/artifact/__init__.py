"""What a run leaves: run folder, model folder, metrics, evaluation, exports."""
