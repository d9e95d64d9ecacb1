"""Find how much each head should be sharpened; calibration files."""
