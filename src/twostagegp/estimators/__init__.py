"""What users construct. Estimators compose data, pipeline and answers; the maths is below them."""
