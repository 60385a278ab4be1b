"""Members trained on CPU cores.

Call `threads.settle` before anything here imports a library: OpenMP reads its settings once.
"""
