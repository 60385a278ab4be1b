"""The report of a fitted ensemble, its data and its members as one HTML page."""
