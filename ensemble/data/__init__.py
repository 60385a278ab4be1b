"""Raw files to prepared data."""
