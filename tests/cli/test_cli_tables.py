"""Files of tables: formats, chunks of equal types, outputs that are whole or not there."""

import gzip
import io
import os

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from twostagegp.cli.column_types import conform, infer_dates
from twostagegp.cli.formats import MISSING
from twostagegp.cli.sink import guard_formulas, open_sink, write_table
from twostagegp.cli.source import open_source
from twostagegp.data.columns import TableEncoder
from twostagegp.errors import InputError


def frame(n=12):
    return pd.DataFrame(
        {
            "x": np.r_[np.nan, np.arange(1.0, n)],
            "code": [f"0{k % 3}" for k in range(n)],
            "when": pd.Timestamp("2024-01-01") + pd.to_timedelta(range(n), unit="D"),
        }
    )


def write(folder, ending, table=None):
    path, table = folder / f"table.{ending}", frame() if table is None else table
    if ending == "csv":
        table.to_csv(path, index=False)
    elif ending == "tsv":
        table.to_csv(path, index=False, sep="\t")
    elif ending == "csv.gz":
        path.write_bytes(gzip.compress(table.to_csv(index=False).encode()))
    elif ending == "parquet":
        table.to_parquet(path)
    else:
        table.to_feather(path)
    return path


def read_whole(path):
    source = open_source(path)
    return source.read(source.names)


def read_in_chunks(path):
    source = open_source(path)
    return list(source.chunks(source.names, (), (), 10))


# --- reading -------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["csv", "tsv", "csv.gz", "parquet", "feather"])
def test_every_format_is_read_whole_and_in_chunks(tmp_path, ending):
    source = open_source(write(tmp_path, ending))
    assert source.names == ["x", "code", "when"]
    whole = source.read(["code", "x"], as_text=["code"])
    assert whole["code"].tolist() == frame()["code"].tolist()
    chunks = list(source.chunks(["x", "code"], {"x"}, ["code"], 5))
    assert [len(chunk.frame) for chunk in chunks] == [5, 5, 2]
    assert [chunk.first for chunk in chunks] == [0, 5, 10]
    assert chunks[-1].done == pytest.approx(1.0)
    np.testing.assert_array_equal(np.concatenate([c.frame["x"] for c in chunks]), frame()["x"])
    kept = [code for chunk in chunks for code in chunk.kept["code"].to_pylist()]
    assert kept == frame()["code"].tolist()


def test_index_of_a_saved_frame_is_a_column_only_with_a_name(tmp_path):
    table = frame().set_index("code")
    source = open_source(write(tmp_path, "parquet", table))
    assert sorted(source.names) == ["code", "when", "x"]
    assert source.read(["x", "code"]).columns.tolist() == ["x", "code"]
    unnamed = open_source(write(tmp_path, "parquet", frame().sample(frac=1, random_state=0)))
    assert unnamed.names == ["x", "code", "when"]


def test_semicolons_and_decimal_commas_are_read(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes("größe;y\n1,5;2\n-2,25;3\n".encode("latin-1"))
    with pytest.raises(InputError, match="--encoding latin-1"):
        open_source(path)
    with pytest.raises(InputError, match="--delimiter ';'"):
        open_source(path, "latin-1")
    source = open_source(path, "latin-1", ";", ",")
    assert source.read(["größe"])["größe"].tolist() == [1.5, -2.25]
    chunk = next(source.chunks(["größe"], {"größe"}, ["größe"], 10))
    assert chunk.kept["größe"].to_pylist() == ["1,5", "-2,25"]
    assert conform(chunk.frame, None, 0, ",")["größe"].tolist() == [1.5, -2.25]


def test_byte_order_mark_is_not_part_of_a_name(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(b"\xef\xbb\xbfa,b\n1,2\n")
    assert open_source(path).names == ["a", "b"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.csv", b"", "is empty"),
        ("t.csv", b"a,b\n", "has no rows"),
        ("t.csv", b"a,b,a\n1,2,3\n", "more than one column 'a'"),
        ("t.csv", b"a,b\n1,2,3\n4,5,6\n", "not a regular table"),
        ("t.csv", b"a,b\n1,2\n4,5,6\n", "not a regular table"),
        ("t.csv", b"a,b\n\xff,2\n", "not utf-8 text"),
        ("t.xlsx", b"a", r"must end in one of \.csv"),
        ("t.parquet.gz", b"a", "only CSV and TSV"),
        ("t.parquet", b"a,b\n1,2\n", "cannot be read as parquet"),
        ("t.feather", b"a,b\n1,2\n", "cannot be read as feather"),
        ("t.csv.gz", b"a,b\n1,2\n", "cannot be read as csv: Not a gzip"),
    ],
)
def test_files_that_are_not_tables_are_refused(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    for read in (read_whole, read_in_chunks):
        with pytest.raises(InputError, match=message):
            read(tmp_path / name)


def test_kept_cells_are_unchanged_and_empty_cells_are_missing(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("country,x,note\nNA,1.50,None\nDE,NA,\n,3,n/a\n")
    source = open_source(path)
    (chunk,) = source.chunks(["country", "x"], {"x"}, ["country", "x", "note"], 10)
    assert chunk.kept["country"].to_pylist() == ["NA", "DE", None]
    assert chunk.kept["x"].to_pylist() == ["1.50", "NA", "3"]
    assert chunk.kept["note"].to_pylist() == ["None", None, "n/a"]
    assert chunk.frame["country"].isna().tolist() == [True, False, True]
    (alone,) = source.chunks(["country", "x"], {"x"}, [], 10)
    assert alone.frame["country"].isna().tolist() == [True, False, True]
    for part in (chunk, alone):
        x = conform(part.frame[["x"]], None, 0)["x"]
        np.testing.assert_array_equal(x, [1.5, np.nan, 3.0])


def test_missing_value_markers_are_those_of_pandas():
    lines = "\n".join(f"{cell},x" for cell in MISSING)
    assert pd.read_csv(io.StringIO(f"cell,x\n{lines}\n"))["cell"].isna().all()


def test_the_error_names_the_first_cell_that_is_not_a_number(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,b\n1,2\n3,\n5,many\n")
    with pytest.raises(InputError, match="contained numbers in the fit, but row 3 contains 'many'"):
        list(open_source(path).chunks(["a", "b"], {"a", "b"}, (), 2))


def test_the_error_for_a_missing_column_suggests_a_similar_one(tmp_path):
    with pytest.raises(InputError, match=r"no column 'cod'.*Did you mean 'code'.*'x', 'code'"):
        open_source(write(tmp_path, "csv")).require(["cod"], "--target")


# --- types ---------------------------------------------------------------------------------------


def test_iso_dates_are_converted_and_other_text_is_kept():
    table = pd.DataFrame(
        {
            "day": ["2024-01-31", None],
            "time": ["2024-01-31T10:00:00", "2024-02-01 11:30"],
            "moment": ["2024-01-31T10:00:00+01:00", "2024-07-31T10:00:00+02:00"],
            "local": ["31.01.2024", "01.02.2024"],
            "wrong": ["2024-13-45", "2024-01-01"],
            "code": ["2024", "2025"],
        }
    )
    assert infer_dates(table) == ["day", "time", "moment"]
    assert table["moment"].dt.tz is not None
    assert table["day"].dt.tz is None


def test_every_chunk_has_the_types_of_the_fit():
    n = 40
    table = pd.DataFrame(
        {
            "x": np.linspace(0, 1, n),
            "code": pd.Categorical([f"0{k % 4}" for k in range(n)]),
            "level": pd.Categorical([k % 3 for k in range(n)]),
            "flag": [k % 2 == 0 for k in range(n)],
            "when": pd.Timestamp("2024-01-01") + pd.to_timedelta(range(n), unit="D"),
            "none": [None] * n,
        }
    )
    encoder = TableEncoder().fit(table)
    # The same rows as a CSV file without types would give them.
    text = pd.DataFrame(
        {
            "x": table["x"],
            "code": table["code"].astype(str),
            "level": table["level"].astype(str),
            "flag": table["flag"].astype(str),
            "when": table["when"].dt.strftime("%Y-%m-%d"),
            "none": pd.Series([None] * n, dtype=object),
        }
    )
    expected = encoder.transform(table)
    for begin in range(0, n, 3):
        part = text.iloc[begin : begin + 3].reset_index(drop=True)
        got = encoder.encode(conform(part, encoder.rules_, begin))
        np.testing.assert_array_equal(got, expected[begin : begin + 3])


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("flag", "maybe", "'maybe' in row 8, but the model expects true or false"),
        ("when", "01.02.2024", "'01.02.2024' in row 8, but the model expects a date"),
        ("x", "big", "'big' in row 8, but the model expects a number"),
    ],
)
def test_the_error_names_the_first_value_of_another_type(column, value, message):
    table = pd.DataFrame(
        {
            "flag": [True, False] * 3,
            "when": pd.date_range("2024-01-01", periods=6),
            "x": np.arange(6.0),
        }
    )
    encoder = TableEncoder().fit(table)
    text = table.astype(str)
    text.loc[2, column] = value
    with pytest.raises(InputError, match=message):
        conform(text, encoder.rules_, 5)


# --- writing -------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["csv", "tsv", "parquet", "feather"])
def test_chunks_are_appended_and_read_back(tmp_path, ending):
    path = tmp_path / "new folder" / f"out.{ending}"
    table = pa.table({"n": [1, None, 3], "text": ["a", "b", None], "x": [0.1, 0.2, 1e-300]})
    with open_sink(path) as sink:
        for begin in range(3):
            sink.write(table.slice(begin, 1))
        assert not path.exists()
    assert os.listdir(path.parent) == [path.name]
    back = {
        "csv": pd.read_csv,
        "tsv": lambda p: pd.read_csv(p, sep="\t"),
        "parquet": pd.read_parquet,
        "feather": pd.read_feather,
    }[ending](path)
    assert back["x"].tolist() == [0.1, 0.2, 1e-300]
    assert back["n"].isna().tolist() == [False, True, False]
    if ending == "csv":
        assert path.read_text().splitlines()[1:] == ["1,a,0.1", ",b,0.2", "3,,1e-300"]


def write_and_fail(path):
    with open_sink(path) as sink:
        sink.write(pa.table({"a": [1]}))
        raise pa.ArrowInvalid("stop")


def test_a_failure_leaves_the_old_file_and_no_temporary_files(tmp_path):
    for ending in ("csv", "parquet", "feather"):
        path = tmp_path / f"out.{ending}"
        path.write_bytes(b"old")
        with pytest.raises(pa.ArrowInvalid):
            write_and_fail(path)
        assert path.read_bytes() == b"old"
    assert sorted(os.listdir(tmp_path)) == ["out.csv", "out.feather", "out.parquet"]


def test_temporary_files_of_killed_runs_are_removed_and_locked_ones_kept(tmp_path):
    path = tmp_path / "out.csv"
    dead = tmp_path / ".out.csv.0123456789abcdef.twostagegp-part"
    dead.write_bytes(b"half")
    with open_sink(path) as first:
        assert not dead.exists()
        first.write(pa.table({"a": [1]}))
        write_table(path, pa.table({"a": [2]}))  # another run at the same time
        assert path.read_text() == "a\n2\n"
    assert path.read_text() == "a\n1\n"
    assert os.listdir(tmp_path) == ["out.csv"]


def test_a_symbolic_link_is_followed(tmp_path):
    (tmp_path / "real.csv").write_text("old")
    (tmp_path / "link.csv").symlink_to("real.csv")
    write_table(tmp_path / "link.csv", pa.table({"a": [1]}))
    assert (tmp_path / "link.csv").is_symlink()
    assert (tmp_path / "real.csv").read_text() == "a\n1\n"


def test_formulas_are_guarded_and_numbers_are_not():
    cells = [
        "=1+1",
        "+cmd",
        "-2+3",
        "@SUM(A1)",
        "\t=1",
        "\r=1",
        "-5",
        "+1.5e3",
        "-2,5",
        "fine",
        "",
        None,
    ]
    table = pa.table(
        {"plain": cells, "=name": pa.array(cells).dictionary_encode(), "x": range(len(cells))}
    )
    guarded = guard_formulas(table)
    expected = [f"'{cell}" for cell in cells[:6]] + cells[6:]
    assert guarded.column_names == ["plain", "'=name", "x"]
    assert guarded["plain"].to_pylist() == expected
    assert guarded["'=name"].to_pylist() == expected
    assert guarded["x"].to_pylist() == list(range(len(cells)))


def test_the_formula_guard_changes_text_files_only(tmp_path):
    table = pa.table({"a": ["=1+1"]})
    write_table(tmp_path / "a.parquet", table)
    assert pq.read_table(tmp_path / "a.parquet")["a"].to_pylist() == ["=1+1"]
    write_table(tmp_path / "a.csv", table, guard=False)
    assert (tmp_path / "a.csv").read_text() == "a\n=1+1\n"
