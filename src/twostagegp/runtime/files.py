"""Files that are written completely or not at all."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

__all__ = ["write_atomically"]


def write_atomically(path: Path, write: Callable[[BinaryIO], Any]) -> None:
    """Write a file under a temporary name in the same folder, then rename it.

    If the write is interrupted, the old file remains. Two processes may write to the same path.

    Parameters
    ----------
    path : Path
    write : callable
        Receives the open binary file and writes the content.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a.txt"
    >>> write_atomically(path, lambda file: file.write(b"text"))
    >>> path.read_bytes(), len(list(path.parent.iterdir()))
    (b'text', 1)
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with open(temporary, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())  # so that a power cut cannot leave an incomplete file
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
