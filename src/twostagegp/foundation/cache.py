"""A cache of features on disk, with the content of the rows as keys.

There is one folder per choice of settings (model, pooling, precision, ...), named by their hash. It
contains ``.npz`` files with the keys of some rows and their features. A key is the hash of the
row's content, so a row is found wherever it is in a table. There is no index that could disagree
with the files. Files are written atomically, so several processes may write at once. A few large
files are read faster than one file per row, and the checksums of the zip format reveal damage.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
import zipfile
import zlib
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twostagegp.errors import InputError, TwoStageGPWarning
from twostagegp.runtime.files import write_atomically

__all__ = ["FeatureCache", "digest"]

#: Errors that reading a damaged archive may raise.
_DAMAGE = (zipfile.BadZipFile, zlib.error, ValueError, KeyError, EOFError, NotImplementedError)


def digest(parts: Iterable[bytes]) -> str:
    """Return the hash of a sequence of byte strings; how they are divided matters.

    Examples
    --------
    >>> digest([b"a", b"bc"]) == digest([b"ab", b"c"])
    False
    """
    total = hashlib.blake2b(digest_size=16)
    for part in parts:
        total.update(len(part).to_bytes(8, "big"))
        total.update(part)
    return total.hexdigest()


class FeatureCache:
    """Features of rows for one choice of settings.

    Parameters
    ----------
    root : path
        Folder of all caches; created if it does not exist.
    settings : dict
        Everything that features depend on except the row, as values of JSON.
    """

    def __init__(self, root: str | os.PathLike[str], settings: dict[str, Any]) -> None:
        text = json.dumps(settings, sort_keys=True, indent=1)
        self.folder = Path(root).expanduser() / f"{settings['encoder']}-{digest([text.encode()])}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            description = self.folder / "settings.json"
            if not description.exists():  # so that people can see what the folder contains
                write_atomically(description, lambda file: file.write(text.encode()))
        except OSError as error:
            raise InputError(
                f"cache_dir={str(root)!r} cannot be written to ({error}). Use a folder that can, "
                "or cache_dir=None."
            ) from error

    def read(self, wanted: Collection[str]) -> dict[str, NDArray[Any]]:
        """Return the features of those wanted keys that are in the cache."""
        wanted = set(wanted)
        found: dict[str, NDArray[Any]] = {}
        damaged = []
        for path in sorted(self.folder.glob("*.npz")):
            try:
                found.update(_read(path, wanted - found.keys()))
            except OSError:
                damaged.append(path.name)
            except _DAMAGE:
                damaged.append(path.name)
                # Its rows will be written to another file, and this one would be read every time.
                path.unlink(missing_ok=True)
        if damaged:
            warnings.warn(
                f"{len(damaged)} file(s) of the cache {str(self.folder)!r} could not be read, the "
                f"first is {damaged[0]!r}. Their rows are encoded again.",
                TwoStageGPWarning,
                stacklevel=2,
            )
        return found

    def write(self, keys: list[str], features: NDArray[Any]) -> None:
        """Write some rows to a new file."""
        names = np.array(keys, dtype="S")
        path = self.folder / f"{digest(key.encode() for key in keys)}.npz"
        try:
            write_atomically(path, lambda file: np.savez(file, keys=names, features=features))
        except OSError as error:
            # A full disk must not discard hours of encoding.
            warnings.warn(
                f"{len(keys)} encoded rows could not be written to {str(self.folder)!r} ({error}). "
                "They are returned, but will be encoded again next time.",
                TwoStageGPWarning,
                stacklevel=2,
            )


def _read(path: Path, wanted: set[str]) -> dict[str, NDArray[Any]]:
    # Opened here because NumPy does not close a damaged file.
    with open(path, "rb") as stream, np.load(stream, allow_pickle=False) as file:
        keys = file["keys"].astype(str).tolist()
        positions = [(key, i) for i, key in enumerate(keys) if key in wanted]
        if not positions:
            return {}
        features = file["features"]
    if features.ndim != 2 or len(features) != len(keys):
        raise ValueError(f"features have shape {features.shape} for {len(keys)} keys")
    return {key: features[i] for key, i in positions}
