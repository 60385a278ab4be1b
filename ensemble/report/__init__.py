"""A finished run as one HTML page."""
