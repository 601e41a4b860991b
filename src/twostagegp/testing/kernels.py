"""What every kernel must satisfy, as tests to inherit.

A subclass says how to make the kernel; pytest finds the inherited tests::

    class TestMyKernel(KernelContract):
        def make_kernel(self, n_features):
            return MyKernel(n_features)

The tests compare a kernel with itself (the matrix of a table with that of two tables, batches of
problems with one problem at a time), its derivatives with finite differences, and both with the
GPyTorch kernel that ``to_gpytorch`` returns. The engines must be able to use it: predictions from
all rows as neighbours, compiled if the kernel has a compiled form, equal exact ones.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from twostagegp.data.rows import Rows
from twostagegp.engines.exact.engine import ExactEngine
from twostagegp.engines.neighbors.engine import NeighborEngine
from twostagegp.kernels import Kernel, Vector, WrappedKernel
from twostagegp.kernels.batched import kernel_batch
from twostagegp.kernels.gpytorch import dense

__all__ = ["KernelContract"]

Array = NDArray[np.float64]


class KernelContract:
    """Tests of the interface :class:`~twostagegp.kernels.Kernel`.

    Attributes
    ----------
    columns : tuple of int
        Numbers of columns of the tables of the tests.
    stationary : bool
        Whether the kernel depends on the difference of two rows alone.
    has_prior : bool
        Whether there is a prior on every entry of ``theta``.
    exact_distances : bool
        Whether the distance of two equal rows is exactly zero. GPyTorch's is the square root of a
        rounding error, which shows in kernels with a kink at distance zero.
    """

    columns: tuple[int, ...] = (3,)
    stationary = True
    has_prior = True
    exact_distances = True

    def make_kernel(self, n_features: int) -> Kernel:
        """Return the kernel for a table with this many columns."""
        raise NotImplementedError

    # --- tables and parameters of the tests ------------------------------------------------------

    def kernels(self) -> Iterator[tuple[int, Kernel, Vector]]:
        """Yield number of columns, kernel and parameters of every test."""
        for d in self.columns:
            kernel = self.make_kernel(d)
            yield d, kernel, self.parameters(kernel)

    def parameters(self, kernel: Kernel, seed: int = 1) -> Vector:
        """Return parameters away from the start, so that nothing cancels by symmetry."""
        rng = np.random.default_rng(seed)
        return kernel.start() + rng.normal(scale=0.4, size=kernel.size)

    def inputs(self, n: int, d: int, seed: int = 0) -> Tensor:
        """Return a table of n rows and d columns."""
        return torch.as_tensor(np.random.default_rng(seed).normal(size=(n, d)))

    def weights(self, *shape: int, symmetric: bool = False) -> Tensor:
        """Return random weights for inner products with derivatives."""
        W = np.random.default_rng(2).normal(size=shape)
        return torch.as_tensor(W + W.swapaxes(-1, -2) if symmetric else W)

    def tolerance(self, d: int) -> float:
        """Return the largest difference between covariances that should be equal.

        They have about unit size. Above 64 columns distances come from a matrix product, which
        leaves about the square root of the precision where a distance should be zero.
        """
        return 1e-10 if d <= 64 and self.exact_distances else 1e-6

    def assert_close(self, d: int, found: Tensor | Array, expected: Tensor | Array) -> None:
        """Compare two results for tables of d columns."""
        atol = max(1e-9, self.tolerance(d))
        np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=1e-7, atol=atol)

    # --- parameters ------------------------------------------------------------------------------

    def test_parameters_have_start_bounds_and_prior(self) -> None:
        for _, kernel, _ in self.kernels():
            start, (mean, precision) = kernel.start(), kernel.prior()
            assert start.shape == mean.shape == precision.shape == (kernel.size,)
            assert len(kernel.bounds()) == kernel.size
            lower, upper = np.array(kernel.bounds()).T
            assert np.all(lower < start)
            assert np.all(start < upper)
            assert np.all(precision > 0.0) if self.has_prior else np.all(precision >= 0.0)

    def test_label_and_lengthscales(self) -> None:
        for d, kernel, theta in self.kernels():
            assert isinstance(kernel.label, str)
            assert kernel.label.startswith(kernel.name)
            assert 0 <= kernel.lengthscale_slots <= kernel.size
            scales = kernel.lengthscales(theta)
            assert scales is None or (scales.shape == (d,) and bool((scales > 0.0).all()))

    # --- matrices --------------------------------------------------------------------------------

    def test_matrices_are_symmetric_and_positive_semidefinite(self) -> None:
        for d, kernel, _ in self.kernels():
            for seed, n in ((0, 1), (1, 6), (2, 12)):
                X = self.inputs(n, d, seed)
                X[n // 2] = X[0]  # a repeated row
                K, _ = kernel.evaluate(X, self.parameters(kernel, seed))
                torch.testing.assert_close(K, K.T, rtol=0.0, atol=self.tolerance(d))
                scale = max(1.0, float(K.diagonal().max()))
                least = float(torch.linalg.eigvalsh(K).min())
                assert least >= -self.tolerance(d) * n * scale, (seed, n)

    def test_evaluate_cross_and_diagonal_agree(self) -> None:
        for d, kernel, theta in self.kernels():
            X, Z = self.inputs(6, d), self.inputs(4, d, seed=3)
            K, _ = kernel.evaluate(X, theta)
            assert K.shape == (6, 6)
            torch.testing.assert_close(
                kernel.cross(X, X, theta), K, rtol=1e-10, atol=self.tolerance(d)
            )
            torch.testing.assert_close(
                kernel.diagonal(X, theta), K.diagonal(), rtol=1e-10, atol=self.tolerance(d)
            )
            torch.testing.assert_close(
                kernel.cross(X, Z, theta), kernel.cross(Z, X, theta).T, rtol=1e-12, atol=1e-12
            )

    def test_cross_with_equals_cross(self) -> None:
        for d, kernel, theta in self.kernels():
            Z = self.inputs(4, d, seed=3)
            of = kernel.cross_with(Z, theta)
            for n in (1, 6):
                X = self.inputs(n, d)
                torch.testing.assert_close(of(X), kernel.cross(X, Z, theta), rtol=0.0, atol=0.0)

    def test_rows_may_come_in_any_order(self) -> None:
        for d, kernel, theta in self.kernels():
            X, order = self.inputs(6, d), torch.tensor([3, 0, 5, 1, 4, 2])
            K, permuted = kernel.evaluate(X, theta)[0], kernel.evaluate(X[order], theta)[0]
            torch.testing.assert_close(
                permuted, K[order][:, order], rtol=1e-12, atol=self.tolerance(d)
            )

    def test_a_stationary_kernel_depends_on_differences(self) -> None:
        if not self.stationary:
            return
        for d, kernel, theta in self.kernels():
            X, Z = self.inputs(6, d), self.inputs(4, d, seed=3)
            moved = kernel.cross(X + 0.5, Z + 0.5, theta)
            atol = self.tolerance(d)
            torch.testing.assert_close(moved, kernel.cross(X, Z, theta), rtol=0.0, atol=atol)

    def test_lengthscales_are_in_the_units_of_the_inputs(self) -> None:
        for d, kernel, theta in self.kernels():
            X, Z = self.inputs(6, d), self.inputs(4, d, seed=3)
            longer = theta.copy()
            longer[: kernel.lengthscale_slots] += np.log(3.0)
            if kernel.lengthscale_slots:
                found = kernel.cross(3.0 * X, 3.0 * Z, longer)
                torch.testing.assert_close(found, kernel.cross(X, Z, theta), rtol=1e-10, atol=1e-10)

    def test_arguments_are_not_changed(self) -> None:
        for d, kernel, theta in self.kernels():
            X, given = self.inputs(6, d), theta.copy()
            W = self.weights(6, 6, symmetric=True)
            before = X.clone(), W.clone()
            K, saved = kernel.evaluate(X, theta)
            kernel.gradient(X, theta, K, saved, W)
            kernel.cross_gradient(X, X, theta, W)
            assert torch.equal(X, before[0])
            assert torch.equal(W, before[1])
            np.testing.assert_array_equal(theta, given)

    def test_the_matrix_may_be_written_to(self) -> None:
        """Engines add noise to its diagonal, and take it off before they ask for the gradient."""
        for d, kernel, theta in self.kernels():
            X, W = self.inputs(5, d), self.weights(5, 5, symmetric=True)
            K, saved = kernel.evaluate(X, theta)
            expected, gradient = K.clone(), kernel.gradient(X, theta, K, saved, W)
            K, saved = kernel.evaluate(X, theta)
            assert not K.requires_grad
            diagonal = K.diagonal().clone()
            K.diagonal().add_(1.0)
            torch.testing.assert_close(kernel.evaluate(X, theta)[0], expected, rtol=0.0, atol=0.0)
            K, saved = kernel.evaluate(X, theta)
            K.diagonal().add_(1.0)
            K.diagonal().copy_(diagonal)
            np.testing.assert_array_equal(kernel.gradient(X, theta, K, saved, W), gradient)

    def test_float32_inputs_give_float32_matrices(self) -> None:
        for d, kernel, theta in self.kernels():
            X, Z = self.inputs(6, d), self.inputs(4, d, seed=3)
            found = (
                kernel.evaluate(X.float(), theta)[0],
                kernel.cross(X.float(), Z.float(), theta),
                kernel.diagonal(X.float(), theta),
            )
            expected = (
                kernel.evaluate(X, theta)[0],
                kernel.cross(X, Z, theta),
                kernel.diagonal(X, theta),
            )
            atol = 1e-5 if d <= 64 and self.exact_distances else 1e-3
            for one, other in zip(found, expected, strict=True):
                assert one.dtype == torch.float32
                torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=atol)

    def test_a_copy_is_the_same_kernel(self) -> None:
        for d, kernel, theta in self.kernels():
            self.assert_same_kernel(copy.deepcopy(kernel), kernel, d, theta)

    def test_pickling_keeps_the_kernel(self) -> None:
        for d, kernel, theta in self.kernels():
            self.assert_same_kernel(pickle.loads(pickle.dumps(kernel)), kernel, d, theta)

    def assert_same_kernel(self, one: Kernel, other: Kernel, d: int, theta: Vector) -> None:
        """Compare label, size and covariances of two kernels."""
        X, Z = self.inputs(6, d), self.inputs(4, d, seed=3)
        assert (one.label, one.size) == (other.label, other.size)
        torch.testing.assert_close(
            one.cross(X, Z, theta), other.cross(X, Z, theta), rtol=0.0, atol=0.0
        )

    # --- derivatives -----------------------------------------------------------------------------

    def assert_slopes(
        self, gradient: Vector, matrix: Callable[[Vector], Tensor], W: Tensor, theta: Vector
    ) -> None:
        """Compare inner products of W with derivatives of a matrix with finite differences."""
        assert gradient.shape == theta.shape
        expected = _jacobian(lambda p: (W * matrix(p)).sum().reshape(1).numpy(), theta)[0]
        np.testing.assert_allclose(gradient, expected, rtol=1e-7, atol=1e-7)

    def test_gradient_equals_finite_differences(self) -> None:
        for d, kernel, theta in self.kernels():
            X, W = self.inputs(8, d), self.weights(8, 8, symmetric=True)
            if d <= 64 and self.exact_distances:
                X[5] = X[2]  # a distance of zero
            if not self.exact_distances:
                W.diagonal().zero_()
            K, saved = kernel.evaluate(X, theta)
            gradient = kernel.gradient(X, theta, K, saved, W)
            self.assert_slopes(gradient, partial(_own_matrix, kernel, X), W, theta)

    def test_cross_gradient_equals_finite_differences(self) -> None:
        for d, kernel, theta in self.kernels():
            X, Z, W = self.inputs(6, d), self.inputs(4, d, seed=3), self.weights(6, 4)
            gradient = kernel.cross_gradient(X, Z, theta, W)
            self.assert_slopes(gradient, partial(kernel.cross, X, Z), W, theta)

    def test_diagonal_gradient_equals_finite_differences(self) -> None:
        for d, kernel, theta in self.kernels():
            X, w = self.inputs(6, d), self.weights(6)
            gradient = kernel.diagonal_gradient(X, theta, w)
            self.assert_slopes(gradient, partial(kernel.diagonal, X), w, theta)

    # --- the kernel as a GPyTorch module ---------------------------------------------------------

    def test_the_gpytorch_kernel_has_the_same_covariances(self) -> None:
        for d, kernel, theta in self.kernels():
            X, Z = self.inputs(7, d), self.inputs(5, d, seed=3)
            with torch.no_grad():
                exported = dense(kernel.to_gpytorch(theta), X, Z)
            torch.testing.assert_close(kernel.cross(X, Z, theta), exported, rtol=1e-8, atol=1e-10)

    def test_gradient_equals_autograd_through_the_gpytorch_kernel(self) -> None:
        r"""By the chain rule: autograd by the raw parameters, times their derivatives by theta."""
        for d, kernel, theta in self.kernels():
            X, W = self.inputs(8, d), self.weights(8, 8, symmetric=True)
            W.diagonal().zero_()  # GPyTorch's distances of a row to itself are not exactly zero
            K, saved = kernel.evaluate(X, theta)
            gradient = kernel.gradient(X, theta, K, saved, W)
            module = kernel.to_gpytorch(theta).requires_grad_(True)
            raw = list(module.parameters())
            by_raw = torch.autograd.grad((dense(module, X, X) * W).sum(), raw, allow_unused=True)
            slopes = [
                np.zeros(p.numel()) if g is None else g.reshape(-1).numpy()
                for p, g in zip(raw, by_raw, strict=True)
            ]
            chain = _jacobian(partial(_raw_parameters, kernel), theta)
            np.testing.assert_allclose(
                gradient, np.concatenate(slopes) @ chain, rtol=1e-8, atol=1e-8
            )

    def test_the_gpytorch_kernel_can_be_wrapped_again(self) -> None:
        for d, kernel, theta in self.kernels():
            X, Z = self.inputs(6, d), self.inputs(4, d, seed=3)
            again = WrappedKernel(kernel.to_gpytorch(theta), d)
            # A GPyTorch kernel without an outputscale gets one, which starts at log(2).
            factor = float(again.diagonal(X, again.start())[0] / kernel.diagonal(X, theta)[0])
            found = again.cross(X, Z, again.start()) / factor
            torch.testing.assert_close(found, kernel.cross(X, Z, theta), rtol=1e-8, atol=1e-10)

    # --- batches of problems ---------------------------------------------------------------------

    def test_problems_of_a_batch_share_a_parameter_vector(self) -> None:
        for d, kernel, theta in self.kernels():
            X, W = self.batch_inputs(5, 6, d), self.weights(5, 6, 6, symmetric=True)
            shared = torch.as_tensor(theta)[None]
            batch = kernel_batch(kernel, X)
            K, saved = batch.evaluate(slice(None), shared)
            gradient = batch.gradient(shared, K, saved, W)
            assert gradient.shape == (1, kernel.size)
            assert not K.requires_grad
            total = np.zeros(kernel.size)
            for b in range(5):
                single, single_saved = kernel.evaluate(X[b], theta)
                torch.testing.assert_close(K[b], single, rtol=1e-10, atol=self.tolerance(d))
                total += kernel.gradient(X[b], theta, single, single_saved, W[b])
            np.testing.assert_allclose(
                gradient[0].numpy(), total, rtol=self.tolerance(d), atol=self.tolerance(d)
            )

    def test_problems_of_a_batch_have_their_own_parameters(self) -> None:
        for d, kernel, _ in self.kernels():
            for size in (1, 2, 3):
                X, Z = self.batch_inputs(size, 6, d), self.batch_inputs(size, 4, d, seed=3)
                W = self.weights(size, 6, 6, symmetric=True)
                own = np.stack([self.parameters(kernel, seed) for seed in range(size)])
                theta = torch.as_tensor(own)
                batch = kernel_batch(kernel, X)
                K, saved = batch.evaluate(slice(None), theta)
                gradient = batch.gradient(theta, K, saved, W)
                cross, diagonal = batch.cross(X, Z, theta), batch.diagonal(Z, theta)
                for b, th in enumerate(own):
                    single, single_saved = kernel.evaluate(X[b], th)
                    slope = kernel.gradient(X[b], th, single, single_saved, W[b])
                    self.assert_close(d, K[b], single)
                    self.assert_close(d, gradient[b].numpy(), slope)
                    self.assert_close(d, cross[b], kernel.cross(X[b], Z[b], th))
                    self.assert_close(d, diagonal[b], kernel.diagonal(Z[b], th))

    def test_problems_of_a_batch_share_their_inputs(self) -> None:
        for d, kernel, _ in self.kernels():
            X, Z = self.batch_inputs(1, 6, d), self.batch_inputs(1, 4, d, seed=3)
            own = np.stack([self.parameters(kernel, seed) for seed in range(3)])
            batch = kernel_batch(kernel, X)
            cross = batch.cross(X, Z, torch.as_tensor(own))
            diagonal = batch.diagonal(Z, torch.as_tensor(own))
            assert diagonal.shape == (3, 4)
            for b, th in enumerate(own):
                self.assert_close(d, cross[b], kernel.cross(X[0], Z[0], th))
                self.assert_close(d, diagonal[b], kernel.diagonal(Z[0], th))

    def batch_inputs(self, size: int, n: int, d: int, seed: int = 0) -> Tensor:
        """Return one table per problem, shape (size, n, d)."""
        return self.inputs(size * n, d, seed).reshape(size, n, d)

    # --- engines ---------------------------------------------------------------------------------

    def test_neighbour_predictions_from_all_rows_equal_exact_ones(self) -> None:
        """The neighbour engine uses the compiled form of the kernel, if there is one."""
        for d, kernel, theta in self.kernels():
            rows, queries = self.rows(d), self.inputs(9, d, seed=4)
            x = np.append(theta, np.log(0.1))
            exact = ExactEngine(rows).condition(kernel, x)
            local = NeighborEngine(rows, len(rows)).condition(kernel, x)
            self.assert_close(d, local.mean(queries), exact.mean(queries))
            self.assert_close(d, local.variance(queries), exact.variance(queries))

    def test_neighbour_training_from_all_rows_equals_exact_training(self) -> None:
        for d, kernel, theta in self.kernels():
            rows, x = self.rows(d), np.append(theta, np.log(0.1))
            value, gradient = ExactEngine(rows).problem(kernel, "loo")(x)
            found = NeighborEngine(rows, len(rows)).problem(kernel, "loo", start=x)(x)
            assert abs(found[0] - value) < max(1e-9, self.tolerance(d))
            self.assert_close(d, found[1], gradient)

    def rows(self, d: int) -> Rows:
        """Return 20 training rows of d columns."""
        X = self.inputs(20, d)
        one = torch.ones(20, dtype=torch.float64)
        return Rows(X, torch.sin(X[:, 0]), one, 0.0 * one, 0.0 * one)


def _own_matrix(kernel: Kernel, X: Tensor, theta: Vector) -> Tensor:
    return kernel.evaluate(X, theta)[0]


def _raw_parameters(kernel: Kernel, theta: Vector) -> Array:
    """Return all raw parameters of the GPyTorch kernel as one vector."""
    parts = kernel.to_gpytorch(theta).parameters()
    return np.concatenate([p.detach().reshape(-1).double().numpy() for p in parts])


def _jacobian(of: Callable[[Vector], Array], theta: Vector, step: float = 1e-3) -> Array:
    """Return the derivatives of ``of`` by four-point differences, shape (len(of), len(theta)).

    Their error is about step^4, so the step can be large enough that rounding does not matter.
    """
    columns = []
    for j in range(len(theta)):
        h = np.zeros(len(theta))
        h[j] = step
        near, far = of(theta + h) - of(theta - h), of(theta + 2 * h) - of(theta - 2 * h)
        columns.append((8.0 * near - far) / (12.0 * step))
    return np.stack(columns, axis=1)
