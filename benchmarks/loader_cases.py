"""Spoilt folders of models, one for every number.

Most have correct hashes, as an attacker's files would; only a small share is damage that checksums
find. The change of a folder is drawn from the number of the case alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import random
import shutil
import struct
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays

import twostagegp
from benchmarks.hostile_values import change_bytes, change_json, dump, places, value
from benchmarks.loader_models import POINTS, table
from twostagegp.storage.folder import MANIFEST, read_files, read_manifest

__all__ = ["Cases", "Stored", "open_stored"]

Files = dict[str, bytes]


@dataclass(frozen=True)
class Stored:
    """A model on disk, taken apart."""

    name: str
    manifest: dict[str, Any]
    files: Files
    structure: Any
    ways: list[tuple[Any, ...]]
    points: Any

    @property
    def estimators(self) -> list[str]:
        """Roles of the scikit-learn parts."""
        return [role for role in self.files if role.startswith("sklearn")]


def open_stored(path: Path) -> Stored:
    """Take a good folder apart."""
    manifest = read_manifest(path)
    files = read_files(path, manifest)
    structure = json.loads(files["model"])
    points: Any = table().head(3) if path.name == "columns" else POINTS
    model = twostagegp.load(path)
    if path.name != "columns" and model.n_features_in_ != POINTS.shape[1]:
        points = np.zeros((3, model.n_features_in_))
    return Stored(path.name, manifest, files, structure, list(places(structure)), points)


class Cases:
    """From a number to a spoilt folder and to what reads it."""

    def __init__(self, stored: list[Stored], folder: Path, seed: int) -> None:
        self.stored, self.folder, self.seed = stored, folder / "model", seed
        self.kinds: list[tuple[str, float, Callable[..., Files | None]]] = [
            ("structure", 0.32, self._structure),
            ("text", 0.10, self._text),
            ("array header", 0.16, self._header),
            ("numbers", 0.14, self._numbers),
            ("scikit-learn part", 0.08, self._estimator),
            ("manifest", 0.08, self._manifest),
            ("damage", 0.07, self._damage),
            ("folder", 0.05, self._folder),
        ]

    def __call__(self, number: int) -> tuple[str, Callable[[], str]]:
        """Write the folder of a case; returns its kind and the function to run."""
        draw = random.Random(f"{self.seed} {number}")
        weights = [share for _, share, _ in self.kinds]
        kind, _, change = draw.choices(self.kinds, weights)[0]
        # Archives take longest to read: they are there in cases that spoil them, else seldom.
        archives = change == self._estimator or draw.random() < 0.05
        fitting = [each for each in self.stored if bool(each.estimators) == archives]
        base = draw.choice(fitting or self.stored)
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        files = change(base, draw)
        if files is not None:
            self._write(base.manifest, files)
        return kind, lambda: _use(self.folder, base, number)

    def warm(self) -> None:
        """Use every model once, so that any later import is caused by a case."""
        for base in self.stored:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir()
            self._write(base.manifest, base.files)
            for number in range(6):
                assert _use(self.folder, base, number) == "model", base.name
        repr(torch.zeros(1))

    def _write(self, manifest: dict[str, Any], files: Files) -> None:
        """Write a folder with the right hashes."""
        listed = {}
        for role, data in files.items():
            digest = _digest(data)
            ending = {"model": "json", "arrays": "safetensors"}.get(role, "skops")
            name = f"{role}-{digest[:16]}.{ending}"
            listed[role] = {"bytes": len(data), "name": name, "sha256": digest}
            (self.folder / name).write_bytes(data)
        self.sign({**manifest, "files": listed})

    def sign(self, manifest: Any) -> None:
        rest = {key: held for key, held in manifest.items() if key != "sha256"}
        digest = _digest(_canonical(rest))
        (self.folder / MANIFEST).write_bytes(_canonical({**rest, "sha256": digest}))

    # --- kinds of cases --------------------------------------------------------------------------

    def _structure(self, base: Stored, draw: random.Random) -> Files:
        tree = base.structure
        other = draw.choice(self.stored)
        for _ in range(draw.choice((1, 1, 1, 2, 5))):
            with contextlib.suppress(LookupError, TypeError):  # the place does not exist any more
                tree = change_json(tree, base.ways, draw, other.structure, other.ways)
        return {**base.files, "model": dump(tree)}

    def _text(self, base: Stored, draw: random.Random) -> Files:
        text = change_bytes(base.files["model"], draw)
        if draw.random() < 0.1:
            depth = draw.choice((100, 900, 5_000, 200_000))
            text = draw.choice((b"[", b'{"parts":', b'{"parts":[')) * depth
        return {**base.files, "model": text}

    def _header(self, base: Stored, draw: random.Random) -> Files:
        data = base.files["arrays"]
        length = int.from_bytes(data[:8], "little")
        head, rest = data[8 : 8 + length], data[8 + length :]
        kind = draw.random()
        if kind < 0.15:
            size = draw.choice((0, 1, 7, length - 1, length + 1, 2**31, 2**63, 2**64 - 1))
            return {**base.files, "arrays": struct.pack("<Q", size) + head + rest}
        if kind < 0.35:
            head = change_bytes(head, draw)
        else:
            table = json.loads(head)
            table = _spoilt_header(table, draw, len(rest))
            head = dump(table)
        return {**base.files, "arrays": struct.pack("<Q", len(head)) + head + rest}

    def _numbers(self, base: Stored, draw: random.Random) -> Files:
        if draw.random() < 0.3:  # bytes of numbers
            data = base.files["arrays"]
            begin = 8 + int.from_bytes(data[:8], "little")
            changed = data[:begin] + change_bytes(data[begin:], draw)
            return {**base.files, "arrays": changed}
        arrays = dict(sorted(load_arrays(base.files["arrays"]).items()))
        for _ in range(draw.choice((1, 1, 2))):
            name = draw.choice(list(arrays))
            arrays[name] = _spoilt_array(arrays[name], draw, arrays)
        return {**base.files, "arrays": save_arrays(arrays)}

    def _estimator(self, base: Stored, draw: random.Random) -> Files:
        if not base.estimators:
            return {**base.files, "sklearn-0": draw.randbytes(40)}
        role = draw.choice(base.estimators)
        data = base.files[role]
        others = [each for each in self.stored if each.estimators]
        other = draw.choice(others)
        if draw.random() < 0.1:
            spoilt = other.files[draw.choice(other.estimators)]
        elif draw.random() < 0.25:
            spoilt = change_bytes(data, draw)
        else:
            spoilt = _spoilt_archive(data, draw, other.files[draw.choice(other.estimators)])
        return {**base.files, role: spoilt}

    def _manifest(self, base: Stored, draw: random.Random) -> None:
        self._write(base.manifest, base.files)
        manifest = json.loads((self.folder / MANIFEST).read_text())
        changed = change_json(manifest, list(places(manifest)), draw, base.structure, base.ways)
        if draw.random() < 0.3:
            roles = draw.choice(("../x", "sklearn-../../x", "/etc/passwd", "sklearn-9999999", ""))
            changed["files"] = {**_dict(changed.get("files")), roles: value(draw)}
        if draw.random() < 0.3:
            role = draw.choice(("model", "arrays"))
            entry = _dict(_dict(changed.get("files")).get(role))
            names = ("../../etc/passwd", "/etc/passwd", "manifest.json", "\x00", "a/b", 7, None)
            entry["name" if draw.random() < 0.5 else "bytes"] = draw.choice((*names, 2**63, -1))
        try:
            self.sign(changed)
        except (ValueError, TypeError):  # without a canonical form it is not signed
            (self.folder / MANIFEST).write_bytes(dump(changed))

    def _damage(self, base: Stored, draw: random.Random) -> None:
        self._write(base.manifest, base.files)
        file = draw.choice(sorted(self.folder.iterdir()))
        whole = file.read_bytes()
        changed = change_bytes(whole, draw)
        file.write_bytes(changed if changed != whole else whole + b"\0")

    def _folder(self, base: Stored, draw: random.Random) -> None:
        self._write(base.manifest, base.files)
        file = draw.choice(sorted(self.folder.iterdir()))
        kind = draw.randrange(7)
        whole = file.read_bytes()
        if kind == 6:
            with open(file, "r+b") as opened:
                opened.truncate(draw.choice((1 << 33, 1 << 40)))  # of holes
            return
        file.unlink()
        if kind == 0:
            file.mkdir()
        elif kind == 1:
            os.mkfifo(file)
        elif kind == 2:
            file.symlink_to(draw.choice(("/dev/zero", "/etc/passwd", "..", str(file))))
        elif kind == 3:
            (self.folder / "other").write_bytes(whole)
            file.symlink_to("other")
        elif kind == 4:
            file.write_bytes(b"")


def _use(path: Path, base: Stored, number: int) -> str:
    """Load a model and, if that works, predict in a way drawn from the case's number."""
    model = twostagegp.load(path)
    points = base.points
    if not hasattr(points, "columns") and model.n_features_in_ != points.shape[1]:
        points = np.zeros((3, model.n_features_in_))
    if hasattr(model, "predict_proba"):
        answer = model.predict_certainty(points) if number % 2 else model.predict_proba(points)
    elif number % 3 == 0:
        answer = model.predict_interval(points, 0.4)
    elif number % 3 == 1 and hasattr(model, "sample_y"):
        answer = model.sample_y(points, 2, random_state=0, joint=False)
    else:
        answer = model.predict(points)
    return "model" if np.isfinite(np.asarray(answer, dtype=float)).all() else "not finite"


# --- pieces --------------------------------------------------------------------------------------


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _canonical(content: Any) -> bytes:
    return (json.dumps(content, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()


def _dict(value: Any) -> dict[Any, Any]:
    return value if isinstance(value, dict) else {}


def _spoilt_header(table: Any, draw: random.Random, size: int) -> Any:
    """Return an array's description with another shape, type or place."""
    name = draw.choice([key for key in table if key != "__metadata__"])
    entry = table[name]
    shape = entry["shape"]
    kind = draw.randrange(8)
    if kind == 0:
        entry["shape"] = draw.choice(
            ([], [0], [2**40, 2**20], [2**63], [-1], [*shape, 1], [1, *shape], shape[::-1], ["3"])
        )
    elif kind == 1:
        entry["shape"] = [int(np.prod(shape, dtype=np.int64))]
    elif kind == 2:
        entry["dtype"] = draw.choice(
            ("F64", "F32", "F16", "BF16", "I64", "I32", "I8", "U8", "BOOL", "U64", "C64", "x", 1)
        )
    elif kind == 3:
        entry["data_offsets"] = draw.choice(
            ([0, size], [size, 0], [0, 0], [-1, 8], [2**63, 2**64], [0], [0, size + 8], "all")
        )
    elif kind == 4:
        other = draw.choice([key for key in table if key != "__metadata__"])
        table[name], table[other] = table[other], table[name]
    elif kind == 5:
        del table[name]
    elif kind == 6:
        table[draw.choice(("a0", "../x", "", "\x00", "a999"))] = entry
    else:
        entry[draw.choice(("shape", "dtype", "data_offsets"))] = value(draw)
    return table


def _spoilt_array(array: Any, draw: random.Random, arrays: Any) -> Any:
    """Return an array with other numbers, another shape or another type."""
    kind = draw.random()
    if kind < 0.6 and array.size:
        flat = array.reshape(-1).copy()
        extreme: tuple[Any, ...] = (
            (np.nan, np.inf, -np.inf, 1e308, -1e308, 1e-320, 0.0, -1.0, 1e6)
            if array.dtype.kind == "f"
            else (0, 1, 127) if array.dtype.kind in "bu" else (-1, 0, 2**31 - 1, -(2**31), 5)
        )  # fmt: skip
        chosen = draw.choice(extreme)
        if draw.random() < 0.5:
            flat[draw.randrange(len(flat))] = chosen
        else:
            flat[:] = chosen
        return flat.reshape(array.shape)
    if kind < 0.75:
        array = array if array.ndim else array[None]
        turned = (array[:0], array[:-1], np.repeat(array, 2, axis=0))
        return np.ascontiguousarray(draw.choice((*turned, array.reshape(-1), array[None], array.T)))
    if kind < 0.9:
        return array.astype(draw.choice(("float32", "float64", "int64", "int32", "bool", "uint8")))
    return draw.choice(list(arrays.values())).copy()


def _spoilt_archive(data: bytes, draw: random.Random, other: bytes) -> bytes:
    """Return a zip archive with another description, other numbers or other members."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(io.BytesIO(other)) as archive:
        others = {name: archive.read(name) for name in archive.namelist()}
    kind, extra = draw.random(), []
    numbers = [name for name in members if name.endswith(".npy")]
    if kind < 0.5:
        schema, second = json.loads(members["schema.json"]), json.loads(others["schema.json"])
        ways, second_ways = list(places(schema)), list(places(second))
        schema = change_json(schema, ways, draw, second, second_ways)
        members["schema.json"] = dump(schema)
    elif kind < 0.8 and numbers:
        name = draw.choice(numbers)
        members[name] = _spoilt_npy(members[name], draw)
    elif kind < 0.9:
        name = draw.choice(("../../x.npy", "/tmp/x.npy", "x.pkl", "schema.json", "x" * 5000))
        extra = [(name, draw.choice(list(members.values())))]
    elif numbers:
        members[draw.choice(numbers)] = bytes(draw.choice((1 << 20, 1 << 25)))
    out = io.BytesIO()
    packed = draw.choice((zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED))
    with zipfile.ZipFile(out, "w", packed) as archive:
        for name, content in [*members.items(), *extra]:
            entry = zipfile.ZipInfo(name)
            entry.compress_type = packed
            if draw.random() < 0.02:
                entry.external_attr = 0o120777 << 16  # a symbolic link
            archive.writestr(entry, content)
    made = bytearray(out.getvalue())
    if draw.random() < 0.1:  # a size in the list of members that is not the member's
        at = made.rfind(b"PK\x01\x02")
        struct.pack_into("<I", made, at + 24, draw.choice((0, 1, 2**20, 2**31, 2**32 - 1)))
    return bytes(made)


def _spoilt_npy(data: bytes, draw: random.Random) -> bytes:
    if draw.random() < 0.4:
        return change_bytes(data, draw)
    array = np.load(io.BytesIO(data))
    if array.dtype.names:  # nodes of trees
        array = array.copy()
        field = draw.choice(array.dtype.names)
        array[field][draw.randrange(len(array))] = draw.choice((0, 1, 2, 7, 200))
    else:
        array = _spoilt_array(array, draw, {"own": array})
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()
