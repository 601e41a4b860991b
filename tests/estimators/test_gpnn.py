"""The single-stage neighbour baseline: the exact GP with all rows, blocks, calibration."""

import math
import pickle
from contextlib import nullcontext

import gpytorch.kernels as gk
import numpy as np
import pytest
import torch
from neighbor_fits import NOISE, table
from sklearn.base import clone

from twostagegp import ExactGPRegressor, GPNNRegressor, Training, TwoStageGPWarning
from twostagegp.data.rows import Rows
from twostagegp.engines.exact.engine import ExactEngine
from twostagegp.engines.neighbors.engine import NeighborEngine, NeighborPosterior
from twostagegp.engines.problem import Problem
from twostagegp.errors import InputError
from twostagegp.estimators.gpnn import BlocksProblem, Whitening
from twostagegp.kernels import NamedKernel


def gpnn(**options):
    return GPNNRegressor(**{"random_state": 0, **options})


def make_rows(n=40, seed=0):
    """Rows with copies, weights below one and known noise."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    y = np.sin(2.0 * X[:, 0]) + 0.3 * rng.normal(size=n)
    c = rng.choice([0.5, 1.0, 2.0, 3.0], size=n)
    q = np.where(c > 1.0, rng.uniform(0.0, 0.3, size=n), 0.0)
    extra = rng.choice([0.0, 0.3], size=n)
    return Rows(*(torch.as_tensor(v) for v in (X, y, c, q, extra)))


def same(a, b, X, rtol=1e-9, atol=1e-12):
    for one, other in zip(
        a.predict(X, return_std=True), b.predict(X, return_std=True), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=rtol, atol=atol)


def rms(values):
    return math.sqrt(np.mean(values**2))


# --- against the exact GP ------------------------------------------------------------------------


@pytest.mark.parametrize("preprocess", ["whiten", "standardize"])
@pytest.mark.parametrize("kernel", ["rbf", "matern12", "laplacian", "rq"])
def test_with_all_rows_it_is_the_exact_gp(kernel, preprocess):
    X, y = table(80, 3)
    model = gpnn(kernel=kernel, preprocess=preprocess, n_neighbors=80, calibration=None).fit(X, y)
    gp, fit, data = model.gp_, model.fitted_.fits[0], model.fitted_.data[0]
    exact = ExactEngine(gp.rows).condition(gp.kernel, gp.parameters)
    new = np.vstack([X[:5], table(20, 3, seed=9)[0], np.full((1, 3), 30.0)])
    Z = torch.as_tensor(data.scaling.inputs(new))
    Z = Z if fit.whitening is None else fit.whitening(Z)
    assert (fit.whitening is None) == (preprocess == "standardize")
    scale = data.scaling.y_scale
    mean, std = model.predict(new, return_std=True)
    expected = data.scaling.y_mean + scale * exact.mean(Z).numpy()
    np.testing.assert_allclose(mean, expected, atol=1e-9)
    variance = exact.variance(Z).numpy() + gp.noise
    np.testing.assert_allclose(std, scale * np.sqrt(variance), rtol=1e-9)
    _, cov = model.predict(new, return_cov=True)
    C = exact.covariance(Z).numpy() + gp.noise * np.eye(len(new))
    np.testing.assert_allclose(cov, scale**2 * C, atol=1e-9)


def test_one_block_of_all_rows_trains_as_the_exact_gp_does():
    X, y = table(120)
    options = {"preprocess": "standardize", "calibration": None, "n_neighbors": 120}
    near = gpnn(n_blocks=1, block_rows=120, **options).fit(X, y)
    exact = ExactGPRegressor("rbf", random_state=0).fit(X, y)
    np.testing.assert_allclose(near.gp_.parameters, exact.gp_.parameters, atol=0.02)
    same(near, exact, X, rtol=1e-2, atol=1e-2)


def test_a_point_far_outside_has_the_prior():
    X, y = table(200)
    model = gpnn().fit(X, y)
    data, gp = model.fitted_.data[0], model.gp_
    mean, std = model.predict([[1e6, -1e6]], return_std=True)
    variance = model.fitted_.fits[0].factor * (math.exp(gp.parameters[-2]) + gp.noise)
    assert mean[0] == pytest.approx(y.mean())
    assert std[0] == pytest.approx(data.scaling.y_scale * math.sqrt(variance))


# --- how good it is ------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", ["blocks", "neighbors"])
@pytest.mark.parametrize("preprocess", ["whiten", "standardize"])
def test_a_smooth_function_is_learned(objective, preprocess):
    model = gpnn(objective=objective, preprocess=preprocess).fit(*table(700))
    X, y = table(3000, seed=9)
    assert rms(model.predict(X) - y) < 1.15 * NOISE
    low, high = model.predict_interval(X).T
    assert 0.9 < np.mean((low < y) & (y < high)) < 0.98
    (row,) = model.search_
    assert row["kernel"] == ("rbf/nll" if objective == "blocks" else "rbf/loo")
    assert row["evaluations"] > 0
    report = model.fit_report_
    assert (report.method, report.full_factorizations) == ("neighbors", 0)
    assert report.calibration.startswith("scale, factor")
    assert str(report)


def test_whitened_columns_may_be_mixed_in_any_way():
    X, y = table(300)
    A = np.array([[1.0, 0.9], [-0.3, 0.7]])
    one, other = gpnn().fit(X, y), gpnn().fit(X @ A, y)
    new = table(100, seed=9)[0]
    # Up to what is added to the variances of the components.
    np.testing.assert_allclose(other.predict(new @ A), one.predict(new), atol=1e-3)
    assert set(one.relevance_.values()) == {0.0}  # components are no columns


def test_ard_finds_the_column_that_matters():
    X, _ = table(200, 3)
    model = gpnn(ard=True, preprocess="standardize").fit(X, np.sin(3 * X[:, 1]))
    assert max(model.relevance_, key=model.relevance_.get) == "x1"
    assert model.gp_.kernel.label == "rbf-ard"


def test_any_kernel():
    X, y = table(120)
    for kernel in ("matern32", "laplacian", "rq", gk.RBFKernel(), gk.MaternKernel(nu=1.5)):
        model = gpnn(kernel=kernel, n_neighbors=20, n_calibration=60).fit(X, y)
        assert model.score(*table(300, seed=9)) > 0.8


def test_a_gpytorch_kernel_trained_on_neighbours():
    model = gpnn(kernel=gk.RBFKernel(), objective="neighbors", n_neighbors=10)
    assert model.fit(*table(60)).score(*table(200, seed=9)) > 0.7


# --- blocks --------------------------------------------------------------------------------------

KERNEL = NamedKernel("matern32", 2, ard=True)
PARAMETERS = np.log([0.7, 1.6, 1.4, 0.15])


@pytest.mark.parametrize("use_prior", [True, False])
def test_a_blocks_problem_is_the_mean_of_its_blocks(use_prior):
    blocks = [make_rows(20, seed) for seed in range(3)]
    problem = BlocksProblem(KERNEL, blocks[0], use_prior=use_prior, blocks=blocks)
    value, gradient = problem(PARAMETERS)
    each = [Problem(KERNEL, rows, use_prior=use_prior)(PARAMETERS) for rows in blocks]
    assert value == pytest.approx(np.mean([v for v, _ in each]))
    np.testing.assert_allclose(gradient, np.mean([g for _, g in each], axis=0))
    assert problem.evaluations == 1


def test_the_gradient_of_blocks_is_right():
    blocks = [make_rows(15, seed) for seed in range(3)]
    problem = BlocksProblem(KERNEL, blocks[0], blocks=blocks)
    steps = 1e-5 * np.eye(4)
    slopes = [(problem(PARAMETERS + h)[0] - problem(PARAMETERS - h)[0]) / 2e-5 for h in steps]
    np.testing.assert_allclose(problem(PARAMETERS)[1], slopes, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    ("n", "n_blocks", "block_rows", "sizes"),
    [
        (100, 3, 20, [20] * 3),
        (100, 10, 40, [40] * 2),
        (100, 1, 300, [100]),
        (7, 10, 3, [3] * 2),
    ],
)
def test_blocks_are_disjoint_parts_of_the_table(n, n_blocks, block_rows, sizes, monkeypatch):
    made, original = [], BlocksProblem.__post_init__

    def recorded(self):
        made.append(self.blocks)
        original(self)

    monkeypatch.setattr(BlocksProblem, "__post_init__", recorded)
    model = gpnn(n_blocks=n_blocks, block_rows=block_rows).fit(*table(n))
    (blocks,) = made
    assert [len(rows) for rows in blocks] == sizes
    targets = torch.cat([rows.t for rows in blocks])
    assert len(torch.unique(targets)) == sum(sizes)
    assert np.isin(targets.numpy(), model.gp_.rows.t.numpy()).all()


# --- calibration ---------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", ["plain", "copies", "groups"])
@pytest.mark.parametrize("n_calibration", [50, 1000])
def test_calibrated_z_scores_have_mean_square_one(n_calibration, rows, monkeypatch):
    asked, heldout = [], NeighborPosterior.heldout

    def recorded(self, index):
        asked.append(index)
        return heldout(self, index)

    X, y = table(200)
    options = {}
    if rows == "copies":
        X, y = np.vstack([X, X]), np.append(y, y + 0.1)
    if rows == "groups":
        options["groups"] = np.arange(200) // 4
    said = pytest.warns(TwoStageGPWarning, match="groups") if options else nullcontext()
    with monkeypatch.context() as context, said:
        context.setattr(NeighborPosterior, "heldout", recorded)
        model = gpnn(n_calibration=n_calibration).fit(X, y, **options)
    (index,) = asked
    assert len(index) == min(n_calibration, 200)
    assert len(torch.unique(index)) == len(index)
    gp, factor = model.gp_, model.fitted_.fits[0].factor
    held, own = gp.heldout(index), gp.rows.subset(index)
    z2 = held.sum_of_squares(own) / (factor * held.variance)
    assert float(z2.sum() / own.c.sum()) == pytest.approx(1.0)
    # The factor is on function and noise alike.
    far = model.predict([[1e6, 1e6]], return_std=True)[1][0]
    raw = math.exp(gp.parameters[-2]) + gp.noise
    assert far == pytest.approx(model.fitted_.data[0].scaling.y_scale * math.sqrt(factor * raw))
    noise_std = model.fitted_.data[0].scaling.y_scale * math.sqrt(factor * gp.noise)
    assert model.fit_report_.noise_std == pytest.approx(noise_std)


def test_without_calibration_the_factor_is_one():
    X, y = table(150)
    raw, calibrated = gpnn(calibration=None).fit(X, y), gpnn().fit(X, y)
    assert raw.fitted_.fits[0].factor == 1.0
    assert raw.fit_report_.calibration == "none"
    np.testing.assert_array_equal(raw.predict(X), calibrated.predict(X))
    ratio = calibrated.predict(X, return_std=True)[1] / raw.predict(X, return_std=True)[1]
    np.testing.assert_allclose(ratio, math.sqrt(calibrated.fitted_.fits[0].factor))


def test_an_observation_never_varies_less_than_the_noise_floor():
    X, _ = table(60)
    model = gpnn(noise_floor=1e-2).fit(X, X[:, 0])
    assert model.predict(X, return_std=True)[1].min() >= 0.0999 * X[:, 0].std()


# --- whitening -----------------------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True])
def test_whitened_rows_are_uncorrelated_with_variance_one_over_d(weighted):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 4)) @ rng.normal(size=(4, 4)) + 5.0
    one = torch.ones(300, dtype=torch.float64)
    c = torch.as_tensor(rng.uniform(0.5, 3.0, size=300)) if weighted else one
    rows = Rows(torch.as_tensor(X), one, c, 0 * one, 0 * one)
    Z = Whitening.of(rows)(rows.X).numpy()
    weight = c.numpy()
    np.testing.assert_allclose(weight @ Z, 0.0, atol=1e-8)
    C = Z.T @ (weight[:, None] * Z) / weight.sum()
    np.testing.assert_allclose(C, np.eye(4) / 4, atol=1e-3)


def test_a_direction_without_variance_stays_finite():
    X, y = table(100)
    model = gpnn().fit(np.column_stack([X, X.sum(1), X[:, 0]]), y)
    Z = model.fitted_.fits[0].whitening(model.fitted_.data[0].rows.X)
    assert torch.isfinite(Z).all()
    assert float(Z.std(0).max()) < 1.0
    assert model.score(np.column_stack([X, X.sum(1), X[:, 0]]), y) > 0.8


def test_whitening_remembers_a_tensor_until_it_changes():
    rows = make_rows()
    whitening = Whitening.of(rows)
    X = rows.X.clone()
    first = whitening(X)
    assert whitening(X) is first
    assert whitening(X.clone()) is not first
    torch.testing.assert_close(whitening(X.clone()), first)
    whitening(X)
    X += 1.0
    moved = whitening(X)
    torch.testing.assert_close(moved, (X - whitening.mean) @ whitening.matrix)
    assert not torch.equal(moved, first)
    again = pickle.loads(pickle.dumps(whitening))
    # The last answer stays behind.
    assert len(pickle.dumps(whitening)) == len(pickle.dumps(Whitening.of(rows)))
    torch.testing.assert_close(again(X), moved)


def test_whitening_for_two_threads_at_a_time():
    rows = make_rows()
    X, other = rows.X.clone(), rows.X + 1.0

    class Interrupted(Whitening):
        """Another thread asks as soon as this one has stored its answer."""

        armed = False

        @property
        def _last(self):
            return self.stored

        @_last.setter
        def _last(self, value):
            self.stored = value
            if self.armed:
                self.armed = False
                self(other)

    plain = Whitening.of(rows)
    whitening = Interrupted(plain.mean, plain.matrix)
    whitening.armed = True
    torch.testing.assert_close(whitening(X), plain(X))


def test_a_posterior_for_two_threads_at_a_time():
    rows = make_rows()
    engine = NeighborEngine(rows, n_neighbors=6)
    X, other = rows.X + 0.1, rows.X + 0.2
    expected = engine.condition(KERNEL, PARAMETERS).mean(X)
    gp = engine.condition(KERNEL, PARAMETERS)
    gp.mean(other)
    # Private, here and below: the race is between two reads of this attribute.
    theirs = gp._last  # noqa: SLF001
    gp.mean(X)

    class Interrupted(type(gp)):
        """Another thread stores its answer after this one has recognised its points."""

        reads = 0

        @property
        def _last(self):
            self.reads += 1
            return self.__dict__["_last"] if self.reads < 3 else theirs

        @_last.setter
        def _last(self, value):
            self.__dict__["_last"] = value

    gp.__class__ = Interrupted
    torch.testing.assert_close(gp.mean(X), expected)


# --- predictions ---------------------------------------------------------------------------------


@pytest.mark.parametrize("preprocess", ["whiten", "standardize"])
def test_the_diagonal_of_the_covariance_is_the_squared_std(preprocess):
    X, y = table(200)
    Y = np.column_stack([y, -3.0 * y + 7.0])
    model = gpnn(preprocess=preprocess, n_neighbors=15).fit(X, Y)
    new = np.vstack([X[:10], table(10, seed=9)[0], [[40.0, 0.0]]])
    mean, std = model.predict(new, return_std=True)
    mean2, cov = model.predict(new, return_cov=True)
    assert cov.shape == (2, 21, 21)
    np.testing.assert_array_equal(mean, mean2)
    for k in range(2):
        np.testing.assert_allclose(np.sqrt(np.diag(cov[k])), std[:, k], rtol=1e-9)
        np.testing.assert_allclose(cov[k], cov[k].T, rtol=1e-9)
        assert np.linalg.eigvalsh(cov[k]).min() > 0.0
    assert model.sample_y(new, 3, joint=True, random_state=0).shape == (21, 2, 3)
    assert len(model.gp_) == 2


def test_clone_and_pickle():
    X, y = table(150)
    model = gpnn(kernel="matern52", n_neighbors=20).fit(X, y)
    model.predict(X, return_cov=True)
    same(model, pickle.loads(pickle.dumps(model)), X, rtol=0, atol=0)
    same(model, clone(model).fit(X, y), X, rtol=0, atol=0)


def test_order_of_rows_and_units():
    X, y = table(200)
    mean, std = gpnn().fit(X, y).predict(X, return_std=True)
    order = np.random.default_rng(1).permutation(200)
    mean2, std2 = gpnn().fit(X[order], y[order]).predict(X, return_std=True)
    np.testing.assert_allclose(mean2, mean, atol=1e-6)
    np.testing.assert_allclose(std2, std, rtol=1e-6)
    mean3, std3 = gpnn().fit(X, 1e6 * y - 3e6).predict(X, return_std=True)
    np.testing.assert_allclose((mean3 + 3e6) / 1e6, mean, atol=1e-4)
    np.testing.assert_allclose(std3 / 1e6, std, rtol=1e-3)


def test_a_weight_is_a_number_of_repeats():
    X, y = table(150)
    counts = np.random.default_rng(2).integers(0, 4, size=150)
    weighted = gpnn().fit(X, y, sample_weight=counts)
    same(weighted, gpnn().fit(np.repeat(X, counts, axis=0), np.repeat(y, counts)), X, rtol=1e-6)


def shifted_groups():
    """Groups with inputs and a target of their own, nearly equal within."""
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(60), 5)
    X = np.repeat(rng.normal(size=(60, 2)), 5, axis=0) + 1e-3 * rng.normal(size=(300, 2))
    return X, np.repeat(rng.normal(size=60), 5) + 0.1 * rng.normal(size=300), groups


def test_rows_of_a_group_do_not_calibrate_each_other():
    X, y, groups = shifted_groups()
    blind = gpnn().fit(X, y)
    with pytest.warns(TwoStageGPWarning, match="the calibration alone holds them out"):
        aware = gpnn().fit(X, y, groups=groups)
    assert aware.fitted_.fits[0].factor > blind.fitted_.fits[0].factor
    (note,) = aware.fit_report_.warnings
    assert "objective='neighbors'" in note
    # The likelihood of blocks has not seen them.
    np.testing.assert_array_equal(aware.gp_.parameters, blind.gp_.parameters)
    assert blind.fit_report_.warnings == []


def test_without_calibration_nothing_holds_groups_out_of_blocks():
    X, y, groups = shifted_groups()
    with pytest.warns(TwoStageGPWarning, match="no calibration to hold them out"):
        model = gpnn(calibration=None).fit(X, y, groups=groups)
    same(model, gpnn(calibration=None).fit(X, y), X, rtol=0, atol=0)


def test_neighbours_are_trained_without_the_own_group(monkeypatch):
    problems, problem_of = [], NeighborEngine.problem

    def recorded(self, *args):
        problems.append(problem_of(self, *args))
        return problems[-1]

    monkeypatch.setattr(NeighborEngine, "problem", recorded)
    X, y, groups = shifted_groups()
    model = gpnn(objective="neighbors").fit(X, y, groups=groups)
    assert model.fit_report_.warnings == []
    assert problems
    for problem in problems:
        known = problem.rows.groups
        assert (known[problem.near.long()] != known[problem.batch][:, None]).all()


def test_groups_of_a_table_without_anything_to_train_are_not_spoken_of():
    X, _ = table(30)
    with pytest.warns(TwoStageGPWarning, match="constant") as said:
        gpnn().fit(X, np.full(30, 7.0), groups=np.arange(30) // 2)
    assert not any("groups" in str(warning.message) for warning in said)


@pytest.mark.parametrize(
    ("X", "y", "word"),
    [
        (table(30)[0], np.full(30, 7.0), "constant"),
        (np.ones((30, 3)), np.arange(30.0), "No input column"),
        (np.array([[0.0], [1.0]]), np.array([1.0, 2.0]), "Fewer than three"),
    ],
    ids=["constant target", "no columns", "two rows"],
)
def test_too_little_to_learn_from_gives_a_constant(X, y, word):
    model = gpnn()
    with pytest.warns(TwoStageGPWarning, match=word):
        model.fit(X, y)
    assert model.gp_ is None
    mean, std = model.predict(X, return_std=True)
    np.testing.assert_allclose(mean, y.mean())
    assert (std > 0).all()
    _, cov = model.predict(X[:2], return_cov=True)
    np.testing.assert_allclose(cov, np.diag(std[:2] ** 2))
    assert model.fit_report_.mean == "constant"


# --- parameters ----------------------------------------------------------------------------------


def test_from_paper_is_nothing_but_constructor_parameters():
    model = GPNNRegressor.from_paper(random_state=0)
    assert clone(model).get_params() == model.get_params()
    assert (model.n_neighbors, model.kernel) == (50, "rbf")
    assert model.training == Training(optimizer="adamw", steps=200, lr=0.1, schedule="cosine")
    assert GPNNRegressor.from_paper(n_neighbors=400).n_neighbors == 400
    X, y = table(150)
    fitted = clone(model).fit(X, y)
    assert fitted.fit_report_.evaluations == 201
    assert fitted.score(X, y) > 0.7
    same(fitted, clone(model).fit(X, y), X, rtol=0, atol=0)


@pytest.mark.parametrize(
    "training",
    [Training(steps=0), Training(steps=20), Training(optimizer="adam", steps=20)],
    ids=lambda t: f"{t.optimizer}-{t.steps}",
)
def test_training(training):
    model = gpnn(training=training).fit(*table(150))
    assert model.score(*table(300, seed=9)) > 0.6


@pytest.mark.parametrize(
    "training",
    [Training(subsample=100), Training(refine_steps=5), Training(refine_lr=0.3)],
    ids=["subsample", "refine_steps", "refine_lr"],
)
def test_a_schedule_on_a_subsample_is_refused(training, request):
    name = request.node.callspec.id
    with pytest.raises(InputError, match=rf"Training\({name}=.*n_blocks of block_rows"):
        gpnn(training=training).fit(*table(30))


def test_an_optimiser_of_blocks_is_refused_where_there_are_none():
    for model in (
        gpnn(training=Training(steps=5), objective="neighbors"),
        GPNNRegressor.from_paper(objective="neighbors"),
    ):
        with pytest.raises(InputError, match=r"for objective='blocks'.*training=None"):
            model.fit(*table(30))
    GPNNRegressor.from_paper(objective="neighbors", training=None).fit(*table(30))
