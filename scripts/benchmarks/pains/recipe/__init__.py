"""The recipe of the benchmark `pains`: a small regression that records the rows of each optimizer step."""
