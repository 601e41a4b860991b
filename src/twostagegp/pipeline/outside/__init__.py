"""Outside the data: what the fit adds to the predictive distribution far from the training rows."""
