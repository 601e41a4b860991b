"""The folder of a model: complete or unchanged after a save, and every damage found."""

import json
import os
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
from stored_models import NEW

import twostagegp
from twostagegp import ExactGPRegressor, TwoStageGPRegressor
from twostagegp.errors import ModelFileError
from twostagegp.storage.folder import MANIFEST, manifest_bytes

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
    with pytest.raises(ModelFileError, match="not the manifest of a model"):
        models("exact").save(mine)
    assert (mine / "thesis.tex").read_text() == "mine"


# --- damage --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["exact", "neighbors", "classes, neighbors"])
def test_any_damage_is_found(models, name, tmp_path):
    """About 1000 cases per model: bytes flipped, files cut short, lengthened or deleted."""
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


def test_a_path_without_a_model_is_refused(tmp_path):
    for path in (tmp_path / "nothing", tmp_path):
        with pytest.raises(ModelFileError):
            twostagegp.load(path)


# --- manifests -----------------------------------------------------------------------------------


def test_paths_in_a_manifest_cannot_lead_out_of_the_folder(forge, tmp_path):
    path = forge("gpnn", lambda files: files)
    secret = tmp_path / "secret.json"
    secret.write_text("{}")
    manifest = json.loads((path / MANIFEST).read_text())
    for name in ("../secret.json", str(secret), "model-0.json/../../secret.json", 7, None, ""):
        changed = json.loads(json.dumps(manifest))
        changed["files"]["model"]["name"] = name
        _sign(path, changed)
        with pytest.raises(ModelFileError, match="invalid entry"):
            twostagegp.load(path)
    for role in ("../x", "sklearn-", "sklearn-../../x", "arrays "):
        changed = json.loads(json.dumps(manifest))
        changed["files"][role] = changed["files"]["model"]
        _sign(path, changed)
        with pytest.raises(ModelFileError, match="invalid entry"):
            twostagegp.load(path)
    for files in ({}, [], None, {"model": 1, "arrays": 2}):
        _sign(path, {**manifest, "files": files})
        with pytest.raises(ModelFileError):
            twostagegp.load(path)


def _sign(path, manifest):
    (path / MANIFEST).write_bytes(manifest_bytes(manifest))


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


def test_other_formats_are_distinguished_from_damage(forge):
    for version in (3, 0, "1", True, None, [1]):
        path = forge("gpnn", lambda files: files, {"format": version, "library": "9.9"})
        with pytest.raises(ModelFileError, match=r"9\.9"):
            twostagegp.load(path)
    path = forge("gpnn", lambda files: files, {"class": "TwoStageGPRegressor"})
    with pytest.raises(ModelFileError, match="instead of"):
        twostagegp.load(path)
