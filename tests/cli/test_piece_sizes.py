"""Memory that the pieces of Parquet and Feather files need."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from twostagegp.cli.piece_sizes import feather_pieces, parquet_pieces


def test_sizes_of_row_groups_are_those_of_their_columns(tmp_path):
    columns = {"x": np.arange(99.0), "a.b": ["u"] * 99, "pair": [{"a": 1, "b": "x"}] * 99}
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table(columns), path, row_group_size=50)
    metadata = pq.read_metadata(path)
    for names, places in ((["x"], [0]), (["a.b"], [1]), (["pair"], [2, 3]), (["x", "a.b"], [0, 1])):
        expected = [
            sum(metadata.row_group(k).column(j).total_uncompressed_size for j in places)
            for k in range(2)
        ]
        assert parquet_pieces(str(path), names) == {"pieces": expected, "mapped": False}
        assert min(expected) > 0


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_the_largest_batch_is_measured_for_the_wanted_columns(tmp_path, compression):
    path = tmp_path / "t.feather"
    rng = np.random.default_rng(0)
    table = pa.table(
        {
            "large": [rng.bytes(100).hex() for _ in range(3000)],
            "small": rng.normal(size=3000),
            "word": pa.array(["a", "b"] * 1500).dictionary_encode(),
        }
    )
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_file(str(path), table.schema, options=options) as writer:
        for size in (1000, 2000):
            writer.write_table(table.slice(3000 - size, size))
    found = {name: feather_pieces(str(path), [name]) for name in table.column_names}
    if compression is None:
        assert all(each == {"pieces": [0], "mapped": True} for each in found.values())
        return
    largest = {name: found[name]["pieces"][0] for name in found}
    assert largest["large"] > 2000 * 200
    assert 2000 * 8 <= largest["small"] < largest["large"]
    assert not any(each["mapped"] for each in found.values())
