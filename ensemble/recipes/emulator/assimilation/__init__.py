"""Twin experiments with Lorenz-96: filters and 4D-Var with the true model or an emulator as the forecast model."""
