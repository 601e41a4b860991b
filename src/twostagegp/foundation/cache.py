"""Encoded rows on disk, found again by their content.

A cache is one folder for each way to encode (model, pooling, precision, ...), named after the hash
of these settings, and in it one ``.npz`` file for each stretch of work: the keys of some rows, and
their features. A key is the hash of a row's content, so a row is found wherever it stands in a
table. There is no index that could disagree with the files. A file is written under another name
and then renamed, so it is there whole or not at all, also when two processes write at once. Few
large files are read faster than one for each row, and the checksums that a zip archive carries
tell a damaged one.
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

#: What reading a damaged archive may raise.
_DAMAGE = (zipfile.BadZipFile, zlib.error, ValueError, KeyError, EOFError, NotImplementedError)


def digest(parts: Iterable[bytes]) -> str:
    """Hash of a sequence of byte strings, in which the borders between them count.

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
    """Features of rows that were encoded with one choice of settings.

    Parameters
    ----------
    root : path
        Folder of all caches; made where it does not exist.
    settings : dict
        Everything that features depend on besides the row, as JSON can write it.
    """

    def __init__(self, root: str | os.PathLike[str], settings: dict[str, Any]) -> None:
        text = json.dumps(settings, sort_keys=True, indent=1)
        self.folder = Path(root).expanduser() / f"{settings['encoder']}-{digest([text.encode()])}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            description = self.folder / "settings.json"
            if not description.exists():  # for a reader who wonders what a folder is
                write_atomically(description, lambda file: file.write(text.encode()))
        except OSError as error:
            raise InputError(
                f"cache_dir={str(root)!r} cannot be written to ({error}). Give a folder that can, "
                "or cache_dir=None."
            ) from error

    def read(self, wanted: Collection[str]) -> dict[str, NDArray[Any]]:
        """Features of those of the wanted keys that are here."""
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
                # Rows come back in a file of another name, so this one would be met every time.
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
        """Keep some rows, in a file of their own."""
        names = np.array(keys, dtype="S")
        path = self.folder / f"{digest(key.encode() for key in keys)}.npz"
        try:
            write_atomically(path, lambda file: np.savez(file, keys=names, features=features))
        except OSError as error:
            # Hours of encoding must not be lost to a full disk.
            warnings.warn(
                f"{len(keys)} encoded rows could not be kept in {str(self.folder)!r} ({error}). "
                "They are returned all the same.",
                TwoStageGPWarning,
                stacklevel=2,
            )


def _read(path: Path, wanted: set[str]) -> dict[str, NDArray[Any]]:
    # Opened here: numpy leaves a damaged file open.
    with open(path, "rb") as stream, np.load(stream, allow_pickle=False) as file:
        keys = file["keys"].astype(str).tolist()
        places = [(key, i) for i, key in enumerate(keys) if key in wanted]
        if not places:
            return {}
        features = file["features"]
    if features.ndim != 2 or len(features) != len(keys):
        raise ValueError(f"features have shape {features.shape} for {len(keys)} keys")
    return {key: features[i] for key, i in places}
