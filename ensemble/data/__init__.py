"""Raw files, prepared data and their folds: reading, writing, counts and checks."""
