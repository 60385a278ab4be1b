"""The cost of networks of the recipe emulator, and their errors in data assimilation."""
