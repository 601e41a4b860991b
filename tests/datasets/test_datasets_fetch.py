"""Fetching tables, from a server of our own and from small files in the formats of the sources."""

import hashlib
import io
import logging
import os
import re
import struct
import threading
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.error import URLError

import numpy as np
import pytest

from twostagegp import datasets
from twostagegp.datasets import archives, download, fetching, recipes
from twostagegp.datasets.locks import file_lock

# --- a server ------------------------------------------------------------------------------------


class Site:
    """What the server answers, and what it was asked.

    ``answers`` are used up one a request; the last one stays. Each is a function of the handler.
    """

    def __init__(self, body=b""):
        self.body = body
        self.answers = [ranges]
        self.asked = []
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                site.asked.append(self.headers.get("Range"))
                answer = site.answers.pop(0) if len(site.answers) > 1 else site.answers[0]
                answer(self, site.body)

            def log_message(self, *args):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}/table"


def send(handler, code, body, **headers):
    handler.send_response(code)
    for name, value in ({"Content_Length": len(body)} | headers).items():
        if value is not None:
            handler.send_header(name.replace("_", "-"), str(value))
    handler.end_headers()
    handler.wfile.write(body)


def whole(handler, body):
    """A server without ranges."""
    send(handler, 200, body)


def ranges(handler, body):
    found = re.fullmatch(r"bytes=(\d+)-", handler.headers.get("Range") or "")
    if found is None:
        return send(handler, 200, body)
    first = int(found[1])
    if first >= len(body):
        return send(handler, 416, b"", Content_Range=f"bytes */{len(body)}")
    span = f"bytes {first}-{len(body) - 1}/{len(body)}"
    return send(handler, 206, body[first:], Content_Range=span)


def cut(size):
    """Announces all of it and closes after some bytes."""

    def answer(handler, body):
        send(handler, 200, body[:size], Content_Length=len(body))

    return answer


def says(code):
    return lambda handler, body: send(handler, code, b"sorry")


@pytest.fixture
def site(monkeypatch):
    site = Site()
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(download, "PAUSES", (0.0, 0.0))
    thread = threading.Thread(target=site.server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield site
    site.server.shutdown()
    site.server.server_close()
    thread.join()


BODY = np.random.default_rng(0).bytes(200_000)


def sha(body):
    return hashlib.sha256(body).hexdigest()


def listing(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def target(tmp_path):
    return tmp_path / "file.bin"


# --- downloads -----------------------------------------------------------------------------------


def test_a_download_is_whole_and_its_checksum_is_recorded(site, target):
    site.body = BODY
    download.ensure_file(site.url, target)
    assert target.read_bytes() == BODY
    record = target.with_name("file.bin.sha256").read_text()
    assert record == f"{sha(BODY)}  file.bin\n"  # what sha256sum --check reads
    assert listing(target.parent) == ["file.bin", "file.bin.sha256"]
    download.ensure_file(site.url, target)
    assert site.asked == [None]


def test_a_broken_connection_is_resumed_at_the_byte(site, target):
    site.body = BODY
    site.answers = [cut(70_000), ranges]
    download.ensure_file(site.url, target)
    assert target.read_bytes() == BODY
    assert site.asked == [None, "bytes=70000-"]


def test_the_next_call_resumes(site, target, monkeypatch):
    monkeypatch.setattr(download, "PAUSES", ())
    site.body = BODY
    site.answers = [cut(70_000), ranges]
    with pytest.raises(datasets.DownloadError, match=r"70,000 of 200,000 bytes were received"):
        download.ensure_file(site.url, target)
    assert listing(target.parent) == ["file.bin.part"]
    download.ensure_file(site.url, target)
    assert target.read_bytes() == BODY
    assert site.asked == [None, "bytes=70000-"]


def test_a_server_without_ranges_sends_all_again(site, target):
    site.body = BODY
    site.answers = [cut(70_000), whole]
    download.ensure_file(site.url, target)
    assert target.read_bytes() == BODY
    assert site.asked == [None, "bytes=70000-"]


def test_control_c_leaves_the_part_only(site, target, monkeypatch):
    site.body = BODY
    read = download._read
    pieces = []

    def stopped(response):
        if pieces:
            raise KeyboardInterrupt
        pieces.append(read(response))
        return pieces[0]

    monkeypatch.setattr(download, "_read", stopped)
    with pytest.raises(KeyboardInterrupt):
        download.ensure_file(site.url, target)
    assert listing(target.parent) == ["file.bin.part"]
    monkeypatch.setattr(download, "_read", read)
    download.ensure_file(site.url, target)
    assert target.read_bytes() == BODY
    assert site.asked[1] == f"bytes={len(pieces[0])}-"


def test_a_part_that_is_whole_needs_a_name_only(site, target):
    site.body = BODY
    target.with_name("file.bin.part").write_bytes(BODY)
    download.ensure_file(site.url, target)
    assert target.read_bytes() == BODY
    assert site.asked == ["bytes=200000-"]


@pytest.mark.parametrize("size", [200_001, 300_000])
def test_a_part_that_is_too_long_is_dropped(site, target, size):
    site.body = BODY
    target.with_name("file.bin.part").write_bytes(bytes(size))
    download.ensure_file(site.url, target)
    assert target.read_bytes() == BODY
    assert site.asked == [f"bytes={size}-", None]


def test_another_range_than_asked_for_is_not_appended(site, target):
    site.body = BODY
    target.with_name("file.bin.part").write_bytes(BODY[:500])

    def wrong(handler, body):
        send(handler, 206, body[400:], Content_Range=f"bytes 400-{len(body) - 1}/{len(body)}")

    site.answers = [wrong, ranges]
    download.ensure_file(site.url, target)
    assert target.read_bytes() == BODY
    assert site.asked == ["bytes=500-", None]


def test_a_range_of_unknown_total(site, target):
    site.body = BODY
    target.with_name("file.bin.part").write_bytes(BODY[:500])
    site.answers = [
        lambda handler, body: send(
            handler, 206, body[500:], Content_Range=f"bytes 500-{len(body) - 1}/*"
        )
    ]
    download.ensure_file(site.url, target)
    assert target.read_bytes() == BODY


def test_a_file_of_unknown_length(site, target):
    site.body = BODY
    site.answers = [lambda handler, body: send(handler, 200, body, Content_Length=None)]
    download.ensure_file(site.url, target)
    assert target.read_bytes() == BODY


def test_a_resumed_mixture_of_two_files_is_started_over(site, target):
    site.body = BODY
    target.with_name("file.bin.part").write_bytes(bytes(1000))  # of an older version
    download.ensure_file(site.url, target, sha256=sha(BODY))
    assert target.read_bytes() == BODY
    assert site.asked == ["bytes=1000-", None]


def test_a_server_in_trouble_is_asked_again(site, target):
    site.body = BODY
    site.answers = [says(500), says(429), ranges]
    download.ensure_file(site.url, target)
    assert target.read_bytes() == BODY
    assert len(site.asked) == 3


def test_it_gives_up_in_the_end(site, target):
    site.answers = [says(503)]
    with pytest.raises(datasets.DownloadError, match="503 Service Unavailable"):
        download.ensure_file(site.url, target)
    assert len(site.asked) == 3  # two pauses
    assert listing(target.parent) == []


def test_what_is_not_there_is_asked_for_once(site, target):
    site.answers = [says(404)]
    with pytest.raises(FileNotFoundError, match="404 Not Found") as caught:
        download.ensure_file(site.url, target)
    assert site.url in str(caught.value)
    assert str(target) in str(caught.value)
    assert len(site.asked) == 1


def test_a_slow_server_is_given_up(site, target):
    def slow(handler, body):
        send(handler, 200, body[:100], Content_Length=len(body))
        time.sleep(0.5)

    site.body = BODY
    site.answers = [slow, ranges]
    download.ensure_file(site.url, target, timeout=0.1)
    assert target.read_bytes() == BODY
    assert site.asked == [None, "bytes=100-"]


def test_nobody_at_home(site, target):
    site.server.shutdown()
    site.server.server_close()
    with pytest.raises(datasets.DatasetNotFoundError, match="ConnectionRefusedError") as caught:
        download.ensure_file(site.url, target)
    assert f"save it as {target}" in str(caught.value)


def test_a_name_that_does_not_resolve_is_tried_once(target, monkeypatch):
    calls = []

    def offline(*args, **kwargs):
        calls.append(args)
        raise URLError(download.socket.gaierror(-3, "Temporary failure in name resolution"))

    monkeypatch.setattr(download.urllib.request, "urlopen", offline)
    with pytest.raises(datasets.DownloadError, match="name resolution"):
        download.ensure_file("https://example.invalid/table", target)
    assert len(calls) == 1


def test_encryption_is_not_given_up_on_the_way(target, monkeypatch):
    class Response(io.BytesIO):
        url = "http://example.invalid/table"

    monkeypatch.setattr(download.urllib.request, "urlopen", lambda *a, **k: Response(b"x"))
    with pytest.raises(datasets.DownloadError, match="which is not encrypted"):
        download.ensure_file("https://example.invalid/table", target)
    assert listing(target.parent) == []


def test_progress_is_logged(site, target, monkeypatch, caplog):
    monkeypatch.setattr(download, "REPORT_SECONDS", -1.0)
    site.body = BODY
    with caplog.at_level(logging.INFO, "twostagegp"):
        download.ensure_file(site.url, target)
    assert "file.bin: downloading 200,000 bytes from byte 0" in caplog.messages
    assert "file.bin: 200,000 of 200,000 bytes" in caplog.messages


# --- checksums -----------------------------------------------------------------------------------


def test_a_wrong_checksum_leaves_nothing(site, target):
    site.body = BODY
    with pytest.raises(datasets.ChecksumError, match=sha(BODY)):
        download.ensure_file(site.url, target, sha256=sha(b"other"))
    assert listing(target.parent) == []


def test_the_first_download_is_trusted_and_no_other(site, target):
    site.body = BODY
    download.ensure_file(site.url, target)
    target.unlink()  # to save space
    site.body = BODY[::-1]
    with pytest.raises(datasets.ChecksumError, match="the source has changed"):
        download.ensure_file(site.url, target)
    download.ensure_file(site.url, target, sha256=sha(site.body))
    assert target.read_bytes() == site.body
    assert download.recorded_checksum(target) == sha(site.body)


def test_a_download_that_was_changed_is_downloaded_again(site, target):
    site.body = BODY
    download.ensure_file(site.url, target)
    target.write_bytes(BODY[:-1])
    download.ensure_file(site.url, target)
    assert target.read_bytes() == BODY


def test_a_file_placed_by_hand_is_used_and_never_replaced(target):
    target.write_bytes(b"mine")
    download.ensure_file("http://127.0.0.1:9/", target)
    download.ensure_file("http://127.0.0.1:9/", target, sha256=sha(b"mine"))
    with pytest.raises(datasets.ChecksumError, match="placed by hand and is left alone"):
        download.ensure_file("http://127.0.0.1:9/", target, sha256=sha(b"other"))
    assert target.read_bytes() == b"mine"
    assert listing(target.parent) == ["file.bin"]


@pytest.mark.parametrize("text", ["", "abc  file.bin\n"])
def test_a_record_that_is_no_checksum(target, text):
    target.with_name("file.bin.sha256").write_text(text)
    with pytest.raises(datasets.ChecksumError, match=r"holds no SHA-256. Delete it"):
        download.ensure_file("http://127.0.0.1:9/", target)


# --- locks ---------------------------------------------------------------------------------------


def test_one_at_a_time(target):
    inside, most = [], []

    def work(_):
        with file_lock(target):
            inside.append(1)
            most.append(len(inside))
            time.sleep(0.01)
            inside.pop()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(24)))
    assert max(most) == 1
    assert listing(target.parent) == []


def test_a_lock_is_given_back_after_an_error(target):
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt), file_lock(target):
            raise KeyboardInterrupt
    assert listing(target.parent) == []


def test_a_file_system_without_locks(target, monkeypatch):
    def no_locks(*args, **kwargs):
        raise OSError(37, "No locks available")

    monkeypatch.setattr("twostagegp.datasets.locks._take", no_locks)
    with file_lock(target):
        target.write_text("done")
    assert listing(target.parent) == ["file.bin"]


# --- archives ------------------------------------------------------------------------------------


def zipped(members, method=zipfile.ZIP_DEFLATED):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def read_member(path, member, **options):
    with archives.open_member(path, member, **options) as stream:
        return stream.read()


@pytest.mark.parametrize("inside", ["data.txt", "folder/data.txt", "../../data.txt"])
def test_a_member_is_read_where_it_lies(tmp_path, inside):
    path = tmp_path / "a.zip"
    path.write_bytes(zipped({inside: b"1 2 3", "other.txt": b"no"}))
    assert read_member(path, "data.txt") == b"1 2 3"
    assert listing(tmp_path) == ["a.zip"]


def test_a_plain_file(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b"1,2")
    assert read_member(path, None) == b"1,2"
    with pytest.raises(ValueError, match=r"a.csv has 3 bytes, above the limit of 2"):
        read_member(path, None, limit=2)


@pytest.mark.parametrize(
    "members", [{}, {"other.txt": b""}, {"a/data.txt": b"", "b/data.txt": b""}]
)
def test_a_missing_member(tmp_path, members):
    path = tmp_path / "a.zip"
    path.write_bytes(zipped(members))
    with pytest.raises(ValueError, match=r"a.zip has no single member 'data.txt'; it holds"):
        read_member(path, "data.txt")


def test_a_bomb_is_not_expanded(tmp_path):
    path = tmp_path / "a.zip"
    path.write_bytes(zipped({"data.txt": bytes(10_000_000)}))
    assert path.stat().st_size < 20_000
    with pytest.raises(ValueError, match="10,000,000 bytes, above the limit of 1,000,000"):
        read_member(path, "data.txt", limit=1_000_000)


def test_a_bomb_that_lies_about_its_size(tmp_path):
    content = bytearray(zipped({"data.txt": bytes(10_000_000)}))
    directory = content.rindex(b"PK\x01\x02")
    content[directory + 24 : directory + 28] = struct.pack("<I", 100)  # the uncompressed size
    path = tmp_path / "a.zip"
    path.write_bytes(content)
    with pytest.raises(datasets.DamagedFileError, match=r"a.zip is no readable zip archive"):
        read_member(path, "data.txt", limit=1_000_000)


def damage(content, how):
    content = bytearray(content)
    if how == "truncated":
        return bytes(content[: len(content) // 2])
    if how == "page":
        return b"<html>Service is down</html>"
    if how == "empty":
        return b""
    if how == "encrypted":
        for mark, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
            content[content.rindex(mark) + at] |= 1
    if how == "method":
        for mark, at in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
            content[content.rindex(mark) + at] = 99
    if how == "flipped":
        content[len(content) // 3] ^= 255
    return bytes(content)


DAMAGES = ["truncated", "page", "empty", "encrypted", "method", "flipped"]


@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED])
def test_a_damaged_archive_is_named(tmp_path, how, method):
    path = tmp_path / "a.zip"
    path.write_bytes(damage(zipped({"data.txt": BODY}, method), how))
    with pytest.raises(datasets.DamagedFileError, match=r"a.zip is no readable zip archive"):
        read_member(path, "data.txt")


# --- recipes -------------------------------------------------------------------------------------

RNG = np.random.default_rng(1)


def text(rows, sep=",", header=None, end="\n"):
    lines = [] if header is None else [header]
    return end.join([*lines, *(sep.join(map(str, row)) for row in rows), ""]).encode()


def table(n, d, y, first=False):
    """Rows of random numbers with a target within its range, last or first."""
    X = np.round(RNG.normal(size=(n, d)), 4)
    target = np.round(RNG.uniform(*y, size=n), 3)
    rows = [[t, *x] if first else [*x, t] for x, t in zip(X.tolist(), target.tolist(), strict=True)]
    return X, target, rows


BIKE_HEADER = (
    "instant,dteday,season,yr,mnth,hr,holiday,weekday,workingday,weathersit,temp,atemp,hum,"
    "windspeed,casual,registered,cnt"
)
POLETELE_HEADER = (
    "subject#,age,sex,test_time,motor_UPDRS,total_UPDRS,Jitter(%),Jitter(Abs),Jitter:RAP,"
    "Jitter:PPQ5,Jitter:DDP,Shimmer,Shimmer(dB),Shimmer:APQ3,Shimmer:APQ5,Shimmer:APQ11,"
    "Shimmer:DDA,NHR,HNR,RPDE,DFA,PPE"
)
CONCRETE_HEADER = (
    "Cement,Blast Furnace Slag,Fly Ash,Water,Superplasticizer,Coarse Aggregate,Fine Aggregate,Age,"
    "Concrete compressive strength"
)
WINE_HEADER = (
    '"fixed acidity";"volatile acidity";"citric acid";"residual sugar";"chlorides";'
    '"free sulfur dioxide";"total sulfur dioxide";"density";"pH";"sulphates";"alcohol";"quality"'
)
HOUSE_HEADER = (
    "Date;Time;Global_active_power;Global_reactive_power;Voltage;Global_intensity;Sub_metering_1;"
    "Sub_metering_2;Sub_metering_3"
)


def raw_yacht():
    X, y, rows = table(9, 6, (0.01, 62))
    # Some gaps of the source are two blanks wide, and it ends in an empty line.
    return text(rows, " ").replace(b" 0", b"  0") + b" \n", X, y, {}


def raw_energy():
    X, y, rows = table(9, 8, (6.1, 43))
    return text([[*row, 1.5] for row in rows], header="X1,X2,X3,X4,X5,X6,X7,X8,Y1,Y2"), X, y, {}


def raw_concrete():
    X, y, rows = table(9, 8, (3, 82))
    return text(rows, header=CONCRETE_HEADER), X, y, {}


def raw_wine():
    X, y, rows = table(9, 11, (3, 8))
    return text(rows, ";", WINE_HEADER, end="\r\n"), X, y, {}


def raw_power():
    X, y, rows = table(9, 4, (421, 495))
    return text(rows, header="AT,V,AP,RH,PE"), X, y, {}


def raw_naval():
    X, y, rows = table(9, 16, (0.95, 1))
    lines = [["", *(f"{value:.7e}" for value in [*row, 0.98]), ""] for row in rows]
    return text(lines, "   "), X, y, {}


def raw_protein():
    X, y, rows = table(9, 9, (0, 20.9), first=True)
    header = "RMSD," + ",".join(f"F{j}" for j in range(1, 10))
    return text(rows, header=header), X, y, {}


def raw_bike():
    X, y, _ = table(9, 12, (1, 977))
    days = [f"2011-{month:02d}-{29 - month:02d}" for month in range(1, 10)]
    rows = [
        [i, day, *x, 7, 8, t]
        for i, (day, x, t) in enumerate(zip(days, X.tolist(), y.tolist(), strict=True), 1)
    ]
    X = np.column_stack([[int(day[-2:]) for day in days], X])
    return text(rows, header=BIKE_HEADER), X, y, {}


def raw_poletele():
    X, y, _ = table(9, 19, (7, 54))
    subject = np.repeat([1, 2, 42], 3)
    rows = [
        [s, x[0], x[1], 5.6431, x[2], t, *x[3:]]
        for s, x, t in zip(subject.tolist(), X.tolist(), y.tolist(), strict=True)
    ]
    return text(rows, header=POLETELE_HEADER), X, y, {"groups": subject}


def raw_ctslice():
    X, y, rows = table(9, 384, (2, 97))
    patient = np.repeat([0, 3, 96], 3)
    header = "patientId," + ",".join(f"value{j}" for j in range(384)) + ",reference"
    rows = [[p, *row] for p, row in zip(patient.tolist(), rows, strict=True)]
    return text(rows, header=header), X, y, {"groups": patient}


def raw_road3d():
    X, y, rows = table(9, 2, (-8, 134))
    # Above 2^53, where floats have gaps.
    road = np.array([144552912, 144552912, 9007199254740993] * 3)
    rows = [[r, *row] for r, row in zip(road.tolist(), rows, strict=True)]
    return text(rows), X, y, {"groups": road}


def raw_song():
    X, _, rows = table(9, 90, (1922, 2011), first=True)
    years = np.arange(1990.0, 1999.0)
    rows = [[int(year), *row[1:]] for year, row in zip(years, rows, strict=True)]
    return text(rows), X, years, {"splits": [np.array([7, 8])]}


def raw_house_electric():
    """Two minutes are missing; 2/1 is the second of January, and 31/12/2008 the 366th day."""
    rows = [
        ["16/12/2006", "17:24:00", 4.216, 0.418, 234.84, 18.4, 0, 1, 17],
        ["21/12/2006", "11:23:00", "?", "?", "?", "?", "?", "?", ""],
        ["2/1/2007", "00:00:00", 0.5, 0.1, 240.0, 2.0, 0, 0, 0],
        ["28/4/2007", "00:21:00", "?", "?", "?", "?", "?", "?", ""],
        ["31/12/2008", "23:59:00", 1.0, 0.0, 241.5, 4.2, 1, 2, 3],
    ]
    wh = 1000 / 60
    X = [
        [0.418 * wh, 234.84, 18.4, 0, 1, 17, 350 / 365, (17 * 60 + 24) / 1440],
        [0.1 * wh, 240.0, 2.0, 0, 0, 0, 2 / 365, 0.0],
        [0.0, 241.5, 4.2, 1, 2, 3, 366 / 365, 1439 / 1440],
    ]
    y = [4.216 * wh - 18, 0.5 * wh, wh - 6]
    return text(rows, ";", HOUSE_HEADER, end="\r\n"), np.array(X), np.array(y), {}


RAW = {
    name.removeprefix("raw_"): maker for name, maker in list(globals().items()) if "raw_" in name
}


@pytest.fixture
def short_song(monkeypatch):
    monkeypatch.setattr(recipes, "_SONG_TRAINING", 7)


def packed(recipe, content):
    if recipe.member is None:
        return content
    return zipped({"Readme.txt": b"about", recipe.member: content})


def small(monkeypatch, site, name, content, n, **changes):
    """Serve a small file of a table's format, and have the recipe expect it."""
    recipe = replace(recipes.RECIPES[name], url=site.url, n=n, sha256=None, **changes)
    site.body = packed(recipe, content)
    monkeypatch.setattr(fetching, "RECIPES", {**recipes.RECIPES, name: recipe})
    return recipe


def test_every_recipe_has_a_small_file():
    assert sorted(RAW) == datasets.fetchable() == sorted(recipes.RECIPES)


@pytest.mark.parametrize("name", sorted(RAW))
@pytest.mark.usefixtures("short_song")
def test_a_table_is_fetched_and_is_what_load_reads(name, site, tmp_path, monkeypatch):
    content, X, y, others = RAW[name]()
    recipe = small(monkeypatch, site, name, content, len(y))
    data = datasets.fetch(name, tmp_path)
    assert data.X.shape == (recipe.n, recipe.d)
    np.testing.assert_allclose(data.X, X, rtol=1e-14, atol=0)
    np.testing.assert_allclose(data.y, y, rtol=1e-14, atol=0)
    assert len(set(data.feature_names)) == recipe.d
    assert "x0" not in data.feature_names
    np.testing.assert_equal(data.groups, others.get("groups"))
    np.testing.assert_equal(data.splits, tuple(others.get("splits", ())))
    again = datasets.load(name, tmp_path)
    np.testing.assert_array_equal(again.X, data.X)
    assert again.feature_names == data.feature_names
    assert listing(tmp_path / "downloads") == [recipe.file, f"{recipe.file}.sha256"]
    datasets.fetch(name, tmp_path)
    assert site.asked == [None]


@pytest.mark.parametrize("name", sorted(RAW))
@pytest.mark.parametrize(
    "how", ["row", "column", "longer", "words", "nothing", "binary", "missing"]
)
@pytest.mark.usefixtures("short_song")
def test_another_table_than_documented_is_refused(name, how, site, tmp_path, monkeypatch):
    content, _, y, _ = RAW[name]()
    lines = content.decode().strip("\r\n ").splitlines()
    n = len(y)
    sep = ";" if ";" in lines[-1] else "," if "," in lines[-1] else " "
    if how == "row":
        lines = lines[:-1]
    elif how == "column":
        lines = [sep.join(line.strip().split(sep)[:-1]).strip() for line in lines]
    elif how == "longer":
        lines = [lines[0], *(f"{line.rstrip()}{sep}1" for line in lines[1:])]
    elif how == "words":
        lines[-1] = lines[-1].replace("0", "x")
    elif how == "nothing":
        lines = []
    elif how == "missing":
        cells = lines[-1].split(None if sep == " " else sep)
        lines[-1] = sep.join([cells[0], "NA", *cells[2:]])
    content = "\n".join(lines).encode() if how != "binary" else BODY
    small(monkeypatch, site, name, content, n)
    with pytest.raises(ValueError, match="Delete the download to fetch it again"):
        datasets.fetch(name, tmp_path)
    assert not list(tmp_path.glob("*/*.npz*"))


@pytest.mark.parametrize("name", ["wine", "road3d"])
def test_a_target_out_of_its_range_is_refused(name, site, tmp_path, monkeypatch):
    content, _, y, _ = RAW[name]()
    small(monkeypatch, site, name, content, len(y), y_range=(-1, 1))
    with pytest.raises(ValueError, match=r"the target goes from .* not within -1–1"):
        datasets.fetch(name, tmp_path)


def test_other_column_names_are_refused(site, tmp_path, monkeypatch):
    content, _, y, _ = raw_power()
    small(monkeypatch, site, "power", content.replace(b"RH", b"HR"), len(y))
    with pytest.raises(ValueError, match=r"the columns are \['AT', 'V', 'AP', 'HR', 'PE'\]"):
        datasets.fetch("power", tmp_path)


def test_numbers_keep_their_digits(site, tmp_path, monkeypatch):
    values = ["0.1234567890123456789", "8.9e-308", "123456789.123456789", "1e22"]
    small(monkeypatch, site, "power", text([[*values, 430]], header="AT,V,AP,RH,PE"), 1)
    X = datasets.fetch("power", tmp_path).X
    # Older versions of pandas are off in the last digit.
    np.testing.assert_allclose(X[0], [float(value) for value in values], rtol=4e-16, atol=0)


def test_known_checksums_are_checksums():
    known = [recipe.sha256 for recipe in recipes.RECIPES.values() if recipe.sha256]
    assert len(known) == len(set(known)) == 9
    assert all(re.fullmatch("[0-9a-f]{64}", value) for value in known)


def test_sources_are_encrypted_and_files_differ():
    found = recipes.RECIPES.values()
    assert all(recipe.url.startswith("https://archive.ics.uci.edu/") for recipe in found)
    assert len({recipe.file for recipe in found}) == len(found)


# --- fetch ---------------------------------------------------------------------------------------


def wine(monkeypatch, site, **changes):
    content, _, y, _ = raw_wine()
    return small(monkeypatch, site, "wine", content, len(y), **changes)


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_download_is_downloaded_again(how, site, tmp_path, monkeypatch):
    wine(monkeypatch, site)
    site.answers = [lambda handler, body: whole(handler, damage(body, how)), ranges]
    assert datasets.fetch("wine", tmp_path).y.shape == (9,)
    assert site.asked == [None, None]


def test_a_download_that_stays_damaged_is_an_error(site, tmp_path, monkeypatch):
    recipe = wine(monkeypatch, site)
    site.answers = [lambda handler, body: whole(handler, b"<html>")]
    path = tmp_path / "downloads" / recipe.file
    with pytest.raises(datasets.DamagedFileError, match=f"{re.escape(str(path))}.*twice"):
        datasets.fetch("wine", tmp_path)
    assert len(site.asked) == 2
    with pytest.raises(datasets.DamagedFileError, match="Delete it to have it downloaded"):
        datasets.fetch("wine", tmp_path)
    path.unlink()
    site.answers = [ranges]
    datasets.fetch("wine", tmp_path)


def test_a_damaged_file_of_the_user_is_left_alone(site, tmp_path, monkeypatch):
    recipe = wine(monkeypatch, site)
    path = tmp_path / "downloads" / recipe.file
    path.parent.mkdir()
    path.write_bytes(site.body[:100])
    with pytest.raises(datasets.DamagedFileError, match="Delete it to have it downloaded"):
        datasets.fetch("wine", tmp_path)
    assert path.read_bytes() == site.body[:100]
    assert site.asked == []


def test_a_file_placed_by_hand_needs_no_connection(site, tmp_path, monkeypatch):
    recipe = wine(monkeypatch, site)
    path = tmp_path / "downloads" / recipe.file
    path.parent.mkdir()
    path.write_bytes(site.body)
    datasets.fetch("wine", tmp_path)
    assert site.asked == []
    assert listing(path.parent) == [recipe.file]


def test_offline_says_what_to_place_where(site, tmp_path, monkeypatch):
    recipe = wine(monkeypatch, site)
    site.server.shutdown()
    site.server.server_close()
    with pytest.raises(datasets.DatasetNotFoundError) as caught:
        datasets.fetch("wine", tmp_path)
    message = str(caught.value)
    assert site.url in message
    assert str(tmp_path / "downloads" / recipe.file) in message
    assert "ConnectionRefusedError" in message


def test_a_known_checksum_is_demanded_and_can_be_overruled(site, tmp_path, monkeypatch):
    content, _, y, _ = raw_wine()
    small(monkeypatch, site, "wine", content, len(y))
    recipe = replace(fetching.RECIPES["wine"], sha256=sha(b"known"))
    monkeypatch.setattr(fetching, "RECIPES", {"wine": recipe})
    with pytest.raises(datasets.ChecksumError, match=sha(site.body)):
        datasets.fetch("wine", tmp_path)
    assert listing(tmp_path / "downloads") == []
    datasets.fetch("wine", tmp_path, sha256=sha(site.body).upper())


def test_the_download_is_described_in_the_table(site, tmp_path, monkeypatch):
    wine(monkeypatch, site)
    datasets.fetch("wine", tmp_path)
    with np.load(tmp_path / "uci_small" / "wine.npz") as arrays:
        assert arrays["source"].tolist() == [site.url, sha(site.body)]


def test_many_at_once_download_once(site, tmp_path, monkeypatch):
    def slow(handler, body):
        time.sleep(0.2)
        ranges(handler, body)

    wine(monkeypatch, site)
    site.answers = [slow]
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda _: datasets.fetch("wine", tmp_path), range(6)))
    assert site.asked == [None]
    assert all(np.array_equal(data.X, found[0].X) for data in found)
    assert listing(tmp_path / "uci_small") == ["wine.npz"]
    assert len(listing(tmp_path / "downloads")) == 2


def test_the_folder_is_given_or_named_or_the_users_own(site, tmp_path, monkeypatch):
    wine(monkeypatch, site)
    monkeypatch.setattr(fetching.sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(datasets.FOLDER_VARIABLE, raising=False)
    datasets.fetch("wine")
    assert (tmp_path / "cache" / "twostagegp" / "uci_small" / "wine.npz").is_file()
    assert datasets.load("wine", datasets.cache_folder()).name == "wine"
    monkeypatch.setenv(datasets.FOLDER_VARIABLE, str(tmp_path / "named"))
    datasets.fetch("wine")
    assert (tmp_path / "named" / "uci_small" / "wine.npz").is_file()
    datasets.fetch("wine", tmp_path / "given")
    assert (tmp_path / "given" / "uci_small" / "wine.npz").is_file()


@pytest.mark.parametrize(
    ("platform", "end"),
    [
        ("linux", ".cache/twostagegp"),
        ("darwin", "Library/Caches/twostagegp"),
        ("win32", "AppData/Local/twostagegp"),
    ],
)
def test_the_users_own_folder(platform, end, tmp_path, monkeypatch):
    monkeypatch.setattr(fetching.sys, "platform", platform)
    for variable in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(fetching.Path, "home", lambda: tmp_path)
    assert datasets.cache_folder() == tmp_path / end


def test_a_table_of_the_folder_is_read_and_never_replaced(site, tmp_path, monkeypatch):
    wine(monkeypatch, site)
    np.savez(tmp_path / "wine.npz", X=np.ones((2, 1)), y=np.ones(2), test_0=np.array([1]))
    assert len(datasets.fetch("wine", tmp_path).splits) == 1
    with pytest.raises(ValueError, match=r"was not made by fetch\(\), so it is not replaced"):
        datasets.fetch("wine", tmp_path, force=True)
    assert site.asked == []


def test_force_prepares_again(site, tmp_path, monkeypatch):
    wine(monkeypatch, site)
    datasets.fetch("wine", tmp_path)
    path = tmp_path / "uci_small" / "wine.npz"
    before = path.stat().st_mtime_ns
    os.utime(path, ns=(before - 10**9, before - 10**9))
    datasets.fetch("wine", tmp_path, force=True)
    assert path.stat().st_mtime_ns >= before
    assert site.asked == [None]  # the download was still good


def test_a_table_is_written_whole_or_not_at_all(site, tmp_path, monkeypatch):
    def full(file, **arrays):
        file.write(b"PK")
        raise OSError(28, "No space left on device")

    wine(monkeypatch, site)
    with monkeypatch.context() as patch:
        patch.setattr(fetching.np, "savez_compressed", full)
        with pytest.raises(datasets.DownloadError, match="No space left on device") as caught:
            datasets.fetch("wine", tmp_path)
    assert "Give fetch() a folder with room" in str(caught.value)
    assert listing(tmp_path / "uci_small") == []
    datasets.fetch("wine", tmp_path)
    assert site.asked == [None]


def test_a_full_disk_is_not_a_bad_connection(site, tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    wine(monkeypatch, site)
    monkeypatch.setattr(download.os, "fsync", full)
    with pytest.raises(datasets.DownloadError, match="No space left on device"):
        datasets.fetch("wine", tmp_path)
    assert site.asked == [None]


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written(site, tmp_path, monkeypatch):
    wine(monkeypatch, site)
    tmp_path.chmod(0o500)
    with pytest.raises(datasets.DownloadError, match="Give fetch"):
        datasets.fetch("wine", tmp_path)
    tmp_path.chmod(0o700)


def test_a_folder_that_cannot_be_made(site, tmp_path, monkeypatch):
    wine(monkeypatch, site)
    (tmp_path / "file").write_text("")
    with pytest.raises(datasets.DownloadError, match=r"cannot read and write .* Give fetch\(\)"):
        datasets.fetch("wine", tmp_path / "file")


def test_a_read_only_folder_is_explained(site, tmp_path, monkeypatch):
    def refused(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    wine(monkeypatch, site)
    monkeypatch.setattr("twostagegp.datasets.locks.os.open", refused)
    with pytest.raises(datasets.DownloadError, match=datasets.FOLDER_VARIABLE):
        datasets.fetch("wine", tmp_path)


def test_a_read_only_folder_that_has_the_table_is_fine(tmp_path, monkeypatch):
    np.savez(tmp_path / "wine.npz", X=np.ones((2, 1)), y=np.ones(2))
    monkeypatch.setattr("twostagegp.datasets.locks.os.open", None)
    assert datasets.fetch("wine", tmp_path).X.shape == (2, 1)


def test_verbose_shows_the_log(site, tmp_path, monkeypatch, capsys):
    wine(monkeypatch, site)
    datasets.fetch("wine", tmp_path, verbose=1)
    shown = capsys.readouterr().err
    assert "wine+quality.zip: downloading" in shown
    assert "wine: 9 rows, 11 columns in" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "wines"}, r"unknown table 'wines'; did you mean 'wine'\? "),
        ({"name": "boston"}, "boston has no source that fetch"),
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
    with pytest.raises(ValueError, match=r"wine.npz is damaged .* replace it, or delete it"):
        datasets.load("wine", tmp_path)


def test_full_tables_can_be_loaded_by_name(tmp_path):
    with pytest.raises(datasets.DatasetNotFoundError, match=r"uci_large.song\.npz"):
        datasets.load("song", tmp_path)
