"""Models on disk: the way there and back, damage, harm, and what is refused."""

import io
import json
import os
import random
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import gpytorch
import numpy as np
import pandas as pd
import pytest
import skops.io
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.ensemble import (
    GradientBoostingRegressor,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
)
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.svm import SVR

import twostagegp
from twostagegp import (
    CVPlusRegressor,
    ExactGPRegressor,
    GPNNRegressor,
    TwoStageGPClassifier,
    TwoStageGPRegressor,
    TwoStageGPWarning,
)
from twostagegp.errors import InputError, ModelFileError, TwoStageGPError
from twostagegp.pipeline.settings import SampleSettings, Settings
from twostagegp.search import stages
from twostagegp.search.settings import SearchSettings
from twostagegp.storage import folder as folder_module
from twostagegp.storage.folder import MANIFEST, read_files, read_manifest, write_folder
from twostagegp.storage.sklearn_estimators import dump_estimator, load_estimator

DATA = Path(__file__).parents[1] / "data"
N, D = 60, 3
_RNG = np.random.default_rng(0)
X = _RNG.normal(size=(N, D))
Y = np.sin(2 * X[:, 0]) + 0.3 * _RNG.normal(size=N) * (1 + X[:, 1] ** 2)
LABELS = np.where(X[:, 0] + 0.4 * _RNG.normal(size=N) > 0, "ill", "well")
GROUPS = np.arange(N) // 2
NEW = _RNG.normal(size=(23, D))


def frame(values):
    return pd.DataFrame(values, columns=["a", "b", "c"])


#: Few and small trees in the stack of neighbours.
SMALL_TREES = Settings(
    sample=SampleSettings(tree_parameters=(("max_iter", 20), ("max_leaf_nodes", 7)))
)


def short_regressor(**options):
    given = {"kernels": ("rbf", "matern32"), "random_state": 0}
    if options.get("method") in ("neighbors", "vecchia", "svgp"):
        given["settings"] = SMALL_TREES
    return TwoStageGPRegressor(**given, **options)


def wrapped():
    kernel = gpytorch.kernels.RBFKernel(active_dims=[0, 1]) + gpytorch.kernels.LinearKernel()
    return short_regressor(mean=kernel, variance=gpytorch.kernels.MaternKernel(nu=1.5))


REGRESSORS = {
    "exact": lambda: short_regressor().fit(X, Y),
    "scale": lambda: short_regressor(calibration="scale").fit(X, Y, sample_weight=1 + GROUPS % 3),
    "no calibration": lambda: short_regressor(calibration=None).fit(X, Y, noise_var=0.01),
    "groups": lambda: short_regressor().fit(X, Y, groups=GROUPS),
    "float32": lambda: short_regressor(dtype="float32").fit(X, Y),
    "constant": lambda: short_regressor().fit(X, np.ones(N)),
    "two targets": lambda: short_regressor(mean="rbf").fit(X, np.column_stack([Y, -2 * Y])),
    "names": lambda: short_regressor(mean="rbf").fit(frame(X), Y),
    "ridge": lambda: short_regressor(mean=["rbf", Ridge()]).fit(X, Y),
    "forest": lambda: short_regressor(
        mean=make_pipeline(StandardScaler(), GradientBoostingRegressor(n_estimators=5))
    ).fit(X, Y),
    "gpytorch": lambda: wrapped().fit(X, Y),
    "seeded": lambda: TwoStageGPRegressor(mean="rbf", random_state=np.random.RandomState(3)).fit(
        X, Y
    ),
    "paper": lambda: TwoStageGPRegressor.from_paper(random_state=0).fit(X, Y),
    "neighbors": lambda: short_regressor(method="neighbors", n_neighbors=20).fit(X, Y),
    "neighbors, groups": lambda: short_regressor(method="neighbors", calibration="scale").fit(
        X, Y, groups=GROUPS
    ),
    "neighbors, float32": lambda: short_regressor(method="neighbors", dtype="float32").fit(X, Y),
    "vecchia": lambda: short_regressor(method="vecchia").fit(X, Y),
    "svgp": lambda: short_regressor(method="svgp").fit(X, Y),
    "single stage": lambda: ExactGPRegressor(random_state=0).fit(X, Y),
    "single stage, search": lambda: ExactGPRegressor.from_paper(1, random_state=0).fit(X, Y),
    "gpnn": lambda: GPNNRegressor(random_state=0).fit(X, Y),
    "gpnn, as published": lambda: GPNNRegressor.from_paper(random_state=0).fit(X, Y),
}
CLASSIFIERS = {
    "classes": lambda: TwoStageGPClassifier(random_state=0).fit(X, LABELS),
    "one stage": lambda: TwoStageGPClassifier(stages=1, random_state=0).fit(X, Y > 0),
    "classes, neighbors": lambda: TwoStageGPClassifier(method="neighbors", random_state=0).fit(
        X, LABELS.astype(object), groups=GROUPS
    ),
    "classes, forest": lambda: TwoStageGPClassifier(
        mean=["rbf", RandomForestClassifier(5, random_state=0)], random_state=0
    ).fit(X, (X[:, 0] > 0).astype(int) + (X[:, 1] > 1)),
}


@pytest.fixture(scope="module")
def models():
    """Fitted models by name, each fitted when it is first asked for."""
    known = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(stages.search_stage.__kwdefaults__, "settings", SearchSettings(4, 40))

        def fitted(name):
            if name not in known:
                known[name] = {**REGRESSORS, **CLASSIFIERS}[name]()
            return known[name]

        yield fitted


def folder_bytes(path):
    return sum(entry.stat().st_size for entry in Path(path).iterdir())


def predictions(model, points=NEW):
    """Everything that a regressor says of some points."""
    points = frame(points) if hasattr(model, "feature_names_in_") else points
    return [
        *model.predict(points, return_std=True),
        model.predict_interval(points, level=0.9),
        model.predict_quantiles(points, [0.1, 0.5, 0.8]),
        model.sample_y(points, 3, random_state=0),
        model.predict(points[:4], return_cov=True)[1],
    ]


# --- the way there and back ----------------------------------------------------------------------


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
        model = TwoStageGPClassifier(stages=1, kernels=("rbf",), random_state=0).fit(X, labels)
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


def test_a_folder_of_format_1_still_loads():
    path = DATA / "model_format_1"
    assert folder_bytes(path) < 60_000
    expected = json.loads((DATA / "model_format_1_predictions.json").read_text())
    model = twostagegp.load(path)
    mean, std = model.predict(np.array(expected["X"]), return_std=True)
    np.testing.assert_allclose(mean, expected["mean"], rtol=1e-7)
    np.testing.assert_allclose(std, expected["std"], rtol=1e-7)


# --- size ----------------------------------------------------------------------------------------


def test_no_matrix_of_all_rows_unless_asked_for(models, tmp_path):
    for name in ("exact", "neighbors", "single stage", "gpnn", "classes", "classes, neighbors"):
        models(name).save(tmp_path / "small")
        manifest = read_manifest(tmp_path / "small")
        arrays = load_arrays(read_files(tmp_path / "small", manifest)["arrays"])
        assert max(array.size for array in arrays.values()) < N * N
    models("exact").save(tmp_path / "large", include_factors=True)
    difference = folder_bytes(tmp_path / "large") - _size(models("exact"), tmp_path)
    assert 8 * N * N <= difference < 8 * N * N + 1000


def _size(model, tmp_path):
    model.save(tmp_path / "size")
    return folder_bytes(tmp_path / "size")


def test_size_grows_with_rows_times_columns(tmp_path):
    sizes = {}
    for n in (100, 400):
        rng = np.random.default_rng(1)
        inputs = rng.normal(size=(n, 5))
        model = short_regressor(mean="rbf", calibration="scale").fit(inputs, inputs[:, 0])
        sizes[n] = _size(model, tmp_path)
    # docs/files.md: the inputs once, and some thirty numbers a row.
    assert sizes[400] - sizes[100] < 8 * 300 * (5 + 30)
    assert sizes[100] < 60_000


# --- what is refused -----------------------------------------------------------------------------


class MyRidge(Ridge):
    pass


class NoEstimator:
    def fit(self, X, y):
        return self

    def predict(self, X):
        return np.zeros(len(X))

    def get_params(self, deep=True):
        return {}

    def set_params(self):
        return self


class MyModel(TwoStageGPRegressor):
    pass


@pytest.mark.parametrize(
    ("mean", "reason"),
    [
        (MyRidge(), r"MyRidge cannot be saved.*docs/files.md"),
        (SVR(), r"sklearn.svm._classes.SVR cannot be saved"),
        (NoEstimator(), r"NoEstimator, which cannot be saved"),
        (make_pipeline(FunctionTransformer(np.tanh), Ridge()), r"FunctionTransformer"),
    ],
)
def test_an_unknown_regressor_is_refused_when_it_is_saved(mean, reason, tmp_path):
    model = short_regressor(mean=mean, calibration=None).fit(X, Y)
    with pytest.raises(ModelFileError, match=reason):
        model.save(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_what_a_file_does_not_hold_is_said(models, tmp_path):
    with pytest.raises(NotFittedError):
        TwoStageGPRegressor().save(tmp_path / "model")
    with pytest.raises(ModelFileError, match="derived from one of ours"):
        MyModel(kernels=("rbf",), random_state=0).fit(X, Y).save(tmp_path / "model")
    model = short_regressor(mean="rbf", calibration=None).fit(X, Y)
    model.remark = "mine"
    with pytest.raises(ModelFileError, match="remark is no attribute"):
        model.save(tmp_path / "model")
    del model.remark
    assert list(tmp_path.iterdir()) == []


class MyKernel(gpytorch.kernels.RBFKernel):
    pass


def _with_prior():
    prior = gpytorch.priors.GammaPrior(2.0, 2.0)
    return gpytorch.kernels.RBFKernel(lengthscale_prior=prior)


@pytest.mark.parametrize(
    ("kernel", "reason"), [(MyKernel(), "MyKernel"), (_with_prior(), "a prior")]
)
def test_an_unknown_kernel_is_refused(kernel, reason, tmp_path):
    model = ExactGPRegressor(kernel, random_state=0).fit(X, Y)
    with pytest.raises(ModelFileError, match=reason):
        model.save(tmp_path / "model")


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


def test_missing_packages_are_named(models, tmp_path, monkeypatch):
    models("exact").save(tmp_path / "model")
    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
    with pytest.raises(InputError, match=r"pip install 'twostagegp\[files\]'"):
        models("exact").save(tmp_path / "other")
    with pytest.raises(InputError, match=r"pip install 'twostagegp\[files\]'"):
        twostagegp.load(tmp_path / "model")


# --- writing, whole or not at all ----------------------------------------------------------------


class InterruptedWriteError(Exception):
    pass


@pytest.mark.parametrize("there", [False, True])
def test_an_interrupted_save_leaves_what_was_there(models, there, tmp_path, monkeypatch):
    path = tmp_path / "model"
    old, new = models("single stage"), models("ridge")
    expected = old.predict(NEW)
    calls = 0
    for stop in range(1, 100):
        if there and not path.exists():
            old.save(path)
        before = sorted(entry.name for entry in path.iterdir()) if there else []
        left = stop
        with monkeypatch.context() as patch:
            for owner, name in ((os, "fsync"), (os, "replace"), (Path, "rename")):
                original = getattr(owner, name)

                def failing(*args, original=original, **options):
                    nonlocal left
                    left -= 1
                    if left == 0:
                        raise InterruptedWriteError
                    return original(*args, **options)

                patch.setattr(owner, name, failing)
            try:
                new.save(path)
            except InterruptedWriteError:
                calls += 1
            else:
                break
        if there and twostagegp.load(path).__class__ is ExactGPRegressor:
            np.testing.assert_array_equal(twostagegp.load(path).predict(NEW), expected)
            assert sorted(entry.name for entry in path.iterdir()) == before
        elif path.exists():  # stopped after the last step that counts: the new one is whole
            loaded = twostagegp.load(path).predict(NEW)
            np.testing.assert_array_equal(loaded, new.predict(NEW))
            shutil.rmtree(path)
        assert [entry for entry in tmp_path.iterdir() if entry != path] == []
    assert calls >= 6
    np.testing.assert_array_equal(twostagegp.load(path).predict(NEW), new.predict(NEW))


def test_a_model_replaces_a_model_and_nothing_else(models, tmp_path):
    path = tmp_path / "model"
    models("neighbors").save(path)
    models("gpnn").save(path)
    (path / ".left.part").write_bytes(b"of a save that was killed")
    models("exact").save(path)
    assert len(list(path.iterdir())) == 3
    assert type(twostagegp.load(path)) is TwoStageGPRegressor
    other = tmp_path / "other"
    other.mkdir()
    models("exact").save(other)  # an empty folder
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ModelFileError, match="is a file"):
        models("exact").save(tmp_path / "file")
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.tex").write_text("mine")
    with pytest.raises(ModelFileError, match="something else"):
        models("exact").save(mine)
    (mine / MANIFEST).write_text("{}")
    with pytest.raises(ModelFileError, match="not of a model"):
        models("exact").save(mine)
    assert (mine / "thesis.tex").read_text() == "mine"


# --- damage --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["exact", "neighbors", "classes, neighbors"])
def test_any_damage_is_found(models, name, tmp_path):
    """Some 1000 a model: bytes flipped, files cut short, made longer, emptied or taken away."""
    models(name).save(tmp_path / "model")
    files = sorted((tmp_path / "model").iterdir())
    draw = random.Random(0)
    cases = 0
    for file in files:
        whole = file.read_bytes()
        for _ in range(1000 // len(files)):
            changed = bytearray(whole)
            if draw.random() < 0.7:
                for _ in range(draw.choice((1, 1, 1, 3))):
                    changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
            elif draw.random() < 0.8:
                del changed[draw.randrange(len(changed)) :]
            else:
                changed += bytes([draw.randrange(256)])
            if changed == whole:
                continue
            file.write_bytes(changed)
            with pytest.raises(ModelFileError):
                twostagegp.load(tmp_path / "model")
            cases += 1
        file.unlink()
        with pytest.raises(ModelFileError):
            twostagegp.load(tmp_path / "model")
        file.write_bytes(whole)
    assert cases > 900
    twostagegp.load(tmp_path / "model")


def test_a_path_without_a_model_is_said(tmp_path):
    for path in (tmp_path / "nothing", tmp_path):
        with pytest.raises(ModelFileError):
            twostagegp.load(path)


# --- harm: files with the right hashes ------------------------------------------------------------


@pytest.fixture
def forge(models, tmp_path):
    """Write a model again after a change to its files, with the right hashes."""

    def forged(name, change, head=None):
        source = tmp_path / f"source {name}"
        if not source.exists():
            models(name).save(source)
        manifest = read_manifest(source)
        files = read_files(source, manifest)
        kept = {key: manifest[key] for key in manifest if key not in ("files", "sha256", "kind")}
        files = change(dict(files)) or files
        path = tmp_path / "forged"
        shutil.rmtree(path, ignore_errors=True)
        write_folder(path, {**kept, **(head or {})}, files)
        return path

    return forged


def structure(change):
    """A change to the JSON of the structure."""

    def changed(files):
        content = json.loads(files["model"])
        content = change(content["parts"]) or content
        return {**files, "model": json.dumps(content).encode()}

    return changed


def _set(parts, name, key, value):
    for part in parts:
        if part["class"] == name:
            part["state"][key] = value


HOSTILE = {
    "a class of someone else": lambda p: p.insert(0, {"class": "os.system", "state": {}}),
    "a class that is there": lambda p: p.insert(0, {"class": "Popen", "state": {}}),
    "a class that is none": lambda p: p.insert(0, {"class": ["Rows"], "state": {}}),
    "no state": lambda p: p.insert(0, {"class": "Rows", "state": []}),
    "more than a part": lambda p: p[0].update(run="me"),
    "an attribute more": lambda p: _set(p, "Rows", "__class__", "os"),
    "a method": lambda p: _set(p, "Scaling", "inputs", 1),
    "an attribute less": lambda p: p[-1]["state"].pop("fitted_") and None,
    "another kind": lambda p: _set(p, "Rows", "X", "rows"),
    "another part": lambda p: _set(p, "FittedTarget", "fit", {"part": 0}),
    "a reference forwards": lambda p: _set(p, "Rows", "X", {"part": len(p) + 1}),
    "a reference to itself": lambda p: _set(p, "Prepared", "rows", {"part": -1}),
    "an array that is not there": lambda p: _set(p, "Rows", "X", {"tensor": "a9999"}),
    "an array of other rows": lambda p: _set(p, "Rows", "t", {"tensor": "a0"}),
    "an unknown value": lambda p: _set(p, "Rows", "X", {"python": "__import__('os')"}),
    "two values": lambda p: _set(p, "Rows", "X", {"tensor": "a0", "array": "a0"}),
    "a kernel that is none": lambda p: _set(p, "NamedKernel", "name", "exec"),
    "columns that are not there": lambda p: _set(p, "NamedKernel", "n_features", 10**9),
    "parameters of a fit": lambda p: _set(p, "TwoStageGPRegressor", "method", "os.system"),
    "too many threads": lambda p: _set(p, "TwoStageGPRegressor", "n_jobs", 10**9),
    "no targets": lambda p: _set(p, "FittedRegression", "targets", {"tuple": []}),
    "targets of another type": lambda p: _set(p, "FittedRegression", "targets", {"tuple": [1]}),
    "rows elsewhere": lambda p: _set(p, "FittedRegression", "remote", {"part": 0}),
    "other columns": lambda p: _set(p, "TwoStageGPRegressor", "n_features_in_", 2),
    "a scikit-learn part": lambda p: _set(p, "TwoStageGPRegressor", "mean", {"sklearn": 0}),
    "a number that is none": lambda p: _set(p, "Shape", "tail", {"float": "__import__"}),
    "a list as a key": lambda p: _set(p, "Calibration", "shape_scores", {"dict": [[[], 1]]}),
    "no pairs": lambda p: _set(p, "Calibration", "shape_scores", {"dict": [[1]]}),
    "a random state": lambda p: _set(
        p, "TwoStageGPRegressor", "random_state", {"random_state": [[1], 700, 0, 0.0]}
    ),
    "a kernel module": lambda p: _set(
        p, "TwoStageGPRegressor", "variance", {"kernel": {"class": "os.system"}}
    ),
    "no parts": lambda p: {"parts": []},
    "another model": lambda p: {"parts": p[:-1]},
    "not even a table": lambda p: [1],
    "NaN": lambda p: {"parts": [float("nan")]},
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_structure_is_refused(forge, case):
    path = forge("exact", structure(HOSTILE[case]))
    with pytest.raises(ModelFileError):
        twostagegp.load(path)


def _nested(depth):
    return b'{"parts":[' + b"[" * depth + b"]" * depth + b"]}"


def _deep_field(parts):
    value = 1
    for _ in range(100):
        value = [value]
    _set(parts, "FitReport", "warnings", value)


def test_nesting_without_end_is_refused(forge):
    for depth in (100, 100_000):
        path = forge("gpnn", lambda files, depth=depth: {**files, "model": _nested(depth)})
        with pytest.raises(ModelFileError):
            twostagegp.load(path)
    with pytest.raises(ModelFileError, match="without end"):
        twostagegp.load(forge("gpnn", structure(_deep_field)))


def test_a_claim_of_size_takes_no_memory(forge):
    def huge(files):
        header = json.loads(files["arrays"][8 : 8 + int.from_bytes(files["arrays"][:8], "little")])
        first = next(key for key in header if key != "__metadata__")
        header[first]["shape"] = [2**40, 2**20]
        text = json.dumps(header).encode()
        rest = files["arrays"][8 + int.from_bytes(files["arrays"][:8], "little") :]
        return {**files, "arrays": len(text).to_bytes(8, "little") + text + rest}

    with pytest.raises(ModelFileError):
        twostagegp.load(forge("gpnn", huge))
    header_only = (2**62).to_bytes(8, "little") + b"{}"
    with pytest.raises(ModelFileError):
        twostagegp.load(forge("gpnn", lambda files: {**files, "arrays": header_only}))


def test_numbers_that_do_not_fit_are_refused(forge):
    def shorter(files):
        arrays = load_arrays(files["arrays"])
        return {**files, "arrays": save_arrays({k: v[:-1].copy() for k, v in arrays.items()})}

    def infinite(files):
        arrays = load_arrays(files["arrays"])
        changed = {k: v * np.nan if v.dtype == float else v for k, v in arrays.items()}
        return {**files, "arrays": save_arrays(changed)}

    for name in ("gpnn", "exact", "classes, neighbors", "neighbors"):
        for change in (shorter, infinite):
            with pytest.raises(TwoStageGPError):
                twostagegp.load(forge(name, change))


def _mutated(value, draw, chance):
    """Some entries of a JSON value exchanged for others."""
    if draw.random() < chance:
        return draw.choice(
            (
                None,
                True,
                -1,
                10**12,
                0.5,
                "x",
                [],
                {},
                {"part": 0},
                {"tensor": "a1"},
                {"array": "a2"},
            )
        )
    if isinstance(value, list):
        return [_mutated(each, draw, chance) for each in value]
    if isinstance(value, dict):
        return {key: _mutated(each, draw, chance) for key, each in value.items()}
    return value


@pytest.mark.parametrize("name", ["exact", "gpnn", "one stage"])
def test_random_structures_end_in_an_error_of_ours_or_in_a_model(forge, name):
    draw = random.Random(1)
    ended = {"error": 0, "model": 0}
    for _ in range(120):
        change = structure(lambda parts: {"parts": _mutated(parts, draw, 0.002)})
        path = forge(name, change)
        try:
            twostagegp.load(path)
            ended["model"] += 1  # numbers that are only reported may be any
        except TwoStageGPError:
            ended["error"] += 1
    assert ended["error"] > 10


def test_paths_of_a_manifest_lead_nowhere(forge, tmp_path):
    path = forge("gpnn", lambda files: files)
    secret = tmp_path / "secret.json"
    secret.write_text("{}")
    manifest = json.loads((path / MANIFEST).read_text())
    for name in ("../secret.json", str(secret), "model-0.json/../../secret.json", 7, None, ""):
        changed = json.loads(json.dumps(manifest))
        changed["files"]["model"]["name"] = name
        _sign(path, changed)
        with pytest.raises(ModelFileError, match="cannot have"):
            twostagegp.load(path)
    for role in ("../x", "sklearn-", "sklearn-../../x", "arrays "):
        changed = json.loads(json.dumps(manifest))
        changed["files"][role] = changed["files"]["model"]
        _sign(path, changed)
        with pytest.raises(ModelFileError, match="cannot have"):
            twostagegp.load(path)
    for files in ({}, [], None, {"model": 1, "arrays": 2}):
        _sign(path, {**manifest, "files": files})
        with pytest.raises(ModelFileError):
            twostagegp.load(path)


def _sign(path, manifest):
    rest = {key: value for key, value in manifest.items() if key != "sha256"}
    digest = folder_module._digest(folder_module._canonical(rest))
    (path / MANIFEST).write_bytes(folder_module._canonical({**rest, "sha256": digest}))


def test_links_are_refused(forge, tmp_path):
    path = forge("gpnn", lambda files: files)
    for file in list(path.iterdir()):
        moved = tmp_path / f"moved {file.name}"
        file.rename(moved)
        file.symlink_to(moved)
        with pytest.raises(ModelFileError, match="symbolic link"):
            twostagegp.load(path)
        file.unlink()
        moved.rename(file)
    link = tmp_path / "latest"
    link.symlink_to(path)  # the folder itself may be one: it is the user who gives it
    twostagegp.load(link)


def test_other_formats_are_told_from_damage(forge):
    for version in (3, 0, "1", True, None, [1]):
        path = forge("gpnn", lambda files: files, {"format": version, "library": "9.9"})
        with pytest.raises(ModelFileError, match=r"9\.9"):
            twostagegp.load(path)
    path = forge("gpnn", lambda files: files, {"class": "TwoStageGPRegressor"})
    with pytest.raises(ModelFileError, match="instead of"):
        twostagegp.load(path)


# --- harm: scikit-learn parts --------------------------------------------------------------------


class Evil(BaseEstimator, RegressorMixin):
    """Leaves a trace wherever it is made."""

    def __setstate__(self, state):
        Path(state["trace"]).write_text("ran")

    def __reduce__(self):
        return (Path.touch, (Path(self.trace),))


def rewritten(data, change):
    """A skops archive with another description."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w") as new:
        for name in old.namelist():
            text = old.read(name)
            new.writestr(name, change(json.loads(text)) if name == "schema.json" else text)
    return out.getvalue()


def _swap(key, value):
    def change(schema):
        schema["content"]["content"]["alpha"] = {
            "__class__": "system", "__module__": "os", "__loader__": "FunctionNode",
            "content": {"module_path": "os", "function": "system"}, "__id__": 1,
        } | {key: value}  # fmt: skip
        return json.dumps(schema)

    return change


def test_a_hostile_scikit_learn_part_runs_nothing(forge, tmp_path, monkeypatch):
    evil = Evil()
    evil.trace = str(tmp_path / "trace")
    good = dump_estimator(Ridge().fit(X, Y), "it")
    monkeypatch.setattr(os, "system", lambda *_: Path(evil.trace).touch())
    files = [
        skops.io.dumps(evil),
        skops.io.dumps(make_pipeline(StandardScaler(), evil)),
        skops.io.dumps(FunctionTransformer(os.getcwd)),
        skops.io.dumps([Ridge()]),
        rewritten(good, _swap("x", 0)),
        rewritten(good, _swap("__loader__", "TypeNode")),
        rewritten(good, _swap("__loader__", "ObjectNode")),
        rewritten(good, _swap("__loader__", "MethodNode")),
        rewritten(good, _swap("__loader__", ["ListNode"])),
        rewritten(good, lambda schema: json.dumps({**schema, "__class__": "SVR"})),
        rewritten(good, lambda schema: json.dumps({**schema, "__module__": "os"})),
        rewritten(good, lambda schema: "[" * 100_000),
        rewritten(good, lambda schema: json.dumps([schema])),
        b"not an archive",
        b"",
    ]
    for number, data in enumerate(files):
        with pytest.raises(ModelFileError):
            load_estimator(data)
        path = forge("ridge", lambda f, data=data: {**f, "sklearn-1": data})
        with pytest.raises(ModelFileError):
            twostagegp.load(path)
        assert not Path(evil.trace).exists(), number


def _archive(members, compression=zipfile.ZIP_DEFLATED):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return out.getvalue()


def _npy(array, **options):
    out = io.BytesIO()
    np.save(out, array, **options)
    return out.getvalue()


def test_archives_that_grow_or_hold_pickles_are_refused():
    schema = zipfile.ZipFile(io.BytesIO(dump_estimator(Ridge(), "it"))).read("schema.json")
    pickled = _npy(np.array([Ridge()], dtype=object), allow_pickle=True)
    claim = bytearray(_npy(np.zeros(3)))
    claim[claim.index(b"(3,)") : claim.index(b"(3,)") + 4] = b"(9,)"
    for members in (
        [("schema.json", schema), ("a.npy", bytes(1 << 26))],  # a bomb
        [("schema.json", schema), ("a.npy", pickled)],
        [("schema.json", schema), ("a.npy", bytes(claim))],
        [("schema.json", schema), ("a.pkl", b"cos\nsystem\n")],
        [("a.npy", _npy(np.zeros(3)))],
    ):
        with pytest.raises(ModelFileError):
            load_estimator(_archive(members))


def test_random_damage_of_a_scikit_learn_part_ends_in_an_error_of_ours_or_in_an_estimator():
    model = HistGradientBoostingRegressor(max_iter=3, max_leaf_nodes=5).fit(X, Y)
    data = dump_estimator(model, "it")
    with zipfile.ZipFile(io.BytesIO(data)) as old:
        stored = _archive([(name, old.read(name)) for name in old.namelist()], zipfile.ZIP_STORED)
    draw = random.Random(2)
    refused = 0
    for _ in range(300):
        changed = bytearray(stored)
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
        try:
            load_estimator(bytes(changed))
        except ModelFileError:
            refused += 1
    assert refused > 200  # zip has checks of its own


def test_trees_that_lead_nowhere_are_refused():
    for field, value in (("left", 10**6), ("right", 0), ("feature_idx", 99), ("is_categorical", 1)):
        model = HistGradientBoostingRegressor(max_iter=2).fit(X, Y)
        nodes = model._predictors[0][0].nodes
        nodes[field][0] = value
        with pytest.raises(ModelFileError):
            dump_estimator(model, "it")
        with pytest.raises(ModelFileError):
            load_estimator(skops.io.dumps(model))
    forest = GradientBoostingRegressor(n_estimators=2).fit(X, Y)
    forest.estimators_[0, 0].tree_.children_left[0] = 0  # a circle
    with pytest.raises(ModelFileError):
        load_estimator(skops.io.dumps(forest))
    forest = GradientBoostingRegressor(n_estimators=2).fit(X, Y)
    forest.n_features_in_ = 1
    with pytest.raises(ModelFileError):
        load_estimator(skops.io.dumps(forest))


@pytest.fixture(autouse=True)
def _quiet():
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TwoStageGPWarning)
        yield


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
