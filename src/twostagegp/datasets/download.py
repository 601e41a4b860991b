"""A file from the web: in pieces, resumed where it stopped, whole or not at all.

What arrives is appended to ``<file>.part``. A connection that breaks is tried again after a pause,
and whatever is left when the program ends is continued by the next call (``Range: bytes=n-``; a
server that knows no ranges sends all of it again). Only a file of the announced length, with the
expected checksum, is renamed to its name.

**Checksum.** Where one is given, the file must have it. Where none is, the first download is
trusted: its SHA-256 is written to ``<file>.sha256``, in the format of ``sha256sum``, and every
later download and use of that file is compared with it. A file without that record is one that the
user has placed by hand: it is used as it is, and never replaced.
"""

from __future__ import annotations

import hashlib
import http.client
import logging
import os
import re
import socket
import ssl
import time
import urllib.request
from collections.abc import Mapping
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

from twostagegp.datasets.tables import DatasetNotFoundError
from twostagegp.errors import InputError

__all__ = [
    "ChecksumError",
    "DownloadError",
    "ensure_file",
    "file_sha256",
    "forget_checksum",
    "recorded_checksum",
]

_log = logging.getLogger("twostagegp")

#: Seconds between attempts; one more attempt than pauses.
PAUSES: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0)
#: Seconds between two reports of progress.
REPORT_SECONDS = 5.0
_CHUNK = 2**18
#: Answers below 500 that another attempt may cure: time-out, too early, too many requests.
_TEMPORARY_CODES = (408, 425, 429)


class DownloadError(DatasetNotFoundError):
    """A file could not be downloaded; the message says from where, and where to place it."""


class ChecksumError(InputError):
    """A file is not the one that its checksum names."""


class _InterruptedError(Exception):
    """An attempt failed, and another one may not."""


def ensure_file(url: str, path: Path, *, sha256: str | None = None, timeout: float = 30.0) -> None:
    """Have a file, downloaded only where it is missing or no longer what was downloaded.

    Parameters
    ----------
    url : str
    path : Path
        Where the file is, or will be; its folder must exist.
    sha256 : str, optional
        The checksum it must have; by default the one of the first download.
    timeout : float
        Seconds without a byte after which an attempt is given up.
    """
    recorded = recorded_checksum(path)
    expected = sha256 or recorded
    if path.exists():
        if expected is None:
            return
        found = file_sha256(path)
        if found == expected:
            return
        if recorded is None:
            raise ChecksumError(
                f"{path} has the SHA-256 {found}, expected was {expected}. It was placed by hand "
                "and is left alone: delete it to have it downloaded, or give "
                f"sha256={found!r} to use it."
            )
        _log.warning("%s is not what was downloaded; downloading it again", path)
    resumed = _part(path).exists()
    try:
        _download(url, path, expected, timeout)
    except ChecksumError:
        if not resumed:
            raise
        # The source may have changed since the first part was received.
        _log.warning("%s: the resumed file has a wrong checksum; starting over", path.name)
        _download(url, path, expected, timeout)


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def recorded_checksum(path: Path) -> str | None:
    """The checksum of the first download of a file, or None where there is no record."""
    try:
        text = _record(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    first = text.split(maxsplit=1)[0] if text.strip() else ""
    if not re.fullmatch("[0-9a-f]{64}", first):
        raise ChecksumError(f"{_record(path)} holds no SHA-256. Delete it, and call again.")
    return first


def forget_checksum(path: Path) -> None:
    """Trust the next download as the first one."""
    _record(path).unlink(missing_ok=True)


def _part(path: Path) -> Path:
    return path.with_name(path.name + ".part")


def _record(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")


def _download(url: str, path: Path, expected: str | None, timeout: float) -> None:
    part = _part(path)
    for pause in (*PAUSES, None):
        try:
            _attempt(url, part, path, timeout)
            break
        except _InterruptedError as error:
            if pause is None:
                raise _failed(url, path, error) from error
            _log.info("%s: %s; trying again in %g s", path.name, error, pause)
            time.sleep(pause)
    found = file_sha256(part)
    if expected is not None and found != expected:
        part.unlink()
        raise ChecksumError(
            f"{url} has the SHA-256 {found}, expected was {expected}: the source has changed, or "
            f"something between here and there changes files. Give sha256={found!r} if you have "
            "reason to trust it."
        )
    _record(path).write_text(f"{found}  {path.name}\n", encoding="utf-8")
    os.replace(part, path)
    _log.info("%s: %s bytes, SHA-256 %s", path.name, f"{path.stat().st_size:,}", found)


def _failed(url: str, path: Path, reason: object) -> DownloadError:
    return DownloadError(
        f"could not download {url} ({reason}). With a connection, call again: what has been "
        f"received is kept and resumed. Without one, download it elsewhere and save it as {path}; "
        "it is then used as it is."
    )


def _attempt(url: str, part: Path, path: Path, timeout: float) -> None:
    """Append to the partial file until it is whole."""
    have = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "twostagegp", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    try:
        response = urllib.request.urlopen(
            urllib.request.Request(url, headers=headers), timeout=timeout
        )
    except HTTPError as error:
        with error:
            if error.code == 416 and have:
                return _settle_range(error.headers, have, part)
            if error.code >= 500 or error.code in _TEMPORARY_CODES:
                raise _InterruptedError(
                    f"the server answers {error.code} {error.reason}"
                ) from error
            raise _failed(url, path, f"{error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException) as error:
        if _is_final(error):
            raise _failed(url, path, _reason(error)) from error
        raise _InterruptedError(_reason(error)) from error
    with response:
        if urlsplit(url).scheme == "https" and urlsplit(response.url).scheme != "https":
            raise _failed(url, path, f"it leads to {response.url}, which is not encrypted")
        return _receive(response, have, part, path.name)


def _is_final(error: Exception) -> bool:
    """No such name, or a certificate that does not fit: nothing that a pause would cure."""
    reason = error.reason if isinstance(error, URLError) else error
    return isinstance(reason, socket.gaierror | ssl.SSLCertVerificationError)


def _reason(error: Exception) -> str:
    reason = error.reason if isinstance(error, URLError) else error
    return f"{type(reason).__name__}: {reason}" if isinstance(reason, Exception) else str(reason)


def _settle_range(headers: Message, have: int, part: Path) -> None:
    """The server has nothing behind what we have: it is whole, or of another file."""
    if _content_range(headers) == (None, have):
        return
    part.unlink()
    raise _InterruptedError("the part received before does not fit the file")


def _content_range(headers: Mapping[str, str] | Message) -> tuple[int | None, int | None]:
    """First byte and total length of ``Content-Range``; None where it does not say."""
    found = re.fullmatch(
        r"bytes (?:(\d+)-\d+|\*)/(?:(\d+)|\*)", (headers.get("Content-Range") or "").strip()
    )
    if found is None:
        return None, None
    first, total = found.groups()
    return int(first) if first else None, int(total) if total else None


def _receive(response: Any, have: int, part: Path, name: str) -> None:
    length = response.headers.get("Content-Length")
    total = int(length) if length is not None and length.isdigit() else None
    if response.status == 206:
        first, whole = _content_range(response.headers)
        if first != have:
            part.unlink()
            raise _InterruptedError("the server sends another range than the one asked for")
        total = whole if whole is not None else (None if total is None else have + total)
    else:
        have = 0  # all of it, whether or not a range was asked for
    _log.info("%s: downloading %s from byte %s", name, _size(total), f"{have:,}")
    with part.open("ab" if have else "wb") as file:
        size = have
        reported = time.monotonic()
        while chunk := _read(response):
            file.write(chunk)
            size += len(chunk)
            if time.monotonic() - reported > REPORT_SECONDS:
                reported = time.monotonic()
                _log.info("%s: %s of %s", name, f"{size:,}", _size(total))
        file.flush()
        os.fsync(file.fileno())  # a name is given to whole files only, also after a power cut
    if total is not None and size != total:
        if size > total:
            part.unlink()
        raise _InterruptedError(f"{size:,} of {total:,} bytes were received")


def _size(total: int | None) -> str:
    return "a file of unknown length" if total is None else f"{total:,} bytes"


def _read(response: Any) -> bytes:
    """A piece of the answer. Kept apart, so that a full disk is not taken for a bad connection."""
    try:
        # read1: what has arrived, so that little is lost when the connection breaks.
        return bytes(response.read1(_CHUNK))
    except (OSError, http.client.HTTPException) as error:
        raise _InterruptedError(_reason(error)) from error
