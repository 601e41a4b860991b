"""What must not change the method for large tables: units, order, threads; groups and weights."""

import pickle

import numpy as np
import pytest
import torch
from neighbor_fits import LARGE, NOISE, SHORT_TREES, neighbors, ridge, rms, same, table
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingRegressor

from twostagegp.engines.exact.engine import ExactEngine

# --- invariances ---------------------------------------------------------------------------------


def test_units_of_y():
    X, y = table(120)
    mean, std = neighbors().fit(X, y).predict(X, return_std=True)
    for a, b in ((-2.0, 7.0), (1e9, -3e9), (1e-9, 5e-9)):
        mean2, std2 = neighbors().fit(X, a * y + b).predict(X, return_std=True)
        np.testing.assert_allclose((mean2 - b) / a, mean, atol=1e-4)
        np.testing.assert_allclose(std2 / abs(a), std, rtol=1e-3)


def test_units_of_x():
    X, y = table(120)
    moved = X * [1e7, -1e-7] + [3e6, 1.0]
    mean, std = ridge(ard=True).fit(X, y).predict(X, return_std=True)
    mean2, std2 = ridge(ard=True).fit(moved, y).predict(moved, return_std=True)
    np.testing.assert_allclose(mean2, mean, atol=1e-4)
    np.testing.assert_allclose(std2, std, rtol=1e-3)


def disordered():
    X, y = table(120)
    X, y = np.vstack([X, X[:20]]), np.append(y, y[:20] + 0.3)
    order = np.random.default_rng(1).permutation(140)
    return X, y, order


@pytest.mark.parametrize("mean", ["search", ["rbf", "matern12"]], ids=["one", "several"])
@pytest.mark.parametrize("method", ["neighbors", "vecchia"])
def test_order_of_rows(method, mean):
    X, y, order = disordered()
    model = neighbors(method=method, mean=mean, ard="both")
    one, two = clone(model).fit(X, y), clone(model).fit(X[order], y[order])
    same(one, two, X, rtol=1e-6, atol=1e-6)


def test_order_of_rows_with_trees():
    X, y, order = disordered()
    one, two = neighbors().fit(X, y), neighbors().fit(X[order], y[order])
    same(one, two, X, rtol=1e-6, atol=1e-6)


def test_same_random_state_same_result():
    X, y = table(300)
    options = {"kernels": ("rbf", "laplacian"), "ard": "both", "random_state": 3, "settings": LARGE}
    model = neighbors(**options).fit(X, y)
    same(model, neighbors(**options).fit(X, y), X, rtol=0, atol=0)
    other = neighbors(**{**options, "random_state": 4}).fit(X, y)
    assert np.any(other.predict(X) != model.predict(X))


@pytest.mark.slow
def test_threads_do_not_change_the_result():
    X, y = table(520)
    before = torch.get_num_threads()
    one, two = (neighbors(n_jobs=n).fit(X, y) for n in (1, 2))
    same(one, two, X, rtol=1e-8, atol=1e-9)
    assert torch.get_num_threads() == before


def test_one_row_is_predicted_as_it_is_in_a_batch(fitted):
    X = table(200, 3, seed=5)[0]
    mean, std = fitted.predict(X, return_std=True)
    for i in range(0, 200, 17):
        one_mean, one_std = fitted.predict(X[i : i + 1], return_std=True)
        assert one_mean[0] == pytest.approx(mean[i], abs=1e-9)
        assert one_std[0] == pytest.approx(std[i], abs=1e-9)


@pytest.mark.parametrize("rows", [1, 7, 64])
def test_prediction_does_not_depend_on_the_chunks(rows, fitted):
    X = table(65, 3, seed=5)[0]
    mean, latent, observed = fitted.fitted_.moments(X)
    chunks = fitted.fitted_.moments(X, chunk_rows=rows)
    np.testing.assert_allclose(chunks[0], mean, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(chunks[1], latent, rtol=1e-12)
    np.testing.assert_allclose(chunks[2], observed, rtol=1e-12)
    alone = fitted.fitted_.moments(X, variance=False, chunk_rows=rows)
    np.testing.assert_allclose(alone[0], mean, rtol=1e-12, atol=1e-12)
    assert alone[1:] == (None, None)


def test_joint_covariance(fitted):
    X = np.vstack([table(20, 3, seed=5)[0], np.full((1, 3), 50.0)])
    _, std = fitted.predict(X, return_std=True)
    _, cov = fitted.predict(X, return_cov=True)
    np.testing.assert_allclose(np.sqrt(np.diag(cov)), std, rtol=1e-9)
    np.testing.assert_allclose(cov, cov.T, rtol=1e-9)
    assert np.linalg.eigvalsh(cov).min() > 0.0
    assert fitted.sample_y(X, 3, joint=True, random_state=0).shape == (21, 3)


def test_clone_and_pickle(fitted, searches):
    X, y = table(60, 3, seed=5)
    mean, std = fitted.predict(X, return_std=True)
    searches.clear()
    fitted.predict(X, return_std=True)
    once = len(searches)
    again = pickle.loads(pickle.dumps(fitted))
    searches.clear()
    mean2, std2 = again.predict(X, return_std=True)
    np.testing.assert_array_equal(mean2, mean)
    np.testing.assert_array_equal(std2, std)
    assert len(searches) == once  # the stages still share their neighbours
    params = clone(fitted).get_params()
    assert {k: str(v) for k, v in params.items()} == {
        k: str(v) for k, v in fitted.get_params().items()
    }
    model = neighbors().fit(X, y)
    same(model, clone(model).fit(X, y), X, rtol=0, atol=0)


# --- groups, weights, known noise ----------------------------------------------------------------


def shifted_groups():
    """Groups with inputs and a target of their own, nearly equal within."""
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(60), 5)
    X = np.repeat(rng.normal(size=(60, 2)), 5, axis=0) + 1e-3 * rng.normal(size=(300, 2))
    return X, np.repeat(rng.normal(size=60), 5), groups


TREES = HistGradientBoostingRegressor(max_iter=20, min_samples_leaf=3)


@pytest.mark.parametrize(
    ("mean", "is_large"),
    [
        pytest.param("rbf", False, id="small-ridge"),
        pytest.param("stack", True, id="large-stack"),
        pytest.param(TREES, False, id="small-trees", marks=pytest.mark.slow),
        pytest.param("rbf", True, id="large-ridge", marks=pytest.mark.slow),
        pytest.param("stack", False, id="small-stack", marks=pytest.mark.slow),
        pytest.param(TREES, True, id="large-trees", marks=pytest.mark.slow),
    ],
)
def test_rows_of_a_group_do_not_help_to_predict_it(mean, is_large):
    settings = LARGE if is_large else SHORT_TREES
    X, y, groups = shifted_groups()
    model = neighbors(mean=mean, variance="rbf", settings=settings).fit(X, y, groups=groups)
    aware = rms(model.mean_.heldout_residuals)
    assert aware > 0.9  # there is nothing to learn about a new group
    low, high = model.predict_interval(np.random.default_rng(9).normal(size=(2000, 2))).T
    new = np.random.default_rng(8).normal(size=2000)
    assert 0.9 < np.mean((low < new) & (new < high)) < 0.995
    if mean == "rbf":
        blind = neighbors(mean=mean, variance="rbf", settings=settings).fit(X, y)
        assert rms(blind.mean_.heldout_residuals) < 0.1


def test_held_out_residuals_of_groups_are_refits_without_the_group():
    X, y = table(120)
    groups = np.arange(120) % 15
    model = ridge(penalty=0.1, n_neighbors=500).fit(X, y, groups=groups)
    for g in (0, 7):
        out = groups == g
        part = ExactEngine(
            model.fitted_.data[0].rows.subset(np.flatnonzero(merged_groups(model) != g))
        )
        gp = model.mean_.models[0].posterior
        data = model.fitted_.data[0]
        Z = torch.as_tensor(data.scaling.inputs(X[out]))
        mean = part.condition(gp.kernel, gp.parameters).mean(Z).numpy()
        expected = (y[out] - data.scaling.y_mean) / data.scaling.y_scale - mean
        np.testing.assert_allclose(model.mean_.heldout_residuals[out], expected, atol=1e-9)


def merged_groups(model):
    return model.fitted_.data[0].merged.groups


def test_a_weight_is_a_number_of_repeats_for_kernels():
    X, y = table(300)
    counts = np.random.default_rng(2).integers(0, 4, size=300)
    model = neighbors(mean=["rbf", "laplacian"], ard="both", calibration="scale", settings=LARGE)
    weighted = clone(model).fit(X, y, sample_weight=counts)
    repeated = clone(model).fit(np.repeat(X, counts, axis=0), np.repeat(y, counts))
    same(weighted, repeated, X, rtol=2e-2, atol=1e-3)


@pytest.mark.slow
def test_weight_two_is_about_two_rows_for_the_stack():
    """A regressor's folds differ: each copy has one of its own, a weighted row just one."""
    X, y = table(300)
    weighted = neighbors().fit(X, y, sample_weight=np.full(300, 2.0))
    repeated = neighbors().fit(np.vstack([X, X]), np.append(y, y))
    new, _ = table(1000, seed=9)
    assert rms(weighted.predict(new) - repeated.predict(new)) < 0.5 * NOISE


def test_weight_zero_removes_a_row():
    X, y = table(100)
    y[7] = 1e6
    keep = np.arange(100) != 7
    same(ridge().fit(X, y, sample_weight=keep), ridge().fit(X[keep], y[keep]), X)


@pytest.mark.slow
def test_noise_that_is_known_is_not_learned_again():
    X, y = table(300, noise=0.4)
    unknown = neighbors().fit(X, y)
    known = neighbors().fit(X, y, noise_var=0.16)
    assert known.fit_report_.noise_std < 0.6 * unknown.fit_report_.noise_std
    array = ridge().fit(X, y, noise_var=np.full(300, 0.16))
    same(array, ridge().fit(X, y, noise_var=0.16), X)


def test_a_row_with_more_known_noise_pulls_less():
    X, y = table(100)
    y[0] += 3.0
    pulls = []
    for v in (0.0, 1.0, 100.0):
        noise = np.where(np.arange(100) == 0, v, 0.0)
        pulls.append(ridge().fit(X, y, noise_var=noise).predict(X[:1])[0])
    assert pulls[0] > pulls[1] > pulls[2]
