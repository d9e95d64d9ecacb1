"""Fold a calibration into a plain checkpoint that any engine runs."""
