"""Damaged and malicious tables: some cases of ``benchmarks.reader_fuzz``, and its findings."""

import csv
import gzip
import io
import os
import subprocess
import sys
import time
import warnings
from contextlib import contextmanager, nullcontext

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from benchmarks.fuzz_guard import Guard
from benchmarks.fuzz_runner import is_failure, run_cases
from benchmarks.reader_cases import ReaderCases
from benchmarks.reader_fuzz import fitted_rules
from twostagegp import ExactGPRegressor
from twostagegp.cli.app import app
from twostagegp.cli.limits import Limits
from twostagegp.cli.sink import write_table
from twostagegp.cli.source import open_source
from twostagegp.errors import InputError, MemoryBudgetError, TwoStageGPError


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Return a folder with a model of two columns."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"x": rng.normal(size=30), "kind": rng.choice(["a", "b"], 30)})
    path = tmp_path_factory.mktemp("model") / "model"
    ExactGPRegressor("rbf", random_state=0).fit(table, table["x"].to_numpy()).save(path)
    return path


def predict(model, table, output, *options):
    arguments = ["predict", str(model), str(table), "-o", str(output), *options]
    return CliRunner().invoke(app, arguments)


def whole(path, **options):
    source = open_source(path, **options)
    return source.read(source.names)


def chunks(path, rows=10, **options):
    source = open_source(path, **options)
    return list(source.chunks(source.names, (), (), rows))


def test_three_hundred_hostile_tables_end_in_an_error_of_ours_or_in_a_table(tmp_path):
    guard, cases = Guard(ReaderCases.programs), ReaderCases(fitted_rules(), tmp_path, seed=3)
    results = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases.warm()
        run_cases(guard, cases, range(300), lambda result: results.update({result["case"]: result}))
    guard.close()
    assert [result for result in results.values() if is_failure(result["outcome"])] == []
    outcomes = [result["outcome"] for result in results.values()]
    assert outcomes.count("refused") > 100
    assert outcomes.count("table") > 50


# --- the command itself --------------------------------------------------------------------------

HOSTILE = {
    "NUL bytes.csv": b"x,kind\n1\x00,a\n\x00\x00,b\n",
    "only NUL.csv": bytes(1000),
    "latin-1.csv": "x,kind\n1,größe\n".encode("latin-1"),
    "utf-16.csv": "x,kind\n1,a\n".encode("utf-16"),
    "no end of a quote.csv": b'x,kind\n1,"a\n2,b\n3,c\n',
    "quotes.csv": b'x,kind\n"1""2",a\n',
    "more cells.csv": b"x,kind\n1,a\n2,b,c,d\n",
    "text in a number.csv": b"x,kind\n1,a\n=1+1,b\n",
    "no rows.csv": b"x,kind\n",
    "other columns.csv": b"y,z\n1,2\n",
    "cut.csv.gz": gzip.compress(b"x,kind\n1,a\n" * 50)[:-9],
    "not packed.csv.bz2": b"x,kind\n1,a\n",
    "not packed.csv.xz": b"x,kind\n1,a\n",
    "empty.parquet": b"",
    "magic.parquet": b"PAR1PAR1",
    "length.parquet": b"PAR1" + bytes(20) + b"\xff\xff\xff\xffPAR1",
    "magic.feather": b"ARROW1\x00\x00" + bytes(40) + b"ARROW1",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_predict_ends_with_one_message_and_the_old_output_stays(model, tmp_path, name):
    table, output = tmp_path / name, tmp_path / "out.csv"
    table.write_bytes(HOSTILE[name])
    output.write_text("old")
    result = predict(model, table, output)
    assert result.exit_code == 1, result.output
    assert result.stderr.startswith("error: ")
    assert "unexpected" not in result.stderr
    assert "Traceback" not in result.stderr
    assert output.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, "out.csv"])


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_ends_of_lines_and_a_quoted_cell_over_lines_are_read_as_they_are_meant(
    model, tmp_path, end
):
    table = tmp_path / "t.csv"
    text = f'x,kind,note{end}1,a,"two\nlines"{end}2,b,""{end}'
    table.write_bytes(text.encode())
    assert predict(model, table, tmp_path / "out.csv", "--keep", "note").exit_code == 0
    with open(tmp_path / "out.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["note"] for row in rows] == ["two\nlines", ""]


@pytest.mark.parametrize("columns", [3_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_many_thousand_columns_are_no_trouble(model, tmp_path, columns):
    names = ["x", "kind", *(f"c{k}" for k in range(columns))]
    text = ",".join(names) + "\n" + ",".join(["1", "a", *["7"] * columns]) + "\n"
    (tmp_path / "t.csv").write_text(text)
    assert predict(model, tmp_path / "t.csv", tmp_path / "out.csv").exit_code == 0
    assert len(pd.read_csv(tmp_path / "out.csv")) == 1


def test_a_cell_of_megabytes_goes_through(model, tmp_path):
    cell = "é" * (1 << 20)
    (tmp_path / "t.csv").write_text(f"x,kind,note\n1,a,{cell}\n")
    assert (
        predict(model, tmp_path / "t.csv", tmp_path / "o.parquet", "--keep", "note").exit_code == 0
    )
    assert pq.read_table(tmp_path / "o.parquet")["note"].to_pylist() == [cell]


# --- bombs ---------------------------------------------------------------------------------------


def test_a_line_without_an_end_is_refused_while_it_is_read(tmp_path):
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(b"x,y\n1," + b"7" * (1 << 24)))
    for read in (whole, chunks):
        with pytest.raises(InputError, match="a line of more than 1 MiB"):
            read(path, limits=Limits(line_bytes=1 << 20))


@pytest.mark.parametrize("place", ["names", "a row"])
def test_a_line_of_a_million_empty_cells_is_refused_while_it_is_read(tmp_path, place):
    path = tmp_path / "t.csv.gz"
    commas = b"," * (1 << 20)
    path.write_bytes(gzip.compress(commas if place == "names" else b"x,y\n1,2\n3" + commas))
    for read in (whole, chunks):
        with pytest.raises(InputError, match="a line of more than 262,144 cells"):
            read(path)


@pytest.mark.parametrize("end", [b"\r", b"\r\n", b"\n"])
def test_a_table_whose_lines_end_in_a_carriage_return_is_read_however_long(tmp_path, end):
    path = tmp_path / "t.csv"
    path.write_bytes(b"a,b,c,d,e,f" + end + (b"1,2,3,4,5,6" + end) * 60_000)
    assert whole(path).shape == (60_000, 6)
    assert sum(len(chunk.frame) for chunk in chunks(path, 30_000)) == 60_000


@pytest.mark.parametrize("end", [b"\r", b"\n"])
def test_ends_of_lines_in_quotation_marks_let_no_endless_names_in(tmp_path, end):
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress((b'"' + end + b'",') * (1 << 20)))
    with pytest.raises(InputError, match="a line of more than 262,144 cells"):
        open_source(path)


@pytest.mark.parametrize("end", [b"\r", b"\n"])
def test_rows_behind_many_names_do_not_count_as_names(tmp_path, end):
    path, names = tmp_path / "t.csv", 1 << 18
    path.write_bytes(b",".join(b"%d" % k for k in range(names)) + end + (b",," + end) * 99_999)
    assert len(open_source(path).names) == names


def test_a_wrong_note_of_pandas_about_its_index_loses_no_column(tmp_path):
    frame = pd.DataFrame({"area": [1.0, 2.0], "x": [3.0, 4.0]}).set_index("area")
    table = pa.Table.from_pandas(frame)
    note = table.schema.metadata[b"pandas"].replace(b'"name": "area"', b'"name": "volume"')
    pq.write_table(table.replace_schema_metadata({b"pandas": note}), tmp_path / "t.parquet")
    read = open_source(tmp_path / "t.parquet").read(["area", "x"])
    assert read["area"].tolist() == [1.0, 2.0]


def test_text_beyond_the_memory_is_refused_while_it_is_read(tmp_path):
    limits = Limits(memory=4 << 20)
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(b"x,y\n" + b"1,2\n" * (1 << 19)))
    with pytest.raises(MemoryBudgetError, match="lower --chunk-rows"):
        whole(path, limits=limits)
    assert sum(len(chunk.frame) for chunk in chunks(path, 10_000, limits=limits)) == 1 << 19
    path.write_bytes(gzip.compress(b'x,y\n1,"' + b"1,2\n" * (1 << 19)))
    with pytest.raises(MemoryBudgetError, match="quotation mark that is not closed"):
        chunks(path, limits=limits)


@pytest.mark.parametrize("ending", ["parquet", "feather"])
def test_a_table_of_more_rows_than_fit_is_refused_and_its_chunks_are_read(tmp_path, ending):
    path, table = tmp_path / f"t.{ending}", pa.table({"x": np.zeros(200_000)})
    if ending == "parquet":
        pq.write_table(table, path)
    else:
        with pa.ipc.new_file(str(path), table.schema) as writer:
            writer.write_table(table)
    with pytest.raises(MemoryBudgetError, match="200,000 rows"):
        whole(path, limits=SMALL)
    assert sum(len(chunk.frame) for chunk in chunks(path, 50_000, limits=SMALL)) == 200_000


def _feather(path, table, **options):
    with pa.ipc.new_file(path, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)


def _parquet(path, table, **options):
    pq.write_table(table, path, compression="zstd", use_dictionary=False, **options)


def _bomb(path, table):
    if path.suffix == ".feather":
        _feather(path, table, compression="zstd")
    else:
        _parquet(path, table)


@contextmanager
def _counted():
    """Count pyarrow's memory in a new pool, which has no earlier peak."""
    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    pa.set_memory_pool(pool)
    try:
        yield pool
    finally:
        pa.set_memory_pool(before)


#: A mebibyte of memory.
SMALL = Limits(memory=1 << 20)
BOMBS = {
    "numbers": {"x": np.zeros(1 << 18)},
    "one text": {"x": ["7" * (1 << 21)]},
}


@pytest.mark.parametrize("ending", ["parquet", "feather"])
@pytest.mark.parametrize("what", BOMBS)
@pytest.mark.parametrize("read", [whole, chunks])
def test_a_compressed_table_is_refused_before_it_is_decompressed(tmp_path, read, what, ending):
    path = tmp_path / f"t.{ending}"
    _bomb(path, pa.table(BOMBS[what]))
    assert path.stat().st_size < 1 << 15
    told = "Write the file with fewer rows" if read is chunks else "Fit a sample"
    with _counted() as pool, pytest.raises(MemoryBudgetError, match=told):
        read(path, limits=SMALL)
    assert pool.max_memory() < 1 << 20


def test_a_compressed_dictionary_is_refused_before_it_is_decompressed(tmp_path):
    words = pa.array(["7" * (1 << 21), "8"]).dictionary_encode()
    _feather(tmp_path / "t.feather", pa.table({"x": words}), compression="zstd")
    for read in (whole, chunks):
        with pytest.raises(MemoryBudgetError):
            read(tmp_path / "t.feather", limits=SMALL)


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited on Linux only")
def test_a_batch_of_gigabytes_is_refused_without_using_them(tmp_path):
    path = tmp_path / "t.feather"
    _feather(path, pa.table({"x": np.zeros(1 << 27)}), compression="zstd")
    assert path.stat().st_size < 1 << 18
    with pytest.raises(MemoryBudgetError, match="fewer rows per piece"):
        chunks(path, limits=SMALL)


@pytest.mark.parametrize("ending", ["parquet", "feather"])
def test_columns_that_are_not_asked_for_are_not_decompressed(tmp_path, ending):
    path = tmp_path / f"t.{ending}"
    _bomb(path, pa.table({"big": ["7" * (1 << 21)], "x": [1.5], "a.b": [2], "no": pa.nulls(1)}))
    source = open_source(path, limits=SMALL)
    with _counted() as pool:
        assert source.read(["no"]).isna().to_numpy().tolist() == [[True]]
    assert pool.max_memory() < 1 << 20
    assert source.read(["a.b", "x"]).to_numpy().tolist() == [[2.0, 1.5]]
    (chunk,) = source.chunks(["x"], (), ["a.b"], 10)
    assert (chunk.frame["x"].tolist(), chunk.kept["a.b"].to_pylist()) == ([1.5], [2])
    with pytest.raises(MemoryBudgetError):
        source.read(["big"])


@pytest.mark.parametrize("ending", ["parquet", "feather"])
def test_small_files_are_read_without_a_second_process(tmp_path, ending, monkeypatch):
    path = tmp_path / f"t.{ending}"
    _bomb(path, pa.table({"x": np.arange(10.0)}))
    monkeypatch.setattr(subprocess, "run", None)
    assert whole(path, limits=Limits(memory=1 << 30))["x"].tolist() == list(range(10))


def test_a_footer_on_which_pyarrow_ends_the_process_ends_another_one(tmp_path):
    limits = Limits(memory=64)  # so small that the sizes of columns are needed
    _, read = ReaderCases(fitted_rules(), tmp_path, seed=0, limits=limits)(51_156)
    with pytest.raises(InputError, match="pyarrow could not measure its columns"):
        read()


@pytest.mark.parametrize("memory", [1 << 20, 1 << 40])
def test_a_batch_longer_than_its_file_is_refused(tmp_path, memory):
    path, table = tmp_path / "t.feather", pa.table({"x": np.zeros(1000), "y": np.ones(1000)})
    _feather(path, table, compression="zstd")
    data = bytearray(path.read_bytes())
    footer = len(data) - 10 - int.from_bytes(data[-10:-6], "little")
    # A block of the footer: its place in the file, the length of its head, that of its body.
    (begin,) = (
        at
        for at in range(footer, len(data) - 32, 4)
        if 0 < int.from_bytes(data[at : at + 8], "little") < footer
        and 0 < int.from_bytes(data[at + 8 : at + 16], "little") < footer
        and 0 < int.from_bytes(data[at + 16 : at + 24], "little") < footer
    )
    data[begin + 16 : begin + 24] = (1 << 40).to_bytes(8, "little")
    path.write_bytes(data)
    for read in (whole, chunks):
        with pytest.raises(TwoStageGPError):
            read(path, limits=Limits(memory=memory))


def test_memory_for_four_copies_of_a_table_is_required(tmp_path):
    pq.write_table(pa.table({"x": np.arange(1 << 14)}), tmp_path / "t.parquet")
    for memory, fits in ((4 << 17, False), (9 << 17, True)):
        with nullcontext() if fits else pytest.raises(MemoryBudgetError):
            whole(tmp_path / "t.parquet", limits=Limits(memory=memory))


@pytest.mark.slow
def test_a_bomb_under_a_limit_of_memory_is_an_error_of_ours_and_no_kill(model, tmp_path):
    """Four gigabytes from four megabytes, with half a gigabyte to spare."""
    path = tmp_path / "t.csv.gz"
    with gzip.open(path, "wb", 1) as file:
        file.write(b'x,kind\n1,"')
        for _ in range(1 << 9):
            file.write(bytes([55]) * (1 << 22) + b"\n" * (1 << 22))
    program = (
        "import resource, sys\n"
        "import pandas, pyarrow.parquet, torch, twostagegp\n"
        "from twostagegp.cli.app import app, run\n"
        "from twostagegp.storage.model import load\n"
        f"load({str(model)!r})\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 29),) * 2)\n"
        f"sys.argv = ['twostagegp', 'predict', {str(model)!r}, {str(path)!r}, '-o', 'out.csv']\n"
        "run()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("error: ")
    assert not os.path.exists(tmp_path / "out.csv")


# --- what was found ------------------------------------------------------------------------------


def test_text_of_a_parquet_file_that_is_no_utf_8_is_found_when_it_is_read(tmp_path):
    path = tmp_path / "t.parquet"
    bad = pa.StringArray.from_buffers(
        2, pa.py_buffer(np.array([0, 2, 4], dtype=np.int32).tobytes()), pa.py_buffer(b"a\xb9bc")
    )
    pq.write_table(pa.table({"x": bad}), path)
    for read in (whole, chunks):
        with pytest.raises(InputError, match="cannot be read as parquet"):
            read(path)


def test_text_of_a_feather_file_that_ends_outside_of_it_is_found_when_it_is_read(tmp_path):
    path = tmp_path / "t.feather"
    out = io.BytesIO()
    table = pa.table({"x": ["ab", "cd"]})
    with pa.ipc.new_file(out, table.schema) as writer:
        writer.write_table(table)
    offsets = np.array([0, 2, 4], dtype=np.int32).tobytes()
    assert out.getvalue().count(offsets) == 1
    path.write_bytes(out.getvalue().replace(offsets, np.array([0, 2, 2**30], "i4").tobytes()))
    for read in (whole, chunks):
        with pytest.raises(InputError, match="cannot be read as feather"):
            read(path)


def test_twenty_thousand_names_are_read_in_no_time(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(",".join(f"c{k}" for k in range(20_000)) + "\n1,2\n")
    begin = time.process_time()
    assert len(open_source(path).names) == 20_000
    assert time.process_time() - begin < 1.0


# --- formulas ------------------------------------------------------------------------------------


def test_text_that_a_spreadsheet_would_run_gets_an_apostrophe_wherever_it_comes_from(tmp_path):
    harm = ["=1+1", "+cmd", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "＝1", "＋1", "－a", "＠x"]
    fine = ["-5", "+5", "-5.5e-3", "a=b", "", "'=1", "1-1"]
    table = pa.table({"=name": harm + fine, "n": pa.array(-np.arange(18.0))})
    write_table(tmp_path / "t.csv", table)
    with open(tmp_path / "t.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["'=name", "n"]
    assert [row[0] for row in rows[1:]] == [f"'{text}" for text in harm] + fine
    assert rows[3][1] == "-2.0"  # numbers are numbers
    write_table(tmp_path / "raw.csv", table, guard=False)
    assert pd.read_csv(tmp_path / "raw.csv").columns.tolist() == ["=name", "n"]


def test_a_carriage_return_in_a_cell_begins_no_line_of_its_own(tmp_path):
    table = pa.table({"id": ["a\r=1+1", "b"], "n": [1.5, 2.0]})
    write_table(tmp_path / "t.csv", table)
    with open(tmp_path / "t.csv", newline="") as file:
        assert list(csv.reader(file)) == [["id", "n"], ["a\r=1+1", "1.5"], ["b", "2.0"]]


def test_labels_ids_and_names_of_columns_are_guarded_in_the_output_of_predict(model, tmp_path):
    pd.DataFrame({"x": [1.0], "kind": ["a"], "=id": ["@SUM(1)"]}).to_csv(
        tmp_path / "t.csv", index=False
    )
    result = predict(
        model, tmp_path / "t.csv", tmp_path / "o.csv", "--keep", "=id", "--prefix", "="
    )
    assert result.exit_code == 0, result.output
    lines = (tmp_path / "o.csv").read_text().splitlines()
    assert lines[0].startswith("'=id,'=mean,'=std")
    assert lines[1].startswith("'@SUM(1),")
