"""One readable file per model; they import nothing of ours."""
