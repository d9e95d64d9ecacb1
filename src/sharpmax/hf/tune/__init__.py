"""Choose per head how much to sharpen, and keep the choice in a calibration file."""
