"""Locating and identifying the file of TabPFN's weights, without a connection.

A file is looked for where the user says, or in the folder in which the package ``tabpfn`` keeps its
downloads. A saved model names its file by the SHA-256 of the content, so that it predicts with the
weights that it was fitted with or not at all.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from twostagegp.errors import InputError

__all__ = ["FILES", "FOLDER_VARIABLE", "LICENCE", "WeightsFile", "cache_folder", "find_weights"]

#: Names under which the weights of TabPFN v2's regressor are published, the default first.
FILES = (
    "tabpfn-v2-regressor.ckpt",
    "tabpfn-v2-regressor-09gpqh39.ckpt",
    "tabpfn-v2-regressor-2noar4o2.ckpt",
    "tabpfn-v2-regressor-5wof9ojf.ckpt",
    "tabpfn-v2-regressor-wyl4o83o.ckpt",
)
#: Where these are published.
SOURCE = "https://huggingface.co/Prior-Labs/TabPFN-v2-reg"
LICENCE = (
    "Prior Labs License: Apache 2.0 with attribution (http://priorlabs.ai/tabpfn-license); a "
    "product that contains the weights must say so"
)
#: The environment variable by which ``tabpfn`` takes another folder for its downloads.
FOLDER_VARIABLE = "TABPFN_MODEL_CACHE_DIR"


@dataclass(frozen=True)
class WeightsFile:
    """A file of weights on this computer.

    Attributes
    ----------
    path : Path
    sha256 : str
        Hash of the content, in hexadecimal digits.
    """

    path: Path
    sha256: str

    @property
    def description(self) -> str:
        """The file, its hash and its licence, for logs and reports."""
        return f"weights {self.path.name}, SHA-256 {self.sha256[:16]}…; {LICENCE}"


def cache_folder() -> Path:
    """Return the folder in which ``tabpfn`` keeps the weights that it has downloaded."""
    named = os.environ.get(FOLDER_VARIABLE, "").strip()
    if named:
        return Path(named)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "tabpfn"
    variable, default = "XDG_CACHE_HOME", Path.home() / ".cache"
    if sys.platform == "win32":
        variable, default = "APPDATA", Path.home() / "AppData" / "Roaming"
    base = os.environ.get(variable, "").strip()
    return (Path(base) if base else default) / "tabpfn"


def find_weights(
    weights: str | None, name: str | None = None, sha256: str | None = None
) -> WeightsFile:
    """Return the file of weights, or raise InputError naming the places without it.

    Parameters
    ----------
    weights : str or None
        A file, or a folder with a file of one of the published names; None stands for the folder
        of the package ``tabpfn``.
    name, sha256 : str, optional
        Name and hash of the file that a saved model refers to. It is looked for in the place
        ``weights`` and in the folder of the package.
    """
    others = []
    places = list(_places(weights, name))
    for path in places:
        if not path.is_file():
            continue
        found = WeightsFile(path, identify(path))
        if sha256 is None or found.sha256 == sha256:
            return found
        others.append(found)
    if others:
        raise InputError(
            f"{others[0].path} has the SHA-256 {others[0].sha256}, but the model was fitted with "
            f"the weights {name} of SHA-256 {sha256}. {_way_out(name)}"
        )
    looked = ", ".join(map(str, places))
    raise InputError(f"the weights of TabPFN v2 were not found: {looked}. {_way_out(name)}")


def _places(weights: str | None, name: str | None) -> Iterator[Path]:
    names = FILES if name is None else (name,)
    if weights is not None:
        given = Path(weights).expanduser()
        yield from [given / each for each in names] if given.is_dir() else [given]
        if name is None:
            return
    for each in names:
        yield cache_folder() / each


def _way_out(name: str | None) -> str:
    return (
        f"Download {name or FILES[0]} from {SOURCE} ({LICENCE}) and put it into "
        f"{cache_folder()}, or into the folder that the environment variable {FOLDER_VARIABLE} "
        "names; a fit also takes its path: mean=TabPFNMean(weights=PATH). Nothing is downloaded "
        "here."
    )


def identify(path: Path) -> str:
    """Return the SHA-256 of a file, after a check that it holds weights of a regressor."""
    try:
        state = path.stat()
        return _identified(str(path.resolve()), state.st_size, state.st_mtime_ns)
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error}).") from error


@lru_cache(maxsize=16)
def _identified(path: str, size: int, changed: int) -> str:
    """Return the hash; cached, because every fold of a cross-fit asks for it."""
    try:
        # Only tensors and plain values are loaded, so that no code in the file can run.
        checkpoint: Any = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        fine = checkpoint["config"]["max_num_classes"] == 0 and len(checkpoint["state_dict"]) > 0
    except OSError:
        raise
    except Exception as error:  # torch and zipfile raise many types for a damaged file
        text = " ".join(str(error).split())[:200]
        raise InputError(
            f"{path} is not a file of TabPFN's weights ({type(error).__name__}: {text}). Use one "
            f"from {SOURCE}."
        ) from error
    if not fine:
        raise InputError(
            f"{path} has weights of a classifier; use those of TabPFN v2's regressor from {SOURCE}."
        )
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
