"""Records on disk survive interrupted and simultaneous runs."""

import json
import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from measurements.store import JsonLines, plain, write_whole


@pytest.fixture
def store(tmp_path):
    return JsonLines(tmp_path / "deep" / "results.jsonl", key=("model", "split"))


def lines_of(store):
    return store.path.read_text().splitlines()


def test_store_without_a_file_is_empty(store):
    assert store.records() == {}
    assert store.done() == set()


def test_store_gives_back_what_was_appended(store):
    assert store.append({"model": "a", "split": 0, "rmse": 1.5})
    assert store.append({"model": "a", "split": 1, "rmse": 2.5})
    assert store.records()["a", 1]["rmse"] == 2.5
    assert store.done() == {("a", 0), ("a", 1)}


def test_store_skips_what_is_done_unless_told_to_replace(store):
    store.append({"model": "a", "split": 0, "rmse": 1.0})
    assert not store.append({"model": "a", "split": 0, "rmse": 2.0})
    assert store.records()["a", 0]["rmse"] == 1.0
    assert store.append({"model": "a", "split": 0, "rmse": 3.0}, replace=True)
    assert store.records()["a", 0]["rmse"] == 3.0


def test_a_failed_record_is_kept_but_not_done(store):
    store.append({"model": "a", "split": 0, "error": "boom"})
    assert store.done() == set()
    assert store.append({"model": "a", "split": 0, "rmse": 1.0})
    assert store.done() == {("a", 0)}
    assert len(lines_of(store)) == 2


@pytest.mark.parametrize("tail", ['{"model": "a", "spl', '{"model": "a", "split": 1}', "\xe4"])
def test_a_truncated_last_line_is_ignored_and_then_cut_off(store, tail):
    store.append({"model": "a", "split": 0})
    with open(store.path, "a", encoding="latin-1") as file:
        file.write(tail)
    assert store.done() == {("a", 0)}
    assert store.append({"model": "a", "split": 1, "rmse": 2.0})
    assert [json.loads(line)["split"] for line in lines_of(store)] == [0, 1]


def test_a_broken_line_in_the_middle_is_an_error_that_names_it(store):
    store.append({"model": "a", "split": 0})
    with open(store.path, "a") as file:
        file.write("not json\n")
    with pytest.raises(ValueError, match="line 2"):
        store.records()


def _append_many(store, first):
    for split in range(first, first + 50):
        store.append({"model": "a", "split": split, "text": "x" * 500})


def test_two_writers_do_not_tear_each_others_lines(store):
    # Threads do for processes here: the lock belongs to the open file, and each append opens it.
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda first: _append_many(store, first), (0, 25)))
    assert len(lines_of(store)) == 75
    assert store.done() == {("a", split) for split in range(75)}


def test_records_are_strict_json(store):
    store.append({"model": "a", "split": np.int64(3), "x": math.nan, "y": [np.float64(1.0)]})
    assert store.records()["a", 3] == {"model": "a", "split": 3, "x": None, "y": [1.0]}
    assert plain({"x": {"y": -math.inf}}) == {"x": {"y": None}}


def test_write_whole_replaces_and_leaves_nothing_behind(tmp_path):
    path = tmp_path / "new" / "table.md"
    write_whole(path, "one")
    write_whole(path, "two")
    assert path.read_text() == "two"
    with pytest.raises(TypeError):
        write_whole(path, 3)
    assert path.read_text() == "two"
    assert list(path.parent.iterdir()) == [path]
