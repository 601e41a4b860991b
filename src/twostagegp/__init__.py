"""twostagegp: a predictive distribution that you can trust, without hand-tuning.

A first stage predicts the mean, a second models the uncertainty of what is left, and held-out
rows calibrate the result.
"""

from twostagegp import datasets as datasets
from twostagegp import metrics as metrics
from twostagegp.baselines import ExactGPRegressor as ExactGPRegressor
from twostagegp.errors import TwoStageGPError as TwoStageGPError
from twostagegp.errors import TwoStageGPWarning as TwoStageGPWarning
from twostagegp.regressor import TwoStageGPRegressor as TwoStageGPRegressor
from twostagegp.training import Training as Training

__version__ = "0.1.0"
