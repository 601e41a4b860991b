"""Part 3: scale and shape of the predictive distribution, from held-out z-scores."""
