r"""Choose a kernel from a dictionary (Algorithm 3) by repeated fits on common subsamples.

Every kernel is fitted to the same subsamples of the table. The kernel with the best mean score
wins; the score is

* ``"loo"``: negative leave-one-out log density of the training rows, per row (mean squared
  leave-one-out error for kernel ridge); smaller is better,
* ``"nll"``: negative log likelihood, per row; smaller is better,
* ``"misspecification"``: the share :math:`\hat p` of Algorithm 2; larger is better.

The paper's Algorithm 3 keeps the largest :math:`\hat p` seen so far. It prints ``p* = 0`` and
``kernel* = None`` inside the loop; here they are set before it. The search stops early when the
ranking is unlikely to change (``early_stopping.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from twostagegp.data.checks import check_choice
from twostagegp.data.kept_columns import Columns
from twostagegp.data.rows import Rows
from twostagegp.errors import ClusterError, InputError, NotFittableError
from twostagegp.kernels import Kernel, kernel_list
from twostagegp.runtime.cores import use_cores
from twostagegp.runtime.threads import show_log
from twostagegp.search.early_stopping import checkpoints, probability_of_rank_change
from twostagegp.search.inputs import (
    LOG,
    check_between_0_and_1,
    check_positive,
    prepare_table,
    resolve_sampling,
)
from twostagegp.search.repetitions import Repeated, RepetitionOptions, Repetitions, penalty_grid
from twostagegp.search.runners import client_and_device, open_runner
from twostagegp.search.settings import SearchSettings

__all__ = [
    "Entry",
    "KernelSearch",
    "default_sampling",
    "run_search",
    "search_kernel",
]

Array = NDArray[np.float64]

SELECTIONS = ("loo", "nll", "misspecification")


@dataclass
class Entry:
    """One kernel of the dictionary with its scores.

    Attributes
    ----------
    label : str
    given : str or GPyTorch kernel
        As the user passed it.
    kernel : Kernel or None
        None if it could not be built.
    repeated : Repeated or None
        Scores; None if no repetition could be run.
    failure : str
        Why the kernel is excluded; empty if it is not.
    """

    label: str
    given: Any
    kernel: Kernel | None
    repeated: Repeated | None = None
    failure: str = ""


@dataclass(frozen=True)
class KernelSearch:
    """Result of :func:`search_kernel`.

    Attributes
    ----------
    best : str or GPyTorch kernel
        The winner as it was passed, ready for another estimator.
    best_label : str
        Its name in the table; the suffix ``-ard`` means one lengthscale per column.
    best_ard : bool
        Whether it has one lengthscale per column: ``ExactGPRegressor(best, ard=best_ard)``.
    selection, model : str
    table : DataFrame
        One row per kernel, best first: ``score`` (smaller is better for ``"loo"`` and ``"nll"``,
        larger for ``"misspecification"``), ``spread`` (standard error of the score), ``p_hat``,
        ``heldout`` (negative log density of the held-out rows of each subsample), ``noise`` (median
        of the fitted noise standard deviation, in units of y), ``repeats``, ``seconds`` and
        ``failure``.
    decided_early : bool
        Whether the search stopped before all repetitions were done.
    entries : list of Entry
        Scores and parameters of every repetition.
    index : array of shape (repeats, subsample)
        Rows of each subsample, numbered as the distinct rows in sorted order; the first
        ``n_train`` are the training rows.
    """

    best: Any
    best_label: str
    selection: str
    model: str
    table: pd.DataFrame = field(repr=False)
    decided_early: bool
    entries: list[Entry] = field(repr=False)
    index: NDArray[np.int64] = field(repr=False)
    n_train: int
    seconds: dict[str, float] = field(repr=False, default_factory=dict)

    @property
    def best_ard(self) -> bool:
        """Whether the winner has one lengthscale per column."""
        kernel = self.best_entry.kernel
        return kernel is not None and kernel.ard

    @property
    def best_entry(self) -> Entry:
        """Scores and parameters of the winner."""
        return next(entry for entry in self.entries if entry.label == self.best_label)

    def __str__(self) -> str:
        return self.table.to_string(float_format=lambda value: f"{value:.4g}")

    def plot(self, ax: Any = None) -> Any:
        """Draw every kernel's score with its standard error, best first.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            New axes by default.

        Returns
        -------
        ax : matplotlib Axes
        """
        # The one import of a higher layer, and lazy: results can be drawn without a function call.
        from twostagegp.plotting.searches import draw_search

        return draw_search(self, ax)


def search_kernel(
    X: Any,
    y: ArrayLike,
    kernels: Mapping[str, Any] | Sequence[Any] = (
        "rbf",
        "matern12",
        "matern32",
        "matern52",
        "laplacian",
    ),
    *,
    model: str = "gp",
    selection: str = "loo",
    ard: bool | str = False,
    n_repeats: int = 100,
    subsample: int = 500,
    sampling: str = "auto",
    early: bool = True,
    confidence: float = 0.99,
    threshold: float = 1.1,
    penalty: Any = "auto",
    sample_weight: ArrayLike | None = None,
    noise_floor: float = 1e-8,
    device: str = "auto",
    n_jobs: int | None = None,
    random_state: Any = None,
    verbose: int = 0,
    client: Any = None,
) -> KernelSearch:
    """Choose the kernel that fits the data best.

    Parameters
    ----------
    X : data frame or array-like of shape (n, d)
        A frame may hold categories, booleans, text labels, dates and gaps: docs/tables.md.
    y : array-like of shape (n,)
    kernels : sequence or mapping
        Names and GPyTorch kernels, including sums and products; a mapping from labels to these
        gives them other labels.
    model : {"gp", "krr"}
        Gaussian process trained by its likelihood, or kernel ridge with the classical lengthscale.
    selection : {"loo", "nll", "misspecification"}
        The score: leave-one-out density, likelihood, or the paper's ratio test.
    ard : {False, True, "both"}
        For kernels given by name: one lengthscale for all columns, one per column, or both forms.
    n_repeats, subsample : int
        Number of repetitions at most, and of rows of each subsample, 80 % of which are training
        rows.
    sampling : {"auto", "fps", "random"}
        ``"auto"``: spread subsamples for ``"misspecification"``, as in the paper, else random ones.
    early : bool
        Stop when the ranking remains unchanged with probability ``confidence``.
    confidence : float
    threshold : float
        Largest error ratio that passes the ratio test.
    penalty : "auto", float or sequence of float
        Penalty of kernel ridge, or a grid of them; ``"auto"`` is the paper's grid.
    sample_weight, noise_floor, device, n_jobs, random_state, verbose, client
        As in :func:`~twostagegp.check_misspecification`.

    Returns
    -------
    KernelSearch

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-2, 2, size=(150, 1))
    >>> y = np.sin(3 * X[:, 0]) + 0.1 * rng.normal(size=150)
    >>> search = search_kernel(X, y, ("rbf", "matern12"), n_repeats=10, random_state=0)
    >>> search.best
    'rbf'
    >>> list(search.table.index)
    ['rbf', 'matern12']
    """
    check_choice("model", model, ("gp", "krr"))
    check_choice("selection", selection, SELECTIONS)
    check_choice("ard", ard, (True, False, "both"))
    check_choice("early", early, (True, False))
    check_between_0_and_1("confidence", confidence)
    if model == "krr" and selection == "nll":
        raise InputError(
            "selection='nll' with model='krr': kernel ridge has no likelihood; use "
            "selection='loo', or model='gp'."
        )
    check_positive("threshold", threshold, "the paper has 1.1")
    options = RepetitionOptions(
        model="krr" if model == "krr" else "gp",
        penalties=penalty_grid(penalty),
        threshold=threshold,
        noise_floor=noise_floor,
    )
    client, device = client_and_device(client, device)
    with use_cores(n_jobs), show_log(verbose):
        data, rng = prepare_table(
            X, y, sample_weight, noise_floor, n_repeats, subsample, device, random_state
        )
        return run_search(
            data.rows,
            kernel_entries(kernels, ard, data.rows.X.shape[1], data.columns),
            options,
            SearchSettings(n_repeats, subsample, confidence if early else None, client=client),
            selection=selection,
            sampling=resolve_sampling(sampling, default_sampling(selection)),
            y_scale=data.scaling.y_scale,
            rng=rng,
        )


def default_sampling(selection: str) -> str:
    """Return "fps" (spread subsamples) for the paper's test, "random" for densities.

    A density must be averaged over rows as they occur in the table.
    """
    return "fps" if selection == "misspecification" else "random"


def kernel_entries(
    kernels: Mapping[str, Any] | Sequence[Any],
    ard: bool | str,
    n_features: int,
    columns: Columns | None = None,
) -> list[Entry]:
    """Return one entry per kernel; a kernel that cannot be built has the reason as ``failure``."""
    if isinstance(kernels, str) or not isinstance(kernels, Mapping | Sequence) or not len(kernels):
        raise InputError(
            f"kernels={kernels!r}: use a non-empty sequence of names and GPyTorch kernels, or a "
            "mapping of labels to them."
        )
    entries: list[Entry] = []
    pairs = kernels.items() if isinstance(kernels, Mapping) else ((None, k) for k in kernels)
    for key, given in pairs:
        label = None if key is None else str(key)
        try:
            made = kernel_list([given], ard, n_features, columns)
        except InputError as error:
            if isinstance(given, str) or not hasattr(given, "forward"):
                raise
            made = []
            entries.append(Entry(label or type(given).__name__, given, None, failure=str(error)))
        for kernel in made:
            suffix = "-ard" if kernel.ard and label is not None else ""
            entries.append(Entry((label or kernel.label) + suffix, given, kernel))
    return _with_distinct_labels(entries)


def _with_distinct_labels(entries: list[Entry]) -> list[Entry]:
    """Append numbers to labels that occur several times."""
    seen: dict[str, int] = {}
    for entry in entries:
        seen[entry.label] = seen.get(entry.label, 0) + 1
        if seen[entry.label] > 1:
            entry.label = f"{entry.label} #{seen[entry.label]}"
    return entries


def run_search(
    rows: Rows,
    entries: list[Entry],
    options: RepetitionOptions,
    settings: SearchSettings,
    *,
    selection: str,
    sampling: str,
    y_scale: float,
    rng: np.random.Generator,
) -> KernelSearch:
    """Search on standardised rows.

    A kernel that cannot be fitted is excluded, with the reason; the search goes on.

    Parameters
    ----------
    rows : Rows
    entries : list of Entry
        Changed: scores and failures are added.
    options : RepetitionOptions
    settings : SearchSettings
    selection : {"loo", "nll", "misspecification"}
    sampling : {"fps", "random"}
    y_scale : float
        Units of the target, for the noise in the table.
    rng : Generator
    """
    n_repeats, confidence = settings.n_repeats, settings.confidence
    repetitions = Repetitions(rows, settings.subsample, sampling, rng, settings)
    counts = [n_repeats]
    if confidence is not None:
        counts = checkpoints(n_repeats, settings.first_checkpoint)
    with open_runner(settings.client) as runner:
        for count in counts:
            done = len(repetitions.index)
            repetitions.draw(count)
            running = [entry for entry in entries if entry.kernel is not None and not entry.failure]
            kernels = [entry.kernel for entry in running if entry.kernel is not None]
            started = runner.start(repetitions, kernels, options, done)
            for entry, result in zip(running, started, strict=True):
                _add_scores(entry, result, settings)
            fitted = _require_fitted(entries)
            if confidence is not None and count < n_repeats:
                scores = _common_scores(fitted, selection)
                risk = probability_of_rank_change(scores, n_repeats)
                if risk <= (1.0 - confidence) / len(counts):
                    LOG.info("the ranking is decided after %d repetitions", count)
                    break
    table = _table(entries, selection, y_scale)
    winner = next(entry for entry in _fitted(entries) if entry.label == table.index[0])
    return KernelSearch(
        best=winner.given,
        best_label=winner.label,
        selection=selection,
        model=options.model,
        table=table,
        decided_early=len(repetitions.index) < n_repeats,
        entries=entries,
        index=repetitions.index,
        n_train=repetitions.n_train,
        seconds={"subsamples": repetitions.seconds},
    )


def _add_scores(entry: Entry, result: Callable[[], Repeated], settings: SearchSettings) -> None:
    """Add further repetitions to an entry, or the reason why they failed."""
    try:
        more = result()
    except ClusterError:
        raise
    except Exception as error:  # a user's kernel may raise anything; the other kernels go on
        entry.failure = f"{type(error).__name__}: {error}"
        return
    entry.repeated = more if entry.repeated is None else entry.repeated.extended(more)
    failed = float(np.isnan(entry.repeated.ratio).mean())
    if failed > settings.max_failed_share:
        entry.failure = f"{failed:.0%} of the repetitions could not be fitted"
    LOG.info(
        "%s: %d of %d repetitions, %.1f s",
        entry.label, len(entry.repeated), settings.n_repeats, entry.repeated.seconds,
    )  # fmt: skip


def _fitted(entries: list[Entry]) -> list[Entry]:
    """Return the entries that have scores and are not excluded."""
    return [entry for entry in entries if entry.repeated is not None and not entry.failure]


def _require_fitted(entries: list[Entry]) -> list[Entry]:
    """Return the fitted entries; raise NotFittableError with all reasons if there are none."""
    fitted = _fitted(entries)
    if not fitted:
        reasons = "; ".join(f"{entry.label}: {entry.failure}" for entry in entries)
        raise NotFittableError(f"no kernel could be fitted: {reasons}")
    return fitted


def _scores(repeated: Repeated, selection: str) -> Array:
    """Return one score per repetition; larger is better for the paper's test only."""
    return {
        "loo": repeated.loo,
        "nll": repeated.nll,
        "misspecification": repeated.ratio,
    }[selection]


def _common_scores(fitted: list[Entry], selection: str) -> Array:
    """Return scores on the repetitions that all kernels have, shape (kernels, repetitions)."""
    scores = np.array([_scores(entry.repeated, selection) for entry in fitted if entry.repeated])
    return scores[:, np.isfinite(scores).all(0)]


def _table(entries: list[Entry], selection: str, y_scale: float) -> pd.DataFrame:
    """Return one row per kernel; scores are means over repetitions that all fitted kernels have."""
    fitted = _fitted(entries)
    all_scores = np.array([_scores(e.repeated, selection) for e in fitted if e.repeated])
    common = np.isfinite(all_scores).all(0)
    rows = []
    for entry in entries:
        row: dict[str, Any] = {"kernel": entry.label}
        if entry.repeated is not None:
            scores = _scores(entry.repeated, selection)
            use = np.isfinite(scores)
            if not entry.failure and common.any():
                use = common
            scores = scores[use]
            several = scores.size > 1
            row |= {
                "score": scores.mean() if scores.size else np.nan,
                "spread": scores.std(ddof=1) / np.sqrt(scores.size) if several else np.nan,
                "p_hat": np.nanmean(entry.repeated.ratio) if scores.size else np.nan,
                "heldout": np.nanmean(entry.repeated.heldout) if scores.size else np.nan,
                "noise": y_scale * np.nanmedian(entry.repeated.noise) if scores.size else np.nan,
                "repeats": len(entry.repeated),
                "seconds": entry.repeated.seconds,
            }
        rows.append({**row, "failure": entry.failure})
    columns = ["kernel", "score", "spread", "p_hat", "heldout", "noise", "repeats", "seconds"]
    table = pd.DataFrame(rows, columns=[*columns, "failure"]).set_index("kernel")
    larger_is_better = selection == "misspecification"
    key = table["score"].where(table["failure"] == "")
    order = key.sort_values(ascending=not larger_is_better, kind="stable").index
    return table.loc[order]
