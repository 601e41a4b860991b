"""One named file out of a zip archive, read where it lies.

Nothing is extracted, so no path of an archive can lead out of a folder. The size that a member
declares is compared with a limit before a byte is expanded, and Python's zip reader stops at that
size, so that a small file cannot fill the memory. The member's checksum (CRC-32) is verified before
anything of it is parsed.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from twostagegp.errors import InputError

__all__ = ["MAX_EXPANDED", "DamagedFileError", "open_member"]

#: Bytes that a file may expand to; every known table stays far below it.
MAX_EXPANDED = 2**30
_CHUNK = 2**20


class DamagedFileError(InputError):
    """A downloaded file that cannot be read: truncated, or not what its name says."""


@contextmanager
def open_member(path: Path, member: str | None, limit: int = MAX_EXPANDED) -> Iterator[IO[bytes]]:
    """Open a member of a zip archive for reading, or a plain file.

    Parameters
    ----------
    path : Path
    member : str or None
        Its path in the archive. Where that is not there, the only member with the same last part
        will do: archives are repacked with and without a folder. None: ``path`` is the table.
    limit : int
        Bytes that the table may have.

    Raises
    ------
    DamagedFileError
        Where the archive cannot be read.
    InputError
        Where it has no such member, or one that is too large.
    """
    if member is None:
        _check_size(path, path.name, path.stat().st_size, limit)
        with path.open("rb") as stream:
            yield stream
        return
    try:
        with zipfile.ZipFile(path) as archive:
            info = _find(archive, path, member)
            _check_size(path, info.filename, info.file_size, limit)
            with archive.open(info) as stream:
                while stream.read(_CHUNK):  # the last read verifies the checksum
                    pass
    # RuntimeError: encrypted. NotImplementedError: a compression that Python does not know.
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError) as error:
        raise DamagedFileError(f"{path} is no readable zip archive ({error})") from error
    with zipfile.ZipFile(path) as archive, archive.open(info) as stream:
        yield stream


def _find(archive: zipfile.ZipFile, path: Path, member: str) -> zipfile.ZipInfo:
    files = [info for info in archive.infolist() if not info.is_dir()]
    last = member.rpartition("/")[2]
    same = [info for info in files if info.filename == member] or [
        info for info in files if info.filename.rpartition("/")[2] == last
    ]
    if len(same) != 1:
        has = ", ".join(info.filename for info in files[:10]) or "nothing"
        raise InputError(f"{path} has no single member {member!r}; it holds {has}")
    return same[0]


def _check_size(path: Path, name: str, size: int, limit: int) -> None:
    if size > limit:
        raise InputError(f"{path}: {name} has {size:,} bytes, above the limit of {limit:,}")
