"""Fits to and predictions for Dask collections: the numbers of local fits, and clear errors."""

import json
import pickle
import subprocess
import sys
import threading
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from threadpoolctl import threadpool_info

from benchmarks import dask_scale
from benchmarks.dask_scale import in_memory
from measurements.runner import run
from twostagegp import (
    ExactGPRegressor,
    GPNNRegressor,
    TwoStageGPClassifier,
    TwoStageGPRegressor,
)
from twostagegp.data.rows import merge_rows
from twostagegp.distributed.neighbor_lists import NeighborLists, merge_neighbors
from twostagegp.distributed.partitions import delayed_partitions, draw_sample
from twostagegp.distributed.row_shards import Shard, group_partitions
from twostagegp.engines.neighbors.index import TreeIndex
from twostagegp.errors import InputError, ModelFileError, TwoStageGPWarning
from twostagegp.pipeline.settings import DaskSettings, Settings
from twostagegp.runtime.dask_cluster import single_thread

da = pytest.importorskip("dask.array")
dd = pytest.importorskip("dask.dataframe")
distributed = pytest.importorskip("distributed")

ROUNDING = {"rtol": 1e-9, "atol": 1e-10}


@pytest.fixture(scope="module")
def client():
    with (
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=2, processes=False, dashboard_address="127.0.0.1:0"
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


def table(n=240, seed=0):
    """Two columns; some rows repeat others, far away in the table."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2.0, 2.0, size=(n, 2))
    X[n // 2 : n // 2 + 10] = X[:10]
    return X, np.sin(2.0 * X[:, 0]) + 0.5 * X[:, 1] + 0.1 * rng.normal(size=n)


def small(**changes):
    settings = {"mean": "rbf", "ard": False, "variance": "rbf", "random_state": 0}
    return TwoStageGPRegressor(n_neighbors=20, **(settings | changes))


def sampling(rows):
    """Settings with a sample of so many rows."""
    return Settings(dask=DaskSettings(sample_rows=rows))


@pytest.fixture(scope="module")
def sharded(client):
    """A model whose hyperparameters come from half of the rows, the rows and some points."""
    X, y = table()
    model = small(settings=sampling(120))
    model.fit(da.from_array(X, chunks=(70, 1)), da.from_array(y, chunks=100))
    points = np.random.default_rng(1).uniform(-2.0, 2.0, size=(45, 2))
    points[:10] = X[:10]
    return model, X, y, points


def test_a_table_with_every_row_twice_gives_a_warning(client):
    X, y = (np.concatenate([part[:50], part[:50]]) for part in table(100))
    with pytest.warns(TwoStageGPWarning, match="drop_duplicates"):
        small().fit(da.from_array(X, chunks=(40, 2)), da.from_array(y, chunks=40))


# --- the search ----------------------------------------------------------------------------------


def shard_of(X, y, manhattan):
    merged = merge_rows(X, y)
    trees = (TreeIndex(torch.from_numpy(merged.X), manhattan),)
    return Shard(merged.X, merged.t[:, None], merged.c, None, trees)


@pytest.mark.parametrize("manhattan", [False, True])
def test_shards_find_the_same_neighbours_as_one_tree_with_ties_and_repeats(manhattan):
    rng = np.random.default_rng(0)
    X = rng.integers(0, 5, size=(600, 3)).astype(float)  # ties everywhere, rows repeat
    y, k = rng.normal(size=600), 17
    queries = torch.from_numpy(rng.integers(0, 5, size=(80, 3)).astype(float))
    found = None
    for part in np.array_split(rng.permutation(600), 7):
        bound = None if found is None else found.bound
        new = shard_of(X[part], y[part], manhattan).nearest(0, queries, k, bound)
        found = new if found is None else merge_neighbors(found, new)
    whole = merge_rows(X, y)
    near = TreeIndex(torch.from_numpy(whole.X), manhattan).query(queries, k).numpy()
    np.testing.assert_array_equal(found.X, whole.X[near])
    np.testing.assert_array_equal(found.c, whole.c[near])
    np.testing.assert_allclose(found.T[:, :, 0], whole.t[near], rtol=1e-12, atol=1e-14)
    difference = np.abs(whole.X[near] - queries.numpy()[:, None])
    expected = (difference if manhattan else difference**2).sum(2)
    np.testing.assert_allclose(found.distance, expected)


def test_neighbours_beyond_the_number_of_rows_have_weight_zero():
    shard = shard_of(np.arange(3.0)[:, None], np.arange(3.0), False)
    queries = torch.zeros(1, 1, dtype=torch.float64)
    empty = Shard(np.zeros((0, 1)), np.zeros((0, 1)), None, None, ())
    found = merge_neighbors(empty.nearest(0, queries, 5, None), shard.nearest(0, queries, 5, None))
    assert found.distance.tolist() == [[0.0, 1.0, 4.0, np.inf, np.inf]]
    assert found.c.tolist() == [[1.0, 1.0, 1.0, 0.0, 0.0]]


def test_known_noise_keeps_equal_inputs_apart():
    one, two = np.ones((1, 1)), np.full((1, 1), 2.0)
    one2, two2 = np.hstack([one, one]), np.hstack([one, np.full((1, 1), np.inf)])
    a = NeighborLists(two2, one2[..., None], one2[..., None], np.array([[1.0, 0.0]]), 0.0 * one2)
    b = NeighborLists(
        two2, one2[..., None], one2[..., None], np.array([[1.0, 0.0]]), two + 0.0 * one2
    )
    assert merge_neighbors(a, b).extra.tolist() == [[0.0, 2.0]]
    assert merge_neighbors(b, a).extra.tolist() == [[0.0, 2.0]]
    assert merge_neighbors(b, a).c.tolist() == [[1.0, 1.0]]


# --- the sample ----------------------------------------------------------------------------------


def test_the_sample_has_distinct_rows_and_is_determined_by_the_seed(client):
    X = np.arange(90.0)[:, None]
    made, lengths = delayed_partitions(
        da.from_array(X, chunks=(25, 1)), da.from_array(X[:, 0], chunks=25)
    )
    one, rows = draw_sample(client, made, lengths, 40, seed=3)
    two, _ = draw_sample(client, made, lengths, 40, seed=3)
    other, _ = draw_sample(client, made, lengths, 40, seed=4)
    assert rows.tolist() == [25, 25, 25, 15]
    assert len(np.unique(one.y)) == 40
    np.testing.assert_array_equal(one.y, one.X[:, 0])
    np.testing.assert_array_equal(one.y, two.y)
    assert set(one.y) != set(other.y)
    everything, _ = draw_sample(client, made, lengths, 1000, seed=0)
    assert len(everything.y) == 90


@pytest.mark.parametrize(
    ("workers", "shard_rows", "sizes"),
    [(3, 2**20, [2, 1, 1, 1]), (1, 2**20, [5]), (1, 20, [2, 1, 1, 1])],
)
def test_adjacent_partitions_share_a_shard_up_to_its_size(workers, shard_rows, sizes):
    rows = np.array([10, 10, 10, 30, 5])
    groups = group_partitions("abcde", rows, workers, shard_rows)
    assert [len(group) for group in groups] == sizes


# --- outside the data ----------------------------------------------------------------------------


def test_outside_the_data_intervals_widen_and_the_mean_is_not_continued(sharded):
    model, X, y, points = sharded
    far = 4.0 * points + 30.0
    (fit,) = model.fitted_.fits
    assert fit.outside.members
    assert not fit.outside.has_trends
    mean, std = model.predict(far, return_std=True)
    local = in_memory(model, X, y)
    for one, other in zip((mean, std), local.predict(far, return_std=True), strict=True):
        np.testing.assert_allclose(one, other, **ROUNDING)
    (target,) = local.fitted_.targets
    plain = replace(target.fit, outside=None)
    scaling, Z = target.data.scaling, target.standardized(far)
    expected, _, variance = (each.numpy() for each in plain.moments(Z))
    np.testing.assert_allclose(mean, scaling.y_mean + scaling.y_scale * expected, **ROUNDING)
    assert (std > scaling.y_scale * np.sqrt(variance)).all()
    support = model.predict(far, return_support=True)[1]
    assert support.max() < 0.5
    assert (model.predict(points, return_support=True)[1] == 1.0).mean() > 0.9
    lazy = model.predict(da.from_array(far, chunks=(20, 2)), return_support=True)
    np.testing.assert_allclose(lazy[0].compute(), mean, **ROUNDING)
    np.testing.assert_allclose(lazy[1].compute(), support, **ROUNDING)


# --- the same numbers ----------------------------------------------------------------------------


def test_predictions_use_all_rows_and_equal_those_of_a_local_model(sharded):
    model, X, y, points = sharded
    assert "240 rows in" in model.fit_report_.method_reason
    assert len(model.fitted_.data[0].merged.inverse) == 120
    local = in_memory(model, X, y)
    for one, other in zip(
        model.predict(points, return_std=True), local.predict(points, return_std=True), strict=True
    ):
        np.testing.assert_allclose(one, other, **ROUNDING)
    fewer = in_memory(model, X[::2], y[::2])
    assert np.abs(model.predict(points) - fewer.predict(points)).max() > 1e-3
    levels = [0.1, 0.5, 0.9]
    np.testing.assert_allclose(
        model.predict_quantiles(points, levels), local.predict_quantiles(points, levels), **ROUNDING
    )
    np.testing.assert_allclose(
        model.predict_interval(points, method="conformal"),
        local.predict_interval(points, method="conformal"),
        **ROUNDING,
    )


def test_predictions_for_arrays_are_lazy_arrays_with_the_same_chunks(sharded):
    model, _, _, points = sharded
    lazy = da.from_array(points, chunks=(20, 1))
    mean, std = model.predict(lazy, return_std=True)
    assert isinstance(mean, da.Array)
    assert mean.chunks == std.chunks == ((20, 20, 5),)
    expected = model.predict(points, return_std=True)
    np.testing.assert_allclose(mean.compute(), expected[0], **ROUNDING)
    np.testing.assert_allclose(std.compute(), expected[1], **ROUNDING)
    interval = model.predict_interval(lazy, level=0.8)
    assert interval.shape == (45, 2)
    np.testing.assert_allclose(interval.compute(), model.predict_interval(points, level=0.8))
    quantiles = model.predict_quantiles(lazy, [0.2, 0.4, 0.6])
    np.testing.assert_allclose(
        quantiles.compute(), model.predict_quantiles(points, [0.2, 0.4, 0.6])
    )


def test_large_chunks_are_split_for_the_computation(sharded, monkeypatch):
    model, _, _, points = sharded
    expected = model.predict(points)
    settings = DaskSettings(block_rows=7, sent_bytes=16 * 20)
    monkeypatch.setattr(model.fitted_.remote, "settings", settings)
    np.testing.assert_allclose(model.predict(points), expected, **ROUNDING)
    lazy = model.predict(da.from_array(points, chunks=(30, 2)))
    assert lazy.chunks == ((30, 15),)
    np.testing.assert_allclose(lazy.compute(), expected, **ROUNDING)


def test_a_sample_of_all_rows_is_the_local_fit_with_weights_known_noise_and_two_targets(client):
    X, y = table(120)
    Y = np.column_stack([y, X[:, 1] ** 2])
    weight = np.tile([1.0, 2.0, 0.0], 40)
    noise = np.tile([0.0, 0.01], 60)
    model = small(method="auto", dtype="float64")
    parts = (da.from_array(v, chunks=(50, *v.shape[1:])) for v in (X, Y, weight, noise))
    dX, dY, dw, dn = parts
    with pytest.warns(TwoStageGPWarning, match="sample_weight above 1"):
        model.fit(dX, dY, sample_weight=dw, noise_var=dn)
    assert model.method == "auto"
    assert model.fit_report_[0].method == "neighbors"
    local = small(method="neighbors")
    # The only private name: no public option counts copies in a local fit as shards do.
    fit_table = local._fit_table  # noqa: SLF001
    fit_table(X, Y, sample_weight=weight, noise_var=noise, copies_are_one=False)
    points = table(30, seed=5)[0]
    for one, other in zip(
        model.predict(points, return_std=True), local.predict(points, return_std=True), strict=True
    ):
        np.testing.assert_allclose(one, other, **ROUNDING)
    mean = model.predict(da.from_array(points, chunks=(20, 2)))
    assert mean.shape == (30, 2)
    np.testing.assert_allclose(mean.compute(), local.predict(points), **ROUNDING)


@pytest.mark.parametrize("preprocess", ["whiten", "standardize"])
def test_gpnn_equals_its_local_fit(client, preprocess):
    X, y = table()
    settings = {"n_neighbors": 15, "random_state": 0, "preprocess": preprocess}
    model = GPNNRegressor(**settings)
    model.fit(da.from_array(X, chunks=(70, 2)), da.from_array(y, chunks=70))
    local = GPNNRegressor(**settings).fit(X, y)
    points = table(30, seed=5)[0]
    for one, other in zip(
        model.predict(points, return_std=True), local.predict(points, return_std=True), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-7, atol=1e-9)


def test_a_local_model_predicts_lazily_for_dask_collections(client):
    X, y = table(60)
    model = ExactGPRegressor("rbf", random_state=0).fit(X, y)
    lazy = model.predict(da.from_array(X, chunks=(25, 2)))
    assert lazy.chunks == ((25, 25, 10),)
    np.testing.assert_allclose(lazy.compute(), model.predict(X), **ROUNDING)


# --- frames --------------------------------------------------------------------------------------


def frame(n=150):
    X, y = table(n)
    color = pd.Categorical(np.array(["red", "blue", "green"])[np.arange(n) % 3])
    day = pd.Timestamp("2024-01-01") + pd.to_timedelta(np.arange(n), unit="D")
    shift = np.where(color == "red", 1.0, 0.0)
    return pd.DataFrame({"a": X[:, 0], "color": color, "day": day, "y": y + shift})


def test_a_parquet_folder_with_categories_and_dates(client, tmp_path):
    whole = frame()
    for number, part in enumerate(np.array_split(np.arange(len(whole)), 4)):
        whole.iloc[part].to_parquet(tmp_path / f"{number}.parquet")
    lazy = dd.read_parquet(tmp_path)
    columns = ["a", "color", "day"]
    model = small().fit(lazy[columns], lazy["y"])
    local = small(method="neighbors").fit(whole[columns], whole["y"])
    expected = local.predict(whole[columns])
    np.testing.assert_allclose(model.predict(whole[columns]), expected, **ROUNDING)
    mean, std = model.predict(lazy[columns], return_std=True)
    np.testing.assert_allclose(mean.compute(), expected, **ROUNDING)
    written = lazy.assign(mean=mean, std=std).compute()
    np.testing.assert_allclose(written["mean"], expected, **ROUNDING)
    assert list(model.feature_names_in_) == columns
    with pytest.raises(InputError, match="colour"):
        model.predict(whole[columns].rename(columns={"color": "colour"}))


@pytest.mark.filterwarnings("ignore::twostagegp.errors.TwoStageGPWarning")
def test_levels_that_are_not_in_the_sample_follow_the_rule_of_predict(client):
    whole = frame()[["a", "color", "y"]]
    whole["color"] = whole["color"].astype(object)
    columns = ["a", "color"]

    whole.loc[70:74, "color"] = ["violet", "beige", "teal", "pink", "grey"]
    lazy = dd.from_pandas(whole, npartitions=3)
    model = small(settings=sampling(60)).fit(lazy[columns], lazy["y"])
    assert len(model.fitted_.data[0].merged.inverse) == 60
    assert not any("violet" in name for name in model.columns_.names)
    points = whole[columns].iloc[::2]
    expected = in_memory(model, whole[columns], whole["y"].to_numpy()).predict(points)
    np.testing.assert_allclose(model.predict(points), expected, **ROUNDING)


# --- refusals ------------------------------------------------------------------------------------


def test_options_that_a_cluster_cannot_handle_are_refused(client):
    X, y = table(60)
    dX, dy = da.from_array(X, chunks=(30, 2)), da.from_array(y, chunks=30)
    with pytest.raises(InputError, match="groups"):
        small().fit(dX, dy, groups=np.arange(60))
    with pytest.raises(InputError, match="method='exact' needs all rows"):
        small(method="exact").fit(dX, dy)
    with pytest.raises(InputError, match="ExactGPRegressor needs all rows"):
        ExactGPRegressor().fit(dX, dy)
    with pytest.raises(InputError, match="workers compute on the CPU"):
        small(device="cuda").fit(dX, dy)
    with pytest.raises(InputError, match="y is a ndarray beside a Dask collection"):
        small().fit(dX, y)
    with pytest.raises(InputError, match="X has 2 partitions and y 3"):
        small().fit(dX, da.from_array(y[:50], chunks=20))
    with pytest.raises(InputError, match="partition 1: X has 30 rows and y 20"):
        small().fit(dX, da.from_array(y[:50], chunks=30))


def test_an_error_names_the_partition_and_leaves_the_model_unchanged(client):
    X, y = table(60)
    model = small(method="neighbors").fit(X, y)
    before, expected = model.fit_report_, model.predict(X)
    y = y.copy()
    y[40] = np.nan
    with pytest.raises(InputError, match="y, partition 1, contains NaN"):
        model.fit(da.from_array(X, chunks=(30, 2)), da.from_array(y, chunks=30))
    assert model.fit_report_ is before
    np.testing.assert_array_equal(model.predict(X), expected)


def test_a_missing_file_raises_file_not_found(client, tmp_path):
    lazy = dd.from_pandas(frame()[["a", "y"]], npartitions=2)
    lazy.to_parquet(tmp_path / "rows")
    read = dd.read_parquet(tmp_path / "rows")
    (tmp_path / "rows" / "part.1.parquet").unlink()
    with pytest.raises(FileNotFoundError):
        small().fit(read[["a"]], read["y"])


def test_methods_that_need_all_rows_in_one_place_are_refused(sharded):
    model, X, y, points = sharded
    lazy = da.from_array(points, chunks=(20, 2))
    with pytest.raises(InputError, match="return_cov needs all rows"):
        model.predict(lazy, return_cov=True)
    with pytest.raises(InputError, match="on the workers"):
        model.predict(points, return_cov=True)
    with pytest.raises(InputError, match=r"call X.compute\(\)"):
        model.predict_cdf(lazy, y[:45])
    with pytest.raises(InputError, match="cannot be updated"):
        model.update(X[:5], y[:5])
    with pytest.raises(ModelFileError, match="workers of a Dask cluster"):
        model.save("model")
    with pytest.raises(InputError, match="level=2"):
        model.predict_interval(lazy, level=2)


def test_a_local_fit_replaces_the_shards(client):
    X, y = table(60)
    model = small().fit(da.from_array(X, chunks=(30, 2)), da.from_array(y, chunks=30))
    assert model.fitted_.remote is not None
    model.set_params(method="neighbors").fit(X, y)
    assert model.fitted_.remote is None
    model.update(X[:5], y[:5])


def test_a_pickled_model_reads_its_source_again(sharded):
    model, _, _, points = sharded
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_allclose(again.predict(points), model.predict(points), **ROUNDING)


def blas_threads():
    return [lib["num_threads"] for lib in threadpool_info() if lib["user_api"] == "blas"]


def test_tasks_have_one_thread_and_the_last_restores_the_number():
    torch_before, blas_before = torch.get_num_threads(), blas_threads()
    inside, leave, seen = threading.Event(), threading.Event(), []

    def task():
        with single_thread():
            seen.append(torch.get_num_threads())
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=task)
    thread.start()
    inside.wait(10)
    with single_thread():
        assert torch.get_num_threads() == 1
    assert seen == [1]
    assert set(blas_threads()) == {1}
    leave.set()
    thread.join()
    assert (torch.get_num_threads(), blas_threads()) == (torch_before, blas_before)


@pytest.mark.slow
def test_dask_is_not_imported_without_a_collection():
    program = (
        "import sys, numpy as np\n"
        "from twostagegp import ExactGPRegressor\n"
        "X = np.arange(8.0)[:, None]\n"
        "ExactGPRegressor('rbf', random_state=0).fit(X, X[:, 0]).predict(X)\n"
        "print(*({'dask', 'distributed'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.split() == [], done.stderr
    assert done.returncode == 0


# --- the benchmark -------------------------------------------------------------------------------


def test_parts_of_the_benchmark_are_written_whole(tmp_path):
    dask_scale.write_parts(tmp_path / "rows", rows=25, part_rows=10, seed=0)
    read = pd.read_parquet(tmp_path / "rows")
    assert len(read) == 25
    assert len(list((tmp_path / "rows").iterdir())) == 3
    assert len(read.drop_duplicates()) == 25


@pytest.mark.slow
def test_the_benchmark_runs_and_its_page_has_the_figures(tmp_path):
    sizes = {"rows": 2000, "points": 300, "equal-rows": 800, "part-rows": 500}
    given = [word for name, size in sizes.items() for word in (f"--{name}", str(size))]
    assert run(dask_scale.MEASUREMENT, [*given, "--results", str(tmp_path), "--workers", "1"]) == 0
    page = (tmp_path / "dask_scale.md").read_text()
    assert "| 2,000 " in page
    assert "| 300 " in page
    record = json.loads((tmp_path / "dask_scale.jsonl").read_text())
    assert record["largest_difference"] < 1e-9
    assert record["workers_lost"] == 0


def test_a_classifier_refuses_dask_collections():
    X, y = np.arange(20.0)[:, None], np.arange(20) % 2
    model = TwoStageGPClassifier(stages=1, kernels=("rbf",), ard=False, alpha_eps=0.05)
    with pytest.raises(InputError, match=r"no Dask collection \(Array\).*compute\(\)"):
        model.fit(da.from_array(X), y)
    with pytest.raises(InputError, match="no Dask collection"):
        model.fit(X, y).predict(da.from_array(X))
