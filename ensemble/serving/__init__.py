"""A fitted ensemble that stays loaded: in Python (`loaded.py`) and over HTTP (`service.py`)."""
