"""Training of hyperparameters: optimisers, batches of problems, ladders of candidates."""

from twostagegp.training.schedule import Training as Training
