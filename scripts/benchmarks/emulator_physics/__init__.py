"""What the networks of the recipe emulator cost and how they serve data assimilation."""
