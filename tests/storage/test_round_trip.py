"""Saved models: what is loaded again, and the size of the files."""

import subprocess
import sys

import gpytorch
import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import load as load_arrays
from sklearn.base import clone
from sklearn.linear_model import Ridge
from stored_models import (
    CLASSIFIERS,
    LABELS,
    NEW,
    REGRESSORS,
    D,
    N,
    X,
    Y,
    folder_bytes,
    predictions,
    short_regressor,
)

import twostagegp
from twostagegp import (
    CVPlusRegressor,
    ExactGPRegressor,
    TwoStageGPClassifier,
    TwoStageGPRegressor,
    TwoStageGPWarning,
)
from twostagegp.errors import ModelFileError
from twostagegp.storage.folder import read_files, read_manifest


@pytest.mark.parametrize("include_factors", [False, True])
@pytest.mark.parametrize("name", REGRESSORS)
def test_a_regressor_comes_back_as_it_was(models, name, include_factors, tmp_path):
    model = models(name)
    model.save(tmp_path / "model", include_factors=include_factors)
    loaded = twostagegp.load(tmp_path / "model")
    assert type(loaded) is type(model)
    for before, after in zip(predictions(model), predictions(loaded), strict=True):
        if include_factors:
            np.testing.assert_array_equal(after, before)
        else:  # one factorisation more: the same here, to rounding elsewhere
            np.testing.assert_allclose(after, before, rtol=1e-9, atol=1e-9)
    assert str(loaded.fit_report_) == str(model.fit_report_)
    assert repr(loaded.search_) == repr(model.search_)
    assert loaded.relevance_ == model.relevance_
    assert set(loaded.get_params(deep=False)) == set(model.get_params(deep=False))
    again = twostagegp.load(_saved_again(loaded, tmp_path))
    np.testing.assert_array_equal(predictions(again)[0], predictions(loaded)[0])


def _saved_again(model, tmp_path):
    model.save(tmp_path / "again")
    return tmp_path / "again"


@pytest.mark.parametrize("include_factors", [False, True])
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_a_classifier_comes_back_as_it_was(models, name, include_factors, tmp_path):
    model = models(name)
    model.save(tmp_path / "model", include_factors=include_factors)
    loaded = twostagegp.load(tmp_path / "model")
    for method in ("sampling", "quadrature"):
        before, after = (m.predict_proba(NEW, method=method) for m in (model, loaded))
        np.testing.assert_allclose(after, before, rtol=1e-9, atol=1e-12)
    assert loaded.classes_.dtype == model.classes_.dtype
    np.testing.assert_array_equal(loaded.predict(NEW), model.predict(NEW))
    assert str(loaded.fit_report_) == str(model.fit_report_)
    assert loaded.search_ == model.search_


def test_labels_keep_their_type(tmp_path):
    for labels in (LABELS.astype("U30"), Y > 0, np.where(Y > 0, 7, -1), np.where(Y > 0, 1.0, 2.0)):
        model = TwoStageGPClassifier(stages=1, kernels=("rbf",), ard=False, random_state=0)
        model.fit(X, labels)
        model.save(tmp_path / "model")
        classes = twostagegp.load(tmp_path / "model").classes_
        assert classes.dtype == model.classes_.dtype
        np.testing.assert_array_equal(classes, model.classes_)


def test_cv_plus_comes_back_with_all_its_refits(tmp_path):
    inner = ExactGPRegressor(random_state=0)
    for estimator in (inner, Ridge(), short_regressor(mean="rbf", calibration="scale")):
        model = CVPlusRegressor(estimator, n_folds=3, random_state=0).fit(X, Y)
        model.save(tmp_path / "model")
        loaded = twostagegp.load(tmp_path / "model")
        np.testing.assert_array_equal(loaded.predict_interval(NEW), model.predict_interval(NEW))
        assert loaded.guaranteed_level() == model.guaranteed_level()
        assert type(loaded.estimator) is type(estimator)


def test_tables_of_a_search_come_back(models, tmp_path):
    model = models("paper")
    model.save(tmp_path / "model")
    loaded = twostagegp.load(tmp_path / "model")
    pd.testing.assert_frame_equal(loaded.search_.table, model.search_.table)
    before, after = model.search_.variance, loaded.search_.variance
    pd.testing.assert_frame_equal(after.table, before.table)
    assert after is loaded.variance_.search
    assert loaded.training == model.training


def test_shared_arrays_are_stored_once_and_stay_shared(models, tmp_path):
    model = models("neighbors")
    model.save(tmp_path / "model")
    loaded = twostagegp.load(tmp_path / "model")
    assert loaded.mean_ is loaded.fitted_.fits[0].mean
    assert (
        loaded.fitted_.data[0].rows is loaded.fitted_.fits[0].variance.posterior.engine.store.rows
    )
    files = read_files(tmp_path / "model", read_manifest(tmp_path / "model"))
    shapes = [array.shape for array in load_arrays(files["arrays"]).values()]
    assert (
        shapes.count((D, N)) + shapes.count((N, D)) <= 3
    )  # the table, and rows of the calibration


def test_a_loaded_model_can_be_fitted_again_and_its_state_is_its_own(models, tmp_path):
    model = models("exact")
    model.save(tmp_path / "model")
    loaded = twostagegp.load(tmp_path / "model")
    before = model.predict(NEW)
    np.testing.assert_allclose(loaded.fit(X, Y).predict(NEW), before, rtol=1e-9)
    np.testing.assert_array_equal(model.predict(NEW), before)


def test_a_fresh_process_needs_the_folder_alone(models, tmp_path):
    model = models("groups")
    model.save(tmp_path / "model")
    np.save(tmp_path / "new.npy", NEW)
    program = (
        "import numpy as np, twostagegp, sys\n"
        "assert 'safetensors' not in sys.modules and 'skops' not in sys.modules\n"
        "model = twostagegp.load('model')\n"
        "assert 'skops' not in sys.modules\n"  # no scikit-learn part
        "np.save('out.npy', model.predict(np.load('new.npy'), return_std=True))\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", program], cwd=tmp_path, check=True)
    expected = model.predict(NEW, return_std=True)
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), expected, rtol=1e-9)


def test_kernels_keep_constraints_and_frozen_parameters(tmp_path):
    bound = gpytorch.constraints.Interval(0.05, 20.0)
    kernel = gpytorch.kernels.ScaleKernel(
        gpytorch.kernels.RQKernel(ard_num_dims=3, lengthscale_constraint=bound)
        * gpytorch.kernels.PeriodicKernel(active_dims=[1])
    )
    kernel.raw_outputscale.requires_grad_(False)
    model = ExactGPRegressor(kernel, random_state=0).fit(X, Y)
    model.save(tmp_path / "model")
    loaded = twostagegp.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(NEW), model.predict(NEW))
    assert repr(loaded.kernel) == repr(kernel)
    assert not loaded.kernel.raw_outputscale.requires_grad


# --- size ----------------------------------------------------------------------------------------


def test_no_matrix_of_all_rows_unless_asked_for(models, tmp_path):
    for name in ("exact", "neighbors", "single stage", "gpnn", "classes", "classes, neighbors"):
        models(name).save(tmp_path / "small")
        manifest = read_manifest(tmp_path / "small")
        arrays = load_arrays(read_files(tmp_path / "small", manifest)["arrays"])
        assert max(array.size for array in arrays.values()) < N * N
    models("exact").save(tmp_path / "large", include_factors=True)
    difference = folder_bytes(tmp_path / "large") - _size(models("exact"), tmp_path)
    # Those of the variance and of the members outside the data.
    matrices = 1 + len(models("exact").fitted_.fits[0].outside.members)
    assert 8 * N * N * matrices <= difference < 8 * N * N * matrices + 1000


def _size(model, tmp_path):
    model.save(tmp_path / "size")
    return folder_bytes(tmp_path / "size")


def test_size_grows_with_rows_times_columns(tmp_path):
    sizes = {}
    for n in (100, 250):
        rng = np.random.default_rng(1)
        inputs = rng.normal(size=(n, 5))
        model = short_regressor(mean="rbf", calibration="scale").fit(inputs, inputs[:, 0])
        sizes[n] = _size(model, tmp_path)
    # docs/files.md: the inputs once, and some thirty numbers a row.
    assert sizes[250] - sizes[100] < 8 * 150 * (5 + 30)
    assert sizes[100] < 60_000


# --- tables with more than numbers ----------------------------------------------------------------


def mixed_table(n=60, seed=0):
    """Every kind of column that an estimator takes."""
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(
        {
            "size": rng.normal(size=n),
            "count": pd.array(rng.integers(0, 5, n), dtype="Int64"),
            "used": rng.uniform(size=n) < 0.5,
            "color": rng.choice(["red", "green", "blue"], n),
            "code": pd.Categorical(rng.integers(1, 4, n)),
            "grade": pd.Categorical(
                rng.choice(["low", "mid", "high"], n), ["low", "mid", "high"], ordered=True
            ),
            "when": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 700, n), "D"),
            "where": (pd.Timestamp("2024-01-01", tz="Europe/Paris"))
            + pd.to_timedelta(rng.integers(0, 900, n), "h"),
            "lasted": pd.to_timedelta(rng.integers(1, 90, n), "min"),
            "empty": np.full(n, np.nan),
        }
    )
    table.loc[rng.permutation(n)[:6], "size"] = np.nan
    table.loc[rng.permutation(n)[:6], "color"] = None
    y = table["size"].fillna(0.0).to_numpy() + (table["color"] == "red") + 0.1 * rng.normal(size=n)
    return table, y.to_numpy()


FRAME_MODELS = [
    TwoStageGPRegressor(kernels=("rbf",), random_state=0),
    TwoStageGPRegressor(kernels=("rbf",), method="neighbors", random_state=0),
    ExactGPRegressor("rbf"),
    TwoStageGPClassifier(kernels=("rbf",), mean="search", random_state=0),
]


@pytest.mark.filterwarnings("ignore::twostagegp.errors.TwoStageGPWarning")
@pytest.mark.parametrize("model", FRAME_MODELS, ids=lambda m: f"{type(m).__name__}")
def test_rules_of_columns_come_back(model, tmp_path):
    table, y = mixed_table()
    if isinstance(model, TwoStageGPClassifier):
        y = y > 0.5
    model = clone(model).fit(table, y)
    model.save(tmp_path / "m")
    loaded = twostagegp.load(tmp_path / "m")
    fresh, _ = mixed_table(40, seed=1)
    fresh.loc[0, "color"] = "violet"  # a level that fit has not seen
    ask = "predict_proba" if hasattr(model, "predict_proba") else "predict"
    np.testing.assert_allclose(
        getattr(loaded, ask)(fresh), getattr(model, ask)(fresh), rtol=1e-9, atol=1e-12
    )
    pd.testing.assert_frame_equal(loaded.columns_.describe(), model.columns_.describe())
    numbers = model.columns_.transform(table)
    again = loaded.columns_.inverse_transform(numbers)
    pd.testing.assert_frame_equal(again, model.columns_.inverse_transform(numbers))
    assert loaded.fit_report_.encoded_columns == model.fit_report_.encoded_columns


def test_a_loaded_model_still_warns_of_a_new_level(tmp_path):
    table, y = mixed_table()
    table = table[["used", "color"]]
    ExactGPRegressor("rbf").fit(table, y).save(tmp_path / "m")
    loaded = twostagegp.load(tmp_path / "m")
    fresh = table.head(2).assign(color="violet")
    with pytest.warns(TwoStageGPWarning, match="violet"):
        loaded.predict(fresh)


def test_levels_that_are_dates_come_back_and_intervals_are_refused(tmp_path):
    table, y = mixed_table()
    years = pd.Categorical(table["when"].dt.to_period("Y").dt.to_timestamp(), ordered=True)
    frame = pd.DataFrame({"year": years})
    model = ExactGPRegressor("rbf").fit(frame, y)
    model.save(tmp_path / "m")
    np.testing.assert_allclose(twostagegp.load(tmp_path / "m").predict(frame), model.predict(frame))
    cut = pd.DataFrame({"range": pd.cut(pd.Series(y), 3)})
    with pytest.raises(ModelFileError, match="Interval"):
        ExactGPRegressor("rbf").fit(cut, y).save(tmp_path / "n")
    assert not (tmp_path / "n").exists()
