"""Farthest point sampling against its definition and its guarantees, and random subsamples."""

from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from twostagegp.data import sampling
from twostagegp.data.farthest_points import (
    as_tensor,
    farthest_points_numpy,
    farthest_points_torch,
)
from twostagegp.data.sampling import draw_subsamples, farthest_point_sampling, random_spread
from twostagegp.errors import InputError

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def table(n, d, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d))


def squared_distances(X):
    return ((X[:, None, :] - X[None, :, :]) ** 2).sum(-1)


def by_definition(X, k, first):
    """Row after row, from all pairs of distances; ties and repeats go to the first row."""
    D = squared_distances(X)
    chosen = [first]
    for _ in range(min(k, len(X)) - 1):
        others = [j for j in range(len(X)) if j not in chosen]
        chosen.append(max(others, key=lambda j: (D[j, chosen].min(), -j)))
    return chosen


def fill_distance(X, index):
    return np.sqrt(squared_distances(X)[:, index].min(1).max())


def least_distance(X, index):
    return np.sqrt(squared_distances(X[index])[np.triu_indices(len(index), 1)].min())


# Distances of whole numbers are exact, and with few of them ties and repeats are common.
@st.composite
def small_tables(draw):
    d = draw(st.integers(1, 3))
    row = st.lists(st.integers(-3, 3), min_size=d, max_size=d)
    return np.array(draw(st.lists(row, min_size=1, max_size=10)), dtype=np.float64)


@settings(deadline=None)
@given(X=small_tables(), k=st.integers(1, 12), data=st.data())
def test_picks_follow_the_definition_with_ties_and_repeats(X, k, data):
    start = data.draw(st.integers(0, len(X) - 1))
    expected = by_definition(X, k, start)
    assert farthest_point_sampling(X, k, start=start).tolist() == expected
    assert farthest_points_torch(torch.tensor(X), min(k, len(X)), start).tolist() == expected


@pytest.mark.parametrize(("n", "d", "k"), [(60, 1, 20), (80, 3, 80), (50, 12, 25), (1, 2, 1)])
def test_picks_follow_the_definition_from_the_row_nearest_the_mean(n, d, k):
    X = np.exp(table(n, d))  # skewed, so that the middle is not the mean
    nearest_mean = int(((X - X.mean(0)) ** 2).sum(1).argmin())
    index = farthest_point_sampling(X, k)
    assert index.dtype == np.int64
    assert index.tolist() == by_definition(X, k, nearest_mean)
    assert farthest_points_torch(torch.tensor(X), k, None).tolist() == index.tolist()


@settings(deadline=None)
@given(X=small_tables(), k=st.integers(1, 4), data=st.data())
def test_no_set_of_as_many_rows_has_less_than_half_the_fill_distance(X, k, data):
    start = data.draw(st.sampled_from(["mean", *range(len(X))]))
    k = min(k, len(X))
    best = min(fill_distance(X, list(rows)) for rows in combinations(range(len(X)), k))
    reached = fill_distance(X, farthest_point_sampling(X, k, start=start))
    assert reached <= 2.0 * best + 1e-12


@pytest.mark.parametrize(("n", "d", "k"), [(300, 2, 40), (500, 8, 100), (200, 1, 150)])
def test_picks_are_at_least_the_fill_distance_apart(n, d, k):
    X = table(n, d)
    index = farthest_point_sampling(X, k)
    h = fill_distance(X, index)
    assert 0.0 < h <= least_distance(X, index)
    # The distance at which each row was picked only shrinks, and the last is at least h.
    apart = np.sqrt(squared_distances(X[index]))
    at_pick = np.array([apart[i, :i].min() for i in range(1, k)])
    assert (np.diff(at_pick) <= 0.0).all()
    assert at_pick[-1] >= h


def test_rows_are_spread_better_than_random_ones():
    X = table(400, 2)
    rng = np.random.default_rng(1)
    by_chance = [fill_distance(X, rng.choice(400, 40, replace=False)) for _ in range(20)]
    assert fill_distance(X, farthest_point_sampling(X, 40)) < 0.7 * min(by_chance)


def test_repeated_rows_follow_after_all_distinct_rows():
    X = np.array([[5.0], [0.0], [5.0], [0.0], [9.0], [5.0]])
    assert farthest_point_sampling(X, 6, start=2).tolist() == [2, 1, 4, 0, 3, 5]
    assert farthest_point_sampling(X, 4, start=2).tolist() == [2, 1, 4, 0]


def test_rows_that_are_all_equal_come_in_order_of_the_table():
    assert farthest_point_sampling(np.ones((5, 2)), 5, start=3).tolist() == [3, 0, 1, 2, 4]


def test_asking_for_more_rows_than_the_table_has_gives_all_of_them():
    X = table(7, 2)
    index = farthest_point_sampling(X, 100)
    assert index.tolist() == farthest_point_sampling(X, 7).tolist()
    assert sorted(index.tolist()) == list(range(7))


def test_a_smaller_sample_is_the_beginning_of_a_larger_one():
    X = table(100, 3)
    assert farthest_point_sampling(X, 50)[:20].tolist() == farthest_point_sampling(X, 20).tolist()


@pytest.mark.parametrize("start", [0, 19, np.int64(4)])
def test_sampling_starts_at_the_given_row(start):
    assert farthest_point_sampling(table(20, 2), 3, start=start)[0] == start


def test_a_random_start_follows_random_state():
    X = table(50, 2)

    def picks(random_state):
        return farthest_point_sampling(X, 5, start="random", random_state=random_state).tolist()

    assert picks(3) == picks(3) == picks(np.random.default_rng(3))
    starts = {picks(seed)[0] for seed in range(20)}
    assert len(starts) > 5
    assert picks(3) == by_definition(X, 5, picks(3)[0])


def test_distances_are_accurate_for_nearly_equal_rows():
    # The expanded square would lose steps of about 1e-6 next to 1e12.
    X = 1e6 + 2.0**-20 * np.array([[0.0], [1.0], [2.0], [10.0], [5.0]])
    assert farthest_point_sampling(X, 5, start=2).tolist() == [2, 3, 4, 0, 1]


@pytest.mark.parametrize("form", [np.array, torch.tensor])
@pytest.mark.parametrize(
    "rows",
    [[[0.0, 0.0], [1.0, 0.0], [1.0, 1e-4]], [[1e-8, 0.0], [1.0, 0.0], [-1.0, 0.0]]],
    ids=["squares", "differences"],
)
def test_float32_is_converted_to_float64(form, rows):
    # In float32 the last two rows are equally far from the first.
    X = form(np.array(rows, dtype=np.float32))
    assert farthest_point_sampling(X, 2, start=0).tolist() == [0, 2]


@pytest.mark.parametrize("rows", [1, 7, 50, 99])
@pytest.mark.parametrize("copied", [0, 2**20], ids=["in place", "copied"])
def test_the_size_of_a_chunk_does_not_matter(rows, copied):
    X = table(100, 5)
    expected = farthest_point_sampling(X, 60).tolist()
    assert expected == by_definition(X, 60, expected[0])
    chunk = {"chunk_entries": 5 * rows}
    on_cpu = farthest_points_numpy(X, 60, None, copied_entries=copied, **chunk)
    assert on_cpu.tolist() == expected
    assert farthest_points_torch(torch.tensor(X), 60, None, **chunk).tolist() == expected


def test_a_table_wider_than_a_chunk_is_read_row_by_row():
    X = table(30, 6)
    expected = by_definition(X, 10, 0)
    assert farthest_points_numpy(X, 10, 0, chunk_entries=4).tolist() == expected
    assert farthest_points_torch(torch.tensor(X), 10, 0, chunk_entries=4).tolist() == expected


def read_only(X):
    X = X.copy()
    X.flags.writeable = False
    return X


@pytest.mark.parametrize(
    "convert",
    [
        torch.tensor,
        lambda X: torch.tensor(X, requires_grad=True),
        np.asfortranarray,
        lambda X: np.repeat(X, 2, axis=1)[:, ::2],
        lambda X: X[::-1].copy()[::-1],
        read_only,
        lambda X: X.tolist(),
    ],
    ids=["tensor", "with gradient", "by column", "strided", "reversed", "read-only", "list"],
)
def test_the_type_of_the_table_does_not_matter(convert):
    X = table(40, 3)
    index = farthest_point_sampling(convert(X), 15)
    assert isinstance(index, np.ndarray)
    assert index.tolist() == farthest_point_sampling(X, 15).tolist()


@pytest.mark.parametrize(
    "convert",
    [np.asfortranarray, lambda X: np.repeat(X, 2, axis=1)[:, ::2], read_only],
    ids=["by column", "strided", "read-only"],
)
def test_a_table_that_is_not_copied_may_have_any_memory_layout(convert):
    X = table(40, 3)
    index = farthest_points_numpy(convert(X), 15, None, copied_entries=0)
    assert index.tolist() == farthest_point_sampling(X, 15).tolist()


@pytest.mark.parametrize("dtype", [np.int32, np.bool_])
def test_integers_and_booleans_are_accepted(dtype):
    X = np.array([[0, 0], [1, 0], [1, 1]], dtype=dtype)
    assert farthest_point_sampling(X, 2, start=0).tolist() == [0, 2]


@pytest.mark.parametrize("form", [np.array, torch.tensor])
def test_the_table_is_not_changed(form):
    X = form(table(30, 2))
    before = X + 0.0
    farthest_point_sampling(X, 10)
    random_spread(X, 10, np.random.default_rng(0))
    assert (before == X).all()


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("rows", [30, 10**6])
@pytest.mark.parametrize(("n", "d", "k"), [(1000, 8, 500), (20_000, 3, 200)])
def test_gpu_and_cpu_pick_the_same_rows(n, d, k, rows):
    if rows < n:  # many chunks, so fewer rounds
        k //= 10
    X = table(n, d)
    expected = farthest_point_sampling(X, k).tolist()
    on_gpu = torch.tensor(X, device="cuda")
    assert farthest_points_torch(on_gpu, k, None, chunk_entries=d * rows).tolist() == expected
    assert farthest_point_sampling(read_only(X), k, device="cuda").tolist() == expected
    assert farthest_point_sampling(X, k, device=torch.device("cuda", 0)).tolist() == expected
    assert farthest_point_sampling(on_gpu, k).tolist() == expected
    assert farthest_point_sampling(on_gpu, k, device="cpu").tolist() == expected


@pytest.mark.gpu
@needs_cuda
def test_a_tensor_stays_on_its_gpu(monkeypatch):
    def refuse(*args):
        raise AssertionError("went to the CPU")

    monkeypatch.setattr(sampling, "farthest_points_numpy", refuse)
    assert len(farthest_point_sampling(torch.rand(20, 2, device="cuda"), 4)) == 4


@pytest.mark.gpu
@needs_cuda
def test_ties_and_repeats_on_a_gpu_go_to_the_first_row():
    X = np.random.default_rng(0).integers(-3, 4, size=(5000, 3)).astype(np.float64)
    expected = farthest_point_sampling(X, 800, start=11).tolist()
    assert farthest_point_sampling(X, 800, start=11, device="cuda").tolist() == expected
    assert len(set(expected)) == 800 > len(np.unique(X, axis=0))


@pytest.mark.parametrize("k", [0, -3, 2.0, "3", None, True])
def test_an_invalid_count_is_refused(k):
    X = table(5, 2)
    rng = np.random.default_rng(0)
    with pytest.raises(InputError, match=rf"^k={k!r} must be a whole number of at least 1"):
        farthest_point_sampling(X, k)
    with pytest.raises(InputError, match=rf"^k={k!r} must be a whole number of at least 1"):
        random_spread(X, k, rng)
    with pytest.raises(InputError, match=rf"^size={k!r} must be a whole number of at least 1"):
        draw_subsamples(X, k, 2, "fps", rng)
    with pytest.raises(InputError, match=rf"^n_repeats={k!r} must be a whole number of at least 1"):
        draw_subsamples(X, 2, k, "fps", rng)


@pytest.mark.parametrize("start", [-1, 5, 1.0, "median", None, True])
def test_an_invalid_start_is_refused(start):
    with pytest.raises(InputError, match=rf"start={start!r}: .*a row number from 0 to 4"):
        farthest_point_sampling(table(5, 2), 2, start=start)


@pytest.mark.parametrize("form", [np.array, torch.tensor])
@pytest.mark.parametrize(
    "shape", [(), (4,), (2, 3, 4), (0, 3), (3, 0)], ids=lambda shape: f"{len(shape)}-d"
)
def test_a_table_of_another_shape_is_refused(form, shape):
    with pytest.raises(InputError) as caught:
        farthest_point_sampling(form(np.zeros(shape)), 2)
    assert f"X has shape {shape}, expected (n, d)" in str(caught.value)


@pytest.mark.parametrize("form", [np.array, torch.tensor])
@pytest.mark.parametrize(
    ("value", "word"), [(np.nan, "NaN"), (np.inf, "infinity"), (-np.inf, "infinity")]
)
def test_entries_that_are_not_finite_are_refused(form, value, word):
    X = table(6, 2)
    X[4, 1] = value
    with pytest.raises(InputError, match=rf"X contains {word}.*1 of 12 .*row 4, column 1"):
        farthest_point_sampling(form(X), 3)
    # The rest of the table is checked, too, whatever the draw.
    for seed in range(5):
        rng = np.random.default_rng(seed)
        with pytest.raises(InputError, match=rf"X contains {word}"):
            random_spread(X, 2, rng)
        with pytest.raises(InputError, match=rf"X contains {word}"):
            draw_subsamples(X, 2, 1, "random", rng)


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_entries_whose_squares_overflow_are_refused(sign):
    with pytest.raises(InputError, match=r"X reaches 1\.0e\+200; .*Rescale"):
        farthest_point_sampling(np.array([[0.0], [sign * 1e200]]), 1)


@pytest.mark.parametrize("X", [[["a", "b"]], [[1.0, None]]], ids=["text", "none"])
def test_entries_that_are_not_numbers_are_refused(X):
    with pytest.raises(InputError, match=r"not numbers|contains NaN"):
        farthest_point_sampling(np.array(X, dtype=object), 1)


@pytest.mark.parametrize("form", [np.array, torch.tensor])
def test_complex_numbers_are_refused(form):
    with pytest.raises(InputError, match="X is complex"):
        farthest_point_sampling(form([[1.0 + 1.0j]]), 1)


def test_an_unknown_device_is_refused():
    with pytest.raises(InputError, match=r"device='abacus'"):
        farthest_point_sampling(table(5, 2), 2, device="abacus")


def test_random_spread_follows_its_generator():
    X = table(200, 2)
    draws = [random_spread(X, 20, np.random.default_rng(seed)) for seed in range(10)]
    assert draws[3].tolist() == random_spread(X, 20, np.random.default_rng(3)).tolist()
    assert len({frozenset(index.tolist()) for index in draws}) == 10
    for index in draws:
        assert index.dtype == np.int64
        assert len(set(index.tolist())) == 20
    # Another start gives another order, so the outermost row is not always at the same place.
    assert len({int(index[0]) for index in draws}) > 5


@pytest.mark.parametrize(
    ("n", "k", "size"), [(100, 10, 20), (31, 10, 20), (30, 10, 20), (25, 10, 17), (11, 10, 10)]
)
def test_random_spread_draws_from_a_pool_of_this_size(n, k, size):
    X = table(n, 2)
    for seed in range(10):
        rng = np.random.default_rng(seed)
        pool = rng.choice(n, size, replace=False)
        chosen = farthest_point_sampling(X[pool], k, start=int(rng.integers(size)))
        index = random_spread(X, k, np.random.default_rng(seed))
        np.testing.assert_array_equal(index, pool[chosen])  # row numbers of X, not of the pool


@pytest.mark.parametrize("k", [12, 13, 500])
def test_random_spread_of_all_rows_is_a_permutation(k):
    X = table(12, 2)
    draws = [random_spread(X, k, np.random.default_rng(seed)).tolist() for seed in range(4)]
    assert all(sorted(index) == list(range(12)) for index in draws)
    assert len({tuple(index) for index in draws}) == 4


def test_random_spread_is_spread_better_than_random_rows():
    X = np.random.default_rng(0).uniform(size=(400, 2))
    spread, by_chance = [], []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        spread.append(random_spread(X, 40, rng))
        by_chance.append(rng.choice(400, 40, replace=False))

    def mean_of(measure, indices):
        return np.mean([measure(X, index) for index in indices])

    assert mean_of(fill_distance, spread) < 0.85 * mean_of(fill_distance, by_chance)
    assert mean_of(least_distance, spread) > 3.0 * mean_of(least_distance, by_chance)


@pytest.mark.parametrize("how", ["fps", "random"])
@pytest.mark.parametrize(("size", "columns"), [(10, 10), (40, 40), (41, 40)])
def test_subsamples_have_no_row_twice(how, size, columns):
    index = draw_subsamples(table(40, 2), size, 6, how, np.random.default_rng(0))
    assert index.shape == (6, columns)
    assert index.dtype == np.int64
    assert all(len(set(row)) == columns for row in index.tolist())
    assert index.min() >= 0
    assert index.max() <= 39
    assert len({tuple(row) for row in index.tolist()}) == 6


@pytest.mark.parametrize("how", ["fps", "random"])
def test_a_subsample_does_not_depend_on_the_number_of_subsamples(how):
    X = table(60, 2)
    many = draw_subsamples(X, 10, 8, how, np.random.default_rng(5))
    for n_repeats in (1, 3):
        few = draw_subsamples(X, 10, n_repeats, how, np.random.default_rng(5))
        np.testing.assert_array_equal(few, many[:n_repeats])
    other = draw_subsamples(X, 10, 8, how, np.random.default_rng(6))
    assert not (many == other).all(1).any()


@pytest.mark.parametrize("how", ["fps", "random"])
def test_the_rows_of_a_subsample_are_in_random_order(how):
    # Farthest point sampling takes a far row first or second; any place must be as likely.
    X = table(40, 2)
    X[7] = 100.0
    index = draw_subsamples(X, 20, 400, how, np.random.default_rng(0))
    places = np.flatnonzero(index == 7) % 20
    assert len(places) > 100
    assert np.bincount(places, minlength=20).min() > 0
    assert abs(places.mean() - 9.5) < 1.5


def test_the_two_kinds_of_subsample_differ_in_their_spread():
    X = table(300, 2)

    def mean_of(measure, how):
        index = draw_subsamples(X, 30, 20, how, np.random.default_rng(0))
        return np.mean([measure(X, row) for row in index])

    assert mean_of(least_distance, "fps") > 2.0 * mean_of(least_distance, "random")


def test_an_unknown_kind_of_subsample_is_refused():
    with pytest.raises(InputError, match=r"sampling='grid': use 'fps' or 'random'"):
        draw_subsamples(table(5, 2), 2, 2, "grid", np.random.default_rng(0))


@pytest.mark.parametrize("first", [None, 3])
def test_numpy_and_torch_never_choose_a_row_twice_if_rows_repeat(first):
    X = np.repeat(np.random.default_rng(0).normal(size=(4, 2)), 3, axis=0)
    chosen = farthest_points_torch(torch.as_tensor(X), 12, first)
    assert sorted(chosen.tolist()) == list(range(12))
    np.testing.assert_array_equal(chosen, farthest_points_numpy(X, 12, first))


def test_arrays_that_torch_does_not_share_become_tensors():
    X = np.arange(6.0).reshape(3, 2)[::-1]
    X.flags.writeable = False
    cpu = torch.device("cpu")
    assert as_tensor(X, cpu).tolist() == X.tolist()
    tensor = torch.ones(2, 2)
    assert as_tensor(tensor, cpu) is tensor


def test_random_spread_of_all_rows_is_in_random_order():
    X = np.arange(8.0)[:, None]
    orders = [random_spread(X, 8, np.random.default_rng(seed)).tolist() for seed in range(3)]
    assert all(sorted(order) == list(range(8)) for order in orders)
    assert orders[0] == np.random.default_rng(0).permutation(8).tolist()
