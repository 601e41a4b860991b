"""Tests that every engine must pass, to be inherited.

A subclass defines how to make the engine; pytest finds the inherited tests::

    class TestMyEngine(EngineContract):
        def make_engine(self, rows, noise_floor):
            return MyEngine(rows, noise_floor=noise_floor)

The tests compare an engine with itself (derivatives with finite differences, held-out predictions
with predictions from the other rows, extended posteriors with new ones) and, if the engine can use
all rows for every prediction, with brute force.
"""

from __future__ import annotations

import pickle
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from twostagegp.data.rows import Rows
from twostagegp.kernels import Kernel, make_kernel

__all__ = ["EngineContract", "example_rows"]


def example_rows(kind: str = "plain", n: int = 30, seed: int = 0) -> Rows:
    """Return n rows of two columns.

    ``kind`` is ``"plain"``, ``"weighted"`` (copies, weights below one, known noise) or
    ``"grouped"``.
    """
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    y = np.sin(2.0 * X[:, 0]) + 0.3 * rng.normal(size=n)
    c, extra = np.ones(n), np.zeros(n)
    if kind == "weighted":
        c, extra = rng.choice([0.5, 1.0, 2.0, 3.0], size=n), rng.choice([0.0, 0.3], size=n)
    q = np.where(c > 1.0, rng.uniform(0.0, 0.3, size=n), 0.0)
    groups = torch.as_tensor(rng.integers(0, 6, size=n)) if kind == "grouped" else None
    parts = (torch.as_tensor(values) for values in (X, y, c, q, extra))
    inputs, target, weight, within, known = parts
    return Rows(inputs, target, weight, within, known, groups)


class EngineContract:
    """Tests of the engine protocol.

    Attributes
    ----------
    kinds : tuple of str
        Kinds of rows that the engine accepts (:func:`example_rows`).
    objectives : tuple of str
        Objectives of the training problems that it poses.
    uses_all_rows : bool
        Whether the engine that :meth:`make_engine` makes predicts from all rows, so that it must
        agree with brute force.
    extends_exactly : bool
        Whether an extended posterior predicts the same as a new one on all rows.
    exact_gradients : bool
        Whether derivatives of training problems are exact rather than estimated.
    several_targets : bool
        Whether rows may have several targets, as the classifier requires.
    tolerance : float
        Largest difference from brute force, for a target of about unit size.
    """

    kinds: tuple[str, ...] = ("plain", "weighted", "grouped")
    objectives: tuple[str, ...] = ("nll", "loo", "heldout")
    uses_all_rows = True
    extends_exactly = True
    exact_gradients = True
    several_targets = True
    tolerance = 1e-8

    def make_engine(self, rows: Rows, noise_floor: float) -> Any:
        """Return the engine on these rows."""
        raise NotImplementedError

    @property
    def kernel(self) -> Kernel:
        """The kernel of the tests."""
        return make_kernel("matern52", 2, ard=True)

    @property
    def parameters(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Parameters (theta, log noise variance) of the tests."""
        return np.array([-0.1, 0.4, 0.2, np.log(0.1)])

    @property
    def queries(self) -> Tensor:
        """Points to predict; the last one is a training row."""
        new = np.random.default_rng(1).normal(size=(7, 2))
        return torch.cat([torch.as_tensor(new), example_rows().X[:1]])

    def posterior(self, rows: Rows) -> Any:
        """Return the engine of these rows, conditioned at the parameters of the tests."""
        return self.make_engine(rows, 1e-8).condition(self.kernel, self.parameters)

    def brute_force(self, rows: Rows, X: Tensor) -> tuple[Tensor, Tensor]:
        """Return the posterior mean and covariance at X by an explicit inverse."""
        theta, noise = self.parameters[:-1], float(np.exp(self.parameters[-1]))
        K = self.kernel.cross(rows.X, rows.X, theta)
        K = K + torch.diag((noise + rows.extra) / rows.c)
        k = self.kernel.cross(X, rows.X, theta)
        A = torch.linalg.inv(K)
        return k @ A @ rows.t, self.kernel.cross(X, X, theta) - k @ A @ k.T

    # --- predictions -----------------------------------------------------------------------------

    def test_shapes_and_hyperparameters(self) -> None:
        rows = example_rows()
        posterior = self.posterior(rows)
        n = len(self.queries)
        assert posterior.mean(self.queries).shape == (n,)
        assert posterior.variance(self.queries).shape == (n,)
        assert posterior.covariance(self.queries).shape == (n, n)
        assert bool((posterior.variance(self.queries) >= 0.0).all())
        np.testing.assert_array_equal(posterior.parameters, self.parameters)
        assert abs(posterior.noise - np.exp(self.parameters[-1])) < 1e-12
        assert posterior.rows is rows
        assert posterior.jitter >= 0.0

    def test_variance_is_the_diagonal_of_the_covariance(self) -> None:
        posterior = self.posterior(example_rows("weighted"))
        C = posterior.covariance(self.queries)
        variance = posterior.variance(self.queries)
        torch.testing.assert_close(C.diagonal(), variance, atol=1e-8, rtol=0)
        torch.testing.assert_close(C, C.T, atol=1e-10, rtol=0)

    def test_predictions_equal_brute_force(self) -> None:
        if not self.uses_all_rows:
            return
        for kind in self.kinds:
            rows = example_rows(kind)
            posterior = self.posterior(rows)
            mean, covariance = self.brute_force(rows, self.queries)
            found = posterior.mean(self.queries), posterior.covariance(self.queries)
            torch.testing.assert_close(found, (mean, covariance), atol=self.tolerance, rtol=0)

    def test_the_mean_works_without_the_factor(self) -> None:
        posterior = self.posterior(example_rows())
        before = posterior.mean(self.queries)
        posterior.drop_factor()
        torch.testing.assert_close(posterior.mean(self.queries), before, atol=0, rtol=0)

    def test_pickling_keeps_predictions(self) -> None:
        posterior = self.posterior(example_rows())
        again = pickle.loads(pickle.dumps(posterior))
        torch.testing.assert_close(again.mean(self.queries), posterior.mean(self.queries))
        torch.testing.assert_close(again.variance(self.queries), posterior.variance(self.queries))

    # --- held-out rows ---------------------------------------------------------------------------

    def test_heldout_of_an_index_equals_the_same_rows_of_all(self) -> None:
        for kind in self.kinds:
            posterior = self.posterior(example_rows(kind))
            index = torch.tensor([5, 2, 17])
            some, every = posterior.heldout(index), posterior.heldout()
            for part in ("residual", "slope", "variance"):
                expected = getattr(every, part)[index]
                torch.testing.assert_close(getattr(some, part), expected, atol=1e-8, rtol=1e-8)

    def test_held_out_predictions_do_not_depend_on_the_row(self) -> None:
        """Change a target: its residual changes by as much, its held-out prediction does not."""
        for kind in ("plain", "grouped"):
            rows = example_rows(kind)
            t = rows.t.clone()
            t[4] += 3.0
            before = self.posterior(rows).heldout()
            after = self.posterior(rows.with_target(t)).heldout()
            predicted = (rows.t - before.residual)[4], (t - after.residual)[4]
            assert abs(float(predicted[0] - predicted[1])) < 1e-6, kind
            torch.testing.assert_close(after.variance, before.variance, atol=1e-8, rtol=0)

    def test_held_out_predictions_equal_refits(self) -> None:
        if not self.uses_all_rows:
            return
        for kind in ("plain", "grouped"):
            rows = example_rows(kind)
            held = self.posterior(rows).heldout()
            for i in (0, 11):
                own = torch.arange(len(rows)) == i
                if rows.groups is not None:
                    own = rows.groups == rows.groups[i]
                others = rows.subset(torch.nonzero(~own)[:, 0])
                mean, covariance = self.brute_force(others, rows.X[i : i + 1])
                noise = float(np.exp(self.parameters[-1]))
                assert abs(float(rows.t[i] - mean - held.residual[i])) < 10 * self.tolerance
                variance = float(covariance[0, 0]) + noise
                assert abs(variance - float(held.variance[i])) < 10 * self.tolerance

    # --- training --------------------------------------------------------------------------------

    def test_gradients_equal_finite_differences(self) -> None:
        if not self.exact_gradients:
            return
        x = self.parameters
        for kind in self.kinds:
            rows = example_rows(kind)
            R = torch.as_tensor(np.random.default_rng(2).uniform(0.1, 2.0, size=len(rows)))
            for objective in self.objectives:
                problem = self.make_engine(rows, 1e-8).problem(self.kernel, objective, R, None, x)
                _, gradient = problem(x)
                for j in range(len(x)):
                    step = np.zeros(len(x))
                    step[j] = 1e-5
                    slope = (problem(x + step)[0] - problem(x - step)[0]) / 2e-5
                    assert abs(slope - gradient[j]) < 1e-5, (kind, objective, j)

    def test_a_batch_of_all_rows_equals_the_whole_problem(self) -> None:
        rows, x = example_rows(), self.parameters
        engine = self.make_engine(rows, 1e-8)
        for objective in self.objectives:
            R = torch.ones(len(rows), dtype=torch.float64)
            whole = engine.problem(self.kernel, objective, R, None, x)
            batch = engine.problem(self.kernel, objective, R, torch.arange(len(rows)), x)
            assert abs(whole(x)[0] - batch(x)[0]) < 1e-10

    def test_a_small_batch_has_a_finite_value_and_gradient(self) -> None:
        engine, x = self.make_engine(example_rows(), 1e-8), self.parameters
        for objective in self.objectives:
            R = torch.ones(8, dtype=torch.float64)
            value, gradient = engine.problem(self.kernel, objective, R, torch.arange(8), x)(x)
            assert np.isfinite(value)
            assert np.isfinite(gradient).all()

    def test_a_problem_is_not_stale_where_it_was_posed(self) -> None:
        engine, x = self.make_engine(example_rows(), 1e-8), self.parameters
        assert not engine.problem(self.kernel, self.objectives[0], None, None, x).is_stale(x)

    def test_start_and_bounds_respect_the_noise_floor(self) -> None:
        problem = self.make_engine(example_rows(), 1e-3).problem(self.kernel, self.objectives[0])
        assert np.isclose(problem.bounds()[-1][0], np.log(1e-3))
        assert problem.start()[-1] >= np.log(1e-3)
        assert len(problem.start()) == len(problem.bounds()) == self.kernel.size + 1

    # --- several targets -------------------------------------------------------------------------

    def several(self, kind: str, own_noise: bool) -> Rows:
        """Return rows with three targets, with known noise in common or one per target."""
        rows, rng = example_rows(kind), np.random.default_rng(5)
        t = torch.as_tensor(rng.normal(size=(len(rows), 3)))
        extra = torch.as_tensor(rng.choice([0.1, 0.6], size=(len(rows), 3)))
        return replace(
            rows, t=t, q=torch.zeros_like(rows.q), extra=extra if own_noise else rows.extra
        )

    def test_several_targets_are_predicted_as_each_target_alone(self) -> None:
        if not self.several_targets:
            return
        for kind, own_noise in product(self.kinds, (False, True)):
            rows = self.several(kind, own_noise)
            together = self.posterior(rows)
            assert together.jitter >= 0.0
            parts = [self.posterior(rows.of_target(k)) for k in range(3)]
            mean = torch.stack([part.mean(self.queries) for part in parts], dim=1)
            torch.testing.assert_close(together.mean(self.queries), mean, atol=1e-8, rtol=1e-8)
            variance = torch.stack([part.variance(self.queries) for part in parts], dim=1)
            found = together.variance(self.queries)
            found = found if own_noise else found[:, None].expand(-1, 3)
            torch.testing.assert_close(found, variance, atol=1e-8, rtol=1e-8)
            covariance = torch.stack([part.covariance(self.queries) for part in parts], dim=2)
            found = together.covariance(self.queries)
            found = found if own_noise else found[:, :, None].expand(-1, -1, 3)
            torch.testing.assert_close(found, covariance, atol=1e-7, rtol=1e-7)

    def test_several_targets_are_held_out_as_each_target_alone(self) -> None:
        if not self.several_targets:
            return
        index = torch.tensor([5, 2, 17])
        for kind, own_noise in product(self.kinds, (False, True)):
            rows = self.several(kind, own_noise)
            together = self.posterior(rows).heldout(index)
            for k in range(3):
                alone = self.posterior(rows.of_target(k)).heldout(index)
                torch.testing.assert_close(
                    together.residual[:, k], alone.residual, atol=1e-8, rtol=1e-8
                )
                for part in ("slope", "variance"):
                    found = getattr(together, part)
                    found = found[:, k] if own_noise else found
                    expected = getattr(alone, part)
                    torch.testing.assert_close(found, expected, atol=1e-8, rtol=1e-8)

    def test_several_targets_are_trained_by_the_mean_of_their_problems(self) -> None:
        if not self.several_targets:
            return
        x = self.parameters
        for kind, own_noise in product(self.kinds, (False, True)):
            rows = self.several(kind, own_noise)
            R = torch.as_tensor(np.random.default_rng(2).uniform(0.1, 2.0, size=(len(rows), 3)))
            for objective in self.objectives:
                together = self.make_engine(rows, 1e-8).problem(self.kernel, objective, R, None, x)
                together.use_prior = False
                parts = []
                for k in range(3):
                    engine = self.make_engine(rows.of_target(k), 1e-8)
                    part = engine.problem(self.kernel, objective, R[:, k], None, x)
                    part.use_prior = False
                    parts.append(part(x))
                value, gradient = together(x)
                assert abs(value - np.mean([v for v, _ in parts])) < 1e-9, (kind, objective)
                if self.exact_gradients:
                    mean = np.mean([g for _, g in parts], axis=0)
                    np.testing.assert_allclose(gradient, mean, rtol=1e-7, atol=1e-9)

    # --- other rows ------------------------------------------------------------------------------

    def test_a_subset_predicts_as_an_engine_on_those_rows(self) -> None:
        rows, index = example_rows("weighted"), np.arange(0, 30, 2)
        part = self.make_engine(rows, 1e-8).subset(index)
        assert len(part.rows) == len(index)
        found = part.condition(self.kernel, self.parameters).mean(self.queries)
        expected = self.posterior(rows.subset(index)).mean(self.queries)
        torch.testing.assert_close(found, expected)

    def test_targets_and_noise_floor_can_be_replaced(self) -> None:
        rows = example_rows()
        engine = self.make_engine(rows, 1e-8)
        residuals = rows.with_target(-2.0 * rows.t)
        other = engine.with_rows(residuals).with_noise_floor(1e-2)
        assert other.noise_floor == 1e-2
        assert engine.noise_floor == 1e-8
        found = other.condition(self.kernel, self.parameters)
        before = engine.condition(self.kernel, self.parameters)
        torch.testing.assert_close(found.mean(self.queries), -2.0 * before.mean(self.queries))
        torch.testing.assert_close(found.variance(self.queries), before.variance(self.queries))

    def test_an_extended_posterior_predicts_as_a_new_one(self) -> None:
        rows = example_rows("weighted", n=36)
        c = rows.c.clone()
        c[3] = 1.0
        first = Rows(rows.X, rows.t, c, rows.q, rows.extra).subset(np.arange(30))
        extended = self.posterior(first).extended(rows, torch.tensor([3]))
        new = self.posterior(rows)
        if self.extends_exactly:
            torch.testing.assert_close(extended.mean(self.queries), new.mean(self.queries))
            found, expected = extended.variance(self.queries), new.variance(self.queries)
            torch.testing.assert_close(found, expected, atol=self.tolerance, rtol=1e-6)
        assert len(extended.rows) == 36
