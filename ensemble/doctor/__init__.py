"""Checks of what usually breaks a run; scripts/doctor.py."""
