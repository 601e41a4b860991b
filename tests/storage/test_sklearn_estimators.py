"""Hostile files of scikit-learn estimators."""

import io
import json
import os
import random
import zipfile
from pathlib import Path

import numpy as np
import pytest
import skops.io
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.ensemble import GradientBoostingRegressor, HistGradientBoostingRegressor
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from stored_models import X, Y

import twostagegp
from twostagegp.errors import ModelFileError
from twostagegp.storage.sklearn_estimators import dump_estimator, load_estimator


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


def test_trees_with_invalid_nodes_are_refused():
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
