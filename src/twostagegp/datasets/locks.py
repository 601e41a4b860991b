"""One worker at a time on one file.

Two programs, or two threads, that fetch the same table would write into the same partial file. The
operating system's lock on ``<file>.lock`` keeps the second one waiting; it is released when its
holder ends, whatever the reason, so no lock outlives a program that was killed.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["file_lock"]

_log = logging.getLogger("twostagegp")


if sys.platform == "win32":
    import msvcrt

    def _take(descriptor: int, wait: bool) -> None:
        while True:
            try:
                # With LK_LOCK the system tries for ten seconds, then gives up.
                msvcrt.locking(descriptor, msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
                return
            except OSError:
                if not wait:
                    raise BlockingIOError from None

else:
    import fcntl

    def _take(descriptor: int, wait: bool) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


@contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Hold the lock of a file, which need not exist; its folder must.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with file_lock(folder / "table.zip"):
    ...     [path.name for path in folder.iterdir()]
    ['table.zip.lock']
    >>> list(folder.iterdir())
    []
    """
    lock = path.with_name(path.name + ".lock")
    descriptor = _open_locked(lock)
    try:
        yield
    finally:
        # Removed while it is held, so that nobody else can be inside; where the system does not
        # let an open file be removed, an empty file stays.
        with suppress(OSError):
            lock.unlink()
        os.close(descriptor)


def _open_locked(lock: Path) -> int:
    while True:
        descriptor = os.open(lock, os.O_CREAT | os.O_RDWR)
        try:
            _wait_for(descriptor, lock)
            if _is_still_there(descriptor, lock):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        # The holder before us has removed the file that we waited for: others would lock a new one.
        os.close(descriptor)


def _wait_for(descriptor: int, lock: Path) -> None:
    try:
        _take(descriptor, wait=False)
    except BlockingIOError:
        _log.info("%s: another program is at work, waiting for it", lock.name)
        _take(descriptor, wait=True)
    except OSError as error:  # a file system without locks: better without one than not at all
        _log.info("%s: no lock (%s)", lock.name, error)


def _is_still_there(descriptor: int, lock: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(lock))
    except FileNotFoundError:
        return False
