"""twostagegp: a predictive distribution that you can trust, without hand-tuning.

A first stage predicts the mean, a second models the uncertainty of what is left, and held-out
rows calibrate the result.

Names are imported when they are first used (PEP 562): ``import twostagegp`` costs nothing, and
``twostagegp --help`` answers without loading torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from twostagegp import columns as columns
    from twostagegp import datasets as datasets
    from twostagegp import errors as errors
    from twostagegp import foundation as foundation
    from twostagegp import metrics as metrics
    from twostagegp import plotting as plotting
    from twostagegp import report as report
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

#: Where each public name lives; None: it is a module of this package.
_HOMES = {
    "CVPlusRegressor": "conformal",
    "ExactGPRegressor": "baselines",
    "GPNNRegressor": "gpnn",
    "Training": "training",
    "TwoStageGPClassifier": "classifier",
    "TwoStageGPError": "errors",
    "TwoStageGPRegressor": "regressor",
    "TwoStageGPWarning": "errors",
    "check_misspecification": "search.misspecification",
    "columns": None,
    "datasets": None,
    "errors": None,
    "farthest_point_sampling": "sampling",
    "foundation": None,
    "load": "files",
    "metrics": None,
    "plotting": None,
    "report": None,
    "search_kernel": "search.kernel_search",
}

__all__ = [
    "CVPlusRegressor",
    "ExactGPRegressor",
    "GPNNRegressor",
    "Training",
    "TwoStageGPClassifier",
    "TwoStageGPError",
    "TwoStageGPRegressor",
    "TwoStageGPWarning",
    "check_misspecification",
    "columns",
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
