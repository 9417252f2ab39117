"""Shared by the longer examples: resumable runs, studies, result files, figures."""
