"""The recipe emulator: scores relative to the ceiling without noise, networks for Lorenz-96, and speed of the loop."""
