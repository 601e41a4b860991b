"""``TwoStageGPClassifier``: classification with the same three parts."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from numbers import Integral, Real
from os import PathLike
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from twostagegp.classification.calibration import LatentScale
from twostagegp.classification.certainty import leading_pvalues
from twostagegp.classification.fit import ClassOptions, fit_classes
from twostagegp.classification.mean import ClassMean
from twostagegp.classification.probability import (
    mean_softmax,
    quadrature_softmax,
    sampled_softmax,
)
from twostagegp.classification.table import ClassTable, make_table
from twostagegp.classification.variance import TrainedKernel
from twostagegp.data.checks import (
    check_choice,
    check_count,
    check_groups,
    check_nonnegative,
    is_dask,
)
from twostagegp.data.columns.encoder import TableEncoder
from twostagegp.data.columns.tables import (
    encoded_names,
    learn_columns,
    new_inputs,
    training_table,
)
from twostagegp.engines.memory import check_dense_memory, dense_bytes
from twostagegp.errors import InputError
from twostagegp.estimators import shortcuts
from twostagegp.estimators.fit_report import FitReport
from twostagegp.estimators.fitted import FittedClasses
from twostagegp.estimators.reporting import announce, class_candidates, class_report
from twostagegp.estimators.validation import (
    KERNEL,
    KERNELS_LIST,
    SHARED_CONSTRAINTS,
    SOME_KERNELS,
    Where,
    at_least,
    check_parameters,
    is_kernel,
    raised_noise_floor,
)
from twostagegp.pipeline.settings import DEFAULTS, QUICK, ClassSettings, Settings
from twostagegp.runtime.cores import use_cores
from twostagegp.runtime.device import resolve_device
from twostagegp.runtime.prediction_checks import require_finite
from twostagegp.runtime.threads import no_denormals, show_log
from twostagegp.runtime.transaction import unchanged_on_error
from twostagegp.search.stages import SearchRecord
from twostagegp.training.schedule import Training

__all__ = ["TwoStageGPClassifier"]

Array = NDArray[np.float64]


def _is_stage_count(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and value in (1, 2)


def _is_classifier_like(value: Any) -> bool:
    methods = hasattr(value, "predict_proba") and hasattr(value, "fit")
    return methods and not isinstance(value, type)


def _is_mean_list(value: Any) -> bool:
    several = isinstance(value, list | tuple) and len(value) > 0
    return several and all(is_kernel(each) or _is_classifier_like(each) for each in value)


class TwoStageGPClassifier(ClassifierMixin, BaseEstimator):
    r"""Gaussian process classification in two stages, with probabilities that can be trusted.

    Labels become regression targets by the Dirichlet transform, one latent function per class. A
    stack of kernel ridge regressions and a logistic regression, pooled by held-out log loss,
    predicts the latents; zero-mean Gaussian processes on what is left give their variance; held-out
    log loss sets the scale of both. Probabilities are means of the softmax over the latents.

    Parameters
    ----------
    stages : {2, 1, "auto"}
        2: a stack gives the mean, Gaussian processes on its residuals the variance. 1: Gaussian
        processes on the targets themselves give both, in about a third of the time. ``"auto"``
        stops after one stage unless the first models of the stack lower the held-out log loss by
        more than its standard error.
    alpha_eps : "auto" or float
        Dirichlet parameter of the classes that a row does not belong to; ``"auto"`` chooses it by
        held-out log loss.
    latent_scale : "auto" or float
        Factor of the latents before the softmax; ``"auto"`` chooses factors of mean and variance,
        and one bias per class, by held-out log loss.
    n_samples : int
        Draws of the latents behind a probability.
    smoothing : float
        Soft labels: this share of a label is spread over all classes.
    method : {"auto", "exact", "neighbors"}
        ``"neighbors"`` predicts from the nearest rows only.
    kernels : sequence of str or GPyTorch kernels
        The dictionary. A table of more than 30 columns is treated as an embedding: kernels are
        tried on three scalings of it, a linear kernel joins, and no kernel has one lengthscale
        per column.
    ard : {"both", True, False}
    mean : "stack", "search", kernel, classifier, or list of these
        Part 1: ridges and a logistic regression; the single best ridge; one kernel; any
        scikit-learn classifier with ``predict_proba`` (cross-fitted).
    variance : "search", kernel, or list of kernels
        Part 2.
    residuals : {"heldout", "insample"}
        Residuals that part 2 sees; ``"insample"`` is the paper's choice.
    n_neighbors : int
        Rows that a prediction of ``method="neighbors"`` is made from.
    training : Training, optional
        A fixed optimiser schedule for part 2.
    noise_floor : float
        Lower bound of the noise variance that is learned beside that of the transform.
    device : str
    dtype : {"float64", "float32"}
    n_jobs : int, optional
        Cores of a fit or prediction: -1 for all, -2 for all but one. None uses all cores, and one
        inside a worker of joblib, multiprocessing or Dask.
    random_state : int, RandomState or None
    verbose : int
        1 shows progress and the report on the standard error stream.
    missing : {"auto", "impute", "error"}
        Gaps in X: ``"impute"`` fills them by the rules of docs/tables.md, ``"error"`` refuses them,
        ``"auto"`` fills those of data frames and refuses those of arrays.
    settings : Settings, optional
        Thresholds of the fit, for experiments with the method itself
        (:class:`twostagegp.pipeline.settings.Settings`).

    Attributes
    ----------
    classes_ : array of shape (K,)
    mean_, variance_, calibration_ : the fitted parts
    fit_report_ : FitReport
    search_ : SearchRecord
        Every candidate kernel of both stages with its score.
    columns_ : TableEncoder or None
        What became of the columns of a data frame.
    n_features_in_, feature_names_in_ : as in scikit-learn

    Examples
    --------
    >>> import numpy as np
    >>> from twostagegp import TwoStageGPClassifier
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(120, 2))
    >>> y = np.where(X[:, 0] + 0.3 * rng.normal(size=120) > 0, "ill", "well")
    >>> model = TwoStageGPClassifier(random_state=0).fit(X, y)
    >>> model.predict([[2.0, 0.0]])
    array(['ill'], dtype='<U4')
    >>> model.predict_proba(X).shape
    (120, 2)
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "stages": [StrOptions({"auto"}), Where("2", "1", holds=_is_stage_count)],
        "alpha_eps": [StrOptions({"auto"}), Interval(Real, 0, None, closed="neither")],
        "latent_scale": [StrOptions({"auto"}), Interval(Real, 0, None, closed="neither")],
        "n_samples": [at_least(1)],
        "smoothing": [Interval(Real, 0, 1, closed="left")],
        "method": [StrOptions({"auto", "exact", "neighbors"})],
        "kernels": [KERNELS_LIST],
        "ard": ["boolean", StrOptions({"both"})],
        "mean": [
            StrOptions({"stack", "search"}),
            KERNEL,
            Where("a scikit-learn classifier object with predict_proba", holds=_is_classifier_like),
            Where("a non-empty list of kernels and classifiers", holds=_is_mean_list),
        ],
        "variance": [StrOptions({"search"}), KERNEL, SOME_KERNELS],
        "residuals": [StrOptions({"heldout", "insample"})],
        "n_neighbors": [at_least(1)],
        "settings": [Settings, None],
        **SHARED_CONSTRAINTS,
    }

    n_features_in_: int
    feature_names_in_: NDArray[Any]
    columns_: TableEncoder | None
    classes_: NDArray[Any]
    fitted_: FittedClasses
    fit_report_: FitReport

    def __init__(
        self,
        stages: int | str = 2,
        alpha_eps: float | str = "auto",
        latent_scale: float | str = "auto",
        n_samples: int = 256,
        smoothing: float = 0.0,
        method: str = "auto",
        kernels: Any = ("rbf", "matern12", "matern32", "matern52", "laplacian"),
        ard: bool | str = "both",
        mean: Any = "stack",
        variance: Any = "search",
        residuals: str = "heldout",
        n_neighbors: int = 100,
        training: Training | None = None,
        noise_floor: float = 1e-6,
        device: str = "auto",
        dtype: str = "float64",
        n_jobs: int | None = None,
        random_state: Any = None,
        verbose: int = 0,
        missing: str = "auto",
        settings: Settings | None = None,
    ) -> None:
        self.stages = stages
        self.alpha_eps = alpha_eps
        self.latent_scale = latent_scale
        self.n_samples = n_samples
        self.smoothing = smoothing
        self.method = method
        self.kernels = kernels
        self.ard = ard
        self.mean = mean
        self.variance = variance
        self.residuals = residuals
        self.n_neighbors = n_neighbors
        self.training = training
        self.noise_floor = noise_floor
        self.device = device
        self.dtype = dtype
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose
        self.missing = missing
        self.settings = settings

    @classmethod
    def quick(cls, **overrides: Any) -> TwoStageGPClassifier:
        """Return an estimator that is fitted in a fraction of the time.

        For interactive use and loops of cross-validation: one stage, one kernel instead of five
        (with one lengthscale for all columns and with one per column), trained on fewer rows. What
        it saves, and what it costs in accuracy: docs/defaults.md.

        Parameters
        ----------
        **overrides
            Parameters of the estimator that replace those of the preset.

        Examples
        --------
        >>> import numpy as np
        >>> from twostagegp import TwoStageGPClassifier
        >>> X = np.linspace(-1, 1, 80)[:, None]
        >>> model = TwoStageGPClassifier.quick(random_state=0).fit(X, X[:, 0] > 0)
        >>> model.predict([[-0.5], [0.5]])
        array([False,  True])
        """
        settings: dict[str, Any] = {"stages": 1, "kernels": ("matern52",), "settings": QUICK}
        return cls(**{**settings, **overrides})

    @classmethod
    def from_paper(cls, **overrides: Any) -> TwoStageGPClassifier:
        """Return an estimator with the settings of the paper's Table 8.

        RBF kernels, soft labels, AdamW with cosine warm restarts; two stages: a ridge, then a GP on
        its in-sample residuals by 50 steps at 0.1 on 200 random rows and 600 at 0.01 on all; one
        stage: 600 steps at 0.1 on all rows. Nothing is calibrated. How open points of the paper
        were read: docs/paper_settings.md.
        """
        single = overrides.get("stages", 2) == 1
        training = Training(optimizer="adamw", steps=600, lr=0.1, schedule="cosine")
        if not single:
            training = Training(
                optimizer="adamw",
                steps=50,
                lr=0.1,
                schedule="cosine",
                subsample=200,
                refine_steps=600,
                refine_lr=0.01,
            )
        settings: dict[str, Any] = {
            "alpha_eps": 0.01,
            "latent_scale": 1.0,
            "smoothing": 0.1,
            "method": "exact",
            "kernels": ("rbf",),
            "ard": False,
            "mean": "rbf",
            "variance": "rbf",
            "residuals": "insample",
            "training": training,
        }
        return cls(**{**settings, **overrides})

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.missing == "impute"
        return tags

    # --- fit -------------------------------------------------------------------------------------

    def fit(
        self,
        X: Any,
        y: Any,
        groups: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> TwoStageGPClassifier:
        """Fit the model; an error leaves the model as it was before.

        Parameters
        ----------
        X : data frame or array-like of shape (n, d)
            A frame may hold categories, booleans, text labels, dates and gaps: docs/tables.md.
        y : array-like of shape (n,)
            Labels of any type.
        groups : array-like of shape (n,), optional
            Rows with the same label (of one patient, of one document) are held out together
            wherever something is chosen or calibrated.
        sample_weight : array-like of shape (n,), optional
            Counts: a row of weight 2 counts as two equal rows, a row of weight 0 is left out.
        """
        begin = time.perf_counter()
        with unchanged_on_error(self):
            check_parameters(self)
            _refuse_dask(X, y)
            table_in, y = training_table(self, X, y, dtype=np.float64, ensure_all_finite=False)
            check_classification_targets(y)
            n = len(table_in)
            weight = check_nonnegative(sample_weight, n, "sample_weight")
            X = learn_columns(self, X, table_in, weight)
            names = encoded_names(self)
            self.classes_, codes = np.unique(y, return_inverse=True)
            if len(self.classes_) < 2:
                raise InputError(
                    f"y has one class only, {self.classes_[0]!r}; a classifier needs at least two "
                    "classes."
                )
            device = resolve_device(self.device, n)
            dtype = torch.float64 if self.dtype == "float64" else torch.float32
            seed = int(check_random_state(self.random_state).randint(2**31 - 1))
            with use_cores(self.n_jobs), no_denormals(), show_log(self.verbose):
                table = make_table(
                    X,
                    codes,
                    len(self.classes_),
                    names,
                    weight,
                    check_groups(groups, n),
                    device,
                    dtype,
                    self._settings.many_columns,
                )
                method, reason = self._choose_method(table)
                fit = fit_classes(table, self._options(method), seed)
            shape = (self.n_samples, table.n_classes)
            draws = np.random.default_rng(seed).standard_normal(shape)
            self.fitted_ = FittedClasses(fit, draws)
            report = class_report(table, fit, method, reason)
            report.seconds["total"] = time.perf_counter() - begin
            report.encoded_columns = [] if self.columns_ is None else self.columns_.lines()
            self.fit_report_ = report
            announce([report], self.verbose, stacklevel=3)
            return self

    def _options(self, method: str) -> ClassOptions:
        return ClassOptions(
            self.stages if isinstance(self.stages, str) else int(self.stages),
            self.alpha_eps,
            self.latent_scale,
            float(self.smoothing),
            method,
            tuple(self.kernels),
            self.ard,
            self.mean,
            self.variance,
            self.residuals,
            int(self.n_neighbors),
            self.training,
            raised_noise_floor(self.noise_floor, self.dtype),
            self._settings,
        )

    @property
    def _settings(self) -> ClassSettings:
        return (DEFAULTS if self.settings is None else self.settings).classes

    def _choose_method(self, table: ClassTable) -> tuple[str, str]:
        m = len(table)
        itemsize = 8 if self.dtype == "float64" else 4
        exact = (self.settings or DEFAULTS).exact
        if self.method == "exact":
            check_dense_memory(m, table.device, itemsize, exact)
        if self.method != "auto":
            return self.method, "asked for"
        limits = self._settings
        most = limits.exact_rows_gpu if table.device.type == "cuda" else limits.exact_rows
        if len(table.views[0].columns) > limits.many_columns:
            most = max(most, limits.exact_rows_wide)
        if m > most:
            return "neighbors", f"{m} distinct rows, more than {most}"
        needed, available = dense_bytes(m, itemsize), exact.free_bytes(table.device)
        if available is not None and needed > available:
            return "neighbors", (
                f"an exact fit of {m} distinct rows would need {needed / 2**30:.1f} GiB of "
                f"{available / 2**30:.1f}"
            )
        return "exact", f"{m} distinct rows"

    @property
    def search_(self) -> SearchRecord:
        """Every candidate kernel of both stages; scores of the mean are held-out log losses."""
        mean, variance = class_candidates(self.fitted_.fit)
        return SearchRecord(mean + variance)

    @property
    def mean_(self) -> ClassMean | None:
        """Part 1; None for a single stage."""
        return self.fitted_.fit.mean

    @property
    def variance_(self) -> TrainedKernel:
        """Part 2: the kernel of the Gaussian processes and its hyperparameters."""
        return self.fitted_.fit.trained

    @property
    def calibration_(self) -> LatentScale:
        """Part 3: factors of mean and variance, and a bias per class."""
        return self.fitted_.fit.scale

    # --- predictions -----------------------------------------------------------------------------

    def predict_proba(self, X: Any, method: str = "sampling") -> Array:
        """Return the probabilities of the classes, shape (n, K), in the order of ``classes_``.

        Parameters
        ----------
        X : array-like of shape (n, d)
        method : {"sampling", "quadrature"}
            Mean of the softmax over ``n_samples`` draws of the latents, the same for all rows and
            all calls; or numerical integration, which draws nothing.
        """
        check_choice("method", method, ("sampling", "quadrature"))
        parts = []
        for mean, variance in self._moments(X):
            if method == "sampling":
                parts.append(mean_softmax(mean, variance, self.fitted_.draws))
            else:
                parts.append(quadrature_softmax(mean, variance))
        P = np.concatenate(parts)
        require_finite(P)
        return P

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the most probable class of each row, shape (n,)."""
        best = self.predict_proba(X).argmax(1)
        return np.asarray(self.classes_[best])

    def predict_log_proba(self, X: Any) -> Array:
        """Return the logarithms of the probabilities, shape (n, K)."""
        return np.log(np.maximum(self.predict_proba(X), np.finfo(np.float64).tiny))

    def predict_latent(self, X: Any) -> tuple[Array, Array]:
        """Return mean and standard deviation of the latent functions, each of shape (n, K)."""
        moments = list(self._moments(X))
        return (
            np.concatenate([mean for mean, _ in moments]),
            np.sqrt(np.concatenate([variance for _, variance in moments])),
        )

    def sample_proba(self, X: Any, n_samples: int = 100, random_state: Any = None) -> Array:
        """Return class probabilities for draws of the latents, shape (n_samples, n, K).

        Each sample uses the same standard normal draw for all rows.
        """
        check_is_fitted(self, "fitted_")
        rng = check_random_state(random_state)
        draws = rng.standard_normal((check_count("n_samples", n_samples), len(self.classes_)))
        parts = [sampled_softmax(f, v, draws) for f, v in self._moments(X)]
        return np.concatenate(parts, axis=1)

    def predict_certainty(
        self, X: Any, level: float = 0.05, n_samples: int = 100, return_pvalue: bool = False
    ) -> Any:
        """Return which predictions are certain, by a t-test between the two leading classes.

        A prediction is certain if the paired test of :mod:`twostagegp.classification.certainty` is
        significant at ``level``. More draws make more predictions certain, so their number is part
        of the definition; 100 is that of the literature.

        Parameters
        ----------
        X : array-like of shape (n, d)
        level : float
        n_samples : int
        return_pvalue : bool

        Returns
        -------
        certain : bool array of shape (n,)
        pvalue : array of shape (n,), if asked for
        """
        if not (isinstance(level, Real) and 0.0 < level < 1.0):
            raise InputError(f"level={level!r} must lie between 0 and 1, such as 0.05.")
        S = check_count("n_samples", n_samples, least=2)
        check_is_fitted(self, "fitted_")
        draws = np.random.default_rng(0).standard_normal((S, len(self.classes_)))
        values = []
        for mean, variance in self._moments(X):
            values.append(leading_pvalues(sampled_softmax(mean, variance, draws)))
        pvalue = np.concatenate(values)
        certain = pvalue < level
        return (certain, pvalue) if return_pvalue else certain

    def _moments(self, X: Any) -> Iterator[tuple[Array, Array]]:
        """Yield mean and variance of the latents, each (rows, K), chunk by chunk."""
        check_is_fitted(self, "fitted_")
        _refuse_dask(X)
        numbers = new_inputs(self, X)
        with use_cores(self.n_jobs), no_denormals():
            yield from self.fitted_.moments(numbers)

    # --- shortcuts -------------------------------------------------------------------------------

    def plot(
        self,
        X: Any = None,
        y: Any = None,
        *,
        features: str | Sequence[str] | None = None,
        level: float = 0.95,
        ax: Any = None,
    ) -> Any:
        """Draw the probabilities of the fitted model, in the user's columns and units.

        One input: the probability with its band, and the rows. Two inputs: maps of the probability
        and of its spread. More: reliability and risk–coverage if X and y are given, otherwise
        slices along the four inputs that matter most, the others at typical values.

        Parameters
        ----------
        X : data frame or array-like of shape (n, d), optional
            Rows that give the range of the pictures; the training rows by default.
        y : array-like of shape (n,), optional
            Labels of X.
        features : str or sequence of str, optional
            Draw slices along these columns.
        level : float
            Probability of the bands.
        ax : Axes or sequence of Axes, optional
            Where to draw; a new figure by default. pyplot is not used:
            ``model.plot()[0].figure.savefig("model.png")`` keeps a picture.

        Returns
        -------
        list of matplotlib Axes
        """
        return shortcuts.plot(self, X, y, features, level, 0, ax)

    def save(self, path: str | PathLike[str], *, include_factors: bool = False) -> None:
        """Write the fitted model into a folder; :func:`twostagegp.load` reads it back.

        Needs ``pip install 'twostagegp[files]'``. What the folder contains, and which models are
        refused: docs/files.md.

        Parameters
        ----------
        path : path of the folder
            It is created if necessary. A model that is already there is replaced in one step,
            once the new one has been written completely.
        include_factors : bool
            Also store factorised matrices of n × n numbers, instead of computing them again in
            :func:`twostagegp.load`.
        """
        shortcuts.save(self, path, include_factors)


def _refuse_dask(*values: Any) -> None:
    """Raise InputError for a Dask collection, which would otherwise be computed silently."""
    for value in values:
        if is_dask(value):
            raise InputError(
                f"a classifier takes no Dask collection ({type(value).__name__}): give it "
                "value.compute(), or a sample of the rows that fits into memory; regressors take "
                "Dask collections as they are (docs/dask.md)."
            )
