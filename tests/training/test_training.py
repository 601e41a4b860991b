"""Optimisers against their references, bounds, failing evaluations, and the options object."""

import inspect
import math
import pickle
from dataclasses import FrozenInstanceError, asdict, replace

import gpytorch
import numpy as np
import pytest
import torch
from sklearn.base import BaseEstimator, clone

from twostagegp.data.rows import Rows
from twostagegp.engines.exact.engine import ExactPosterior
from twostagegp.engines.problem import Problem
from twostagegp.errors import InputError, NumericalError
from twostagegp.kernels import NamedKernel, WrappedKernel
from twostagegp.numerics.objectives import heldout_variance, loo_density, nll
from twostagegp.training.optimise import (
    SoftplusSpace,
    bfgs_update,
    cosine_rate,
    descend,
    improve,
    minimise,
    shifted_optimum,
)
from twostagegp.training.schedule import Training


def sine_rows(n=40, noise=0.2, seed=0):
    rng = np.random.default_rng(seed)
    X = torch.as_tensor(np.sort(rng.uniform(-2, 2, size=(n, 1)), axis=0))
    t = torch.sin(2 * X[:, 0]) + noise * torch.as_tensor(rng.normal(size=n))
    one = torch.ones(n, dtype=torch.float64)
    return Rows(X, t, one, 0 * one, 0 * one)


class Bowl:
    """A smooth function with the interface of a Problem, without a covariance matrix."""

    def __init__(self, bound=100.0, fails_beyond=math.inf):
        self.evaluations, self.jitter = 0, 0.0
        self.bound, self.fails_beyond = bound, fails_beyond
        self.visited = []

    def start(self):
        return np.array([2.0, -1.5, 0.5])

    def bounds(self):
        return [(-self.bound, self.bound)] * 3

    @staticmethod
    def value(x):
        scale = torch.tensor([1.0, 4.0, 0.2], dtype=torch.float64)
        return (scale * (x - 0.3) ** 2).sum() + 0.1 * torch.sin(3 * x).sum()

    def __call__(self, x):
        self.evaluations += 1
        self.visited.append(x.copy())
        if np.abs(x).max() > self.fails_beyond:
            raise NumericalError("beyond what can be factorised")
        z = torch.tensor(x, requires_grad=True)
        value = self.value(z)
        (gradient,) = torch.autograd.grad(value, z)
        return float(value.detach()), gradient.numpy()


class Quadratic:
    """(x - best)' A (x - best) / 2 with bounds, for which steps can be computed by hand."""

    A = np.array([[2.0, 0.5], [0.5, 1.0]])

    def __init__(self, best=(0.3, -0.2), bounds=((-9.0, 9.0), (-9.0, 9.0)), holes=()):
        self.best, self._bounds, self.holes = np.array(best), list(bounds), holes
        self.evaluations, self.gradients, self.jitter, self.visited = 0, 0, 0.0, []

    def bounds(self):
        return self._bounds

    def __call__(self, x):
        value, d = self.value(x), x - self.best
        self.gradients += 1
        return value, self.A @ d

    def value(self, x):
        self.evaluations += 1
        self.visited.append(x.copy())
        if self.evaluations in self.holes:
            raise NumericalError("not positive definite")
        d = x - self.best
        return 0.5 * float(d @ self.A @ d)


# --- L-BFGS --------------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", ["nll", "loo"])
def test_lbfgs_reaches_a_stationary_point(objective):
    problem = Problem(NamedKernel("rbf", 1), sine_rows(), objective)
    fitted = minimise(problem, tolerance=1e-9)
    assert np.abs(problem(fitted.parameters)[1]).max() < 1e-6


def test_lbfgs_improves_on_the_start():
    problem = Problem(NamedKernel("matern52", 1), sine_rows())
    fitted = minimise(problem)
    assert fitted.value < problem(problem.start())[0]
    assert fitted.value == pytest.approx(problem(fitted.parameters)[0])


def test_lbfgs_recovers_the_true_noise():
    problem = Problem(NamedKernel("rbf", 1), sine_rows(n=200, noise=0.2))
    fitted = minimise(problem)
    assert math.exp(fitted.parameters[-1]) == pytest.approx(0.2**2, rel=0.3)


def test_a_warm_start_at_the_optimum_stays_there():
    problem = Problem(NamedKernel("rbf", 1), sine_rows())
    best = minimise(problem, tolerance=1e-9)
    again = minimise(problem, best.parameters)
    np.testing.assert_allclose(again.parameters, best.parameters, atol=1e-5)
    assert again.evaluations <= 3


def test_zero_steps_return_the_start():
    bowl = Bowl()
    fitted = minimise(bowl, steps=0)
    np.testing.assert_array_equal(fitted.parameters, bowl.start())
    assert fitted.evaluations == 1


def test_evaluations_are_counted_for_each_minimisation():
    bowl = Bowl()
    first = minimise(bowl)
    second = minimise(bowl)
    assert first.evaluations == second.evaluations == bowl.evaluations / 2


def test_a_failed_evaluation_after_the_start_does_not_end_the_fit():
    # The gradient at the start is large, so that the first trial step leads to a failure.
    bowl = Bowl(fails_beyond=2.05)
    start = np.array([2.0, 2.0, -2.0])
    fitted = minimise(bowl, start, tolerance=1e-8)
    assert any(np.abs(x).max() > 2.05 for x in bowl.visited)
    assert fitted.gradient_norm < 1e-4
    assert fitted.value < Bowl()(start)[0]


def test_a_failure_at_the_start_is_raised():
    with pytest.raises(NumericalError):
        minimise(Bowl(fails_beyond=1.0))


def test_parameters_that_fail_are_never_returned():
    problem = Quadratic(holes=(2,))
    fitted = minimise(problem, np.zeros(2), tolerance=1e-9)
    np.testing.assert_allclose(fitted.parameters, problem.best, atol=1e-5)


@pytest.mark.parametrize("options", [{"steps": 0}, {"steps": 1}], ids=["no step", "one step"])
def test_the_gradient_norm_is_the_largest_absolute_entry(options):
    problem = Quadratic(best=(3.0, 0.1))
    fitted = minimise(problem, np.zeros(2), **options)
    slope = Quadratic.A @ (fitted.parameters - problem.best)
    assert fitted.gradient_norm == pytest.approx(np.abs(slope).max(), rel=1e-9)


# --- Adam and AdamW ------------------------------------------------------------------------------


class PlainGP(gpytorch.models.ExactGP):
    def __init__(self, X, y, likelihood):
        super().__init__(X, y, likelihood)
        self.mean_module = gpytorch.means.ZeroMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def gpytorch_path(rows, optimizer_class, schedule, steps, lr, restart_every, **options):
    """Lengthscale, outputscale and noise after the steps of a plain GPyTorch training loop."""
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    model = PlainGP(rows.X, rows.t, likelihood).double()
    mll = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    optimizer = optimizer_class(model.parameters(), lr=lr, **options)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=restart_every)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = -mll(model(rows.X), rows.t)
        loss.backward()
        optimizer.step()
        if schedule == "cosine":
            scheduler.step()
    kernel = model.covar_module
    values = [kernel.base_kernel.lengthscale, kernel.outputscale, likelihood.noise]
    return np.array([float(value.detach().squeeze()) for value in values])


@pytest.mark.parametrize("schedule", ["none", "cosine"])
@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_training_is_gpytorchs_step_by_step(optimizer, schedule):
    rows = sine_rows()
    options = {"lr": 0.1, "restart_every": 7}
    reference = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[optimizer]
    decay = {"weight_decay": 0.1} if optimizer == "adamw" else {}
    for steps in (1, 9, 25):
        problem = Problem(NamedKernel("rbf", 1), rows, use_prior=False)
        fitted = minimise(
            problem, optimizer=optimizer, schedule=schedule, steps=steps, **options, **decay
        )
        expected = gpytorch_path(rows, reference, schedule, steps, **options, **decay)
        np.testing.assert_allclose(np.exp(fitted.parameters), expected, rtol=1e-6)


def test_a_wrapped_kernel_is_trained_in_its_own_raw_parameters():
    rows = sine_rows()
    module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())
    options = {"optimizer": "adamw", "steps": 12, "schedule": "cosine"}
    named = minimise(Problem(NamedKernel("rbf", 1), rows, use_prior=False), **options)
    wrapped = minimise(Problem(WrappedKernel(module, 1), rows, use_prior=False), **options)
    assert wrapped.value == pytest.approx(named.value, rel=1e-9)


def test_value_and_gradient_norm_belong_to_the_last_iterate():
    problem = Problem(NamedKernel("rbf", 1), sine_rows())
    fitted = minimise(problem, optimizer="adam", steps=5)
    assert fitted.value == pytest.approx(problem(fitted.parameters)[0], rel=1e-12)
    space = SoftplusSpace(problem)
    slope = space(space.to_raw(fitted.parameters))[1]
    assert fitted.gradient_norm == pytest.approx(np.abs(slope).max(), rel=1e-6)


# --- a few steps with a known curvature ----------------------------------------------------------


def test_known_curvature_finishes_in_a_few_evaluations_on_more_rows():
    kernel = NamedKernel("matern52", 1)
    some = minimise(Problem(kernel, sine_rows(n=60)), tolerance=1e-7)
    problem = Problem(kernel, sine_rows(n=120))
    quick = improve(problem, some.parameters, some.inverse_hessian, evaluations=5)
    best = minimise(Problem(kernel, sine_rows(n=120)), tolerance=1e-9)
    assert problem.evaluations <= 5
    assert quick.value - best.value < 1e-4


def test_improve_never_ends_above_its_start():
    bowl = Bowl()
    start = np.array([2.0, 2.0, -2.0])
    fitted = improve(bowl, start, 100.0 * np.eye(3), evaluations=4)
    assert fitted.value <= bowl(start)[0]


def test_improve_steps_back_if_the_matrix_cannot_be_factorised():
    bowl = Bowl(fails_beyond=2.05)
    start = np.array([2.0, 2.0, -2.0])
    fitted = improve(bowl, start, -np.eye(3), evaluations=12)
    assert fitted.value < Bowl()(start)[0]


def test_improve_stays_within_bounds():
    bowl = Bowl(bound=0.2)
    improve(bowl, np.array([0.1, -0.1, 0.0]), np.eye(3), evaluations=8)
    assert np.abs(bowl.visited).max() <= 0.2


def test_improve_keeps_a_parameter_at_the_bound_that_it_is_pushed_against():
    """The curvature would move the first parameter inwards, which leads uphill."""

    class Corner(Bowl):
        def __call__(self, x):
            self.evaluations += 1
            return -10.0 * x[0] + 0.5 * (x[1] - 1.0) ** 2, np.array([-10.0, x[1] - 1.0, 0.0])

    H = np.array([[1.0, 0.9, 0.0], [0.9, 1.0, 0.0], [0.0, 0.0, 1.0]])
    fitted = improve(Corner(bound=2.0), np.array([2.0, 1.5, 0.0]), H, evaluations=3)
    assert fitted.parameters[0] == 2.0
    assert fitted.parameters[1] == pytest.approx(1.0)


def test_with_the_exact_curvature_one_step_suffices():
    problem = Quadratic()
    fitted = improve(problem, np.zeros(2), np.linalg.inv(Quadratic.A), evaluations=9)
    np.testing.assert_allclose(fitted.parameters, problem.best, atol=1e-12)
    assert fitted.evaluations == problem.evaluations == 2
    assert fitted.value == pytest.approx(0.0, abs=1e-20)
    assert fitted.gradient_norm == pytest.approx(0.0, abs=1e-12)


def test_with_one_evaluation_the_start_is_returned():
    problem = Quadratic()
    fitted = improve(problem, np.ones(2), np.eye(2), evaluations=1)
    assert problem.evaluations == 1
    assert fitted.parameters.tolist() == [1.0, 1.0]
    assert fitted.gradient_norm == pytest.approx(np.abs(Quadratic.A @ [0.7, 1.2]).max())


@pytest.mark.parametrize("holes", [(), (3,)])
@pytest.mark.parametrize("H", [0.3 * np.eye(2), 3.0 * np.eye(2)])
def test_the_last_training_ends_at_the_same_parameters_without_the_last_gradient(H, holes):
    ends = []
    for is_last in (False, True):
        problem = Quadratic(holes=holes)
        fitted = improve(problem, np.zeros(2), H, evaluations=3, tolerance=0.0, is_last=is_last)
        assert fitted.evaluations == 3
        ends.append((fitted.parameters.tolist(), fitted.value))
    assert ends[0] == ends[1]
    assert problem.gradients == 2


def test_a_step_changes_no_parameter_by_more_than_one():
    problem = Quadratic(best=(5.0, -2.5))
    improve(problem, np.zeros(2), np.linalg.inv(Quadratic.A), evaluations=2)
    np.testing.assert_allclose(problem.visited[1], [1.0, -0.5])


@pytest.mark.parametrize("holes", [(), (2, 3)], ids=["too long", "not factorised"])
def test_a_failed_step_is_tried_again_at_three_tenths(holes):
    problem, size = Quadratic(best=(0.05, -0.03), holes=holes), 1.0 if holes else 50.0
    improve(problem, np.zeros(2), size * np.linalg.inv(Quadratic.A), evaluations=4)
    first, second, third = problem.visited[1:4]
    np.testing.assert_allclose(second, 0.3 * first)
    np.testing.assert_allclose(third, 0.09 * first)


def test_after_a_step_that_works_the_length_is_full_again():
    problem = Quadratic(best=(5.0, -2.5), holes=(2,))
    improve(problem, np.zeros(2), np.linalg.inv(Quadratic.A), evaluations=4)
    np.testing.assert_allclose(problem.visited[2], [0.3, -0.15])
    np.testing.assert_allclose(problem.visited[3], [1.3, -0.65])


def test_a_curvature_that_gives_an_uphill_step_is_reset():
    problem = Quadratic()
    improve(problem, np.zeros(2), -np.eye(2), evaluations=2)
    np.testing.assert_allclose(problem.visited[1], Quadratic.A @ problem.best)


@pytest.mark.parametrize("side", [-1.0, 1.0])
def test_a_parameter_at_its_bound_stays_if_the_step_leads_outside(side):
    bounds = [(-9.0, 0.0), (-9.0, 9.0)] if side > 0 else [(0.0, 9.0), (-9.0, 9.0)]
    problem = Quadratic(best=(0.3 * side, 0.0), bounds=bounds)
    fitted = improve(problem, np.zeros(2), np.eye(2), evaluations=30, tolerance=1e-9)
    expected = 0.3 * side * Quadratic.A[1, 0] / Quadratic.A[1, 1]  # the minimum along the bound
    np.testing.assert_allclose(fitted.parameters, [0.0, expected], atol=1e-6)
    assert problem.evaluations < 12


@pytest.mark.parametrize("side", [-1.0, 1.0])
def test_a_parameter_at_its_bound_moves_if_the_step_leads_inside(side):
    bounds = [(-9.0, 0.0), (-9.0, 9.0)] if side < 0 else [(0.0, 9.0), (-9.0, 9.0)]
    problem = Quadratic(best=(0.3 * side, 0.0), bounds=bounds)
    fitted = improve(problem, np.zeros(2), np.linalg.inv(Quadratic.A), evaluations=5)
    np.testing.assert_allclose(fitted.parameters, problem.best, atol=1e-12)


def test_a_step_updates_the_curvature():
    problem = Quadratic()
    fitted = improve(problem, np.zeros(2), 0.3 * np.eye(2), evaluations=2)
    assert fitted.evaluations == 2
    step = problem.visited[1] - problem.visited[0]
    np.testing.assert_allclose(fitted.inverse_hessian @ (Quadratic.A @ step), step, rtol=1e-12)
    assert improve(problem, np.zeros(2), np.eye(2), evaluations=3).evaluations == 3


def test_improve_ends_when_a_step_promises_less_than_the_tolerance():
    problem = Quadratic()
    near = problem.best + np.array([1e-3, 0.0])
    slope = problem(near)[1]
    promised = 0.5 * float(slope @ slope)  # of a step with the curvature of the identity
    problem.evaluations = 0
    improve(problem, near, np.eye(2), evaluations=9, tolerance=1.1 * promised)
    assert problem.evaluations == 1
    improve(problem, near, np.eye(2), evaluations=2, tolerance=0.9 * promised)
    assert problem.evaluations == 3


def test_a_shifted_optimum_takes_one_evaluation_if_it_is_near():
    H = np.linalg.inv(Quadratic.A)
    near, far = Quadratic(), Quadratic()
    found = shifted_optimum(near, near.best + 0.1, H)
    np.testing.assert_allclose(found, near.best, atol=1e-12)
    assert near.evaluations == 1
    np.testing.assert_allclose(shifted_optimum(far, far.best + 0.9, H), far.best, atol=1e-12)
    assert far.evaluations > 1


def test_a_bfgs_update_satisfies_the_secant_equation():
    rng = np.random.default_rng(0)
    B = rng.normal(size=(3, 3))
    H, s = B @ B.T + np.eye(3), rng.normal(size=3)
    y = (np.diag([1.0, 2.0, 3.0])) @ s
    new = bfgs_update(H, s, y)
    np.testing.assert_allclose(new @ y, s, rtol=1e-12)  # the secant equation
    np.testing.assert_allclose(new, new.T)
    assert np.linalg.eigvalsh(new).min() > 0.0
    along = np.cross(s, [1.0, 0.0, 0.0])  # orthogonal to s: its entry depends on y and H only
    gone = along - (along @ s) / (s @ y) * y
    assert along @ new @ along == pytest.approx(gone @ H @ gone + (along @ s) ** 2 / (s @ y))
    assert bfgs_update(H, s, -y) is H
    assert bfgs_update(H, s, 0.0 * y) is H


def test_descend_uses_a_known_curvature_and_works_without_one():
    H = np.linalg.inv(Quadratic.A)
    known, unknown, afresh = Quadratic(), Quadratic(), Bowl()
    np.testing.assert_allclose(descend(known, np.zeros(2), H, 9, 1e-8).parameters, known.best)
    assert known.evaluations == 2
    found = descend(unknown, np.zeros(2), None, 50, 1e-10)
    np.testing.assert_allclose(found.parameters, unknown.best, atol=1e-6)
    assert unknown.evaluations > 2
    assert descend(afresh, None, np.eye(3), 50, 1e-10).gradient_norm < 1e-4


def test_the_cosine_falls_from_the_rate_to_zero_and_begins_again():
    rate = cosine_rate(0.4, 8)
    assert rate(0) == rate(8) == 0.4
    assert rate(4) == pytest.approx(0.2)
    assert rate(2) == rate(10) == pytest.approx(0.2 * (1 + math.sqrt(0.5)))


def test_raw_parameters_round_trip_and_have_the_slope_of_finite_differences():
    problem = Problem(NamedKernel("rbf", 1), sine_rows(12), noise_floor=1e-3)
    space = SoftplusSpace(problem)
    raw = np.array([0.7, -0.4, -3.0])
    softplus = np.log1p(np.exp(raw))
    np.testing.assert_allclose(np.exp(space.to_log(raw)), softplus + space.offset)
    np.testing.assert_array_equal(space.offset, [0.0, 0.0, 1e-3])
    np.testing.assert_allclose(space.to_raw(space.to_log(raw)), raw, rtol=1e-9)
    assert np.isfinite(space.to_raw(np.array([0.0, 0.0, math.log(1e-3)]))).all()
    _, gradient = space(raw)
    for j, h in enumerate(1e-5 * np.eye(3)):
        slope = (space(raw + h)[0] - space(raw - h)[0]) / 2e-5
        assert gradient[j] == pytest.approx(slope, rel=1e-6)


@pytest.mark.parametrize(("floor", "least"), [(1e-8, 1e-4), (0.01, 0.01)])
def test_raw_noise_has_gpytorchs_floor_or_a_higher_one(floor, least):
    space = SoftplusSpace(Problem(NamedKernel("rbf", 1), sine_rows(12), noise_floor=floor))
    assert math.exp(space.to_log(np.full(3, -60.0))[-1]) == pytest.approx(least)


# --- bounds --------------------------------------------------------------------------------------


def test_bounds_and_start_of_the_noise_respect_the_floor():
    def noise(floor):
        problem = Problem(NamedKernel("rbf", 1), sine_rows(12), noise_floor=floor)
        return np.exp([problem.start()[-1], *problem.bounds()[-1]])

    np.testing.assert_allclose(noise(1e-8), [0.05, 1e-8, 100.0])
    standard = Problem(NamedKernel("rbf", 1), sine_rows(12)).bounds()[-1]
    assert standard == pytest.approx((math.log(1e-8), math.log(1e2)))
    np.testing.assert_allclose(noise(0.1), [0.2, 0.1, 100.0])
    np.testing.assert_allclose(noise(80.0), [160.0, 80.0, 80.0 * math.e])


def test_no_evaluation_leaves_the_bounds():
    bowl = Bowl(bound=0.2)  # the minimum is outside, and so is the start
    fitted = minimise(bowl, steps=30)
    assert np.abs(bowl.visited).max() <= 0.2
    assert np.abs(fitted.parameters).max() <= 0.2


@pytest.mark.parametrize("optimizer", ["lbfgs", "adam"])
def test_noise_never_falls_below_the_floor(optimizer):
    rows = sine_rows(noise=0.0)
    problem = Problem(NamedKernel("rbf", 1), rows, noise_floor=1e-3, use_prior=False)
    fitted = minimise(problem, optimizer=optimizer, lr=0.3, steps=60)
    assert fitted.parameters[-1] >= math.log(1e-3)
    assert fitted.parameters[-1] == pytest.approx(math.log(1e-3), abs=0.1)


def test_the_start_is_above_even_a_high_floor():
    problem = Problem(NamedKernel("rbf", 1), sine_rows(), noise_floor=500.0)
    lower, upper = problem.bounds()[-1]
    assert lower < problem.start()[-1] < upper


# --- the problem ---------------------------------------------------------------------------------


def test_value_is_the_objective_over_the_number_of_rows_before_merging():
    rows = sine_rows(n=10)
    rows = replace(rows, c=torch.arange(1, 11, dtype=torch.float64))
    problem = Problem(NamedKernel("rbf", 1), rows, use_prior=False)
    posterior = ExactPosterior(problem.kernel, problem.start(), rows)
    f, s = posterior.factored()
    assert problem(problem.start())[0] == pytest.approx(nll(f, rows, s).value / 55)


@pytest.mark.parametrize("objective", ["nll", "loo", "heldout"])
def test_known_noise_and_weights_are_in_the_value_and_the_gradient(objective):
    rng = np.random.default_rng(1)
    rows = replace(
        sine_rows(n=8),
        c=torch.as_tensor(rng.choice([0.5, 1.0, 3.0], size=8)),
        q=torch.as_tensor(rng.uniform(size=8)),
        extra=torch.as_tensor(rng.uniform(size=8)),
    )
    R = torch.as_tensor(rng.uniform(size=8))
    problem = Problem(NamedKernel("rbf", 1), rows, objective, R, use_prior=False)
    parameters = np.array([0.2, -0.1, -1.0])
    f, s = ExactPosterior(problem.kernel, parameters, rows).factored()
    K = problem.kernel.evaluate(rows.X, parameters[:-1])[0]
    torch.testing.assert_close(s, math.exp(-1.0) + rows.extra)
    torch.testing.assert_close(f.L @ f.L.T, K + torch.diag(s / rows.c))
    of = {"nll": nll, "loo": loo_density, "heldout": heldout_variance}[objective]
    expected = of(f, rows, s, R) if objective == "heldout" else of(f, rows, s)
    value, gradient = problem(parameters)
    assert value == pytest.approx(expected.value / rows.total, rel=1e-12)
    for j, h in enumerate(1e-5 * np.eye(3)):
        slope = (problem(parameters + h)[0] - problem(parameters - h)[0]) / 2e-5
        assert gradient[j] == pytest.approx(slope, rel=1e-6, abs=1e-9)
    assert problem.evaluations == 7
    assert problem.jitter == 0.0


def test_counters_are_not_constructor_arguments():
    for name in ("evaluations", "jitter"):
        with pytest.raises(TypeError, match=name):
            Problem(NamedKernel("rbf", 1), sine_rows(n=5), **{name: 1})


def test_prior_is_the_gaussian_that_the_kernel_states():
    kernel = NamedKernel("matern32", 1)
    rows = sine_rows()
    parameters = np.array([0.4, -0.3, -2.0])
    mean, precision = kernel.prior()
    mean, precision = np.append(mean, math.log(1e-2)), np.append(precision, 1 / 9)
    expected = 0.5 * precision @ (parameters - mean) ** 2 / len(rows)
    with_prior = Problem(kernel, rows)(parameters)[0]
    without = Problem(kernel, rows, use_prior=False)(parameters)[0]
    assert with_prior - without == pytest.approx(expected)


def test_jitter_that_was_needed_is_reported():
    n = 30
    one = torch.ones(n, dtype=torch.float64)
    # Rows so close together that their matrix is singular to working precision.
    X = 1e-9 * torch.arange(n, dtype=torch.float64)[:, None]
    problem = Problem(NamedKernel("rbf", 1), Rows(X, one, one, 0 * one, 0 * one), noise_floor=1e-18)
    problem(np.array([0.0, 0.0, math.log(1e-18)]))
    assert problem.jitter > 0.0


# --- the options ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"optimizer": "sgd"}, "optimizer='sgd'"),
        ({"schedule": "linear"}, "schedule='linear'"),
        ({"steps": -1}, "steps=-1"),
        ({"refine_steps": -2}, "refine_steps=-2"),
        ({"lr": 0.0}, "lr=0.0"),
        ({"lr": math.nan}, "lr=nan"),
        ({"refine_lr": -1.0}, "refine_lr=-1.0"),
        ({"restart_every": 0}, "restart_every=0"),
        ({"subsample": 1}, "subsample=1"),
    ],
)
def test_an_impossible_option_is_named_with_its_value(options, named):
    with pytest.raises(InputError, match=named):
        Training(**options)


def test_zero_steps_and_no_decay_are_possible():
    few = Training(steps=0, refine_steps=0, weight_decay=0.0, subsample=2, restart_every=1)
    assert few.subsample == 2
    with pytest.raises(InputError, match="weight_decay"):
        Training(weight_decay=-0.1)


def test_the_defaults_of_an_optimiser_are_those_of_the_options():
    stated = asdict(Training())
    assert stated == {
        "optimizer": "lbfgs",
        "steps": 100,
        "lr": 0.1,
        "schedule": "none",
        "subsample": None,
        "refine_steps": 10,
        "refine_lr": 0.1,
        "restart_every": 10,
        "weight_decay": 0.01,
    }
    for name, parameter in inspect.signature(minimise).parameters.items():
        if name in stated:
            assert parameter.default == stated[name]


def test_training_is_frozen():
    with pytest.raises(FrozenInstanceError):
        Training().steps = 3


def test_equal_trainings_are_equal_and_hash_alike():
    assert Training(steps=3) == Training(steps=3)
    assert len({Training(steps=3), Training(steps=3), Training(steps=4)}) == 2


def test_training_can_be_pickled():
    training = Training(optimizer="adamw", subsample=500)
    assert pickle.loads(pickle.dumps(training)) == training


def test_training_can_be_cloned_by_scikit_learn():
    class Estimator(BaseEstimator):
        def __init__(self, training=None):
            self.training = training

    training = Training(optimizer="adamw", schedule="cosine")
    assert clone(Estimator(training)).training == training
