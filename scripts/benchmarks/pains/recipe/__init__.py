"""The training of the benchmark `pains`: a small regression that records which rows each optimizer step learned from."""
