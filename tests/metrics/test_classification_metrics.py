"""Each score of class probabilities against scikit-learn, a plain loop or a hand calculation."""

from dataclasses import FrozenInstanceError, asdict
from itertools import pairwise, permutations

import numpy as np
import pandas as pd
import pytest
import sklearn.metrics
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from twostagegp import metrics
from twostagegp.errors import InputError

NAMES = ("log_loss", "brier", "ece", "risk_coverage", "evaluate_classification")


def table(n=80, n_classes=3, seed=0, digits=None):
    """Labels 0, 1, …, each at least once, and probabilities correlated with them."""
    rng = np.random.default_rng(seed)
    y = np.concatenate([np.arange(n_classes), rng.integers(n_classes, size=n - n_classes)])
    logits = rng.normal(size=(n, n_classes)) + 1.5 * (y[:, None] == np.arange(n_classes))
    proba = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    if digits is not None:  # many rows of the same confidence
        proba = np.maximum(np.round(proba, digits), 10.0**-digits)
        proba /= proba.sum(axis=1, keepdims=True)
    return y, proba


@st.composite
def tables(draw):
    n_classes = draw(st.integers(2, 4))
    n = draw(st.integers(n_classes, 40))
    return table(n, n_classes, draw(st.integers(0, 1000)), draw(st.sampled_from([None, 1])))


# --- proper scores -------------------------------------------------------------------------------


@pytest.mark.parametrize("n_classes", [2, 3, 7])
def test_log_loss_equals_that_of_scikit_learn(n_classes):
    y, proba = table(n_classes=n_classes)
    assert metrics.log_loss(y, proba) == pytest.approx(sklearn.metrics.log_loss(y, proba))


def test_log_loss_accepts_classes_that_are_not_in_y():
    y, proba = table()
    some = y != 1
    expected = sklearn.metrics.log_loss(y[some], proba[some], labels=[0, 1, 2])
    assert metrics.log_loss(y[some], proba[some], [0, 1, 2]) == pytest.approx(expected)


def test_log_loss_has_a_floor():
    assert metrics.log_loss([0], [[0.0, 1.0]], [0, 1]) == pytest.approx(52 * np.log(2))
    assert metrics.log_loss([0], [[1e-300, 1.0]], [0, 1]) == pytest.approx(52 * np.log(2))
    worst = np.eye(2)[::-1]
    assert metrics.log_loss([0, 1], worst) == pytest.approx(sklearn.metrics.log_loss([0, 1], worst))


@pytest.mark.parametrize("n_classes", [2, 5])
def test_equal_probabilities_score_the_log_of_the_number_of_classes(n_classes):
    y, proba = table(n_classes=n_classes)
    proba[:] = 1 / n_classes
    assert metrics.log_loss(y, proba) == pytest.approx(np.log(n_classes))
    assert metrics.brier(y, proba) == pytest.approx(1 - 1 / n_classes)


def test_brier_of_two_classes_is_twice_that_of_scikit_learn():
    y, proba = table(n_classes=2)
    binary = sklearn.metrics.brier_score_loss(y, proba[:, 1])
    assert metrics.brier(y, proba) == pytest.approx(2 * binary)


def test_brier_equals_a_plain_loop():
    y, proba = table(n_classes=4)
    rows = [
        sum((p[k] - (label == k)) ** 2 for k in range(4)) for label, p in zip(y, proba, strict=True)
    ]
    assert metrics.brier(y, proba) == pytest.approx(np.mean(rows))


@pytest.mark.parametrize("name", ["log_loss", "brier"])
def test_the_true_probabilities_score_best(name):
    rng = np.random.default_rng(1)
    truth = rng.dirichlet(np.ones(3), size=20_000)
    y = np.array([rng.choice(3, p=p) for p in truth])
    score = getattr(metrics, name)
    sharper = truth**2 / (truth**2).sum(axis=1, keepdims=True)
    flatter = truth**0.5 / (truth**0.5).sum(axis=1, keepdims=True)
    assert score(y, truth) < min(score(y, sharper), score(y, flatter))


# --- expected calibration error ------------------------------------------------------------------


def ece_by_hand(y, proba, bins):
    """The definition, with lists of rows as bins."""
    confidence, right = proba.max(axis=1), proba.argmax(axis=1) == y
    parts = [len(b) / len(y) * abs(right[b].mean() - confidence[b].mean()) for b in bins if len(b)]
    return sum(parts)


@pytest.mark.parametrize("n_bins", [2, 10, 15, 200])
@pytest.mark.parametrize("digits", [None, 1])
def test_ece_in_bins_of_equal_width(n_bins, digits):
    y, proba = table(digits=digits)
    c = proba.max(axis=1)
    bins = [np.flatnonzero((m / n_bins < c) & (c <= (m + 1) / n_bins)) for m in range(n_bins)]
    assert sum(map(len, bins)) == len(y)
    assert metrics.ece(y, proba, n_bins=n_bins) == pytest.approx(ece_by_hand(y, proba, bins))


@pytest.mark.parametrize("n_bins", [2, 7, 16, 80])
def test_ece_in_bins_of_equal_mass(n_bins):
    y, proba = table()
    bounds = [-(-80 * m // n_bins) for m in range(n_bins + 1)]
    order = np.argsort(proba.max(axis=1))
    bins = [order[a:b] for a, b in pairwise(bounds)]
    assert max(map(len, bins)) - min(map(len, bins)) <= 1
    got = metrics.ece(y, proba, n_bins=n_bins, strategy="mass")
    assert got == pytest.approx(ece_by_hand(y, proba, bins))


def test_rows_of_equal_confidence_share_a_bin_of_equal_mass():
    # Four rows at 0.6, of which half are right: apart they would be 0.4 and -0.6 off.
    proba = [[0.6, 0.4]] * 4
    assert metrics.ece([0, 0, 1, 1], proba, n_bins=2, strategy="mass") == pytest.approx(0.1)
    # More bins than rows: one row in each.
    proba = np.array([[0.9, 0.1], [0.8, 0.2]])
    assert metrics.ece([0, 1], proba, n_bins=9, strategy="mass") == pytest.approx(0.45)


def test_the_upper_end_belongs_to_the_bin():
    # 0.6 is the end of the third of five bins, in which 0.5 lies too.
    proba = np.array([[0.6, 0.4], [0.5, 0.5]])
    assert metrics.ece([0, 1], proba, n_bins=5) == pytest.approx(abs(0.4 - 0.5) / 2)
    proba[0] += [1e-9, -1e-9]
    assert metrics.ece([0, 1], proba, n_bins=5) == pytest.approx(0.45)


@pytest.mark.parametrize("strategy", ["width", "mass"])
def test_ece_of_a_calibrated_model_is_small_and_of_a_sharper_one_is_not(strategy):
    rng = np.random.default_rng(2)
    truth = rng.dirichlet(np.ones(3), size=20_000)
    y = (rng.random((20_000, 1)) > truth.cumsum(axis=1)[:, :2]).sum(axis=1)
    assert metrics.ece(y, truth, strategy=strategy) < 0.02
    sharper = truth**3 / (truth**3).sum(axis=1, keepdims=True)
    assert metrics.ece(y, sharper, strategy=strategy) > 0.1


def test_ece_of_the_class_frequencies_is_zero():
    assert metrics.ece([0, 0, 0, 1], [[0.75, 0.25]] * 4) == 0.0


# --- risk and coverage ---------------------------------------------------------------------------


def risk_in_order(wrong):
    return np.cumsum(wrong) / np.arange(1, len(wrong) + 1)


def test_risk_coverage_without_ties_equals_sorting():
    y, proba = table()
    wrong = proba.argmax(axis=1) != y
    curve = metrics.risk_coverage(y, proba)
    expected = risk_in_order(wrong[np.argsort(-proba.max(axis=1))])
    assert curve.risk == pytest.approx(expected)
    assert curve.coverage == pytest.approx(np.arange(1, 81) / 80)
    assert curve.area == pytest.approx(expected.mean())
    assert curve.excess == pytest.approx(expected.mean() - risk_in_order(np.sort(wrong)).mean())


def test_tied_rows_are_averaged_over_every_order():
    wrong = np.array([0, 1, 1, 0, 1, 0], dtype=bool)
    certainty = np.array([2.0, 2.0, 1.0, 1.0, 1.0, 0.0])
    curves = [
        risk_in_order(wrong[list(order)])
        for order in permutations(range(6))
        if np.all(np.diff(certainty[list(order)]) <= 0)
    ]
    assert len(curves) == 2 * 6
    curve = metrics.risk_coverage(wrong.astype(int), [[0.7, 0.3]] * 6, certainty)
    assert curve.risk == pytest.approx(np.mean(curves, axis=0))
    assert curve.area == pytest.approx(np.mean(curves))


def test_tied_rows_are_averaged_over_many_random_orders():
    y, proba = table(200, 3, seed=4, digits=1)
    certainty = np.round(proba.max(axis=1), 1)
    wrong = proba.argmax(axis=1) != y
    rng = np.random.default_rng(5)
    areas = []
    for _ in range(4000):
        order = np.lexsort((rng.random(200), -certainty))
        areas.append(risk_in_order(wrong[order]).mean())
    error = np.std(areas) / np.sqrt(len(areas))
    assert error > 0  # the order of the ties does matter
    got = metrics.risk_coverage(y, proba, certainty).area
    assert got == pytest.approx(np.mean(areas), abs=4 * error)


def test_a_constant_certainty_has_a_constant_risk():
    y, proba = table()
    rate = np.mean(proba.argmax(axis=1) != y)
    curve = metrics.risk_coverage(y, proba, np.full(80, 0.1))
    assert curve.risk == pytest.approx(np.full(80, rate))
    assert curve.area == pytest.approx(rate)


def test_excess_is_zero_if_all_errors_are_least_certain():
    y, proba = table()
    right = proba.argmax(axis=1) == y
    best = metrics.risk_coverage(y, proba, right)
    assert best.excess == 0.0
    assert np.all(best.risk[: right.sum()] == 0.0)
    assert best.excess < metrics.risk_coverage(y, proba).excess
    assert metrics.risk_coverage(y, proba).excess < metrics.risk_coverage(y, proba, ~right).excess


@given(data=tables(), shift=st.floats(-10, 10), scale=st.sampled_from([0.5, 2.0, 1024.0]))
def test_only_the_order_of_the_certainty_counts(data, shift, scale):
    y, proba = data
    certainty = np.round(proba.max(axis=1), 1)
    before = metrics.risk_coverage(y, proba, certainty)
    ranks = np.unique(certainty, return_inverse=True)[1]
    after = metrics.risk_coverage(y, proba, shift + scale * ranks)
    assert np.array_equal(before.risk, after.risk)


@given(data=tables())
def test_the_curve_stays_within_its_bounds(data):
    y, proba = data
    curve = metrics.risk_coverage(y, proba)
    assert np.all((curve.risk >= 0.0) & (curve.risk <= 1.0))
    assert curve.risk[-1] == pytest.approx(np.mean(proba.argmax(axis=1) != y))
    assert curve.excess >= -1e-12


def test_the_curve_is_frozen_and_its_repr_is_short():
    curve = metrics.risk_coverage(*table())
    with pytest.raises(FrozenInstanceError):
        curve.area = 0.0
    assert repr(curve) == f"RiskCoverage(area={curve.area}, excess={curve.excess})"


def test_the_curve_is_drawn_on_given_or_new_axes():
    y, proba = table()
    curve = metrics.risk_coverage(y, proba)
    given_axes = Figure().subplots()
    assert curve.plot(given_axes) is given_axes
    random, best, model = curve.plot().lines
    assert random.get_ydata()[0] == curve.risk[-1]
    wrong = np.sort(proba.argmax(axis=1) != y)
    assert best.get_ydata() == pytest.approx(risk_in_order(wrong))
    assert model.get_ydata() == pytest.approx(curve.risk)


# --- certain and uncertain rows ------------------------------------------------------------------


def test_certainty_split_by_hand():
    split = metrics.certainty_split(
        ["a", "a", "b", "b", "c"], ["a", "b", "b", "z", "c"], [True, True, True, False, False]
    )
    assert split.accuracy_certain == pytest.approx(2 / 3)
    assert split.accuracy_uncertain == 0.5
    assert split.share_certain == 0.6
    assert (split.n_certain, split.n_uncertain) == (3, 2)


@pytest.mark.parametrize("certain", [True, False])
def test_the_accuracy_of_an_empty_group_is_nan(certain):
    split = metrics.certainty_split([0, 1], [0, 0], [certain, certain])
    empty, full = split.accuracy_uncertain, split.accuracy_certain
    if not certain:
        empty, full = full, empty
    assert np.isnan(empty)
    assert full == 0.5
    assert split.share_certain == float(certain)


def test_certain_accepts_booleans_and_zeros_and_ones():
    expected = metrics.certainty_split([0, 1], [0, 0], np.array([True, False]))
    for certain in ([1, 0], [1.0, 0.0], pd.Series([True, False], dtype="boolean")):
        assert metrics.certainty_split([0, 1], [0, 0], certain) == expected


@given(data=tables())
def test_the_groups_average_to_the_overall_accuracy(data):
    y, proba = data
    predicted = proba.argmax(axis=1)
    certain = proba.max(axis=1) > np.median(proba.max(axis=1))
    split = metrics.certainty_split(y, predicted, certain)
    right = [
        n * accuracy
        for n, accuracy in (
            (split.n_certain, split.accuracy_certain),
            (split.n_uncertain, split.accuracy_uncertain),
        )
        if n
    ]
    assert sum(right) / len(y) == pytest.approx(np.mean(predicted == y))


# --- all at once ---------------------------------------------------------------------------------


def test_evaluate_returns_every_score():
    y, proba = table()
    certain = proba.max(axis=1) > 0.7
    predicted = proba.argmax(axis=1)
    scores = metrics.evaluate_classification(y, proba, certain=certain)
    split = asdict(metrics.certainty_split(y, predicted, certain))
    assert {name: scores.pop(name) for name in split} == split
    assert scores == metrics.evaluate_classification(y, proba)
    for name in ("log_loss", "brier", "ece"):
        assert scores.pop(name) == getattr(metrics, name)(y, proba)
    assert scores.pop("aurc") == metrics.risk_coverage(y, proba).area
    assert scores.pop("accuracy") == np.mean(predicted == y)
    assert scores == {}


def test_perfect_predictions_have_the_best_scores():
    y, _ = table()
    scores = metrics.evaluate_classification(y, np.eye(3)[y], certain=np.ones(80, dtype=bool))
    assert scores.pop("accuracy") == scores.pop("accuracy_certain") == 1.0
    for name in ("log_loss", "brier", "ece", "aurc"):
        assert scores[name] == 0.0, name
    assert metrics.risk_coverage(y, np.eye(3)[y]).excess == 0.0


def test_wrong_certain_predictions_have_the_worst_scores():
    y, _ = table()
    scores = metrics.evaluate_classification(y, np.eye(3)[(y + 1) % 3])
    assert scores["accuracy"] == 0.0
    assert scores["brier"] == 2.0
    assert scores["ece"] == scores["aurc"] == 1.0
    assert scores["log_loss"] == pytest.approx(52 * np.log(2))


@given(data=tables(), seed=st.integers(0, 1000))
def test_the_order_of_the_rows_does_not_matter(data, seed):
    y, proba = data
    order = np.random.default_rng(seed).permutation(len(y))
    certain = proba.max(axis=1) > 0.5
    before = metrics.evaluate_classification(y, proba, certain=certain)
    after = metrics.evaluate_classification(y[order], proba[order], certain=certain[order])
    assert after == pytest.approx(before, nan_ok=True)
    mass = [
        metrics.ece(y[rows], proba[rows], strategy="mass") for rows in (np.arange(len(y)), order)
    ]
    assert mass[0] == pytest.approx(mass[1])
    curves = [metrics.risk_coverage(y[r], proba[r]).risk for r in (np.arange(len(y)), order)]
    assert np.array_equal(*curves)


@given(
    data=tables(),
    names=st.lists(st.text(max_size=5), min_size=4, max_size=4, unique=True)
    | st.lists(st.integers(-99, 99), min_size=4, max_size=4, unique=True),
)
def test_the_names_of_the_labels_do_not_matter(data, names):
    y, proba = data
    names = names[: proba.shape[1]]
    renamed = [names[label] for label in y]
    expected = metrics.evaluate_classification(y, proba)
    assert metrics.evaluate_classification(renamed, proba, names) == expected
    # Without classes, the columns are in the order of the sorted names.
    columns = sorted(range(len(names)), key=names.__getitem__)
    got = metrics.evaluate_classification(renamed, proba[:, columns])
    by_name = metrics.evaluate_classification(renamed, proba[:, columns], sorted(names))
    assert got == by_name


@given(data=tables(), seed=st.integers(0, 1000))
def test_the_order_of_the_columns_does_not_matter(data, seed):
    y, proba = data
    # No two columns may tie for the largest probability: the first one is predicted.
    proba = proba + 1e-7 * np.arange(proba.shape[1])
    proba /= proba.sum(axis=1, keepdims=True)
    columns = np.random.default_rng(seed).permutation(proba.shape[1])
    before = metrics.evaluate_classification(y, proba)
    after = metrics.evaluate_classification(y, proba[:, columns], columns)
    assert after == pytest.approx(before)


def test_labels_may_have_any_container_and_type():
    y, proba = table(n_classes=2)
    expected = metrics.evaluate_classification(y, proba)
    words = np.array(["no", "yes"])
    for labels, classes in (
        (y.astype(bool), None),
        (y.astype(float), [0, 1]),
        (words[y], None),
        (words[y].tolist(), words),
        (pd.Series(words[y]), pd.Index(words)),
        (pd.Categorical(words[y]), ["no", "yes"]),
        ([(0, "yes")[label] for label in y], [0, "yes"]),
    ):
        assert metrics.evaluate_classification(labels, proba.tolist(), classes) == expected
    frame = pd.DataFrame(proba, columns=words)
    assert metrics.evaluate_classification(words[y], frame, frame.columns) == expected
    scores = metrics.evaluate_classification(y, proba.astype("float32"), certain=y == 0)
    assert {type(value) for value in scores.values()} == {float, int}


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_rounded_probabilities_are_accepted(dtype):
    y, proba = table(n_classes=7)
    got = metrics.evaluate_classification(y, proba.astype(dtype))
    assert got == pytest.approx(metrics.evaluate_classification(y, proba), abs=2e-3)
    above = [[1.0 + 1e-7, -1e-7]]
    assert metrics.log_loss([0], above, [0, 1]) == metrics.brier([0], above, [0, 1]) == 0.0


def test_a_single_class_is_accepted():
    scores = metrics.evaluate_classification(["a", "a"], [[1.0], [1.0]])
    assert scores == {"accuracy": 1.0, "log_loss": 0.0, "brier": 0.0, "ece": 0.0, "aurc": 0.0}


def test_the_input_is_not_modified():
    y, proba = table()
    y_before, before = y.copy(), proba.copy()
    metrics.evaluate_classification(y, proba, [0, 1, 2], y == 0)
    assert np.array_equal(y, y_before)
    assert np.array_equal(proba, before)


# --- errors --------------------------------------------------------------------------------------

FAIR = [[0.5, 0.5], [0.5, 0.5]]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("y", "proba", "classes", "message"),
    [
        ([], FAIR, None, "y is empty"),
        ([[0], [1]], FAIR, None, r"y must have shape \(n,\), got \(2, 1\)"),
        (["a", None], FAIR, None, r"missing labels, but y\[1\] = None; remove such rows"),
        (["a", np.nan], FAIR, None, r"missing labels, but y\[1\] = nan"),
        ([0, 1, 1], FAIR, None, "proba has 2 rows, but y has 3"),
        ([0, 1], [0.5, 0.5], None, r"got \(2,\); for two classes give both columns"),
        ([0, 1], [FAIR], None, r"shape \(n, K\), one column per class, got \(1, 2, 2\)"),
        ([0, 1], [[], []], None, r"one column per class, got \(2, 0\)"),
        ([0, 1], [["a", "b"]] * 2, None, "proba must be an array of numbers: could not convert"),
        ([0, 1], [[0.5, 0.5], [np.nan, 1]], None, r"be finite, but proba\[1, 0\] = nan"),
        ([0, 1], [[0.5, 0.5], [-0.5, 1.5]], None, r"proba\[1, 0\] = -0.5; convert .*softmax"),
        ([0, 1], [[0.5, 0.5], [0.5, 0.4]], None, "row 1 sums to 0.9; .* divide each row"),
        ([0, 0], FAIR, None, "y holds 1 distinct labels, but proba has 2 columns; give classes,"),
        ([0, "a"], FAIR, None, r"labels \[0, 'a'\] of y cannot be sorted; give classes,"),
        ([0, 1], FAIR, [0, 1, 2], "classes has 3 labels, but proba has 2 columns"),
        ([0, 1], FAIR, [0, 0], "classes has 0 more than once"),
        ([0, 1], FAIR, [0, None], r"missing labels, but classes\[1\] = None"),
        ([0, 1], FAIR, [[0, 1]], r"classes must have shape \(n,\), got \(1, 2\)"),
        (["a", "b"], FAIR, ["a", "c"], r"y\[1\] = 'b' is not among classes \['a', 'c'\]; give"),
        (np.array([0, 1]), FAIR, ["0", "1"], r"y\[0\] = 0 is not among classes \['0', '1'\]"),
        ([np.int64(7)], np.full((1, 20), 0.05), list("abcdefghijklmnopqrst"), "= 7 .* 'j', …]"),
    ],
)
def test_bad_input_is_named(name, y, proba, classes, message):
    with pytest.raises(InputError, match=message):
        getattr(metrics, name)(y, proba, classes=classes)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: metrics.ece([0, 1], FAIR, n_bins=1), "n_bins must be at least 2, got 1"),
        (lambda: metrics.ece([0, 1], FAIR, n_bins=2.5), "n_bins must be a whole number, got 2.5"),
        (
            lambda: metrics.ece([0, 1], FAIR, strategy="area"),
            "'area' is not one of 'width', 'mass'",
        ),
        (lambda: metrics.risk_coverage([0, 1], FAIR, [1.0]), "certainty has 1 rows, but y has 2"),
        (lambda: metrics.risk_coverage([0, 1], FAIR, [1.0, np.nan]), r"certainty\[1\] = nan"),
        (lambda: metrics.risk_coverage([0, 1], FAIR, FAIR), r"certainty must have shape \(n,\)"),
        (lambda: metrics.certainty_split([0, 1], [0], [True] * 2), "predicted has 1 rows, but y"),
        (lambda: metrics.certainty_split([0, 1], [0, 1], [True]), "certain has 1 rows, but y has"),
        (
            lambda: metrics.certainty_split([0, 1], [0, 1], [1.0, 0.7]),
            r"True and False only, but certain\[1\] = 0.7; compare it with a threshold",
        ),
        (
            lambda: metrics.certainty_split(["0", "1"], [0, 1], [True, True]),
            r"y has \['0', '1'\], predicted has \[0, 1\]; give both as labels",
        ),
        (lambda: metrics.certainty_split([0, 1], [0, None], [True] * 2), r"predicted\[1\] = None"),
        (
            lambda: metrics.evaluate_classification([0, 1], FAIR, certain=[True]),
            "certain has 1 rows, but y has 2",
        ),
    ],
)
def test_bad_calls_are_explained(call, message):
    with pytest.raises(InputError, match=message):
        call()
