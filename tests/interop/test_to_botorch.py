"""Tests of ``to_botorch``: the moments of ``predict``, and use in optimisation loops."""

import numpy as np
import pytest
import torch

from twostagegp import ExactGPRegressor, TwoStageGPRegressor
from twostagegp.errors import InputError
from twostagegp.interop.scale import ScaleModule
from twostagegp.pipeline.calibration.local_scale import (
    Cases,
    Combination,
    LocalScale,
    Situation,
    scale_members,
)
from twostagegp.pipeline.settings import LocalScaleSettings

pytest.importorskip("botorch")

from botorch.acquisition import (
    UpperConfidenceBound,
    qKnowledgeGradient,
    qLogExpectedImprovement,
    qLogNoisyExpectedImprovement,
)
from botorch.acquisition.objective import ScalarizedPosteriorTransform
from botorch.generation import MaxPosteriorSampling
from botorch.models.model import Model
from botorch.optim import optimize_acqf
from botorch.posteriors import GPyTorchPosterior
from botorch.sampling import SobolQMCNormalSampler
from botorch.test_functions import Branin
from botorch.utils.sampling import draw_sobol_samples

BOUNDS = torch.tensor([[-5.0, 0.0], [10.0, 15.0]], dtype=torch.float64)


def table(n, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform([-5, 0], [10, 15], size=(n, 2))
    f = 20 * np.sin(X[:, 0] / 2) + 2 * X[:, 1]
    return X, f + np.where(X[:, 1] > 7, 20.0, 0.5) * rng.normal(size=n)


def quick(**options):
    settings = {"mean": ["rbf", "matern52"], "variance": "matern52", "random_state": 0}
    return TwoStageGPRegressor(**{**settings, **options})


@pytest.fixture(scope="module")
def fitted():
    return quick().fit(*table(60))


@pytest.fixture(scope="module")
def model(fitted):
    return fitted.to_botorch()


@pytest.fixture(scope="module")
def new():
    return np.vstack([table(20, seed=1)[0], table(60)[0][:4]])


class TestPosterior:
    def test_moments_are_those_of_predict(self, fitted, model, new):
        """The table is chosen so that the local scale is far from constant."""
        assert len(fitted.calibration_.local.members) > 0
        T = torch.as_tensor(new)
        f, y = model.posterior(T), model.posterior(T, observation_noise=True)
        assert isinstance(model, Model)
        assert isinstance(f, GPyTorchPosterior)
        mean, latent = fitted.predict(new, return_latent_std=True)
        std = fitted.predict(new, return_std=True)[1] / fitted.calibration_.shape.std
        np.testing.assert_allclose(f.mean[:, 0], mean, rtol=1e-8)
        np.testing.assert_allclose(f.variance[:, 0], latent**2, rtol=1e-8)
        np.testing.assert_allclose(y.variance[:, 0], std**2, rtol=1e-8)

    def test_joint_covariance_of_a_batch_is_that_of_the_function_and_noise(
        self, fitted, model, new
    ):
        T = torch.as_tensor(new).reshape(4, 6, 2)
        posterior = model.posterior(T, observation_noise=True)
        assert posterior.mean.shape == (4, 6, 1)
        for k in range(4):
            X = T[k].numpy()
            ours = fitted.fitted_.covariances(X, noise=False)[0]
            observed = fitted.fitted_.moments(X)[2][:, 0]
            ours[np.diag_indices(6)] = observed
            theirs = posterior.distribution.covariance_matrix[k]
            np.testing.assert_allclose(theirs, ours, rtol=1e-8, atol=1e-10 * ours.max())

    @pytest.mark.parametrize("uses_mean", [True, False])
    def test_every_model_of_the_local_scale_is_converted(self, uses_mean):
        rng = np.random.default_rng(0)
        n = 160
        X, mean = rng.normal(size=(n, 2)), rng.normal(size=n)
        spread = np.where(np.arange(n) < 5, 0.0, rng.exponential(size=n))
        situation = Situation(X, mean, rng.exponential(size=n) + 0.1, spread, uses_mean)
        z = np.exp(X[:, 0]) * rng.normal(size=n)
        rows = np.arange(n)
        cases = Cases.of(z, np.ones(n), rows, rows % 5, None, 1.0, rng)
        members = scale_members(
            situation,
            z,
            cases,
            None,
            0,
            rng,
            LocalScaleSettings(tree_rows=150),
            torch.device("cpu"),
        )
        assert len(members) == 3  # two ridges and the trees
        combination = Combination(np.array([0.5, 0.6, 0.7]), 0.1, 0.2)
        local = LocalScale(members, combination, np.ones(n), 2.0, 0.5, uses_mean)
        module = ScaleModule(local, torch.device("cpu"))
        ours = local.factor(situation)
        inputs = (X, mean, situation.variance, spread**2)
        theirs = module(*(torch.as_tensor(values) for values in inputs))
        np.testing.assert_allclose(theirs, ours, rtol=1e-10)
        assert np.ptp(ours) > 0.5

    def test_factors_by_level_are_part_of_the_variance(self):
        X, y = table(80)
        X[:, 1] = np.rint(X[:, 1] / 5.0)
        fitted = quick(calibrate_by=1, random_state=0).fit(X, y)
        assert np.ptp(fitted.calibration_.levels.factor) > 0.0
        posterior = fitted.to_botorch().posterior(torch.as_tensor(X), observation_noise=True)
        std = posterior.variance.sqrt()[:, 0].numpy() * fitted.calibration_.shape.std
        np.testing.assert_allclose(std, fitted.predict(X, return_std=True)[1], rtol=1e-6)
        with pytest.raises(InputError, match="calibration='local'"):
            quick(calibrate_by=1, calibration="scale").fit(X, y).to_botorch()

    def test_the_local_scale_can_be_left_out(self, fitted, new):
        T = torch.as_tensor(new)
        variance = fitted.to_botorch(local_scale=False).posterior(T).variance[:, 0]
        plain = fitted.to_gpytorch()(T).variance
        torch.testing.assert_close(variance, fitted.calibration_.factor * plain)
        with pytest.raises(InputError, match="local_scale"):
            fitted.to_botorch(local_scale="no")

    @pytest.mark.parametrize("scale", [1e-3, 1.0, 1e6])
    def test_samples_at_many_points_raise_no_warning(self, scale):
        """Jitter is relative: GPyTorch's absolute jitter is too large or too small here."""
        X, y = table(20)
        model = ExactGPRegressor("rbf", random_state=0).fit(X, scale * y).to_botorch()
        T = draw_sobol_samples(BOUNDS, n=1, q=150, seed=0)[0]
        posterior = model.posterior(T.expand(2, 150, 2))
        draws = posterior.rsample(torch.Size([200]))[:, 0, :, 0]
        std = posterior.variance[0, :, 0].sqrt()
        assert bool(((draws.std(0) / std - 1).abs() < 0.3).all())

    def test_gradients_equal_finite_differences(self, model, new):
        def moments(X):
            y = model.posterior(X, observation_noise=True)
            return y.mean, y.distribution.covariance_matrix

        X = torch.as_tensor(new[:6]).reshape(2, 3, 2).requires_grad_()
        assert torch.autograd.gradcheck(moments, (X,), eps=1e-5, atol=1e-4, rtol=1e-4)

    def test_single_precision_is_converted_and_wrong_shapes_are_refused(self, model, new):
        X = torch.as_tensor(new)
        assert model.posterior(X.float()).mean.dtype == torch.float64
        for wrong in (X[:, :1], X[0], torch.zeros(2, 3, 5)):
            with pytest.raises(InputError, match=r"\(\.\.\., q, 2\)"):
                model.posterior(wrong)

    def test_several_targets_have_the_moments_of_predict(self, new):
        X, y = table(40)
        fitted = ExactGPRegressor("rbf", random_state=0).fit(
            X, np.column_stack([y, -3 * y + X[:, 0]])
        )
        model = fitted.to_botorch()
        T = torch.as_tensor(new)
        assert model.num_outputs == 2
        mean, std = fitted.predict(new, return_std=True)
        both = model.posterior(T, observation_noise=True)
        np.testing.assert_allclose(both.mean, mean, rtol=1e-8)
        np.testing.assert_allclose(both.variance, std**2, rtol=1e-8)
        assert both.rsample(torch.Size([3])).shape == (3, 24, 2)
        second = model.posterior(T, output_indices=[1])
        torch.testing.assert_close(second.mean, both.mean[:, 1:])
        torch.testing.assert_close(model.subset_output([1]).posterior(T).mean, second.mean)
        weights = torch.tensor([1.0, 2.0], dtype=torch.float64)
        total = model.posterior(T, posterior_transform=ScalarizedPosteriorTransform(weights))
        torch.testing.assert_close(total.mean, both.mean @ weights[:, None])


class TestConditioning:
    def test_conditioning_on_added_rows_equals_fitting_all_rows(self):
        """A single GP conditioned on added rows equals one on all rows at the same parameters."""
        X, y = table(30)
        fitted = ExactGPRegressor("matern52", random_state=0).fit(X, y)
        more, values = table(4, seed=2)
        T = torch.as_tensor(table(5, seed=3)[0])
        model = fitted.to_botorch()
        further = model.condition_on_observations(
            torch.as_tensor(more), torch.as_tensor(values)[:, None]
        )
        gp = fitted.to_gpytorch()
        inputs = torch.cat([gp.train_inputs[0], torch.as_tensor(more)])
        targets = torch.cat([gp.train_targets, torch.as_tensor(values)])
        gp.set_train_data(inputs, targets, strict=False)
        posterior, expected = further.posterior(T), gp(T)
        torch.testing.assert_close(posterior.mean[:, 0], expected.mean, rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(
            posterior.distribution.covariance_matrix,
            expected.covariance_matrix,
            rtol=1e-7,
            atol=1e-8,
        )
        assert model.posterior(T).mean.shape == (5, 1)  # the first model is unchanged
        by_one = model
        for k in range(4):
            by_one = by_one.condition_on_observations(
                torch.as_tensor(more[k : k + 1]), torch.as_tensor(values[k : k + 1])[:, None]
            )
        torch.testing.assert_close(by_one.posterior(T).mean, posterior.mean)

    def test_known_noise_of_added_rows_is_used(self, model, new):
        at = torch.as_tensor(new[:1])
        before = model.posterior(at)
        value = before.mean + 5.0
        after = model.condition_on_observations(at, value, noise=0.5 * before.variance)
        torch.testing.assert_close(after.posterior(at).mean, before.mean + 5.0 / 1.5)

    def test_targets_of_the_wrong_shape_are_refused(self, model, new):
        with pytest.raises(InputError, match=r"end in \(2, 1\)"):
            model.condition_on_observations(torch.as_tensor(new[:2]), torch.zeros(2, 3))

    def test_fantasies_condition_the_model_on_samples(self, model, new):
        at = torch.as_tensor(new[:6]).reshape(3, 2, 2)
        sampler = SobolQMCNormalSampler(torch.Size([4]), seed=0)
        fantasy = model.fantasize(at, sampler)
        assert fantasy.batch_shape == (4, 3)
        posterior = fantasy.posterior(at)
        assert posterior.mean.shape == (4, 3, 2, 1)
        before = model.posterior(at)
        assert (posterior.variance < before.variance).all()
        spread = (posterior.mean - before.mean).abs().amax(0)
        assert (spread > 0).all()


class TestAcquisition:
    def test_gradient_of_log_expected_improvement_equals_finite_differences(self, model, new):
        acquisition = qLogExpectedImprovement(
            model, best_f=20.0, sampler=SobolQMCNormalSampler(torch.Size([16]), seed=0)
        )
        X = torch.as_tensor(new[:4]).reshape(2, 2, 2).requires_grad_()
        assert torch.autograd.gradcheck(acquisition, (X,), eps=1e-5, atol=1e-4, rtol=1e-3)

    def test_each_acquisition_function_can_be_optimised(self, model):
        X = model.train_inputs[0]
        torch.manual_seed(0)
        sampler = SobolQMCNormalSampler(torch.Size([16]), seed=0)
        few = SobolQMCNormalSampler(torch.Size([4]), seed=0)
        for acquisition, q in (
            (UpperConfidenceBound(model, beta=2.0), 1),
            (qLogExpectedImprovement(model, best_f=30.0, sampler=sampler), 2),
            (qLogNoisyExpectedImprovement(model, X[:20], sampler=sampler), 2),
            (qKnowledgeGradient(model, num_fantasies=4, sampler=few), 1),
        ):
            options = {"maxiter": 5}
            best, value = optimize_acqf(
                acquisition, BOUNDS, q=q, num_restarts=2, raw_samples=16, options=options
            )
            assert best.shape == (q, 2)
            assert bool(torch.isfinite(value))
            assert bool(((best >= BOUNDS[0]) & (best <= BOUNDS[1])).all())

    def test_upper_confidence_bound_finds_the_maximum_of_a_grid(self, fitted, model):
        rng = np.random.default_rng(0)
        grid = rng.uniform([-5, 0], [10, 15], size=(4000, 2))
        mean, latent = fitted.predict(grid, return_latent_std=True)
        torch.manual_seed(0)
        _, value = optimize_acqf(
            UpperConfidenceBound(model, beta=4.0), BOUNDS, q=1, num_restarts=4, raw_samples=64
        )
        assert float(value) >= (mean + 2.0 * latent).max() - 1e-6

    def test_thompson_sampling_chooses_good_rows(self, model):
        torch.manual_seed(0)
        X = draw_sobol_samples(BOUNDS, n=1, q=200, seed=0)[0]
        chosen = MaxPosteriorSampling(model, replacement=False)(X, num_samples=3)
        assert chosen.shape == (3, 2)
        ranks = model.posterior(X).mean[:, 0].argsort(descending=True)
        best = X[ranks[:100]]
        for row in chosen:  # all chosen rows are in the better half
            assert bool((best == row).all(1).any())


def optimise(fit, seed, steps, restarts=3):
    """Best value of the negated Branin function after 10 random rows and ``steps`` chosen ones."""
    function = Branin(negate=True).double()
    torch.manual_seed(seed)
    X = BOUNDS[0] + (BOUNDS[1] - BOUNDS[0]) * torch.rand(10, 2, dtype=torch.float64)
    y = function(X)
    for _ in range(steps):
        new = BOUNDS[0] + (BOUNDS[1] - BOUNDS[0]) * torch.rand(1, 2, dtype=torch.float64)
        if fit is not None:
            model = fit(X.numpy(), y.numpy()).to_botorch()
            acquisition = qLogExpectedImprovement(
                model, y.max(), sampler=SobolQMCNormalSampler(torch.Size([64]), seed=seed)
            )
            new, _ = optimize_acqf(acquisition, BOUNDS, q=1, num_restarts=restarts, raw_samples=64)
        X, y = torch.cat([X, new]), torch.cat([y, function(new)])
    return float(y.max())


def smooth(X, y):
    """Only kernels that are differentiable at the training rows, so that gradients are useful."""
    return TwoStageGPRegressor(kernels=("rbf", "matern52"), random_state=0).fit(X, y)


class TestLoop:
    def test_a_short_loop_is_better_than_random_search(self):
        assert optimise(smooth, seed=0, steps=4, restarts=2) > optimise(None, seed=0, steps=4)

    @pytest.mark.slow
    @pytest.mark.filterwarnings("ignore:Optimization failed:RuntimeWarning")
    def test_the_loop_is_better_than_random_search_over_seeds(self):
        """10 rows and 10 steps; the maximum is -0.397887."""
        regret = {
            name: np.array([-0.397887 - optimise(fit, seed, steps=10) for seed in range(8)])
            for name, fit in (("random", None), ("two stages", smooth))
        }
        assert regret["two stages"].mean() < 0.5 * regret["random"].mean()
        assert np.median(regret["two stages"]) < np.median(regret["random"])
