"""Measure every attention head over inputs of growing length."""
