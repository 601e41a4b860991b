r"""Classifiers on the features of frozen foundation models: which probabilities can be trusted?

**Sets.** Two of medical images, whose features lie in the data folder, and three of medical texts,
which are encoded once by ``TextEncoder("minilm")`` and kept in a cache outside the repository. Rows
that belong together (a patient, a document, equal texts) are a group; ChemProt's sentences are
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

One line a fit goes into ``foundation.jsonl`` as soon as it is done; what is there for the same
``--rows`` is not computed again. ``foundation.md`` and ``foundation.svg`` are made from that file.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold, GroupShuffleSplit

import twostagegp
from experiments import RESULTS
from experiments.foundation_report import picture, report
from experiments.mc_dropout import MCDropoutClassifier
from measurements.arguments import names, positive
from measurements.provenance import code_version
from measurements.runner import measure_all
from measurements.store import JsonLines, Record, write_whole
from measurements.timing import Timed
from twostagegp import TwoStageGPClassifier
from twostagegp.classification.certainty import leading_pvalues
from twostagegp.datasets import FOLDER_VARIABLE, DatasetNotFoundError
from twostagegp.errors import InputError
from twostagegp.foundation import TextEncoder
from twostagegp.metrics.classification import evaluate_classification, log_loss
from twostagegp.runtime.device import resolve_device

__all__ = [
    "MODELS",
    "SETS",
    "LabelledSet",
    "Task",
    "certain_rows",
    "load_set",
    "main",
    "measure",
    "split",
]

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

ROOT = Path(__file__).parent.parent
#: A copy of the picture for the documentation, under the name by which the page links to it.
#: Test rows at most, and training rows of the paper's settings at most.
TEST_ROWS, PAPER_ROWS = 4000, 1500
#: Draws behind the choice of certain rows, and its level.
SAMPLES, LEVEL = 100, 0.05
#: Choices of Monte Carlo dropout.
DROPOUTS, RATES, EPOCHS = (0.1, 0.3, 0.5), (0.01, 0.03, 0.1), (10, 30, 100)
#: Penalties of logistic regression, from strong to weak.
PENALTIES = tuple(10.0 ** (k / 2.0) for k in range(-8, 3))
#: Tokens of a text that MiniLM was trained for; what is longer is cut.
_TOKENS = 256
_ITERATIONS = 1000


# --- sets ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Source:
    """Where a set lies.

    ``groups`` names a column; None: equal texts belong together, also where they differ in what
    the expression ``marks`` matches.
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
    # A sentence is there once for each pair of entities, which stand in brackets.
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
    """The file of a set, in the folder that ``TWOSTAGEGP_DATA`` names or flat in it."""
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


@lru_cache(maxsize=1)
def load_set(name: str, cache: Path, device: str = "auto") -> LabelledSet:
    """Read a set; texts that the cache does not have yet are encoded."""
    path = find(name)
    return (_read_texts if SETS[name].is_text else _read_images)(name, path, cache, device)


def _read_images(name: str, path: Path, cache: Path, device: str) -> LabelledSet:
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


def _read_texts(name: str, path: Path, cache: Path, device: str) -> LabelledSet:
    table = pd.read_csv(path)
    key = SETS[name].groups or "text"
    missing = [k for k in ("text", "label", "split", key) if k not in table]
    if missing:
        raise InputError(f"{path} lacks the columns {missing} of the set {name!r}")
    encoder = TextEncoder("minilm", max_length=_TOKENS, cache_dir=cache, device=device)
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
    """A source of randomness of its own for everything that has a name."""
    return np.random.default_rng(list(":".join(map(str, words)).encode()))


def split(data: LabelledSet, seed: int, rows: int) -> tuple[Indices, Indices]:
    """Training and test rows of a seed, at most ``rows`` and 4000, each in increasing order."""
    train, test = data.train, data.test
    if seed:
        used = np.sort(np.concatenate([train, test]))
        # A number of groups: as a share, rounding could change it.
        count = len(np.unique(data.groups[test]))
        shuffle = GroupShuffleSplit(1, test_size=count, random_state=seed)
        chosen = next(shuffle.split(used, groups=data.groups[used]))
        train, test = (used[part] for part in chosen)
    rng = generator("foundation", data.name, seed)
    return _capped(train, rows, rng), _capped(test, TEST_ROWS, rng)


def _capped(rows: Indices, most: int, rng: np.random.Generator) -> Indices:
    # Drawn in any case, so that a cap on one side does not change the other; a smaller cap takes
    # a part of a larger one's rows.
    return np.sort(rng.permutation(rows)[:most])


# --- models --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Table:
    """Training rows: X of shape (n, d), y and groups of shape (n,)."""

    X: Array
    y: NDArray[np.str_]
    groups: Indices

    def take(self, rows: Indices) -> Table:
        """Some of the rows."""
        return Table(self.X[rows], self.y[rows], self.groups[rows])


@dataclass(frozen=True)
class Fitted:
    """A model with what was chosen for it; ``certain`` is None where it has no samples."""

    classes: NDArray[np.str_]
    predict_proba: Callable[[Array], Array]
    certain: Callable[[Array], NDArray[np.bool_]] | None
    chosen: Record
    device: str


def certain_rows(samples: Array, level: float = LEVEL) -> NDArray[np.bool_]:
    """Rows whose two leading classes differ in a paired t-test over sampled probabilities.

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
    """Probabilities with a column of zeros for every label of y that the model does not know.

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
    """Log loss, with the floor for classes that the model does not know."""
    return log_loss(y, *all_classes(y, proba, classes))


def fit_mc_dropout(train: Table, seed: int, device: str) -> Fitted:
    """Dropout rate, step size and epochs by one held-out fifth of the groups, then all rows."""
    shuffle = GroupShuffleSplit(1, test_size=0.2, random_state=seed)
    parts = next(shuffle.split(train.X, groups=train.groups))
    inner, held = (train.take(part) for part in parts)
    best, chosen = np.inf, dict[str, Any]()
    for dropout, lr, epochs in product(DROPOUTS, RATES, EPOCHS):
        given: dict[str, Any] = {"dropout": dropout, "lr": lr, "epochs": epochs}
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
    """Scaling and penalty by five folds of groups, then all rows."""
    folds = min(5, len(np.unique(train.groups)))
    parts = GroupKFold(folds, shuffle=True, random_state=seed).split(train.X, None, train.groups)
    pairs = [(train.take(inner), train.take(held)) for inner, held in parts]
    best, scaling, C = min(
        found for scaling in SCALINGS for found in _penalty_losses(pairs, scaling)
    )
    predict, classes, converged = _logistic(train, scaling)(C)
    chosen = {"scaling": scaling, "C": C, "heldout_log_loss": best, "converged": converged}
    return Fitted(classes, predict, None, chosen, "cpu")


def _penalty_losses(
    pairs: Sequence[tuple[Table, Table]], scaling: str
) -> Iterator[tuple[float, str, float]]:
    """Held-out loss, scaling and C, from strong penalties to weak ones until the loss rises."""
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
    """A function of C that fits, from where the last call ended."""
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


def _fit_gp(
    make: Callable[..., TwoStageGPClassifier],
) -> Callable[[Table, int, str], Fitted]:
    """How a Gaussian process classifier is fitted."""

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
    "single": _fit_gp(lambda **given: TwoStageGPClassifier(stages=1, **given)),
    "two_stage": _fit_gp(TwoStageGPClassifier),
    "paper": _fit_gp(TwoStageGPClassifier.from_paper),
}
DEFAULT_MODELS = ("mc_dropout", "logistic", "single", "two_stage")


# --- fits ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Task:
    """One fit: which model on which split of which set, with how many rows at most."""

    set: str
    model: str
    seed: int
    rows: int


@dataclass(frozen=True)
class Place:
    """Where encoded texts are kept, and what fits run on."""

    cache: Path
    device: str = "auto"


def measure(task: Task, place: Place) -> Record:
    """Fit and score; a fit that fails gives a record with its error instead of scores."""
    data = load_set(task.set, place.cache, place.device)
    rows, test = split(data, task.seed, task.rows)
    if task.model == "paper":
        rows = _capped(rows, PAPER_ROWS, generator("paper", task.set, task.seed))
    train = Table(data.X[rows], data.y[rows], data.groups[rows])
    record: Record = {
        "set": task.set,
        "model": task.model,
        "seed": task.seed,
        "rows": task.rows,
        "n_train": len(rows),
        "n_test": len(test),
        "n_features": data.X.shape[1],
        "n_classes": len(np.unique(train.y)),
        "n_unseen": int((~np.isin(data.y[test], train.y)).sum()),
        # The data's own split may have some; the others have none.
        "n_shared": int(np.isin(data.groups[test], train.groups).sum()),
        "device": place.device,
        "version": twostagegp.__version__,
        "code": code_version(),
    }
    try:
        return record | _fit_and_score(task, train, data.X[test], data.y[test], place.device)
    except Exception as error:
        return record | {"error": f"{type(error).__name__}: {error}"}


def _fit_and_score(task: Task, train: Table, X: Array, y: NDArray[np.str_], device: str) -> Record:
    with Timed() as fitting:
        fitted = MODELS[task.model](train, task.seed, device)
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


def _work(store: JsonLines, given: argparse.Namespace) -> int:
    """Do what is missing; returns the number of fits that failed."""
    wanted = [
        Task(name, model, seed, given.rows)
        for name in given.sets
        for seed in range(given.seeds)
        for model in given.models
    ]
    done = set() if given.redo else store.done()
    tasks = [t for t in wanted if (t.set, t.model, t.seed, t.rows) not in done]
    print(f"{len(wanted) - len(tasks)} of {len(wanted)} fits are there already.", flush=True)
    place, failed = Place(given.cache, given.device), 0
    sets = list(dict.fromkeys(task.set for task in tasks))
    for name in sets:
        find(name)  # a missing one is found now, not after hours
    if given.jobs > 1:
        for name in (name for name in sets if SETS[name].is_text):
            load_set(name, place.cache, place.device)  # encoded once, not by every process
    records = measure_all(partial(measure, place=place), tasks, given.jobs)
    for count, record in enumerate(records, start=1):
        store.append(record, replace=given.redo)
        failed += "error" in record
        print(f"[{count}/{len(tasks)}] {_line(record)}", flush=True)
    return failed


def _line(record: Record) -> str:
    head = f"{record['set']}, {record['model']}, seed {record['seed']}: "
    if "error" in record:
        return head + str(record["error"])
    return head + (
        f"accuracy {record['accuracy']:.4f}, log loss {record['log_loss']:.4f}, "
        f"ECE {record['ece']:.4f}, AURC {record['aurc']:.4f}, "
        f"{record['fit_cpu_seconds']:.1f} CPU s"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is missing, then write page and picture; returns 1 if a fit failed, 2 if no data."""
    given = _settings(_parser().parse_args(arguments))
    store = JsonLines(given.results / "foundation.jsonl", key=("set", "model", "seed", "rows"))
    failed = 0
    if not given.table_only:
        try:
            failed = _work(store, given)
        except DatasetNotFoundError as error:
            print(error, file=sys.stderr)
            return 2
    stored = list(store.records().values())
    records = [r for r in stored if r["rows"] == given.rows]
    more_rows = [r for r in stored if r["rows"] > given.rows]
    drawn = picture(records)
    page = report(records, has_picture=drawn is not None, more_rows=more_rows)
    if drawn is not None:
        write_whole(given.results / "foundation.svg", drawn)
    write_whole(given.results / "foundation.md", page)
    print(page)
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.foundation",
        description="Classifiers on the features of frozen foundation models.",
    )
    parser.add_argument("--sets", type=names(SETS), help=f"default: {','.join(SETS)}")
    parser.add_argument("--models", type=names(MODELS), default=list(DEFAULT_MODELS))
    parser.add_argument("--seeds", type=positive, help="the first so many splits, default 5")
    parser.add_argument("--rows", type=positive, help="training rows at most, default 5000")
    parser.add_argument("--quick", action="store_true", help="one split of two sets, 300 rows")
    parser.add_argument("--jobs", type=positive, default=1, help="processes of one thread each")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--results", type=Path, help="folder of the results")
    parser.add_argument(
        "--cache", type=_outside, default=_user_cache(), help="folder of the encoded texts"
    )
    parser.add_argument("--table-only", action="store_true", help="no fits, only page and picture")
    parser.add_argument("--redo", action="store_true", help="fit again what is there already")
    return parser


def _settings(given: argparse.Namespace) -> argparse.Namespace:
    """What was not given: quick runs take images only, whose features need no encoder."""
    images = [name for name, source in SETS.items() if not source.is_text]
    given.sets = given.sets or (images if given.quick else list(SETS))
    given.seeds = given.seeds or (1 if given.quick else 5)
    given.rows = given.rows or (300 if given.quick else 5000)
    given.results = given.results or (RESULTS / "quick" if given.quick else RESULTS)
    return given


def _user_cache() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "twostagegp" / "foundation"


def _outside(text: str) -> Path:
    path = Path(text).expanduser()
    if path.resolve().is_relative_to(ROOT.resolve()):
        raise argparse.ArgumentTypeError(f"{text!r} lies in the repository; give another folder")
    return path


if __name__ == "__main__":
    # Under its own name: other processes cannot load the cached reader of __main__.
    from experiments.foundation import main as run

    raise SystemExit(run())
