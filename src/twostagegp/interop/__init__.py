"""Fitted models as objects of GPyTorch and BoTorch, imported only when they are needed."""
