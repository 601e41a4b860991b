"""Files with the names of earlier versions load with the present names."""

import json
from dataclasses import replace

import numpy as np
import pytest

import twostagegp
from twostagegp import GPNNRegressor, TwoStageGPClassifier, TwoStageGPRegressor
from twostagegp.pipeline.calibration.shape import GAUSSIAN
from twostagegp.pipeline.settings import Settings, ShapeSettings
from twostagegp.storage.folder import read_files, read_manifest, write_folder

_RNG = np.random.default_rng(0)
X = _RNG.normal(size=(60, 3))
Y = np.sin(2 * X[:, 0]) + 0.3 * _RNG.normal(size=60)
NEW = _RNG.normal(size=(20, 3))
VERSIONS = pytest.mark.parametrize("version", [1, 2])


@pytest.fixture(scope="module")
def models():
    small = {"kernels": ("rbf", "matern32"), "random_state": 0}
    return {
        "exact": TwoStageGPRegressor(**small).fit(X, Y),
        "gpnn": GPNNRegressor(random_state=0).fit(X, Y),
        "classes": TwoStageGPClassifier(**small).fit(X, Y > 0),
    }


def _saved(model, path):
    model.save(path)
    return path


def _load_with(model, change, tmp_path, version=2):
    """Save a model, change the parts of its structure, and load it."""
    path = _saved(model, tmp_path / "model")
    manifest = read_manifest(path)
    files = dict(read_files(path, manifest))
    content = json.loads(files["model"])
    change(content["parts"])
    files["model"] = json.dumps(content).encode()
    kept = {key: manifest[key] for key in manifest if key not in ("files", "sha256", "kind")}
    write_folder(tmp_path / "changed", {**kept, "format": version}, files)
    return twostagegp.load(tmp_path / "changed")


@pytest.fixture
def load_changed(models, tmp_path):
    """Return a function that loads a changed file of one of the models."""

    def load(name, change, version=2):
        return _load_with(models[name], change, tmp_path, version)

    return load


def states(parts, name):
    return [part["state"] for part in parts if part["class"] == name]


def assert_same_predictions(loaded, model):
    np.testing.assert_allclose(loaded.predict(NEW), model.predict(NEW), rtol=1e-9)


@VERSIONS
@pytest.mark.parametrize(
    ("old", "objective", "selection"),
    [
        ("loo", "loo", "heldout"),
        ("nll", "nll", "heldout"),
        ("misspecification", "loo", "misspecification"),
        ({"tuple": ["nll", "misspecification"]}, "nll", ("heldout", "misspecification")),
        (["loo", "loo"], "loo", ("heldout", "heldout")),
    ],
)
def test_the_old_meaning_of_selection_is_read(
    models, load_changed, version, old, objective, selection
):
    def change(parts):
        for state in states(parts, "TwoStageGPRegressor"):
            del state["objective"]
            state["selection"] = old

    loaded = load_changed("exact", change, version)
    assert (loaded.objective, loaded.selection) == (objective, selection)
    assert_same_predictions(loaded, models["exact"])
    assert loaded.search_ == models["exact"].search_


@VERSIONS
@pytest.mark.parametrize(("calibrate", "calibration"), [(True, "scale"), (False, None)])
def test_old_parameters_of_gpnn_are_read(models, load_changed, version, calibrate, calibration):
    def change(parts):
        (state,) = states(parts, "GPNNRegressor")
        state["hyperparameters"] = state.pop("objective")
        del state["calibration"]
        state |= {"calibrate": calibrate, "preprocess": "standardise"}
        (report,) = states(parts, "FitReport")
        report["full_factorisations"] = report.pop("full_factorizations")

    loaded = load_changed("gpnn", change, version)
    model = models["gpnn"]
    assert (loaded.objective, loaded.calibration) == (model.objective, calibration)
    assert loaded.preprocess == "standardize"
    assert loaded.fit_report_.full_factorizations == model.fit_report_.full_factorizations
    assert_same_predictions(loaded, model)


@VERSIONS
def test_the_old_report_and_search_of_a_classifier_are_read(models, load_changed, version):
    sizes = ["n_rows", "n_distinct_rows", "n_features", "n_classes", "constant_columns"]
    parts_of_fit = ["method", "method_reason", "device", "mean", "variance", "calibration"]
    old = [*sizes, *parts_of_fit, "alpha_eps", "log_loss", "seconds", "encoded_columns"]

    def change(parts):
        for part in parts:
            if part["class"] == "FitReport":
                kept = {key: part["state"][key] for key in old}
                kept["n_distinct"] = kept.pop("n_distinct_rows")
                part.update({"class": "ClassReport", "state": kept})
            if part["class"] == "TwoStageGPClassifier":
                tried = [k for k, each in enumerate(parts) if each["class"] == "Tried"]
                part["state"]["search_"] = [{"part": k} for k in tried]

    model = models["classes"]
    loaded = load_changed("classes", change, version)
    assert loaded.search_ == model.search_
    for name in (*old, "dtype", "noise_std", "refit_due"):
        assert getattr(loaded.fit_report_, name) == getattr(model.fit_report_, name)
    np.testing.assert_allclose(loaded.predict_proba(NEW), model.predict_proba(NEW), rtol=1e-9)


def test_the_search_record_of_older_files_is_made_from_the_fitted_parts(models, load_changed):
    def change(parts):
        record = {"class": "SearchRecord", "state": {"rows": [], "mean": None, "variance": None}}
        parts[-1]["state"]["search_"] = {"part": len(parts) - 1}
        parts.insert(len(parts) - 1, record)

    loaded = load_changed("exact", change)
    assert loaded.search_ == models["exact"].search_


@VERSIONS
def test_old_fields_of_the_variance_and_the_local_scale_are_read(models, load_changed, version):
    def change(parts):
        (variance,) = states(parts, "GPVariance")
        variance["everyone"] = variance.pop("searched")
        (local,) = states(parts, "LocalScale")
        local["telling"] = local.pop("uses_mean")

    loaded, model = load_changed("exact", change, version), models["exact"]
    assert loaded.search_ == model.search_
    assert loaded.calibration_.local.uses_mean == model.calibration_.local.uses_mean
    np.testing.assert_allclose(loaded.predict_interval(NEW), model.predict_interval(NEW), rtol=1e-9)


def test_a_shape_without_a_scale_of_its_own_is_read(models, tmp_path):
    old = replace(
        GAUSSIAN, name="empirical", tail=0.2, degrees=4.0
    )  # a t distribution of variance one
    model = twostagegp.load(_saved(models["exact"], tmp_path / "first"))
    fit = model.fitted_.targets[0].fit
    fit.calibration = replace(fit.calibration, shape=old, shape_scores={"gaussian": 0.5})

    def change(parts):
        (shape,) = states(parts, "Shape")
        assert shape.pop("spread") is None

    loaded = _load_with(model, change, tmp_path)
    assert loaded.calibration_.shape.spread is None
    assert loaded.calibration_.shape_scores == {"gaussian": 0.5}
    np.testing.assert_array_equal(
        loaded.predict_interval(NEW, 0.99), model.predict_interval(NEW, 0.99)
    )


@VERSIONS
def test_settings_of_the_choice_between_three_shapes_are_left_out(tmp_path, version):
    shape = ShapeSettings(tail_rows=5.0)
    model = TwoStageGPRegressor(kernels=("rbf",), random_state=0, settings=Settings(shape=shape))

    def change(parts):
        (state,) = states(parts, "ShapeSettings")
        state.update(names={"tuple": ["gaussian", "student"]}, standard_errors=1.0)
        del state["information"]

    loaded = _load_with(model.fit(X, Y), change, tmp_path, version)
    assert loaded.settings.shape == shape
    assert_same_predictions(loaded, model)
