"""Hostile model files: the short form of ``benchmarks.loader_fuzz``, and what it has found."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays

import twostagegp
from benchmarks import loader_fuzz
from benchmarks.fuzz_guard import Guard
from benchmarks.fuzz_runner import count, is_failure, page, run_cases
from benchmarks.loader_cases import Cases, open_stored
from benchmarks.loader_models import POINTS, save_models
from twostagegp.engines.exact.settings import ExactSettings
from twostagegp.engines.memory import plan_factor
from twostagegp.errors import InputError, MemoryBudgetError, ModelFileError, NumericalError
from twostagegp.runtime.prediction_checks import predict_with
from twostagegp.storage.folder import MANIFEST, read_files, read_manifest, write_folder

OLD_FORMAT = Path(__file__).parents[1] / "data" / "model_format_1"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    save_models(folder, ("columns", "folds", "gpnn", "classes"))
    shutil.copytree(OLD_FORMAT, folder / "old")
    return folder


@pytest.fixture(scope="module")
def guard():
    made = Guard()
    yield made
    made.close()


@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::UserWarning")
def test_five_hundred_hostile_files_end_in_an_error_of_ours_or_in_finite_predictions(
    models, guard, tmp_path
):
    cases = Cases([open_stored(path) for path in sorted(models.iterdir())], tmp_path, seed=7)
    cases.warm()
    results = {}
    run_cases(guard, cases, range(500), lambda result: results.update({result["case"]: result}))
    failures = [result for result in results.values() if is_failure(result["outcome"])]
    assert failures == []
    outcomes = [result["outcome"] for result in results.values()]
    assert len(outcomes) == 500
    assert outcomes.count("refused") > 250
    damaged = [result["outcome"] for result in results.values() if result["kind"] == "damage"]
    assert set(damaged) == {"refused"}  # without right hashes nothing is loaded
    assert outcomes.count("model") > 20  # otherwise no case would have passed the checks
    assert {result["kind"] for result in results.values()} == {kind for kind, *_ in cases.kinds}


def test_the_guard_finds_what_it_looks_for(guard, tmp_path):
    def hangs():
        while True:
            sum(range(1000))

    def unknown():
        raise KeyError("x")

    def runs():
        exec(compile("x = 1", "hostile", "exec"))
        return "model"

    def writes():
        (tmp_path / "trace").write_text("x")
        return "model"

    def unforeseen():
        raise ModelFileError("x") from MemoryError()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(guard, "break_seconds", 0.2)
        assert guard.run(hangs)[0] == "slow"
    assert guard.run(unknown)[0] == "exception: KeyError"
    assert guard.run(runs)[0] == "side effect"
    assert guard.run(writes)[0] == "side effect"
    assert guard.run(unforeseen)[0] == "memory"
    assert guard.run(lambda: "model") == ("model", "")
    assert all(map(is_failure, ("slow", "exception: KeyError", "side effect", "memory", "crash")))
    assert not is_failure("refused")


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="peaks stay")
def test_cases_that_take_more_memory_in_turn_are_all_found(guard, monkeypatch):
    def takes(mib):
        def case():
            return "model" if np.ones(mib << 17).all() else ""

        return case

    assert guard.run(takes(16))[0] == "model"
    # Above 32 MiB an array is given back to the system when it is freed, and not used again.
    monkeypatch.setattr(guard, "growth_mib", 48)
    assert [guard.run(takes(mib))[0] for mib in (16, 64, 96, 80)] == ["model", *["memory"] * 3]


def test_where_peaks_stay_a_case_that_takes_more_than_all_before_is_found(guard, monkeypatch):
    peaks = iter((100.0, 100.0, 100.0, 500.0))
    monkeypatch.setattr("benchmarks.fuzz_guard.open", _refuse, raising=False)
    monkeypatch.setattr("benchmarks.fuzz_guard._peak_mib", lambda: next(peaks))
    assert [guard.run(lambda: "model")[0] for _ in range(2)] == ["model", "memory"]


def _refuse(*arguments, **options):
    raise PermissionError


def test_memory_that_the_allocator_refused_is_not_counted_as_foreseen(guard):
    def late():
        raise MemoryBudgetError("x") from pa.ArrowMemoryError()

    def foreseen():
        raise MemoryBudgetError("x") from MemoryBudgetError("y")

    assert guard.run(late)[0] == "refused late"
    assert guard.run(foreseen)[0] == "refused"
    assert not is_failure("refused late")
    results = [
        {"case": k, "kind": "a", "outcome": outcome}
        for k, outcome in enumerate(["refused late", "refused", "model", "model", "memory"])
    ]
    state = {"version": "1", "code": "x", "seed": 0, "first": 0, "seconds": 1.0}
    told = [line.split() for line in page("loader_fuzz", count(results) | state).splitlines()]
    assert ["|", "a", "|", "5", "|", "1", "|", "1", "|", "2", "|", "1", "|"] in told


@pytest.mark.slow
def test_the_program_counts_cases_and_writes_them(models, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[2])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["src", "."]))
    arguments = ["--cases", "20", "--models", str(models), "--results", str(tmp_path)]
    assert loader_fuzz.main(arguments) == 0
    counts = json.loads((tmp_path / "loader_fuzz.json").read_text())
    assert counts["cases"] == 20
    assert counts["failed"] == 0
    assert sum(sum(by.values()) for by in counts["outcomes"].values()) == 20


# --- what it found -------------------------------------------------------------------------------


@pytest.fixture
def spoil(models, tmp_path):
    """Write a model again after a change to its structure or its arrays, with right hashes."""

    def spoilt(name, structure=None, arrays=None):
        manifest = read_manifest(models / name)
        files = dict(read_files(models / name, manifest))
        if structure is not None:
            content = json.loads(files["model"])
            structure(content["parts"])
            files["model"] = json.dumps(content).encode()
        if arrays is not None:
            loaded = load_arrays(files["arrays"])
            arrays(loaded, json.loads(files["model"])["parts"])
            files["arrays"] = save_arrays(loaded)
        head = {key: manifest[key] for key in manifest if key not in ("files", "sha256", "kind")}
        path = tmp_path / "spoilt"
        shutil.rmtree(path, ignore_errors=True)
        write_folder(path, head, files)
        return path

    return spoilt


def _state(parts, name):
    return next(part["state"] for part in parts if part["class"] == name)


def _array(parts, name, key):
    node = _state(parts, name)[key]
    return node.get("array") or node.get("tensor")


def test_a_folder_in_place_of_a_file_is_refused_and_no_descriptor_stays_open(models, tmp_path):
    path = tmp_path / "model"
    shutil.copytree(models / "gpnn", path)
    (path / MANIFEST).unlink()
    (path / MANIFEST).mkdir()
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    for _ in range(5):
        with pytest.raises(ModelFileError, match="not a regular file"):
            twostagegp.load(path)
    after = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    assert after == before


def test_a_size_beyond_all_files_is_refused(models, tmp_path):
    path = tmp_path / "model"
    shutil.copytree(models / "gpnn", path)
    manifest = read_manifest(path)
    manifest["files"]["model"]["bytes"] = 2**64
    cases = Cases([open_stored(models / "gpnn")], tmp_path / "other", seed=0)
    cases.folder = path
    cases.sign(manifest)
    with pytest.raises(ModelFileError, match="changed after it was written"):
        twostagegp.load(path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tail", 2.0),
        ("tail", {"float": "nan"}),
        ("name", "cauchy"),
    ],
)
def test_a_shape_without_quantiles_is_refused_instead_of_searched_forever(spoil, key, value):
    path = spoil("old", lambda parts: _state(parts, "Shape").update({key: value}))
    with pytest.raises(ModelFileError, match="a shape"):
        twostagegp.load(path)


@pytest.mark.parametrize(
    ("key", "factor"), [("shares", 2.0), ("widths", -1.0), ("centres", np.nan)]
)
def test_components_that_are_no_law_are_refused(spoil, key, factor):
    def change(arrays, parts):
        arrays[_array(parts, "Shape", key)] *= factor

    with pytest.raises(ModelFileError, match="a shape"):
        twostagegp.load(spoil("old", arrays=change))


def test_a_scale_of_zero_is_refused(spoil):
    def change(arrays, parts):
        arrays[_array(parts, "Scaling", "x_scale")][0] = 0.0

    with pytest.raises(ModelFileError, match="a scale that is not positive"):
        twostagegp.load(spoil("old", arrays=change))


def test_a_whitening_of_another_shape_is_refused_before_anything_is_compiled_for_it(spoil):
    def change(arrays, parts):
        name = _array(parts, "Whitening", "matrix")
        arrays[name] = arrays[name][None]

    with pytest.raises(ModelFileError, match="whitening has a matrix of the shape"):
        twostagegp.load(spoil("gpnn", arrays=change))


def test_an_axis_too_many_that_one_row_would_hide_is_found(spoil):
    def change(arrays, parts):
        name = _array(parts, "SeveralPosterior", "alpha")
        arrays[name] = arrays[name][None]

    with pytest.raises(ModelFileError):
        twostagegp.load(spoil("classes", arrays=change))


def test_a_stack_with_a_weight_too_many_is_refused(spoil):
    def change(arrays, parts):
        name = _array(parts, "StackedMean", "weights")
        arrays[name] = np.append(arrays[name], 0.0)

    with pytest.raises(ModelFileError, match="one weight for each of its"):
        twostagegp.load(spoil("old", arrays=change))


def test_draws_that_are_no_numbers_are_refused(spoil):
    def change(arrays, parts):
        arrays[_array(parts, "FittedClasses", "draws")][0, 0] = np.nan

    with pytest.raises(ModelFileError, match="draws are not finite"):
        twostagegp.load(spoil("classes", arrays=change))


def test_folds_whose_estimators_cannot_predict_are_refused(spoil):
    def text(parts):
        _state(parts, "CVPlusRegressor")["estimators_"][0] = "x"

    def unfitted(parts):
        state = _state(parts, "CVPlusRegressor")
        state["estimators_"][0] = state["estimator"]

    for change in (text, unfitted):
        with pytest.raises(ModelFileError):
            twostagegp.load(spoil("folds", change))


def test_more_columns_than_any_table_has_take_no_memory(spoil):
    for columns in (0, -1, 10**8):
        path = spoil(
            "gpnn", lambda p, c=columns: _state(p, "GPNNRegressor").update(n_features_in_=c)
        )
        with pytest.raises(ModelFileError):
            twostagegp.load(path)


def test_a_model_beyond_the_memory_is_refused_with_the_numbers_and_the_folder(models, monkeypatch):
    def refuse(*arguments):
        little = ExactSettings(memory_bytes=2**30)
        plan_factor(10**6, torch.device("cpu"), torch.float64, (), little)

    monkeypatch.setattr("twostagegp.storage.trial.check_predictions", refuse)
    told = r"old cannot be loaded: an exact fit of 1000000 distinct rows needs .* device='cuda'\.$"
    with pytest.raises(MemoryBudgetError, match=told):
        twostagegp.load(models / "old")


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("Unable to allocate 8 EiB"),
        torch.cuda.OutOfMemoryError("CUDA out of memory."),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes"),
    ],
)
def test_memory_that_an_allocator_refuses_is_no_damaged_model(models, monkeypatch, error):
    def refuse(*arguments):
        raise error

    monkeypatch.setattr("twostagegp.storage.trial.check_predictions", refuse)
    with pytest.raises(MemoryBudgetError, match="old needs more memory than there is on cpu"):
        twostagegp.load(models / "old")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_predictions_that_overflow_are_an_error(models):
    model = twostagegp.load(models / "old")
    points = np.zeros((4, model.n_features_in_))
    model.fitted_.fits[0].mean.weights[:] = 1e308
    model.fitted_.data[0].scaling.__dict__["y_scale"] = 1e308
    with pytest.raises(NumericalError, match=r"predictions (is|are) not finite, the first in row"):
        model.predict(points)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_what_scikit_learn_refuses_inside_of_a_model_is_an_error_of_ours(models):
    model = twostagegp.load(models / "folds")
    model.estimator_[0].scale_[:] = 1e-320
    with pytest.raises(InputError, match="inside the model cannot predict"):
        model.predict(1e300 * POINTS)
    with pytest.raises(InputError, match="Ridge inside"):
        predict_with(model.estimator_[-1], np.full((2, 2), np.nan))
