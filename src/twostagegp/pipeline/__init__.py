"""The three parts of a fit: mean, variance, calibration."""
