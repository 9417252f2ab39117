"""What the longer examples share: resumable runs, files of results, pictures."""
