"""From an artifact to scores, rankings and explanations on raw ids. Never imports Lightning."""
