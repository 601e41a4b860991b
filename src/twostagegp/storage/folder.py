r"""The folder of a model: a manifest that names every file with its size and SHA-256.

::

    model/
      manifest.json                        format, class, and the files below with their hashes
      model-<hash>.json                    the structure
      arrays-<hash>.safetensors            numbers
      sklearn-<number>-<hash>.skops        scikit-learn parts, where there are any

File names contain a hash of the content, so a new model is written beside the old one. Replacing
the manifest, which is atomic, makes the new model the valid one; then the old files are deleted. A
new folder is written under another name and renamed.

A file is parsed only after its size and hash have been compared with the manifest, and the manifest
contains a hash of itself. No other file of the folder is opened, and no symbolic link is followed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from twostagegp.errors import MemoryBudgetError, ModelFileError

__all__ = [
    "MANIFEST",
    "check_replaceable",
    "manifest_bytes",
    "read_files",
    "read_manifest",
    "write_folder",
]

MANIFEST = "manifest.json"
#: The entry "kind" of a manifest.
KIND = "twostagegp model"
#: Size of a manifest at most.
_MANIFEST_BYTES = 1 << 20
#: Number of files of a model at most.
_MOST_FILES = 1000
#: Files of at least this size are read only if enough memory is free.
_LARGE_BYTES = 1 << 24
#: Copies of a file in memory while it is loaded: its bytes, its arrays and one in between.
_LIVE_COPIES = 3

_NAME = re.compile(r"(model|arrays|sklearn-\d{1,4})-[0-9a-f]{16}\.(json|safetensors|skops)")
_HASH = re.compile(r"[0-9a-f]{64}")
_ENDINGS = {"model": "json", "arrays": "safetensors"}


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _canonical(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()


def manifest_bytes(content: Mapping[str, Any]) -> bytes:
    """Return the bytes of a manifest, with the hash of its other entries."""
    rest = {key: value for key, value in content.items() if key != "sha256"}
    return _canonical({**rest, "sha256": _digest(_canonical(rest))})


# --- writing -------------------------------------------------------------------------------------


def write_folder(path: Path, head: Mapping[str, Any], files: Mapping[str, bytes]) -> None:
    """Write a model; ``files`` by role (``"model"``, ``"arrays"``, ``"sklearn-0"``)."""
    path = Path(os.path.realpath(path))
    names = {role: _file_name(role, data) for role, data in files.items()}
    listed = {
        role: {"bytes": len(data), "name": names[role], "sha256": _digest(data)}
        for role, data in files.items()
    }
    everything = {names[role]: data for role, data in files.items()}
    everything[MANIFEST] = manifest_bytes({**head, "kind": KIND, "files": listed})
    if path.exists():
        check_replaceable(path)
        _replace(path, everything)
    else:
        _create(path, everything)


def _file_name(role: str, data: bytes) -> str:
    return f"{role}-{_digest(data)[:16]}.{_ENDINGS.get(role, 'skops')}"


def check_replaceable(path: Path) -> None:
    """Raise ModelFileError if there is a file or a folder that a model must not replace."""
    if not path.is_dir():
        raise ModelFileError(f"{path} is a file; a model is a folder. Give another path.")
    if not (path / MANIFEST).is_file() and any(path.iterdir()):
        raise ModelFileError(
            f"{path} is a folder that contains something else than a model; nothing was written. "
            "Give the path of a new folder."
        )
    if (path / MANIFEST).exists() and not _is_ours(path):
        raise ModelFileError(
            f"{path / MANIFEST} is not the manifest of a model; nothing was written."
        )


def _is_ours(path: Path) -> bool:
    """Return whether the manifest in a folder is that of a model, which may be damaged."""
    with contextlib.suppress(OSError):
        return KIND.encode() in (path / MANIFEST).read_bytes()[:_MANIFEST_BYTES]
    return False


def _create(path: Path, files: Mapping[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f".{path.name}.{secrets.token_hex(8)}.part"
    temporary.mkdir()
    try:
        for name, data in files.items():
            _write(temporary / name, data)
        _sync(temporary)
        temporary.rename(path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    _sync(path.parent)


def _replace(path: Path, files: Mapping[str, bytes]) -> None:
    """Write new files beside the old ones, then the manifest, and delete the old ones."""
    before = {entry.name for entry in path.iterdir()}
    written: list[str] = []
    try:
        for name, data in files.items():  # the manifest comes last
            temporary = path / f".{secrets.token_hex(8)}.part"
            written.append(temporary.name)
            _write(temporary, data)
            if name == MANIFEST:
                _sync(path)
            os.replace(temporary, path / name)
            written[-1] = name
    except BaseException:
        for name in written:
            if name not in before:
                (path / name).unlink(missing_ok=True)
        raise
    _sync(path)
    for name in before - set(files):
        if _NAME.fullmatch(name) or name.endswith(".part"):
            (path / name).unlink(missing_ok=True)


def _write(path: Path, data: bytes) -> None:
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    """Write the names in a folder to the disk, on systems that can."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- reading -------------------------------------------------------------------------------------


def _read(path: Path, most: int) -> bytes:
    """Return the content of a regular file of at most ``most`` bytes; follow no link."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    flags |= getattr(os, "O_BINARY", 0)
    if path.is_symlink():
        raise ModelFileError(
            f"{path} is a symbolic link; the files of a model must be regular files."
        )
    try:
        descriptor = os.open(path, flags)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ModelFileError(f"{path} does not exist; the model is incomplete.") from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):  # os.fdopen would raise for a folder, and close nothing
        os.close(descriptor)
        raise ModelFileError(f"{path} is not a regular file.")
    with os.fdopen(descriptor, "rb") as file:
        if status.st_size > most:
            raise ModelFileError(
                f"{path} has {status.st_size} bytes instead of at most {most}; it is damaged."
            )
        _check_memory(path, status.st_size)
        return file.read(status.st_size + 1)


def _check_memory(path: Path, size: int) -> None:
    """Raise MemoryBudgetError if a file and the arrays made from it do not fit into memory."""
    if size < _LARGE_BYTES:
        return
    import torch

    from twostagegp.runtime.memory import available_bytes

    free = available_bytes(torch.device("cpu"))
    if free is not None and _LIVE_COPIES * size > free:
        raise MemoryBudgetError(
            f"{path} has {size / 2**30:.1f} GiB; loading it takes about "
            f"{_LIVE_COPIES * size / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB are free. Load it "
            "on a machine with more memory, or save it without include_factors."
        )


def read_manifest(path: Path) -> dict[str, Any]:
    """Return the manifest of a folder, after a check of its hash."""
    if not path.is_dir():
        raise ModelFileError(f"{path} is not a folder; give the path that was given to save().")
    data = _read(path / MANIFEST, _MANIFEST_BYTES)
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path / MANIFEST} is not readable ({error}).") from None
    if not isinstance(content, dict) or content.get("kind") != KIND:
        raise ModelFileError(f"{path / MANIFEST} is not the manifest of a model.")
    try:
        fine = manifest_bytes(content) == data
    except (ValueError, RecursionError):
        fine = False
    if not fine:
        raise ModelFileError(f"{path / MANIFEST} was changed after it was written.")
    return content


def read_files(path: Path, manifest: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the files of a manifest by role, after a check of their sizes and hashes."""
    listed = manifest.get("files")
    if not isinstance(listed, dict) or not {"model", "arrays"} <= set(listed):
        raise ModelFileError(f"{path / MANIFEST} does not list the files of a model.")
    if len(listed) > _MOST_FILES:
        raise ModelFileError(
            f"{path / MANIFEST} names {len(listed)} files, more than {_MOST_FILES}."
        )
    return {role: _read_listed(path, role, entry) for role, entry in listed.items()}


def _read_listed(path: Path, role: str, entry: Any) -> bytes:
    size, name, digest = (
        (entry.get("bytes"), entry.get("name"), entry.get("sha256"))
        if isinstance(entry, dict)
        else (None, None, None)
    )
    # The name must follow from the role and the hash, so it cannot lead out of the folder.
    if (
        not isinstance(size, int)
        or isinstance(size, bool)
        or size < 0
        or not isinstance(digest, str)
        or not _HASH.fullmatch(digest)
        or name != f"{role}-{digest[:16]}.{_ENDINGS.get(role, 'skops')}"
        or not _NAME.fullmatch(name)
    ):
        raise ModelFileError(f"{path / MANIFEST} has an invalid entry {role[:40]!r}.")
    data = _read(path / name, size)
    if len(data) != size or _digest(data) != digest:
        raise ModelFileError(
            f"{path / name} was changed after it was written: its size or SHA-256 is not the one "
            "in the manifest."
        )
    return data
