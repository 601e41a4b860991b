"""Which code and which machine a record comes from."""

from __future__ import annotations

import hashlib
import platform
from functools import cache
from pathlib import Path

import torch

import twostagegp
from measurements.store import Record

__all__ = ["code_version", "facts", "provenance"]


@cache
def code_version(folder: Path | None = None) -> str:
    """Return a short hash of the package's source; records of two states must not be mixed.

    Parameters
    ----------
    folder : Path, optional
        The package's folder in another checkout; by default that of the imported package.
    """
    folder = folder or Path(twostagegp.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:10]


def facts() -> Record:
    """Return what every record says of its origin: versions, source hash and machine."""
    return {
        "version": twostagegp.__version__,
        "code": code_version(),
        "torch": torch.__version__,
        "machine": platform.processor() or platform.machine(),
    }


def provenance(records: list[Record], counted: str = "fits") -> str:
    """Return one sentence on the code that the records come from, and their number."""
    versions = sorted({(r["version"], r["code"]) for r in records})
    listed = ", ".join(f"{version} (source {code})" for version, code in versions)
    note = "**Mixed states of the code**: " if len(versions) > 1 else ""
    return f"{note}twostagegp {listed}; {len(records)} {counted}."
