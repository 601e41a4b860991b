"""The exact engine: one Cholesky factor of all training rows."""
