"""Twin experiments with Lorenz-96: filters and 4D-Var that take the true model or an emulator of it."""
