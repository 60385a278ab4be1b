"""Checks of the usual causes of failing runs, on a machine or on the nodes of a job; scripts/doctor.py."""
