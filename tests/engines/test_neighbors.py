"""Nearest neighbours against distances to all rows in numpy."""

import pickle
import threading
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from twostagegp.engines.neighbors.compiled.threads import by_slices
from twostagegp.engines.neighbors.index import BruteIndex, TreeIndex, neighbor_index, recall
from twostagegp.errors import InputError

each_metric = pytest.mark.parametrize("manhattan", [False, True], ids=["L2", "L1"])


def distances(X, points, manhattan):
    difference = points[:, None, :] - X
    return np.abs(difference).sum(2) if manhattan else np.square(difference).sum(2)


def brute(X, points, k, manhattan=False, left_out=None):
    """The k nearest rows, ties by row number; -1 where there are no more."""
    D = distances(X, points, manhattan)
    D[left_out if left_out is not None else np.zeros(D.shape, bool)] = np.inf
    order = np.argsort(D, axis=1, kind="stable")[:, :k]
    found = np.where(np.isinf(np.take_along_axis(D, order, 1)), -1, order)
    return np.pad(found, ((0, 0), (0, k - found.shape[1])), constant_values=-1)


def tensor(*arrays):
    tensors = tuple(None if a is None else torch.as_tensor(a) for a in arrays)
    return tensors[0] if len(tensors) == 1 else tensors


def search(X, points, k, manhattan=False, own=None, groups=None, own_group=None):
    index = TreeIndex(tensor(X), manhattan, tensor(groups))
    return index.query(tensor(points), k, *tensor(own, own_group)).numpy()


@pytest.fixture
def table():
    rng = np.random.default_rng(0)
    return rng.normal(size=(700, 4))


@pytest.fixture
def threads():
    """Sets the number of torch's threads, for this test only."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


# --- the right rows ------------------------------------------------------------------------------


@each_metric
@pytest.mark.parametrize("d", [1, 2, 5, 30])
@pytest.mark.parametrize("n", [1, 2, 7, 8, 9, 31, 32, 33, 255, 256, 257, 600, 3000])
def test_tree_finds_the_nearest_rows_nearest_first(n, d, manhattan):
    rng = np.random.default_rng(n + d)
    X, points = rng.normal(size=(n, d)), 1.5 * rng.normal(size=(25, d))
    for k in {1, min(n, 12), min(n, 70)}:
        found = search(X, points, k, manhattan)
        np.testing.assert_array_equal(found, brute(X, points, k, manhattan))


@settings(max_examples=150, deadline=None)
@given(
    n=st.integers(1, 600),
    d=st.integers(1, 9),
    k=st.integers(1, 60),
    spread=st.integers(0, 3),
    manhattan=st.booleans(),
    leave_out=st.sampled_from(["nothing", "row", "group", "both"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_ties_go_to_the_smaller_row_number(n, d, k, spread, manhattan, leave_out, seed):
    rng = np.random.default_rng(seed)
    X = rng.integers(-spread, spread + 1, size=(n, d)) * 1.0
    chosen = rng.integers(0, n, size=20)
    points = X[chosen] + rng.integers(0, 2, size=(20, d))
    groups = rng.integers(0, 3, size=n)
    own = chosen if leave_out in ("row", "both") else None
    own_group = groups[chosen] if leave_out in ("group", "both") else None
    left_out = np.zeros((20, n), bool)
    if own is not None:
        left_out[np.arange(20), own] = True
    if own_group is not None:
        left_out |= own_group[:, None] == groups
    found = search(X, points, k, manhattan, own, groups, own_group)
    np.testing.assert_array_equal(found, brute(X, points, k, manhattan, left_out))


@each_metric
@pytest.mark.parametrize("d", [1, 3, 4, 7])
@pytest.mark.parametrize("n", [250, 600, 1500])
def test_copies_of_a_row_come_in_the_order_of_their_numbers(n, d, manhattan):
    for seed in range(10):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(3, d))[rng.integers(0, 3, size=n)]
        points = rng.normal(size=(5, d))
        found = search(X, points, 30, manhattan)
        np.testing.assert_array_equal(found, brute(X, points, 30, manhattan))


def awkward():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(500, 3))
    constant, far, mixed = X.copy(), X.copy(), X * [1e-8, 1.0, 1e8]
    constant[:, 1] = 2.5
    far[::7] += 1e6
    return {
        "constant column": constant,
        "a cluster far away": far,
        "columns of different size": mixed,
        "sorted": np.sort(X, axis=0),
        "one row is far away": np.vstack([X, np.full((1, 3), 1e6)]),
    }


@each_metric
@pytest.mark.parametrize("name", awkward())
def test_tree_is_exact_on_awkward_tables(name, manhattan):
    X = awkward()[name]
    points = X[::11] + 1e-3
    np.testing.assert_array_equal(search(X, points, 20, manhattan), brute(X, points, 20, manhattan))


@each_metric
def test_equal_rows_alone_are_all_found_in_order(manhattan):
    X = np.full((300, 3), 0.1)
    found = search(X, X[:4] + 1.0, 400, manhattan)
    np.testing.assert_array_equal(found[:, :300], np.tile(np.arange(300), (4, 1)))
    assert (found[:, 300:] == -1).all()


@pytest.mark.parametrize(("d", "manhattan"), [(1, False), (3, True)])
@pytest.mark.parametrize("place", [1e6, -1e12])
def test_a_query_far_outside_gets_the_nearest_rows(place, d, manhattan):
    # Whole numbers: so far away others would all be at the same distance but for rounding.
    X = np.random.default_rng(2).integers(-1000, 1000, size=(500, d)) * 1.0
    points = np.full((2, d), place)
    np.testing.assert_array_equal(search(X, points, 9, manhattan), brute(X, points, 9, manhattan))


@pytest.mark.parametrize("place", [1e12, 1e100])
def test_a_query_far_outside_gets_distances_right_to_rounding(place):
    X = np.random.default_rng(2).normal(size=(500, 3))
    points = np.array([[0.0, place, 0.0]])
    D = distances(X, points, manhattan=False)[0]
    found = search(X, points, 9)[0]
    assert len(set(found)) == 9
    assert found.min() >= 0
    np.testing.assert_allclose(D[found], np.sort(D)[:9], rtol=1e-14)


# --- who is left out -----------------------------------------------------------------------------


@each_metric
def test_a_row_is_left_out_of_its_own_query(table, manhattan):
    own = np.arange(0, 700, 5)
    expected = brute(table, table[own], 12, manhattan)[:, 1:]
    np.testing.assert_array_equal(search(table, table[own], 11, manhattan, own), expected)


def test_minus_one_leaves_no_row_out(table):
    own = np.array([-1, 1])
    found = search(table, table[:2], 3, own=own)
    np.testing.assert_array_equal(found[0], brute(table, table[:1], 3)[0])
    assert 1 not in found[1]


@each_metric
def test_a_group_is_left_out(table, manhattan):
    groups = np.random.default_rng(3).integers(0, 5, size=700)
    own_group = groups[:50]
    left_out = own_group[:, None] == groups
    found = search(table, table[:50], 8, manhattan, np.arange(50), groups, own_group)
    np.testing.assert_array_equal(found, brute(table, table[:50], 8, manhattan, left_out))


def test_a_group_of_nearly_all_rows_leaves_the_few_others(table):
    groups = np.zeros(700, dtype=np.int64)
    groups[[3, 400, 699]] = 1
    found = search(table, table[:40], 5, groups=groups, own_group=groups[:40])
    left_out = groups[:40, None] == groups
    np.testing.assert_array_equal(found, brute(table, table[:40], 5, left_out=left_out))
    assert (found[0, 3:] == -1).all()


def test_a_group_of_all_rows_leaves_nothing(table):
    groups = np.zeros(700, dtype=np.int64)
    assert (search(table, table[:3], 2, groups=groups, own_group=groups[:3]) == -1).all()


@pytest.mark.parametrize("n", [1, 5, 40])
def test_there_are_no_more_neighbours_than_rows(n):
    X = np.random.default_rng(4).normal(size=(n, 2))
    found = search(X, X, n + 3, own=np.arange(n))
    assert (found[:, n - 1 :] == -1).all()
    np.testing.assert_array_equal(
        np.sort(found[:, : n - 1], axis=1), [np.delete(np.arange(n), i) for i in range(n)]
    )


# --- nothing else matters ------------------------------------------------------------------------


@each_metric
def test_blocks_of_distances_give_the_same_as_the_tree(table, manhattan):
    groups = np.random.default_rng(5).integers(0, 4, size=700)
    X, g, own = tensor(table, groups, np.arange(100))
    brute_force, tree = BruteIndex(X, manhattan, g, block_entries=5000), TreeIndex(X, manhattan, g)
    for options in ({}, {"own": own}, {"own": own, "own_group": g[:100]}):
        assert torch.equal(
            brute_force.query(X[:100], 13, **options), tree.query(X[:100], 13, **options)
        )
    assert torch.equal(BruteIndex(X[:5]).query(X, 9), TreeIndex(X[:5]).query(X, 9))


@pytest.mark.parametrize("size", [1, 7, 100])
def test_neighbours_do_not_depend_on_the_slices(size, table):
    X, points = tensor(table), tensor(table[:150] + 0.01)
    expected = TreeIndex(X).query(points, 9)
    assert torch.equal(TreeIndex(X, slice_points=size).query(points, 9), expected)


def test_neighbours_do_not_depend_on_the_order_of_the_queries(table):
    index, points = TreeIndex(tensor(table)), tensor(table + 0.01)
    expected = index.query(points, 9)
    order = torch.randperm(700, generator=torch.Generator().manual_seed(0))
    assert torch.equal(index.query(points[order], 9), expected[order])
    alone = torch.cat([index.query(points[i : i + 1], 9) for i in range(60)])
    assert torch.equal(alone, expected[:60])


def test_neighbours_do_not_depend_on_the_threads(threads):
    X = torch.randn(3000, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = []
    for count in (1, 2):
        threads(count)
        found.append(TreeIndex(X).query(X, 10, own=torch.arange(3000)))
    assert torch.equal(*found)


def test_more_neighbours_begin_with_the_fewer(table):
    index, points = TreeIndex(tensor(table)), tensor(table[:50])
    assert torch.equal(index.query(points, 40)[:, :7], index.query(points, 7))


def test_a_pickled_index_gives_the_same(table):
    index, points = TreeIndex(tensor(table), manhattan=True), tensor(table[:20])
    again = pickle.loads(pickle.dumps(index))
    assert torch.equal(again.query(points, 5), index.query(points, 5))


def test_rows_and_queries_may_be_slices_of_wider_tables(table):
    expected = search(table[:, 1:3].copy(), table[:20, 1:3].copy(), 5)
    found = TreeIndex(tensor(table)[:, 1:3]).query(tensor(table)[:20, 1:3], 5)
    np.testing.assert_array_equal(found, expected)


def test_float32_is_searched_in_float32(table):
    X = tensor(table).float()
    expected = brute(X.double().numpy(), X[:20].double().numpy(), 6)
    np.testing.assert_array_equal(TreeIndex(X).query(X[:20], 6), expected)


def test_sorted_rows_with_a_few_more_after_them_are_as_quick_to_build():
    rng = np.random.default_rng(0)
    rows, few = rng.normal(size=100_000), rng.normal(size=10)
    grown = tensor(np.append(np.sort(rows), np.sort(few))[:, None])
    shuffled = grown[torch.as_tensor(rng.permutation(len(grown)))]
    TreeIndex(grown[:1000])  # compiles
    seconds = []
    for rows in (shuffled, grown):
        begin = time.process_time()
        TreeIndex(rows)
        seconds.append(time.process_time() - begin)
    assert seconds[1] < 5.0 * seconds[0]


def test_no_queries_give_no_rows(table):
    nothing = torch.zeros(0, 4, dtype=torch.float64)
    assert TreeIndex(tensor(table)).query(nothing, 5).shape == (0, 5)


def test_on_the_cpu_the_index_is_a_tree(table):
    index = neighbor_index(tensor(table), manhattan=True, leaves=3)
    assert isinstance(index, TreeIndex)
    assert (index.manhattan, index.budget) == (True, 3)


# --- approximate search --------------------------------------------------------------------------


def test_recall_grows_with_the_leaves_up_to_one():
    X = torch.randn(3000, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    exact = TreeIndex(X)
    shares = [recall(TreeIndex(X, leaves=k), exact, X[:200], 20) for k in (1, 10, 1000)]
    assert 0.0 < shares[0] < shares[1] < shares[2] == 1.0


@pytest.mark.parametrize("leaves", [0, -1])
def test_a_search_of_no_leaves_raises(leaves, table):
    with pytest.raises(InputError, match=f"leaves={leaves}"):
        TreeIndex(tensor(table), leaves=leaves)


# --- threads -------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("n", [0, 1, 6, 7])
def test_slices_cover_everything_once(n, count, threads):
    threads(count)
    seen = np.zeros(n)

    def work(part):
        seen[part] += 1.0

    by_slices(work, n, 3)
    assert (seen == 1.0).all()


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("count", [1, 2])
def test_an_error_ends_the_work_and_leaves_no_threads(count, error, threads):
    threads(count)
    before, done = threading.active_count(), []

    def work(part):
        if part.start == 2:
            raise error("stop")
        time.sleep(0.001)
        done.append(part.start)

    with pytest.raises(error, match="stop"):
        by_slices(work, 1000, 1)
    assert threading.active_count() == before
    assert len(done) < 900
