"""Linear algebra, held-out formulas, training objectives and stacking weights."""
