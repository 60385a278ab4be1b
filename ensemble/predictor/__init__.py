"""Fit an ensemble, predict with its members, forecast from new raw data, and serve; and the model card."""
