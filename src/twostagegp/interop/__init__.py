"""Fitted models as objects of GPyTorch and BoTorch; imported when one is asked for."""
