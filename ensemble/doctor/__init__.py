"""Checks for the usual causes of failing runs, on one machine or on all nodes of a job; scripts/doctor.py runs them."""
