"""The recipe emulator: skill beside the noise-free ceiling, the networks of Lorenz-96, and speed beside a plain loop."""
