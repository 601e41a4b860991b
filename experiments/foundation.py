r"""Classifiers on the features of frozen foundation models: which probabilities can be trusted?

**Sets.** Two of medical images, whose features lie in the data folder, and three of medical texts,
which are encoded once by ``TextEncoder("minilm")`` and cached in the user's cache folder. Rows that
belong together (a patient, a document, equal texts) are a group; ChemProt's sentences are
compared without the brackets around their two entities. The data folder is named by
``TWOSTAGEGP_DATA``.

**Splits.** Seed 0 is the split that comes with the data. Every other seed draws as many groups to
test as that one has, at random among the same rows, and no group is on both sides. (ChemProt's
development rows are left out of both.) Training rows above ``--rows`` and test rows above 4000 are
dropped at random. A test row of a class that no training row has is wrong for every model, with
probability zero for its class, which costs 36 nats.

**Models.** Everything is chosen inside the training rows, by the log loss of groups held out.

* ``mc_dropout``: a linear layer with dropout; dropout rate, step size and epochs on one fifth of
  the groups, then trained on all rows.
* ``logistic``: logistic regression on features divided by one common number or each by its own
  standard deviation; penalty and scaling by five folds. C goes up until the loss rises.
* ``single``, ``two_stage``: :class:`twostagegp.TwoStageGPClassifier` with one stage and with two.
* ``paper``: the same with the paper's settings, on at most 1500 rows.

**Certain rows.** With sampled probabilities :math:`p_1^s, p_2^s`, s = 1, …, 100, of the two classes
that lead on average, and :math:`d_s = p_1^s - p_2^s`, a row is certain where

.. math:: t = \frac{\bar d}{\mathrm{sd}(d) / \sqrt{100}}

is significant at 0.05. Logistic regression has no samples, and so no certain rows.

    python -m experiments.foundation --sets breakhis,oct --models logistic,single,two_stage
    python -m experiments.foundation --device cuda
    python -m experiments.foundation --quick

The page shows the fits with the smallest ``--rows`` of the stored ones, and those with more rows in
a section of their own.
"""

from __future__ import annotations

import argparse
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold, GroupShuffleSplit

from experiments import RESULTS
from experiments.foundation_report import picture, report
from experiments.mc_dropout import MCDropoutClassifier
from measurements.arguments import names, positive
from measurements.runner import Measurement, run
from measurements.store import Record
from measurements.timing import Timed
from twostagegp import TwoStageGPClassifier
from twostagegp.classification.certainty import leading_pvalues
from twostagegp.datasets import FOLDER_VARIABLE, DatasetNotFoundError
from twostagegp.errors import InputError
from twostagegp.foundation import TextEncoder
from twostagegp.metrics.classification import evaluate_classification, log_loss
from twostagegp.runtime.device import resolve_device

__all__ = [
    "MEASUREMENT",
    "MODELS",
    "SETS",
    "LabelledSet",
    "Table",
    "Task",
    "cache_folder",
    "certain_rows",
    "fit_logistic",
    "fit_mc_dropout",
    "gaussian_process",
    "load_set",
    "measure",
    "penalty_losses",
    "split",
]

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

#: Test rows at most, and training rows of the paper's settings at most.
TEST_ROWS, PAPER_ROWS = 4000, 1500
#: Draws behind the choice of certain rows, and its level.
SAMPLES, LEVEL = 100, 0.05
#: Choices of Monte Carlo dropout.
DROPOUT_CHOICES = tuple(
    {"dropout": dropout, "lr": lr, "epochs": epochs}
    for dropout, lr, epochs in product((0.1, 0.3, 0.5), (0.01, 0.03, 0.1), (10, 30, 100))
)
#: Penalties of logistic regression, from strong to weak.
PENALTIES = tuple(10.0 ** (k / 2.0) for k in range(-8, 3))
#: Tokens of a text that MiniLM was trained for; longer texts are cut.
_TOKENS = 256
_ITERATIONS = 1000


# --- sets ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Source:
    """The file of a set.

    ``groups`` names a column; None: equal texts belong together, also if they differ in what the
    expression ``marks`` matches.
    """

    file: str
    groups: str | None = None
    marks: str = ""

    @property
    def is_text(self) -> bool:
        """Whether rows are texts that have to be encoded."""
        return not self.file.endswith(".npz")


SETS: Mapping[str, Source] = {
    "breakhis": Source("medical_image/breakhis400x.npz", groups="patient"),
    "oct": Source("medical_image/retinal_oct.npz", groups="patient"),
    "ade": Source("medical_text/ade.csv.gz", groups="pmid"),
    "abstracts": Source("medical_text/medical_abstracts.csv.gz"),
    # A sentence occurs once for each pair of entities, which are in brackets.
    "chemprot": Source("medical_text/chemprot.csv.gz", marks=r"<<|>>|\[\[|\]\]"),
}


@dataclass(frozen=True, eq=False)
class LabelledSet:
    """A set for classification.

    Attributes
    ----------
    name : str
    X : array of shape (n, d)
        Features.
    y : array of shape (n,), of str
        Labels.
    groups : integer array of shape (n,)
        Equal numbers mark rows that belong together.
    train, test : integer arrays
        Rows of the split that comes with the data.
    """

    name: str
    X: Array
    y: NDArray[np.str_]
    groups: Indices
    train: Indices
    test: Indices


def find(name: str) -> Path:
    """Return the file of a set, in the folder that ``TWOSTAGEGP_DATA`` names or flat in it."""
    given = os.environ.get(FOLDER_VARIABLE)
    how = f"Set the environment variable {FOLDER_VARIABLE} to the data folder."
    if not given:
        raise DatasetNotFoundError(f"no data folder for the set {name!r}. {how}")
    file = SETS[name].file
    tried = (Path(given) / file, Path(given) / Path(file).name)
    for path in tried:
        if path.is_file():
            return path
    places = ", ".join(map(str, tried))
    raise DatasetNotFoundError(f"no file for the set {name!r}; tried {places}. {how}")


def cache_folder() -> Path:
    """Return the folder of the encoded texts."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "twostagegp" / "foundation"


@lru_cache(maxsize=1)
def load_set(name: str, device: str = "auto") -> LabelledSet:
    """Read a set; texts that the cache does not have yet are encoded."""
    path = find(name)
    return _read_texts(name, path, device) if SETS[name].is_text else _read_images(name, path)


def _read_images(name: str, path: Path) -> LabelledSet:
    key = str(SETS[name].groups)
    with np.load(path, allow_pickle=False) as arrays:
        missing = [k for k in ("features", "label", "test", key) if k not in arrays]
        if missing:
            raise InputError(f"{path} lacks the arrays {missing} of the set {name!r}")
        test = np.asarray(arrays["test"], dtype=bool)
        return LabelledSet(
            name,
            np.asarray(arrays["features"], dtype=np.float64),
            np.asarray(arrays["label"]).astype(str),
            _codes(arrays[key]),
            np.flatnonzero(~test),
            np.flatnonzero(test),
        )


def _read_texts(name: str, path: Path, device: str) -> LabelledSet:
    table = pd.read_csv(path)
    key = SETS[name].groups or "text"
    missing = [k for k in ("text", "label", "split", key) if k not in table]
    if missing:
        raise InputError(f"{path} lacks the columns {missing} of the set {name!r}")
    encoder = TextEncoder("minilm", max_length=_TOKENS, cache_dir=cache_folder(), device=device)
    part = table["split"].to_numpy().astype(str)
    belongs = table[key]
    if SETS[name].marks:
        bare = belongs.str.replace(SETS[name].marks, " ", regex=True)
        belongs = bare.str.replace(r"\s+", "", regex=True)
    return LabelledSet(
        name,
        np.asarray(encoder.transform(table["text"].tolist()), dtype=np.float64),
        table["label"].to_numpy().astype(str),
        _codes(belongs.to_numpy()),
        np.flatnonzero(part == "train"),
        np.flatnonzero(part == "test"),
    )


def _codes(values: Any) -> Indices:
    return np.asarray(pd.factorize(np.asarray(values))[0], dtype=np.int64)


# --- splits --------------------------------------------------------------------------------------


def generator(*words: Any) -> np.random.Generator:
    """Return a source of random numbers that the words determine."""
    return np.random.default_rng(list(":".join(map(str, words)).encode()))


def split(
    data: LabelledSet, seed: int, rows: int, test_rows: int = TEST_ROWS
) -> tuple[Indices, Indices]:
    """Return at most ``rows`` training and ``test_rows`` test rows, in increasing order."""
    train, test = data.train, data.test
    if seed:
        used = np.sort(np.concatenate([train, test]))
        # A number of groups: as a share, rounding could change it.
        count = len(np.unique(data.groups[test]))
        shuffle = GroupShuffleSplit(1, test_size=count, random_state=seed)
        chosen = next(shuffle.split(used, groups=data.groups[used]))
        train, test = (used[part] for part in chosen)
    rng = generator("foundation", data.name, seed)
    return _capped(train, rows, rng), _capped(test, test_rows, rng)


def _capped(rows: Indices, most: int, rng: np.random.Generator) -> Indices:
    # Always permuted, so that a limit on one side does not change the other; a smaller limit takes
    # some of the rows of a larger one.
    return np.sort(rng.permutation(rows)[:most])


# --- models --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Table:
    """Training rows: X of shape (n, d), y and groups of shape (n,)."""

    X: Array
    y: NDArray[np.str_]
    groups: Indices

    def take(self, rows: Indices) -> Table:
        """Return some of the rows."""
        return Table(self.X[rows], self.y[rows], self.groups[rows])


@dataclass(frozen=True)
class Fitted:
    """A model with what was chosen for it; ``certain`` is None if it has no samples."""

    classes: NDArray[np.str_]
    predict_proba: Callable[[Array], Array]
    certain: Callable[[Array], NDArray[np.bool_]] | None
    chosen: Record
    device: str


def certain_rows(samples: Array, level: float = LEVEL) -> NDArray[np.bool_]:
    """Return the rows whose two leading classes differ in a paired t-test over samples.

    The test of :meth:`twostagegp.TwoStageGPClassifier.predict_certainty`.

    Parameters
    ----------
    samples : array of shape (S, n, K)
    level : float

    Examples
    --------
    >>> steady = [[[0.6, 0.4]], [[0.7, 0.3]], [[0.65, 0.35]]]
    >>> torn = [[[0.9, 0.1]], [[0.2, 0.8]], [[0.5, 0.5]]]
    >>> certain_rows(np.concatenate([steady, torn], axis=1))
    array([ True, False])
    """
    return leading_pvalues(samples) < level


def all_classes(
    y: NDArray[np.str_], proba: Array, classes: NDArray[np.str_]
) -> tuple[Array, NDArray[np.str_]]:
    """Return probabilities with a column of zeros for every label that the model does not know.

    Examples
    --------
    >>> p, classes = all_classes(
    ...     np.array(["a", "c"]), np.array([[0.5, 0.5]] * 2), np.array(["a", "b"])
    ... )
    >>> p.tolist(), classes.tolist()
    ([[0.5, 0.5, 0.0], [0.5, 0.5, 0.0]], ['a', 'b', 'c'])
    """
    unknown = np.setdiff1d(y, classes)
    zeros = np.zeros((len(proba), len(unknown)))
    return np.hstack([proba, zeros]), np.concatenate([classes, unknown])


def heldout_loss(y: NDArray[np.str_], proba: Array, classes: NDArray[np.str_]) -> float:
    """Return the log loss, with the floor for classes that the model does not know."""
    return log_loss(y, *all_classes(y, proba, classes))


def fit_mc_dropout(
    train: Table, seed: int, device: str, choices: Sequence[Record] = DROPOUT_CHOICES
) -> Fitted:
    """Choose dropout rate, step size and epochs on a fifth of the groups, then fit all rows."""
    shuffle = GroupShuffleSplit(1, test_size=0.2, random_state=seed)
    parts = next(shuffle.split(train.X, groups=train.groups))
    inner, held = (train.take(part) for part in parts)
    best, chosen = np.inf, dict[str, Any]()
    for given in choices:
        model = MCDropoutClassifier(
            **given, n_samples=SAMPLES, device=device, random_state=seed
        ).fit(inner.X, inner.y)
        loss = heldout_loss(held.y, model.predict_proba(held.X), model.classes_)
        if loss < best:
            best, chosen = loss, given
    model = MCDropoutClassifier(**chosen, n_samples=SAMPLES, device=device, random_state=seed)
    model.fit(train.X, train.y)
    return Fitted(
        model.classes_,
        model.predict_proba,
        lambda X: certain_rows(model.sample_proba(X, SAMPLES)),
        {**chosen, "heldout_log_loss": best},
        resolve_device(device, len(train.X)).type,
    )


#: Scalings of logistic regression: mean and divisor of the features.
SCALINGS: Mapping[str, Callable[[Array], Any]] = {
    "common": lambda X: np.sqrt(X.var(0).mean()) or 1.0,
    "standardised": lambda X: np.where(X.std(0) > 0.0, X.std(0), 1.0),
}


def fit_logistic(train: Table, seed: int, device: str) -> Fitted:
    """Choose scaling and penalty by five folds of groups, then fit all rows."""
    folds = min(5, len(np.unique(train.groups)))
    parts = GroupKFold(folds, shuffle=True, random_state=seed).split(train.X, None, train.groups)
    pairs = [(train.take(inner), train.take(held)) for inner, held in parts]
    best, scaling, C = min(
        found for scaling in SCALINGS for found in penalty_losses(pairs, scaling)
    )
    predict, classes, converged = _logistic(train, scaling)(C)
    chosen = {"scaling": scaling, "C": C, "heldout_log_loss": best, "converged": converged}
    return Fitted(classes, predict, None, chosen, "cpu")


def penalty_losses(
    pairs: Sequence[tuple[Table, Table]], scaling: str
) -> Iterator[tuple[float, str, float]]:
    """Yield held-out loss, scaling and C, from strong to weak penalties until the loss rises."""
    fits = [_logistic(inner, scaling) for inner, _ in pairs]
    total, last = sum(len(held.y) for _, held in pairs), np.inf
    for C in PENALTIES:
        loss = 0.0
        for fit, (_, held) in zip(fits, pairs, strict=True):
            predict, classes, _ = fit(C)
            loss += heldout_loss(held.y, predict(held.X), classes) * len(held.y) / total
        yield loss, scaling, C
        if loss > last:
            return
        last = loss


def _logistic(
    train: Table, scaling: str
) -> Callable[[float], tuple[Callable[[Array], Array], NDArray[np.str_], bool]]:
    """Return a function of C that fits, starting from the last fit."""
    mean, divisor = train.X.mean(0), SCALINGS[scaling](train.X)
    Z = (train.X - mean) / divisor
    model = LogisticRegression(max_iter=_ITERATIONS, warm_start=True)

    def fit(C: float) -> tuple[Callable[[Array], Array], NDArray[np.str_], bool]:
        model.set_params(C=C)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # kept in the record
            model.fit(Z, train.y)
        converged = bool(np.max(model.n_iter_) < _ITERATIONS)
        return lambda X: model.predict_proba((X - mean) / divisor), model.classes_, converged

    return fit


def gaussian_process(
    make: Callable[..., TwoStageGPClassifier],
) -> Callable[[Table, int, str], Fitted]:
    """Return a function that fits a Gaussian process classifier."""

    def fit(train: Table, seed: int, device: str) -> Fitted:
        model = make(device=device, random_state=seed)
        model.fit(train.X, train.y, groups=train.groups)
        found = model.fit_report_
        chosen = {
            "method": found.method,
            "mean": found.mean,
            "variance": found.variance,
            "alpha_eps": found.alpha_eps,
            "calibration": found.calibration,
            "heldout_log_loss": found.log_loss,
        }
        return Fitted(
            model.classes_,
            model.predict_proba,
            lambda X: np.asarray(model.predict_certainty(X, LEVEL, SAMPLES)),
            chosen,
            found.device,
        )

    return fit


#: Each is fitted with ``fit(train, seed, device)``.
MODELS: Mapping[str, Callable[[Table, int, str], Fitted]] = {
    "mc_dropout": fit_mc_dropout,
    "logistic": fit_logistic,
    "single": gaussian_process(lambda **given: TwoStageGPClassifier(stages=1, **given)),
    "two_stage": gaussian_process(TwoStageGPClassifier),
    "paper": gaussian_process(TwoStageGPClassifier.from_paper),
}
DEFAULT_MODELS = ("mc_dropout", "logistic", "single", "two_stage")


# --- fits ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Task:
    """One fit: which model on which split of which set, with how many rows at most, and where."""

    set: str
    model: str
    seed: int
    rows: int
    device: str = "auto"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the fits of a run."""
    parser.add_argument("--sets", type=names(SETS), help=f"default: {','.join(SETS)}")
    parser.add_argument("--models", type=names(MODELS), default=list(DEFAULT_MODELS))
    parser.add_argument("--seeds", type=positive, help="number of splits, default 5")
    parser.add_argument("--rows", type=positive, help="training rows at most, default 5000")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")


def tasks(given: argparse.Namespace) -> list[Task]:
    """Return the fits, set by set; a quick run takes images, whose features need no encoder."""
    images = [name for name, source in SETS.items() if not source.is_text]
    sets = given.sets or (images if given.quick else list(SETS))
    for name in sets:
        find(name)  # a missing set is reported now, not after hours
    if given.jobs > 1:
        for name in (name for name in sets if SETS[name].is_text):
            load_set(name, given.device)  # encoded once, not by every process
    rows = given.rows or (300 if given.quick else 5000)
    return [
        Task(name, model, seed, rows, given.device)
        for name in sets
        for seed in range(given.seeds or (1 if given.quick else 5))
        for model in given.models
    ]


def measure(task: Task) -> Record:
    """Fit one model to the training rows of one split and score it."""
    data = load_set(task.set, task.device)
    rows, test = split(data, task.seed, task.rows)
    if task.model == "paper":
        rows = _capped(rows, PAPER_ROWS, generator("paper", task.set, task.seed))
    train = Table(data.X[rows], data.y[rows], data.groups[rows])
    return {
        "n_train": len(rows),
        "n_test": len(test),
        "n_features": data.X.shape[1],
        "n_classes": len(np.unique(train.y)),
        "n_unseen": int((~np.isin(data.y[test], train.y)).sum()),
        # Only the split that comes with the data may have some.
        "n_shared": int(np.isin(data.groups[test], train.groups).sum()),
        **_fit_and_score(task, train, data.X[test], data.y[test]),
    }


def _fit_and_score(task: Task, train: Table, X: Array, y: NDArray[np.str_]) -> Record:
    with Timed() as fitting:
        fitted = MODELS[task.model](train, task.seed, task.device)
    with Timed() as predicting:
        proba = fitted.predict_proba(X)
    certain = None if fitted.certain is None else fitted.certain(X)
    return {
        "device": fitted.device,
        **evaluate_classification(y, *all_classes(y, proba, fitted.classes), certain),
        "fit_cpu_seconds": fitting.cpu,
        "fit_wall_seconds": fitting.wall,
        "predict_cpu_seconds": predicting.cpu,
        "chosen": fitted.chosen,
    }


MEASUREMENT = Measurement(
    name="foundation",
    about="Classifiers on the features of frozen foundation models.",
    results=RESULTS,
    cell=Task,
    cells=tasks,
    measure=measure,
    report=report,
    figure=picture,
    arguments=arguments,
    key=("set", "model", "seed", "rows"),
)

if __name__ == "__main__":
    # Imported by name: worker processes do not find the cached reader of __main__.
    from experiments.foundation import MEASUREMENT as MEASUREMENT_BY_NAME

    raise SystemExit(run(MEASUREMENT_BY_NAME))
