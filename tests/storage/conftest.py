"""Fixtures of the tests of saved models."""

import shutil
import warnings

import pytest
from stored_models import CLASSIFIERS, REGRESSORS

from twostagegp import TwoStageGPWarning
from twostagegp.storage.folder import read_files, read_manifest, write_folder


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TwoStageGPWarning)
        yield


@pytest.fixture(scope="session")
def models():
    """Fitted models by name, each fitted when it is first asked for."""
    known = {}

    def fitted(name):
        if name not in known:
            known[name] = {**REGRESSORS, **CLASSIFIERS}[name]()
        return known[name]

    return fitted


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
