"""twostagegp: a predictive distribution that you can trust, without hand-tuning.

A first stage predicts the mean, a second models the uncertainty of what is left, and held-out
rows calibrate the result.
"""

from twostagegp import datasets as datasets
from twostagegp import metrics as metrics
from twostagegp.baselines import ExactGPRegressor as ExactGPRegressor
from twostagegp.classifier import TwoStageGPClassifier as TwoStageGPClassifier
from twostagegp.conformal import CVPlusRegressor as CVPlusRegressor
from twostagegp.errors import TwoStageGPError as TwoStageGPError
from twostagegp.errors import TwoStageGPWarning as TwoStageGPWarning
from twostagegp.files import load as load
from twostagegp.gpnn import GPNNRegressor as GPNNRegressor
from twostagegp.regressor import TwoStageGPRegressor as TwoStageGPRegressor
from twostagegp.sampling import farthest_point_sampling as farthest_point_sampling
from twostagegp.search.kernel_search import search_kernel as search_kernel
from twostagegp.search.misspecification import check_misspecification as check_misspecification
from twostagegp.training import Training as Training

__version__ = "0.1.0"
