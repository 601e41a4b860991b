"""Where the weights of TabPFN are looked for, how they are identified, and what is refused."""

import hashlib
import os

import pytest
import torch

from twostagegp.errors import InputError
from twostagegp.pipeline.mean.tabpfn import library
from twostagegp.pipeline.mean.weights_file import (
    FILES,
    FOLDER_VARIABLE,
    LICENCE,
    cache_folder,
    find_weights,
    identify,
)


def write(path, max_num_classes=0, seed=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    state = {"layer": torch.randn(4, generator=generator)}
    torch.save({"state_dict": state, "config": {"max_num_classes": max_num_classes}}, path)
    return path


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder that takes the place of the package's downloads."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_folder_of_downloads_is_that_of_the_package(monkeypatch, tmp_path):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.setenv(FOLDER_VARIABLE, " ")
    for platform, variable in (("linux", "XDG_CACHE_HOME"), ("win32", "APPDATA")):
        monkeypatch.setattr("sys.platform", platform)
        monkeypatch.setenv(variable, str(tmp_path))
        assert cache_folder() == tmp_path / "tabpfn"
        monkeypatch.delenv(variable)
        assert cache_folder().name == "tabpfn"
    monkeypatch.setattr("sys.platform", "darwin")
    assert cache_folder().parts[-3:] == ("Library", "Caches", "tabpfn")


def test_the_folder_of_downloads_agrees_with_the_package(monkeypatch, tmp_path):
    pytest.importorskip("einops")  # tabpfn needs it, and nothing else does
    try:
        library()
    except InputError as error:
        pytest.skip(str(error))
    from tabpfn.model.loading import resolve_model_path

    for name, value in ((FOLDER_VARIABLE, str(tmp_path)), (FOLDER_VARIABLE, "")):
        monkeypatch.setenv(name, value)
        path = resolve_model_path(None, "regressor")[0]
        assert path == cache_folder() / FILES[0]


def test_a_file_is_found_by_path_by_folder_and_in_the_folder_of_downloads(tmp_path, folder):
    own = write(tmp_path / "own" / FILES[2])
    downloaded = write(folder / FILES[0], seed=1)
    write(folder / FILES[1], seed=2)
    assert find_weights(str(own)).path == own
    assert find_weights(str(own.parent)).path == own
    found = find_weights(None)
    assert (found.path, found.sha256) == (downloaded, sha256(downloaded))
    assert LICENCE in found.description
    assert downloaded.name in found.description


def test_a_path_of_the_user_is_not_replaced_by_another_file(tmp_path, folder):
    write(folder / FILES[0])
    with pytest.raises(InputError, match=r"not found: .*absent\.ckpt\. Download .*Prior Labs Lic"):
        find_weights(str(tmp_path / "absent.ckpt"))


def test_the_error_names_every_place_and_the_way_out(folder):
    with pytest.raises(InputError) as caught:
        find_weights(None)
    text = str(caught.value)
    assert all(str(folder / name) in text for name in FILES)
    assert "TabPFNMean(weights=PATH)" in text
    assert FOLDER_VARIABLE in text


def test_a_saved_model_finds_its_file_wherever_it_is_now(tmp_path, folder):
    moved = write(folder / FILES[3])
    found = find_weights(str(tmp_path / "gone" / FILES[3]), FILES[3], sha256(moved))
    assert found.path == moved
    write(tmp_path / FILES[3], seed=5)  # another content where the fit had it
    assert find_weights(str(tmp_path / FILES[3]), FILES[3], sha256(moved)).path == moved


def test_a_saved_model_refuses_other_weights(folder):
    write(folder / FILES[0])
    with pytest.raises(InputError, match=r"has the SHA-256 \w+, but the model was fitted with"):
        find_weights(None, FILES[0], "0" * 64)


def test_a_changed_file_has_another_hash(tmp_path):
    path = write(tmp_path / "w.ckpt")
    before = identify(path)
    write(path, seed=1)
    os.utime(path, ns=(1, 1))
    assert identify(path) == sha256(path) != before


class Harmful:
    def __reduce__(self):
        return (os.mkdir, ("harmed",))


def test_other_files_are_refused_and_their_code_does_not_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "w.ckpt"
    with pytest.raises(InputError, match="weights of a classifier"):
        find_weights(str(write(path, max_num_classes=10)))
    path.write_bytes(b"no archive")
    with pytest.raises(InputError, match="is not a file of TabPFN's weights"):
        find_weights(str(path))
    torch.save({"config": {"max_num_classes": 0}, "state_dict": {"a": Harmful()}}, path)
    with pytest.raises(InputError, match="is not a file of TabPFN's weights"):
        find_weights(str(path))
    assert not (tmp_path / "harmed").exists()
