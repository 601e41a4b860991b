"""twostagegp: Gaussian process regression with calibrated predictive distributions.

A first stage predicts the mean, a second stage models the variance of its held-out residuals, and
held-out rows calibrate the result.

Names are imported when they are first used (PEP 562): ``import twostagegp`` is fast, and
``twostagegp --help`` answers without loading torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from twostagegp import datasets as datasets
    from twostagegp import errors as errors
    from twostagegp import foundation as foundation
    from twostagegp import metrics as metrics
    from twostagegp import plotting as plotting
    from twostagegp import report as report
    from twostagegp.data.columns import TableEncoder as TableEncoder
    from twostagegp.data.sampling import farthest_point_sampling as farthest_point_sampling
    from twostagegp.errors import TwoStageGPError as TwoStageGPError
    from twostagegp.errors import TwoStageGPWarning as TwoStageGPWarning
    from twostagegp.estimators.classifier import TwoStageGPClassifier as TwoStageGPClassifier
    from twostagegp.estimators.cv_plus import CVPlusRegressor as CVPlusRegressor
    from twostagegp.estimators.exact_gp import ExactGPRegressor as ExactGPRegressor
    from twostagegp.estimators.gpnn import GPNNRegressor as GPNNRegressor
    from twostagegp.estimators.regressor import TwoStageGPRegressor as TwoStageGPRegressor
    from twostagegp.pipeline.mean.tabpfn import TabPFNMean as TabPFNMean
    from twostagegp.search.kernel_search import search_kernel as search_kernel
    from twostagegp.search.misspecification import check_misspecification as check_misspecification
    from twostagegp.storage import load as load
    from twostagegp.training.schedule import Training as Training

__version__ = "0.1.0"

#: The module of each public name; None if the name is itself a module of this package.
_HOMES = {
    "CVPlusRegressor": "estimators.cv_plus",
    "ExactGPRegressor": "estimators.exact_gp",
    "GPNNRegressor": "estimators.gpnn",
    "TabPFNMean": "pipeline.mean.tabpfn",
    "TableEncoder": "data.columns",
    "Training": "training.schedule",
    "TwoStageGPClassifier": "estimators.classifier",
    "TwoStageGPError": "errors",
    "TwoStageGPRegressor": "estimators.regressor",
    "TwoStageGPWarning": "errors",
    "check_misspecification": "search.misspecification",
    "datasets": None,
    "errors": None,
    "farthest_point_sampling": "data.sampling",
    "foundation": None,
    "load": "storage",
    "metrics": None,
    "plotting": None,
    "report": None,
    "search_kernel": "search.kernel_search",
}

__all__ = [
    "CVPlusRegressor",
    "ExactGPRegressor",
    "GPNNRegressor",
    "TabPFNMean",
    "TableEncoder",
    "Training",
    "TwoStageGPClassifier",
    "TwoStageGPError",
    "TwoStageGPRegressor",
    "TwoStageGPWarning",
    "check_misspecification",
    "datasets",
    "errors",
    "farthest_point_sampling",
    "foundation",
    "load",
    "metrics",
    "plotting",
    "report",
    "search_kernel",
]

if not TYPE_CHECKING:  # with it, a type checker would take any name for one of ours

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        home = _HOMES[name]
        if home is None:
            return import_module(f"{__name__}.{name}")
        value = getattr(import_module(f"{__name__}.{home}"), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
