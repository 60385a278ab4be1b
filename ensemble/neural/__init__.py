"""Training of neural networks with PyTorch and Accelerate."""
