"""The recipe emulator: scores relative to those of the noise-free formula, networks for Lorenz-96, and speed of the loop."""
