"""Members trained with PyTorch and Accelerate."""
