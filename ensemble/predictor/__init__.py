"""Fitting an ensemble, asking its members, forecasts from new raw data, the model card, and the service."""
