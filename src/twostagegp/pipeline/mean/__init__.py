"""Part 1: the models of the mean, their held-out residuals and their stack."""
