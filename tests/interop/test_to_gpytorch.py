"""Tests of ``to_gpytorch``: GPyTorch objects with the moments of ``predict``."""

import gpytorch
import numpy as np
import pandas as pd
import pytest
import torch
from gpytorch.kernels import LinearKernel, MaternKernel, RBFKernel, ScaleKernel
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import Ridge
from torch.nn.modules.module import register_module_forward_hook

from twostagegp import ExactGPRegressor, GPNNRegressor, Training, TwoStageGPRegressor
from twostagegp.engines.exact.settings import ExactSettings
from twostagegp.errors import InputError, MemoryBudgetError, TwoStageGPWarning
from twostagegp.interop.gpytorch_model import as_gpytorch
from twostagegp.interop.parts import StackModule
from twostagegp.kernels import KERNELS

N = 50


def table(n=N, seed=0):
    """Return a table far from standardised: an offset, a constant column, increasing noise."""
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.uniform(300, 380, n), np.full(n, 7.0), rng.uniform(-1e-3, 1e-3, n)])
    f = np.sin(X[:, 0] / 12) + 800 * X[:, 2]
    return X, 1e4 + 50 * (f + (0.05 + 300 * np.abs(X[:, 2])) * rng.normal(size=n))


def quick(**options):
    settings = {"mean": ["rbf", "matern32"], "variance": "matern52", "random_state": 0}
    return TwoStageGPRegressor(**{**settings, **options})


@pytest.fixture(scope="module")
def new():
    X, _ = table(20, seed=1)
    return np.vstack([X, table()[0][:5]])  # training rows too


@pytest.fixture(scope="module")
def models():
    X, y = table()
    return {kind: quick(calibration=kind).fit(X, y) for kind in (None, "scale", "local")}


def agree(model, gp, X, rtol=1e-8):
    """Compare mean, variance of part 2 and observation variance, without the shape."""
    T = torch.as_tensor(X)
    mean, latent = (part[:, 0] for part in model.fitted_.moments(X)[:2])
    observed = model.predict(X, return_std=True)[1]
    calibration = getattr(model, "calibration_", None)
    g, std = 1.0, 1.0
    if calibration is not None:
        std = calibration.shape.std
        g = 1.0 if gp.local_factor is None else gp.local_factor(T).numpy()
    f = gp(T)
    np.testing.assert_allclose(f.mean.numpy(), mean, rtol=rtol)
    np.testing.assert_allclose(g * f.variance.numpy(), latent, rtol=rtol)
    y = gp.likelihood(f)
    np.testing.assert_allclose(g * y.variance.numpy(), (observed / std) ** 2, rtol=rtol)


class TestTwoStage:
    @pytest.mark.parametrize("kind", [None, "scale", "local"])
    def test_mean_and_variances_are_those_of_predict(self, models, new, kind):
        gp = models[kind].to_gpytorch()
        assert isinstance(gp, gpytorch.models.ExactGP)
        assert (gp.local_factor is not None) == (kind == "local")
        agree(models[kind], gp, new)

    def test_the_joint_covariance_is_that_of_predict(self, models, new):
        gp = models[None].to_gpytorch()
        ours = models[None].predict(new, return_cov=True)[1]
        theirs = gp.likelihood(gp(torch.as_tensor(new))).covariance_matrix.numpy()
        np.testing.assert_allclose(theirs, ours, rtol=1e-8, atol=1e-10 * ours.max())

    def test_batches_have_the_moments_of_single_rows(self, models, new):
        gp = models[None].to_gpytorch()
        X = torch.as_tensor(new[:24]).reshape(4, 6, 3)
        batched, flat = gp(X), gp(X.reshape(24, 3))
        torch.testing.assert_close(batched.mean.reshape(24), flat.mean)
        torch.testing.assert_close(batched.variance.reshape(24), flat.variance)

    def test_gradients_of_mean_and_variance_equal_finite_differences(self, models, new):
        gp = models["local"].to_gpytorch()
        scale = torch.tensor([20.0, 1.0, 1e-3], dtype=torch.float64)

        def moments(U):  # in units in which differences are of the same size
            f = gp(U * scale)
            return f.mean / 50, f.variance / 50**2, gp.local_factor(U * scale)

        U = (torch.as_tensor(new[:4]) / scale).requires_grad_()
        assert torch.autograd.gradcheck(moments, (U,), eps=1e-5, atol=1e-5, rtol=1e-4)

    def test_a_constant_column_makes_no_difference(self, models, new):
        gp = models[None].to_gpytorch()
        other = new.copy()
        other[:, 1] = -3.0
        np.testing.assert_array_equal(
            gp(torch.as_tensor(new)).mean.numpy(), gp(torch.as_tensor(other)).mean.numpy()
        )

    def test_weights_repeats_and_known_noise_are_converted(self, new):
        X, y = table()
        X, y = np.vstack([X, X[:10]]), np.append(y, y[:10] + 3)
        rng = np.random.default_rng(3)
        extra = rng.uniform(0, 100, len(y))
        model = quick(calibration=None)
        model.fit(X, y, sample_weight=rng.integers(1, 4, len(y)), noise_var=extra)
        agree(model, model.to_gpytorch(), new)

    def test_more_than_800_rows_are_factorised_exactly(self):
        rng = np.random.default_rng(0)
        X = rng.normal(size=(850, 2))
        y = X[:, 0] + 0.1 * rng.normal(size=850)
        few = Training(optimizer="adam", steps=2, lr=0.1)
        model = quick(mean="constant", variance="rbf", calibration=None, training=few).fit(X, y)
        agree(model, model.to_gpytorch(), X[:5] + 0.01)

    def test_a_regressor_as_the_mean_has_values_but_no_gradient(self, new):
        X, y = table()
        model = quick(mean=Ridge(), calibration=None).fit(X, y)
        gp = model.to_gpytorch()
        agree(model, gp, new)
        T = torch.as_tensor(new).requires_grad_()
        with pytest.raises(InputError, match=r"Ridge.*optimize_acqf_discrete"):
            gp(T).mean.sum().backward()

    def test_new_rows_condition_the_model(self, models, new):
        """GPyTorch conditions on an added row: its residual changes the mean near it."""
        gp = models[None].to_gpytorch()
        at = torch.as_tensor(new[:1])
        before = gp(at)
        after = gp.get_fantasy_model(at, before.mean + 10.0)(at)
        share = before.variance / (before.variance + gp.likelihood.noise)
        torch.testing.assert_close(after.mean, before.mean + 10.0 * share, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(
            after.variance, before.variance * (1 - share), rtol=1e-6, atol=1e-6
        )


class TestFrames:
    def test_inputs_are_encoded_numbers(self):
        X, y = table()
        frame = pd.DataFrame(X, columns=["heat", "same", "load"])
        frame["kind"] = np.where(np.arange(N) % 3 == 0, "a", "b")
        frame.loc[::9, "heat"] = np.nan
        model = quick(calibration=None).fit(frame, y + 20.0 * (frame["kind"] == "a"))
        agree_frame = model.columns_.transform(frame)
        gp = model.to_gpytorch()
        assert agree_frame.shape[1] == gp.train_inputs[0].shape[1]
        mean, std = model.predict(frame, return_latent_std=True)
        T = torch.as_tensor(agree_frame) + 0.0
        with gpytorch.settings.debug(False):  # these are the training rows
            f = gp(T)
        np.testing.assert_allclose(f.mean.numpy(), mean, rtol=1e-8)
        np.testing.assert_allclose(f.variance.numpy(), std**2, rtol=1e-8)


class TestExactGP:
    @pytest.mark.parametrize("ard", [False, True])
    @pytest.mark.parametrize("kernel", KERNELS)
    def test_every_kernel_is_converted(self, new, kernel, ard):
        X, y = table()
        model = ExactGPRegressor(kernel, ard=ard, random_state=0).fit(X, y)
        agree(model, model.to_gpytorch(), new)

    def test_sums_of_kernels_on_columns_are_converted(self):
        X, y = table()
        new = table(20, seed=1)[0]
        kernel = ScaleKernel(RBFKernel(active_dims=[0])) + ScaleKernel(
            MaternKernel(nu=2.5, active_dims=[2]) * LinearKernel(active_dims=[2])
        )
        model = ExactGPRegressor(kernel, random_state=0).fit(X, y)
        agree(model, model.to_gpytorch(), new, rtol=1e-7)

    def test_the_result_is_an_ordinary_exact_gp(self):
        """GPyTorch's formulas with the stored targets give the same posterior."""
        X, y = table()
        gp = ExactGPRegressor("matern32", random_state=0).fit(X, y).to_gpytorch()
        order = np.lexsort((X[:, 2], X[:, 0]))
        np.testing.assert_allclose(gp.train_targets.numpy(), y[order], rtol=1e-12)
        T = torch.as_tensor(table(5, seed=1)[0])
        K = gp.covar_module(gp.train_inputs[0]).to_dense()
        K += gp.likelihood.noise * torch.eye(N)
        k = gp.covar_module(T, gp.train_inputs[0]).to_dense()
        constant = gp.mean_module.constant
        mean = constant + k @ torch.linalg.solve(K, gp.train_targets - constant)
        torch.testing.assert_close(gp(T).mean, mean, rtol=1e-9, atol=0)


class TestWithoutMeaning:
    def test_an_unfitted_model_is_refused(self):
        with pytest.raises(NotFittedError):
            TwoStageGPRegressor().to_gpytorch()

    def test_other_engines_are_refused_with_advice(self):
        X, y = table()
        model = quick(method="neighbors", mean="constant", variance="rbf").fit(X, y)
        with pytest.raises(InputError, match=r"method='neighbors'.*method='exact'"):
            model.to_gpytorch()

    @pytest.mark.parametrize("name", ["to_gpytorch", "to_botorch"])
    def test_only_estimators_that_can_be_exact_have_an_export(self, name):
        assert hasattr(TwoStageGPRegressor(), name)
        assert hasattr(ExactGPRegressor(), name)
        assert not hasattr(GPNNRegressor(), name)

    def test_a_constant_target_is_refused(self):
        X, _ = table()
        for model in (quick(), ExactGPRegressor()):
            with pytest.warns(TwoStageGPWarning):
                model.fit(X, np.ones(N))
            with pytest.raises(InputError, match="the model is a constant"):
                model.to_gpytorch()

    def test_several_targets_become_a_list(self, new):
        X, y = table()
        model = ExactGPRegressor("rbf", random_state=0).fit(X, np.column_stack([y, -2 * y]))
        first, second = model.to_gpytorch()
        T = torch.as_tensor(new)
        np.testing.assert_allclose(first(T).mean.numpy(), model.predict(new)[:, 0], rtol=1e-8)
        np.testing.assert_allclose(second(T).mean.numpy(), model.predict(new)[:, 1], rtol=1e-8)


# --- memory --------------------------------------------------------------------------------------


def test_targets_are_made_without_a_matrix_of_all_rows(models):
    expected = models["scale"].to_gpytorch().train_targets
    seen = []

    def counted(module, arguments, output):
        if isinstance(module, StackModule):
            seen.append(len(output))

    with register_module_forward_hook(counted):
        targets = as_gpytorch(models["scale"], chunk_numbers=7 * N * 3).train_targets
    assert seen == [7] * 7 + [1]
    assert not targets.requires_grad
    torch.testing.assert_close(targets, expected)


def test_a_float32_factor_that_does_not_fit_as_float64_is_refused():
    X, y = table()
    training = Training(steps=2)
    single = ExactGPRegressor(dtype="float32", training=training, random_state=0).fit(X, y)
    single.gp_.settings = ExactSettings(memory_bytes=8 * N * N - 1)
    with pytest.raises(MemoryBudgetError, match=f"factor of {N} distinct rows is float32.*at most"):
        single.to_gpytorch()
    single.gp_.settings = ExactSettings(memory_bytes=8 * N * N)
    assert single.to_gpytorch().train_targets.shape == (N,)
