"""The parts together: repeats, floors, known noise, groups, reports."""

import gpytorch
import numpy as np
import pytest
from sklearn.ensemble import RandomForestRegressor
from sklearn.neighbors import KNeighborsRegressor

from twostagegp import ExactGPRegressor, Training, TwoStageGPRegressor, TwoStageGPWarning
from twostagegp.kernels import make_kernel
from twostagegp.pipeline.mean.refits import shortlist
from twostagegp.pipeline.settings import MeanSettings
from twostagegp.training.candidates import Candidate, rank_by_loo_error, rank_by_unseen_error

FEW = {"kernels": ("rbf", "matern32"), "random_state": 0}


def wave(n=60, noise=0.1, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, size=(n, 1))
    return X, np.sin(2 * X[:, 0]) + noise * rng.normal(size=n)


@pytest.mark.parametrize("mean", ["stack", RandomForestRegressor(20, random_state=0)])
def test_the_noise_is_the_spread_of_measurements_repeated_at_the_same_inputs(mean):
    rng = np.random.default_rng(0)
    X = np.repeat(np.linspace(-2, 2, 25), 8)[:, None]
    y = np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=200)
    model = TwoStageGPRegressor(mean=mean, **FEW).fit(X, y)
    _, std = model.predict(X[::8], return_std=True)
    assert np.median(std) == pytest.approx(0.105, rel=0.25)


def test_the_variance_of_an_observation_is_at_least_the_noise_floor():
    X = np.linspace(0, 3, 40)[:, None]
    y = np.sin(3 * X[:, 0])
    model = TwoStageGPRegressor(noise_floor=1e-6, **FEW).fit(X, y)
    _, std = model.predict(X, return_std=True)
    _, cov = model.predict(X, return_cov=True)
    floor = 1e-3 * y.std()
    assert std.min() >= floor * (1 - 1e-9)
    np.testing.assert_allclose(np.sqrt(np.diag(cov)), std, rtol=1e-6)
    assert model.fit_report_.noise_std >= floor * (1 - 1e-9)


def test_known_noise_is_not_estimated_again():
    X, y = wave(n=120, noise=0.3)
    unknown = TwoStageGPRegressor(**FEW).fit(X, y)
    known = TwoStageGPRegressor(**FEW).fit(X, y, noise_var=0.09)
    assert known.fit_report_.noise_std < 0.5 * unknown.fit_report_.noise_std


@pytest.mark.slow
def test_candidates_of_grouped_rows_are_ranked_by_whole_groups(monkeypatch):
    X, y = wave(n=600)
    groups = np.arange(600) // 6
    asked = []

    def recorded(engine, candidates):
        asked.append(engine.rows.groups is not None)
        return rank_by_loo_error(engine, candidates)

    monkeypatch.setattr("twostagegp.training.candidates.rank_by_loo_error", recorded)
    assert rank_by_unseen_error.__module__ == "twostagegp.training.candidates"
    TwoStageGPRegressor(mean="search", variance="rbf", **FEW).fit(X, y, groups=groups)
    assert asked
    assert all(asked)


def test_groups_without_effect_give_a_warning():
    X, y = wave(n=40)
    groups = np.arange(40) // 4
    with pytest.warns(TwoStageGPWarning, match="objective='loo'"):
        ExactGPRegressor(random_state=0).fit(X, y, groups=groups)
    ExactGPRegressor(objective="loo", random_state=0).fit(X, y, groups=groups)


def test_weights_that_a_regressor_cannot_use_give_a_warning():
    X, y = wave(n=40)
    model = TwoStageGPRegressor(mean=KNeighborsRegressor(3), **FEW)
    with pytest.warns(TwoStageGPWarning, match="KNeighborsRegressor takes no sample_weight"):
        model.fit(X, y, sample_weight=1.0 + np.arange(40) % 2)


def test_calibration_uses_held_out_residuals_even_if_the_variance_does_not():
    X, y = wave(n=80)
    model = TwoStageGPRegressor(residuals="insample", calibration="scale", **FEW).fit(X, y)
    z = (
        model.mean_.heldout_residuals
        / np.sqrt(model.variance_.heldout_variance)[model.fitted_.data[0].merged.inverse]
    )
    np.testing.assert_allclose(model.calibration_.z, z)


def test_kernels_with_the_same_name_keep_their_own_weights():
    X, y = wave(n=50)
    X = np.column_stack([X, np.random.default_rng(1).normal(size=50)])
    kernels = (gpytorch.kernels.RBFKernel(), gpytorch.kernels.RBFKernel(ard_num_dims=2))
    model = TwoStageGPRegressor(kernels=kernels, random_state=0).fit(X, y)
    rows = [row for row in model.search_ if row["stage"] == "mean"]
    ridges = [w for m, w in zip(model.mean_.models, model.mean_.weights, strict=True) if m.label != "constant"]  # noqa: E501 # fmt: skip
    assert sum(row["weight"] for row in rows) == pytest.approx(sum(ridges))
    assert sum(row["weight"] for row in model.search_ if row["stage"] == "variance") == 1.0


def test_relevance_reads_the_lengthscales_of_a_gpytorch_kernel():
    X, y = wave(n=50)
    X = np.column_stack([X, np.random.default_rng(1).normal(size=50)])
    kernel = gpytorch.kernels.RBFKernel(ard_num_dims=2)
    model = TwoStageGPRegressor(mean=kernel, variance="rbf", random_state=0).fit(X, y)
    assert model.relevance_["x0"] > model.relevance_["x1"]
    assert sum(model.relevance_.values()) == pytest.approx(1.0)


def test_the_penalty_grid_is_listed_with_its_scores():
    X, y = wave(n=50)
    X = np.column_stack([X, X**2])
    model = TwoStageGPRegressor(penalty=(1e-3, 1e-1), mean="search", **FEW).fit(X, y)
    rows = [row for row in model.search_ if row["stage"] == "mean"]
    assert [row["kernel"] for row in rows] == ["rbf/ridge", "matern32/ridge"]
    assert all(0.0 < row["score"] < 1.0 for row in rows)
    assert sum(row["weight"] for row in rows) == 1.0


def test_the_report_counts_every_factorisation_of_all_rows(monkeypatch):
    X, y = wave(n=80)
    counted = [0]
    import twostagegp.engines.exact.engine as exact
    from twostagegp.numerics import lapack

    def counting(factorise):
        def counted_too(K):
            counted[0] += K.shape[-1] == 80
            return factorise(K)

        return counted_too

    monkeypatch.setattr(exact, "safe_cholesky", counting(exact.safe_cholesky))
    monkeypatch.setattr(lapack, "cholesky_", counting(lapack.cholesky_))
    # Without a local scale, whose ridge would factorise matrices of another target.
    model = TwoStageGPRegressor(calibration="scale", **FEW).fit(X, y)
    assert model.fit_report_.full_factorizations == counted[0]


def test_the_report_states_what_the_warm_start_saved():
    X, y = wave(n=400)
    schedule = Training(optimizer="adam", steps=20, subsample=50, refine_steps=2)
    model = ExactGPRegressor("rbf", training=schedule, random_state=0).fit(X, y)
    assert model.fit_report_.full_evaluations == 3
    assert model.fit_report_.seconds_saved > 0.0


def test_one_kernel_that_fails_does_not_end_the_fit(monkeypatch):
    from twostagegp.errors import NumericalError
    from twostagegp.pipeline.mean import build as mean_stage

    original = mean_stage.tune_penalty

    def failing(engine, candidate, *args):
        if candidate.kernel.name == "rbf":
            raise NumericalError("made to fail")
        original(engine, candidate, *args)

    monkeypatch.setattr(mean_stage, "tune_penalty", failing)
    X, y = wave(n=60)
    model = TwoStageGPRegressor(**FEW).fit(X, y)
    failures = {row["kernel"]: row["failure"] for row in model.search_ if row["stage"] == "mean"}
    assert any("made to fail" in text for text in failures.values())
    assert np.isfinite(model.predict(X)).all()


def test_noise_in_many_columns_is_not_fitted():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(1060, 15)), rng.normal(size=1060)
    model = TwoStageGPRegressor(kernels=("rbf", "matern32"), random_state=0).fit(X[:60], y[:60])
    low, high = model.predict_interval(X[60:]).T
    assert np.mean((low < y[60:]) & (y[60:] < high)) > 0.88  # 0.7 if the refits are warm
    assert np.sqrt(np.mean((model.predict(X[60:]) - y[60:]) ** 2)) < 1.1


def test_half_of_the_kept_kernels_have_one_lengthscale_if_rows_are_few():
    candidates = [Candidate(make_kernel("rbf", 3, ard), "loo") for ard in [True] * 5 + [False] * 3]
    kept = shortlist(candidates, 4, 40, 25)
    assert [c.kernel.ard for c in kept] == [True, True, False, False]
    assert shortlist(candidates[:5], 4, 40, 25) == candidates[:4]
    assert shortlist(candidates, 4, 400, 25) == candidates[:4]


def _trainings(n, noise, caplog):
    """Return the kernels and rows of each training of the mean's candidates."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 2))
    y = np.sin(X[:, 0]) + X[:, 1] + noise * rng.normal(size=n)
    caplog.clear()
    with caplog.at_level("INFO", logger="twostagegp"):
        TwoStageGPRegressor(random_state=0, n_jobs=1).fit(X, y)
    found = [r.args for r in caplog.records if "kernels on" in r.msg]
    return [args[2:4] for args in found[: found[0][1]]]


def test_candidates_begin_on_some_rows_and_all_go_on_if_the_table_has_little_noise(caplog):
    assert _trainings(200, 1.0, caplog) == [(15, 80), (10, 200)]  # first on two of five folds
    assert _trainings(400, 0.05, caplog) == [(15, 160), (15, 400)]
    assert _trainings(200, 0.05, caplog) == [(15, 200)]  # 80 rows would be too few


def test_little_noise_allows_more_evaluations_after_the_first_training():
    settings = MeanSettings(afresh_evaluations=4, little_noise_evaluations=9)
    assert [settings.evaluations_after_the_first(little) for little in (False, True)] == [4, 9]
