"""Hostile files with correct hashes: structures and arrays."""

import json
import random

import numpy as np
import pytest
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays

import twostagegp
from twostagegp.errors import ModelFileError, TwoStageGPError


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
    "a list as a class": lambda p: p.insert(0, {"class": ["Rows"], "state": {}}),
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
    "an unknown kernel": lambda p: _set(p, "NamedKernel", "name", "exec"),
    "columns that are not there": lambda p: _set(p, "NamedKernel", "n_features", 10**9),
    "parameters of a fit": lambda p: _set(p, "TwoStageGPRegressor", "method", "os.system"),
    "too many threads": lambda p: _set(p, "TwoStageGPRegressor", "n_jobs", 10**9),
    "no targets": lambda p: _set(p, "FittedRegression", "targets", {"tuple": []}),
    "targets of another type": lambda p: _set(p, "FittedRegression", "targets", {"tuple": [1]}),
    "rows elsewhere": lambda p: _set(p, "FittedRegression", "remote", {"part": 0}),
    "other columns": lambda p: _set(p, "TwoStageGPRegressor", "n_features_in_", 2),
    "a scikit-learn part": lambda p: _set(p, "TwoStageGPRegressor", "mean", {"sklearn": 0}),
    "an invalid float": lambda p: _set(p, "Shape", "tail", {"float": "__import__"}),
    "a t distribution without width": lambda p: _set(p, "Shape", "spread", 0.0),
    "an infinite t distribution": lambda p: _set(p, "Shape", "spread", {"float": "inf"}),
    "a list as a key": lambda p: _set(p, "Calibration", "shape_scores", {"dict": [[[], 1]]}),
    "no pairs": lambda p: _set(p, "Calibration", "shape_scores", {"dict": [[1]]}),
    "a random state": lambda p: _set(
        p, "TwoStageGPRegressor", "random_state", {"random_state": [[1], 700, 0, 0.0]}
    ),
    "a kernel module": lambda p: _set(
        p, "TwoStageGPRegressor", "variance", {"kernel": {"class": "os.system"}}
    ),
    "a number as a list": lambda p: _set(p, "FitReport", "warnings", 1),
    "another type in a list": lambda p: _set(p, "FitReport", "warnings", [1]),
    "an update that is a number": lambda p: _set(p, "FitReport", "updates", [3]),
    "another type in a dictionary": lambda p: _set(
        p, "FitReport", "seconds", {"dict": [["fit", "x"]]}
    ),
    "another part in a list": lambda p: _set(p, "StackedMean", "models", [{"part": 0}]),
    "a flag as a number": lambda p: _set(p, "Scaling", "y_scale", True),
    "a longer tuple": lambda p: _set(p, "TwoStageFit", "method", {"tuple": ["a", "b", "c"]}),
    "a text outside of its list": lambda p: _set(p, "Candidate", "objective", "exec"),
    "a field of the class": lambda p: _set(p, "RidgeMean", "_whole", None),
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


def test_deep_nesting_is_refused(forge):
    for depth in (100, 100_000):
        path = forge("gpnn", lambda files, depth=depth: {**files, "model": _nested(depth)})
        with pytest.raises(ModelFileError):
            twostagegp.load(path)
    with pytest.raises(ModelFileError, match="nested too deeply"):
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
