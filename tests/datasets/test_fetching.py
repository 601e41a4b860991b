"""Fetching tables from a local server: downloads, checksums, damaged files, folders."""

import hashlib
import io
import os
import re
import struct
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from twostagegp import datasets

FILE = "yacht+hydrodynamics.zip"
MEMBER = "yacht_hydrodynamics.data"
ROWS = np.round(np.random.default_rng(0).uniform(0, 60, (308, 7)), 3)
TEXT = "\n".join(" ".join(map(str, row)) for row in ROWS.tolist()).encode()


def zipped(members, method=zipfile.ZIP_DEFLATED):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return out.getvalue()


BODY = zipped({"Readme.txt": b"about", MEMBER: TEXT})


def sha(body):
    return hashlib.sha256(body).hexdigest()


def whole(handler, body):
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


def cut(handler, body):
    """Announce the whole body and close the connection after a part."""
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body[:1000])


def unavailable(handler, body):
    handler.send_error(503)


class Site:
    """A server; each request uses up one of ``answers``, the last one stays."""

    def __init__(self):
        self.body, self.answers, self.requests = BODY, [whole], 0
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                site.requests += 1
                answer = site.answers.pop(0) if len(site.answers) > 1 else site.answers[0]
                answer(self, site.body)

            def log_message(self, *args):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/table"

    def fetch(self, folder, name="yacht", **options):
        return datasets.fetch(name, folder, **{"url": self.url, "retries": 0, **options})


@pytest.fixture
def site(monkeypatch):
    site = Site()
    monkeypatch.setenv("no_proxy", "*")
    thread = threading.Thread(target=site.server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield site
    site.server.shutdown()
    site.server.server_close()
    thread.join()


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def place(folder, content):
    """Put a file where a user would place a download by hand."""
    path = folder / "downloads" / FILE
    path.parent.mkdir()
    path.write_bytes(content)
    return path


# --- downloads -----------------------------------------------------------------------------------


def test_a_table_is_downloaded_once_and_read_by_load(site, tmp_path):
    data = site.fetch(tmp_path)
    np.testing.assert_array_equal(np.column_stack([data.X, data.y]), ROWS)
    assert files(tmp_path) == [f"downloads/{FILE}", "uci_small/yacht.npz"]
    with np.load(tmp_path / "uci_small" / "yacht.npz") as arrays:
        assert arrays["source"].tolist() == [site.url, sha(BODY)]
    np.testing.assert_array_equal(datasets.load("yacht", tmp_path).X, data.X)
    site.fetch(tmp_path)
    site.fetch(tmp_path, force=True)  # prepared again from the download
    assert site.requests == 1


@pytest.mark.parametrize("failure", [cut, unavailable])
def test_a_failed_download_is_tried_again(site, tmp_path, failure, monkeypatch):
    waits = []
    monkeypatch.setattr("pooch.core.time.sleep", waits.append)
    site.answers = [failure, whole]
    site.fetch(tmp_path, retries=1)
    assert site.requests == 2
    assert waits == [1]


@pytest.mark.parametrize("failure", [cut, unavailable])
def test_a_download_that_stays_incomplete_leaves_no_file(site, tmp_path, failure):
    site.answers = [failure]
    with pytest.raises(datasets.DownloadError, match="could not download"):
        site.fetch(tmp_path)
    assert files(tmp_path) == []


def test_without_a_connection_the_error_says_what_to_place_where(site, tmp_path):
    site.server.server_close()
    with pytest.raises(datasets.DatasetNotFoundError) as caught:
        site.fetch(tmp_path)
    assert site.url in str(caught.value)
    assert str(tmp_path / "downloads" / FILE) in str(caught.value)


def test_a_file_placed_by_hand_needs_no_connection(site, tmp_path):
    place(tmp_path, BODY)
    assert site.fetch(tmp_path).X.shape == (308, 6)
    assert site.requests == 0


def test_a_download_with_another_checksum_is_not_kept(site, tmp_path):
    with pytest.raises(datasets.ChecksumError, match=sha(BODY)):
        site.fetch(tmp_path, sha256=sha(b"other"))
    with pytest.raises(datasets.ChecksumError, match="8d4b15b6fc68"):  # the known one
        site.fetch(tmp_path, "concrete")
    assert files(tmp_path) == []
    site.fetch(tmp_path, sha256=sha(BODY).upper())


def test_a_placed_file_with_another_checksum_is_refused_and_stays(site, tmp_path):
    path = place(tmp_path, BODY)
    with pytest.raises(datasets.ChecksumError, match=f"{sha(BODY)}.*Delete it"):
        site.fetch(tmp_path, sha256=sha(b"other"))
    assert path.read_bytes() == BODY


# --- archives ------------------------------------------------------------------------------------


def damaged(how):
    content = bytearray(BODY)
    if how == "truncated":
        return bytes(content[: len(content) // 2])
    if how == "page":
        return b"<html>Service is down</html>"
    if how == "encrypted":
        for mark, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
            content[content.rindex(mark) + at] |= 1
    if how == "method":
        for mark, at in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
            content[content.rindex(mark) + at] = 99
    if how == "flipped":
        content[len(content) // 3] ^= 255
    if how == "size":  # the stated uncompressed size is too small
        directory = content.rindex(b"PK\x01\x02")
        content[directory + 24 : directory + 28] = struct.pack("<I", 100)
    return bytes(content)


@pytest.mark.parametrize("how", ["truncated", "page", "encrypted", "method", "flipped", "size"])
def test_a_damaged_archive_is_named_and_stays(site, tmp_path, how):
    path = place(tmp_path, damaged(how))
    named = re.escape(str(path))
    with pytest.raises(datasets.DamagedFileError, match=f"{named} is not a readable zip archive"):
        site.fetch(tmp_path)
    assert files(tmp_path) == [f"downloads/{FILE}"]


def test_a_member_that_expands_to_gigabytes_is_refused(site, tmp_path):
    content = bytearray(BODY)
    directory = content.rindex(b"PK\x01\x02")
    content[directory + 24 : directory + 28] = struct.pack("<I", 2**31)
    place(tmp_path, bytes(content))
    with pytest.raises(datasets.DamagedFileError, match="2,147,483,648 bytes"):
        site.fetch(tmp_path)


def test_a_member_is_found_in_another_folder_of_the_archive(site, tmp_path):
    site.body = zipped({f"inner/{MEMBER}": TEXT})
    assert site.fetch(tmp_path).X.shape == (308, 6)


@pytest.mark.parametrize("members", [{}, {"a": b""}, {f"a/{MEMBER}": b"", f"b/{MEMBER}": b""}])
def test_a_missing_member_is_named(site, tmp_path, members):
    site.body = zipped(members)
    with pytest.raises(ValueError, match=rf"{MEMBER} in .*members of this name; it holds"):
        site.fetch(tmp_path)


def test_another_table_is_refused(site, tmp_path):
    site.body = zipped({MEMBER: TEXT[:-100]})
    with pytest.raises(ValueError, match="Delete the download to fetch it again"):
        site.fetch(tmp_path)


# --- folders and arguments -----------------------------------------------------------------------


def test_the_folder_is_an_argument_or_a_variable_or_the_cache(site, tmp_path, monkeypatch):
    monkeypatch.delenv(datasets.FOLDER_VARIABLE, raising=False)
    for variable in ("HOME", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(variable, str(tmp_path / "home"))
    site.fetch(None)
    assert datasets.cache_folder().is_relative_to(tmp_path)
    assert datasets.load("yacht", datasets.cache_folder()).name == "yacht"
    monkeypatch.setenv(datasets.FOLDER_VARIABLE, str(tmp_path / "named"))
    site.fetch(None)
    assert (tmp_path / "named" / "uci_small" / "yacht.npz").is_file()


def test_a_table_of_the_user_is_read_and_never_replaced(site, tmp_path):
    np.savez(tmp_path / "yacht.npz", X=np.ones((2, 1)), y=np.ones(2), test_0=np.array([1]))
    assert len(site.fetch(tmp_path).splits) == 1
    with pytest.raises(ValueError, match=r"was not written by fetch\(\), so it is not replaced"):
        site.fetch(tmp_path, force=True)
    assert site.requests == 0


def test_a_folder_that_cannot_be_written_is_named(site, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(datasets.DownloadError, match=r"cannot write .* Give fetch\(\) a folder"):
        site.fetch(tmp_path / "file")


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_named(site, tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(datasets.DownloadError, match="Give fetch"):
        site.fetch(tmp_path)
    tmp_path.chmod(0o700)


def test_verbose_logs_to_the_screen(site, tmp_path, capfd):
    site.fetch(tmp_path / "quiet")
    assert capfd.readouterr().err == ""
    site.fetch(tmp_path / "loud", verbose=1)
    assert "308 rows, 6 columns" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "wines"}, r"unknown table 'wines'; did you mean 'wine'\? "),
        ({"name": "boston"}, "knows no source of boston"),
        ({"name": "wine", "sha256": "abc"}, "give the 64 hexadecimal digits"),
        ({"name": "wine", "sha256": 1}, "give the 64 hexadecimal digits"),
        ({"name": "wine", "timeout": 0}, "timeout must be positive"),
        ({"name": "wine", "timeout": float("nan")}, "timeout must be positive"),
    ],
)
def test_bad_arguments_are_explained(arguments, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        datasets.fetch(folder=tmp_path, **arguments)


def test_a_damaged_table_is_named(tmp_path):
    path = tmp_path / "wine.npz"
    np.savez(path, X=np.ones((200, 1)), y=np.ones(200))
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(ValueError, match=r"wine.npz is damaged .* replace or delete it"):
        datasets.load("wine", tmp_path)


def test_complete_tables_can_be_loaded_by_name(tmp_path):
    with pytest.raises(datasets.DatasetNotFoundError, match=r"uci_large.song\.npz"):
        datasets.load("song", tmp_path)
