"""Tables that break regressors: a clear error, or a finite mean and a positive finite std.

Never a NaN, never an error of a linear algebra library, at most one warning a fit.
"""

import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.linear_model import LinearRegression

from twostagegp import ExactGPRegressor, TwoStageGPRegressor, TwoStageGPWarning
from twostagegp.errors import InputError

MODELS = {
    "default": TwoStageGPRegressor(random_state=0),
    "paper": TwoStageGPRegressor.from_paper(random_state=0),
    "regressor": TwoStageGPRegressor(mean=[LinearRegression(), "matern32"], random_state=0),
    "float32": TwoStageGPRegressor(mean="matern52", dtype="float32", random_state=0),
    "exact": ExactGPRegressor(random_state=0),
    "exact-search": ExactGPRegressor(kernel="search", ard=True, objective="loo", random_state=0),
    "exact-paper": ExactGPRegressor.from_paper(random_state=0),
}
#: Slow models: the paper's schedules take hundreds of steps, whatever the table, and a stack with
#: a regressor differs from the default by that regressor only.
LONG = ("paper", "exact-search", "exact-paper", "regressor")
each_model = pytest.mark.parametrize(
    "model",
    [
        pytest.param(model, id=name, marks=[pytest.mark.slow] if name in LONG else [])
        for name, model in MODELS.items()
    ],
)
#: Models with options that are tried on the first of several like values only.
ONCE = ("float32",)


def each_model_and(name, values):
    """Every model with every value; some of the pairs are slow."""
    return pytest.mark.parametrize(
        ("model", name),
        [
            pytest.param(
                model,
                value,
                id=f"{label}-{value}",
                marks=[pytest.mark.slow] if label in LONG or (i > 0 and label in ONCE) else [],
            )
            for label, model in MODELS.items()
            for i, value in enumerate(values)
        ],
    )


two_models = pytest.mark.parametrize(
    "model", [MODELS["default"], MODELS["exact"]], ids=["default", "exact"]
)


def fit_quietly(model, X, y, **options):
    """Fit; assert that there was at most one warning, and a typed one. Returns it, or None."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(X, y, **options)
    assert [w.category for w in caught] in ([], [TwoStageGPWarning])
    return str(caught[0].message) if caught else None


def check_sane(model, X, y, **options):
    """Fit and predict at the training rows, between them and far away."""
    message = fit_quietly(model, X, y, **options)
    X = np.asarray(X, dtype=np.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for Z in (X, X[::-1] + 0.5 * X.std(0), X + 1e3 * (X.std(0) + np.abs(X).max())):
            mean, std = model.predict(Z, return_std=True)
            latent = model.predict(Z, return_latent_std=True)[1]
            cov = model.predict(Z[:5], return_cov=True)[1]
            assert np.isfinite(mean).all()
            assert np.isfinite(std).all()
            assert (std > 0).all()
            assert (latent >= 0).all()
            assert np.isfinite(cov).all()
            assert np.isfinite(model.sample_y(Z[:5], 2, joint=True)).all()
            assert np.isfinite(model.predict_logpdf(Z, mean)).all()
    for report in np.ravel(model.fit_report_):
        assert np.isfinite(report.noise_std)
        assert report.noise_std > 0
        assert str(report)
    for shares in np.ravel(model.relevance_):
        assert np.isfinite(list(shares.values())).all()
    return message


def table(n=20, d=2, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    return X, X[:, 0] + 0.3 * rng.normal(size=n)


def numbered(n):
    return np.arange(float(n))


class TestErrors:
    @two_models
    @pytest.mark.parametrize(
        ("value", "word"), [(np.nan, "NaN"), (np.inf, "inf"), (-np.inf, "inf")]
    )
    def test_not_finite(self, model, value, word):
        X, y = table()
        bad = X.copy()
        bad[3, 1] = value
        with pytest.raises(InputError, match=f"X contains {word}.*row 3, column 'x1'"):
            model.fit(bad, y)
        refusing = clone(model).set_params(missing="error")
        with pytest.raises(InputError, match="row 3, column 'width'"):
            refusing.fit(pd.DataFrame(bad, columns=["height", "width"]), y)
        with pytest.raises(InputError, match="row 3, column 'x1'"):
            model.fit(X, y).predict(bad)
        y_bad = y.copy()
        y_bad[5] = value
        with pytest.raises(InputError, match=f"y contains {word}.*row 5"):
            model.fit(X, y_bad)
        with pytest.raises(InputError, match="row 5, column 1"):
            model.fit(X, np.column_stack([y, y_bad]))

    @two_models
    def test_strings(self, model):
        X, y = table()
        words = X.astype(object)
        words[2, 0] = "tall"
        with pytest.raises(ValueError, match="tall"):
            model.fit(words, y)
        with pytest.raises(InputError, match=r"column 'a' mixes kinds of values.*'tall'"):
            model.fit(pd.DataFrame(words, columns=["a", "b"]), y)
        with pytest.raises(ValueError, match="tall"):
            model.fit(X, np.array(["tall"] * 20))

    @two_models
    def test_empty_and_too_small(self, model):
        with pytest.raises(ValueError, match="0 sample"):
            model.fit(np.zeros((0, 2)), np.zeros(0))
        with pytest.raises(ValueError, match="0 feature"):
            model.fit(np.zeros((5, 0)), np.zeros(5))
        with pytest.raises(ValueError, match=r"1 sample.*minimum of 2"):
            model.fit([[1.0, 2.0]], [3.0])
        X, y = table()
        with pytest.raises(ValueError, match="0 sample"):
            model.fit(X, y).predict(np.zeros((0, 2)))

    @two_models
    def test_shapes_that_do_not_fit(self, model):
        X, y = table()
        with pytest.raises(ValueError, match="inconsistent numbers of samples"):
            model.fit(X, y[:-1])
        with pytest.raises(ValueError, match="2D array, got 1D"):
            model.fit(X[:, 0], y)
        with pytest.raises(ValueError, match="dim 3"):
            model.fit(X[None], y)
        with pytest.raises(ValueError, match="dim 3"):
            model.fit(X, np.zeros((20, 1, 1)))
        with pytest.raises(ValueError, match="y"):
            model.fit(X, None)

    @two_models
    def test_sparse_and_complex(self, model):
        X, y = table()
        with pytest.raises(TypeError, match="parse"):
            model.fit(scipy.sparse.csr_matrix(X), y)
        with pytest.raises(ValueError, match="Complex"):
            model.fit(X * 1j, y)

    @two_models
    def test_values_whose_squares_overflow(self, model):
        X, y = table()
        with pytest.raises(InputError, match=r"column 'x1' reaches 1.0e\+200"):
            model.fit(np.column_stack([X[:, 0], np.full(20, 1e200)]), y)
        with pytest.raises(InputError, match=r"y reaches .*e\+200"):
            model.fit(X, y * 1e200)


class TestSurvives:
    @each_model
    def test_two_rows(self, model):
        message = check_sane(model, [[0.0], [1.0]], [3.0, 5.0])
        assert "Fewer than three distinct rows" in message
        assert model.predict([[0.5]])[0] == pytest.approx(4.0)
        check_sane(model, [[0.0], [0.0]], [3.0, 5.0])
        check_sane(model, [[0.0], [1.0]], [3.0, 3.0])

    @each_model_and("n", [3, 4, 5])
    def test_a_handful_of_rows(self, model, n):
        check_sane(model, *table(n))

    @each_model_and("value", [0.0, -7e9, 1e-300])
    def test_constant_target(self, model, value):
        X, _ = table()
        message = check_sane(model, X, np.full(20, value))
        assert "constant" in message
        np.testing.assert_allclose(model.predict(X), value, atol=1e-200)

    @two_models
    def test_one_of_two_targets_constant(self, model):
        X, y = table()
        assert "constant" in check_sane(model, X, np.column_stack([y, np.ones(20)]))

    @each_model
    def test_constant_and_repeated_columns(self, model):
        X, y = table()
        wide = np.column_stack([X, np.ones(20), X, X[:, 0], 1e15 + np.zeros(20), -2 * X[:, 1]])
        check_sane(model, wide, y)
        assert model.fit_report_.constant_columns == ["x2", "x6"]

    @each_model
    def test_all_rows_equal(self, model):
        message = check_sane(model, np.ones((10, 3)), np.arange(10.0))
        assert "No input column varies" in message
        np.testing.assert_allclose(model.predict(np.ones((1, 3))), 4.5)
        std = model.predict(np.ones((1, 3)), return_std=True)[1][0]
        assert 2.5 < std < 5.0
        assert "constant" in check_sane(model, np.ones((10, 3)), np.ones(10))

    @each_model
    def test_repeated_rows(self, model):
        X, y = table()
        check_sane(model, np.repeat(X, 3, axis=0), np.repeat(y, 3))
        assert model.fit_report_.n_distinct_rows == 20
        check_sane(model, np.repeat(X, 3, axis=0), np.repeat(y, 3) + np.tile([0, 1, 5], 20))
        check_sane(model, np.repeat(X[:3], 7, axis=0), np.arange(21.0))

    @each_model_and("gap", [1e-12, 1e-9, 1e-6])
    def test_nearly_equal_rows(self, model, gap):
        X, y = table()
        check_sane(model, np.vstack([X, X + gap]), np.append(y, y + 1e-3))
        check_sane(model, np.vstack([X, X + gap]), np.append(y, -y))

    @each_model
    def test_more_columns_than_rows(self, model):
        check_sane(model, *table(10, 50))
        check_sane(model, *table(10, 100))

    @each_model_and("scale", [1e-12, 1e12, 1e90])
    def test_scales_of_columns(self, model, scale):
        X, y = table()
        check_sane(model, X * scale, y)
        check_sane(model, X * [scale, 1 / scale], y)
        check_sane(model, X + np.array([scale, 1 / scale]), y)

    @each_model_and("scale", [1e-9, 1e9, 1e-90, 1e90])
    def test_scales_of_the_target(self, model, scale):
        X, y = table()
        check_sane(model, X, y * scale)
        check_sane(model, X, y + scale)

    @two_models
    def test_types(self, model):
        X, y = table()
        numbers = np.round(10 * X)
        check_sane(model, numbers.astype(int), np.round(10 * y).astype(np.int8))
        check_sane(model, X.astype(np.float32), y.astype(np.float32))
        check_sane(model, X > 0, y > 0)
        check_sane(model, X.astype(object), y.astype(object))
        check_sane(model, X.tolist(), y.tolist())
        check_sane(model, pd.DataFrame(X > 0, columns=["a", "b"]).to_numpy(), pd.Series(y))
        check_sane(model, X, y[:, None])
        check_sane(model, np.asfortranarray(X), y)

    @two_models
    def test_types_do_not_change_the_result(self, model):
        X, y = table()
        X, y = np.round(4 * X), np.round(10 * y)
        expected = model.fit(X, y).predict(X)
        for kind in (int, np.float32, object):
            np.testing.assert_array_equal(
                model.fit(X.astype(kind), y.astype(kind)).predict(X.astype(kind)), expected
            )

    @each_model
    def test_outlier_of_the_target(self, model):
        X, y = table()
        y[4] = 1e12
        check_sane(model, X, y)

    @each_model
    def test_outlier_of_an_input(self, model):
        X, y = table()
        X[4, 0] = 1e12
        check_sane(model, X, y)

    @each_model
    def test_noise_free_functions(self, model):
        x = np.linspace(0, 1, 30)[:, None]
        check_sane(model, x, x[:, 0])
        check_sane(model, x, np.sin(3 * x[:, 0]))
        check_sane(model, x, (x[:, 0] > 0.5).astype(float))

    @each_model
    def test_pure_noise(self, model):
        rng = np.random.default_rng(0)
        X, y = rng.normal(size=(40, 3)), rng.normal(size=40)
        check_sane(model, X, y)
        if "paper" not in next(name for name, m in MODELS.items() if m is model):
            new = rng.normal(size=(200, 3))
            std = model.predict(new, return_std=True)[1]
            assert 0.5 < np.median(std) < 2.0
            assert np.abs(model.predict(new)).mean() < 0.6

    @each_model
    def test_binary_columns(self, model):
        rng = np.random.default_rng(0)
        X = rng.integers(0, 2, size=(25, 3))
        check_sane(model, X, X @ [1.0, 2.0, 3.0] + rng.normal(size=25))

    @two_models
    def test_weights_and_known_noise_of_all_sizes(self, model):
        X, y = table()
        check_sane(model, X, y, sample_weight=np.geomspace(1e-6, 1e6, 20))
        check_sane(model, X, y, noise_var=np.geomspace(1e-12, 1e12, 20))
        check_sane(model, X, y, noise_var=1e12)
        check_sane(model, X, y, groups=numbered(20) > 0)
        check_sane(model, X, y, groups=np.arange(20), sample_weight=np.full(20, 1e-3))


VALUES = st.one_of(
    st.integers(-3, 3).map(float),
    st.floats(-10, 10),
    st.sampled_from([0.0, 1e-12, 1.0 + 1e-12, 1e-6, 1e6, -1e6]),
)


@st.composite
def tables(draw):
    """Small tables that mix repeated rows, constant columns, odd scales, outliers and ties."""
    n, d = draw(st.integers(2, 25)), draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    kind = draw(st.sampled_from(["random", "integers", "given"]))
    if kind == "given":
        row = st.lists(VALUES, min_size=d, max_size=d)
        X = np.array(draw(st.lists(row, min_size=n, max_size=n)))
    else:
        X = rng.normal(size=(n, d)) if kind == "random" else rng.integers(-2, 3, (n, d)) * 1.0
    for k in range(d):
        change = draw(st.sampled_from(["none", "none", "scale", "shift", "constant", "copy"]))
        if change == "scale":
            X[:, k] *= draw(st.sampled_from([1e-12, 1e-6, 1e6, 1e12]))
        elif change == "shift":
            X[:, k] += draw(st.sampled_from([1e3, -1e9]))
        elif change == "constant":
            X[:, k] = draw(VALUES)
        elif change == "copy":
            X[:, k] = X[:, 0]
    if draw(st.booleans()):
        copies = rng.integers(0, n, size=n)
        X = X[copies] + draw(st.sampled_from([0.0, 0.0, 1e-12, 1e-9])) * rng.normal(size=(n, d))
    target = draw(st.sampled_from(["noise", "linear", "step", "constant", "given"]))
    y = {
        "noise": lambda: rng.normal(size=n),
        "linear": lambda: X @ np.arange(1.0, d + 1),
        "step": lambda: (X[:, 0] > np.median(X[:, 0])) * 1.0,
        "constant": lambda: np.full(n, draw(VALUES)),
        "given": lambda: np.array(draw(st.lists(VALUES, min_size=n, max_size=n))),
    }[target]()
    y = y * draw(st.sampled_from([1.0, 1.0, 1e-9, 1e9])) + draw(st.sampled_from([0.0, 0.0, 1e6]))
    if draw(st.booleans()):
        y[rng.integers(n)] += draw(st.sampled_from([1.0, 1e3, -1e9]))
    return X, y


@st.composite
def row_options(draw, n):
    """Weights, groups and known noise, or none of them."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    options = {}
    if draw(st.integers(0, 3)) == 0:
        options["sample_weight"] = rng.choice([0.0, 0.5, 1.0, 3.0], size=n)
    if draw(st.integers(0, 3)) == 0:
        options["groups"] = rng.integers(0, 4, size=n)
    if draw(st.integers(0, 3)) == 0:
        options["noise_var"] = rng.choice([0.0, 1e-6, 1.0, 1e6], size=n)
    return options


fuzz = settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def survives(model, data):
    X, y = data.draw(tables())
    options = data.draw(row_options(len(X)))
    try:
        check_sane(model, X, y, **options)
    except InputError as error:
        # The tables themselves are usable; only weights and groups can leave too little.
        assert options, error  # noqa: PT017


@settings(fuzz, max_examples=10)
@given(st.data())
def test_two_stage_on_any_small_table(data):
    survives(TwoStageGPRegressor(random_state=0), data)


@pytest.mark.slow
@fuzz
@given(st.data())
def test_two_stage_on_more_small_tables(data):
    survives(TwoStageGPRegressor(random_state=0), data)


@fuzz
@given(st.data())
def test_exact_on_any_small_table(data):
    survives(ExactGPRegressor(random_state=0), data)
