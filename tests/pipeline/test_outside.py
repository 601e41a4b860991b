"""Rows outside the data: held-out ends by brute force, the law, coverage, interfaces."""

import copy
import json
import pickle
import warnings
from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.ensemble import RandomForestRegressor

import twostagegp
from twostagegp import (
    ExactGPRegressor,
    GPNNRegressor,
    TwoStageGPClassifier,
    TwoStageGPRegressor,
    TwoStageGPWarning,
)
from twostagegp.engines.exact.engine import ExactPosterior
from twostagegp.errors import InputError, ModelFileError
from twostagegp.pipeline.outside.law import nearest_seen, seen_values
from twostagegp.pipeline.outside.learn import (
    HeldOutEnd,
    added_factor,
    ends_of,
    hold_out,
    learn_outside,
    linear_slopes,
    trend_shares,
)
from twostagegp.pipeline.settings import DEFAULTS, OutsideSettings, SampleSettings, Settings
from twostagegp.storage.folder import read_files, read_manifest, write_folder

OFF = Settings(outside=OutsideSettings(members=0))
#: Few and small trees in the stack of neighbours.
SMALL_TREES = SampleSettings(tree_parameters=(("max_iter", 20), ("max_leaf_nodes", 7)))


def table(n=80, d=2, seed=0, noise=0.1):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2.0, 2.0, size=(n, d))
    return X, np.sin(2.0 * X[:, 0]) + 0.7 * X[:, -1] + noise * rng.normal(size=n)


def quick(**options):
    given = {"mean": ["rbf", "matern32"], "variance": "rbf", "random_state": 0, "n_jobs": 1}
    return TwoStageGPRegressor(**{**given, **options})


@cache
def fitted():
    return quick().fit(*table())


def part(model):
    """The fit of the only target."""
    return model.fitted_.fits[0]


def inputs(model, X):
    return model.fitted_.targets[0].standardized(np.asarray(X, dtype=float))


def replace_outside(model):
    """The same model without what is known about rows outside."""
    other = pickle.loads(pickle.dumps(model))
    target = other.fitted_.targets[0]
    other.fitted_ = replace(
        other.fitted_, targets=(replace(target, fit=replace(target.fit, outside=None)),)
    )
    return other


NEAR = table(50, seed=1)[0] * 0.8
FAR = np.array([[9.0, 0.0], [-9.0, 9.0], [0.0, 5.0], [4.0, -4.0], [300.0, -300.0]])
MIXED = np.vstack([FAR, NEAR[:5]])


def support_of(model, X):
    return model.predict(X, return_support=True)[1]


# --- held-out ends -------------------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True])
def test_held_out_ends_equal_fits_without_their_rows(weighted):
    X, y = table(60)
    options = {}
    if weighted:
        rng = np.random.default_rng(5)
        options = {"sample_weight": rng.integers(1, 4, 60), "noise_var": rng.uniform(0, 0.1, 60)}
    model = quick().fit(X, y, **options)
    law, rows = part(model).outside, model.fitted_.data[0].rows
    inverses = [torch.cholesky_inverse(member.posterior.L).numpy() for member in law.members]
    X, t, c, q = (values.numpy() for values in (rows.X, rows.t, rows.c, rows.q))
    ends = list(ends_of(X, np.ones(2)))
    assert len(ends) == 8
    for end in ends:
        got = hold_out(end, law.members, inverses, X, t, c, q, law.reach)
        out = end.rows
        rest = np.setdiff1d(np.arange(len(X)), out)
        nearest = X[out].copy()
        for i, j in np.ndindex(nearest.shape):
            x, values = X[out[i], j], np.sort(X[rest, j])
            width = 0.25 * (values[-1] - values[0])
            if (
                x < values[0]
                or x > values[-1]
                or np.diff(values)[np.searchsorted(values, x) - 1] > width
            ):
                nearest[i, j] = values[np.abs(values - x).argmin()]
        delta, tau, step = steps_beyond(X[out], X[rest], nearest, law.reach.numpy())
        mean, held, back, excess, rho, each = 0.0, 0.0, 0.0, 0.0, 0.0, []
        for member in law.members:
            kernel, parameters = member.posterior.kernel, member.posterior.parameters
            without = ExactPosterior(kernel, parameters, rows.subset(rest))
            at = torch.as_tensor(X[out])
            each.append(without.mean(at).numpy())
            mean = mean + member.weight * each[-1]
            held = held + member.weight * without.mean(torch.as_tensor(nearest)).numpy()
            back = back + member.weight * without.mean(torch.as_tensor(nearest - step)).numpy()
            more = np.maximum(member.scale * without.variance(at).numpy() - member.usual, 0.0)
            prior = kernel.diagonal(at, parameters[:-1]).numpy()
            excess = excess + member.weight * np.minimum(more, 4.0)
            rho = rho + member.weight * more / (member.scale * prior - member.usual)
        slopes = linear_slopes(X[rest], t[rest], c[rest])
        weights = [member.weight for member in law.members]
        between = np.average((np.array(each) - mean) ** 2, axis=0, weights=weights)
        close = {"rtol": 1e-5, "atol": 1e-6}
        np.testing.assert_allclose(got.mean, mean, **close)
        np.testing.assert_allclose(got.trends[0], held, **close)
        np.testing.assert_allclose(got.trends[1], held + delta @ slopes, **close)
        secant = held + np.minimum(tau, 2.0) * (held - back)
        np.testing.assert_allclose(got.trends[2], secant, **close)
        np.testing.assert_allclose(got.way, 1.1 * rho / (rho + 0.1), **close)
        np.testing.assert_allclose(got.spread, excess + rho * between, **close)
        np.testing.assert_allclose(got.c, c[out] / c[out].sum())
        np.testing.assert_allclose(got.within, q[out] / c[out])


def steps_beyond(X, seen, nearest, reach):
    """The way from the nearest value in ``seen``, its length and one step, row by row."""
    delta, tau, step = np.zeros(X.shape), np.zeros(len(X)), np.zeros(X.shape)
    for i, x in enumerate(X):
        for j in range(X.shape[1]):
            low = seen[:, j].min() - 2.0 * reach[0, j]
            high = seen[:, j].max() + 2.0 * reach[1, j]
            delta[i, j] = min(max(x[j], low), high) - nearest[i, j]
        sides = [reach[int(delta[i, j] > 0.0), j] for j in range(X.shape[1])]
        tau[i] = max(abs(d) / r if r > 0.0 else 0.0 for d, r in zip(delta[i], sides, strict=True))
        if tau[i] > 0.0:
            step[i] = np.where(np.array(sides) > 0.0, delta[i], 0.0) / tau[i]
    return delta, tau, step


def test_linear_slopes_are_those_of_a_ridge_regression_also_for_many_columns():
    rng = np.random.default_rng(0)
    for n, d in ((50, 3), (10, 30)):
        X, t, c = rng.normal(size=(n, d)), rng.normal(size=n), rng.uniform(0.5, 3.0, size=n)
        centred, target = X - c @ X / c.sum(), t - c @ t / c.sum()
        penalised = np.vstack([np.sqrt(c)[:, None] * centred, np.eye(d)])
        expected = np.linalg.lstsq(penalised, np.append(np.sqrt(c) * target, np.zeros(d)))[0]
        np.testing.assert_allclose(linear_slopes(X, t, c), expected, rtol=1e-8)


def test_ends_keep_equal_values_together_and_skip_columns_of_few_values():
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.integers(0, 10, 90), rng.integers(0, 3, 90), rng.normal(size=90)])
    ends = list(ends_of(X, np.array([1.0, 5.0, 2.0])))
    assert [end.column for end in ends] == [2, 2, 2, 2, 0, 0, 0, 0]
    for end in ends:
        x = X[:, end.column]
        rest = np.delete(x, end.rows)
        assert (x[end.rows].max() < rest.min()) if end.is_low else (x[end.rows].min() > rest.max())
        assert 2 * len(end.rows) <= 90
        assert end.reach == pytest.approx(
            rest.min() - x.min() if end.is_low else x.max() - rest.max()
        )
    few = OutsideSettings(columns=1, sizes=(0.25,))
    assert [end.column for end in ends_of(X, np.array([1.0, 5.0, 2.0]), few)] == [2, 2]


def test_shares_and_factor_by_their_formulas():
    t, share = np.array([1.0, 3.0]), np.array([0.25, 0.75])
    end = HeldOutEnd(
        t,
        share,
        np.zeros(2),
        np.zeros(2),
        [np.array([1.0, 3.0]), np.full(2, 9.0), np.full(2, -9.0)],
        np.ones(2),
        np.full(2, 2.0),
    )
    np.testing.assert_allclose(trend_shares([end]), [0.2, 0.4, 0.2, 0.2])  # held is exact
    plain = np.array([1.0, 0.0, 0.0, 0.0])
    ratio = (0.25 * 1.0 + 0.75 * 9.0 - 0.5) / 2.0
    assert end.ratio(plain, 0.5) == pytest.approx(ratio)
    factor = added_factor([end, end], plain, 0.5, DEFAULTS.outside)
    assert factor == pytest.approx(((2.0 + 2.0 * ratio**0.5) / 4.0) ** 2)
    assert added_factor([], plain, 0.5, DEFAULTS.outside) == 1.0
    np.testing.assert_array_equal(trend_shares([]), plain)
    capped = replace(DEFAULTS.outside, largest_ratio=1.0)
    assert added_factor([end], plain, 0.5, capped) == pytest.approx(1.0)


# --- the law -------------------------------------------------------------------------------------


def test_depth_and_excess_by_their_definition():
    law, Z = part(fitted()).outside, inputs(fitted(), MIXED)
    rho, excesses = law.depth(Z)
    expected = 0.0
    for member, excess in zip(law.members, excesses, strict=True):
        v, prior = member.posterior.variance(Z), member.prior(Z)
        torch.testing.assert_close(excess, (member.scale * v - member.usual).clamp(min=0.0))
        expected = expected + member.weight * excess / (member.scale * prior - member.usual)
        held = member.posterior.heldout()
        mean = float((held.residual.square() / held.variance).mean())
        assert member.scale == pytest.approx(mean)
    torch.testing.assert_close(rho, expected)
    assert sum(member.weight for member in law.members) == pytest.approx(1.0)
    assert bool(((rho >= 0.0) & (rho <= 1.0)).all())
    assert float(rho[4]) == pytest.approx(1.0)
    np.testing.assert_allclose(support_of(fitted(), MIXED), 1.0 - rho.numpy(), atol=1e-12)


def test_mean_and_variance_by_their_formulas():
    model = fitted()
    fit, Z = part(model), inputs(model, FAR)
    law, plain = fit.outside, replace(part(model), outside=None)
    rho, excesses = law.depth(Z)
    before, disagreement = fit.mean.predict_with_disagreement(Z)
    nearest = nearest_seen(Z, law.seen)
    held = fit.mean.predict(nearest)
    seen, reach = law.seen.T.numpy(), law.reach.numpy()
    delta, tau, step = map(torch.as_tensor, steps_beyond(Z.numpy(), seen, nearest.numpy(), reach))
    linear = held + delta @ law.slopes
    secant = held + tau.clamp(max=2.0) * (held - fit.mean.predict(nearest - step))
    way = 1.1 * rho / (rho + 0.1)
    t = [before, *(before + way * (trend - before) for trend in (held, linear, secant))]
    m = sum(share * each for share, each in zip(law.shares, t, strict=True))
    added = sum(w.weight * e.clamp(max=4.0) for w, e in zip(law.members, excesses, strict=True))
    added = added + rho * disagreement.square()
    added = added + sum(
        share * (each - m).square() for share, each in zip(law.shares, t, strict=True)
    )
    mean, latent, observed = fit.moments(Z)
    torch.testing.assert_close(mean, m)
    torch.testing.assert_close(fit.predict_mean(Z), m)
    assert float(plain.variance.latent(Z).max()) < 1.0  # part 2 is not cut off
    torch.testing.assert_close(latent - plain.moments(Z)[1], law.factor * added)
    torch.testing.assert_close(observed - plain.moments(Z)[2], law.factor * added)
    assert law.shares.sum() == pytest.approx(1.0)
    assert (law.shares > 0.0).all()


def test_members_that_do_not_tell_inside_from_outside_have_no_part_in_the_depth():
    model = fitted()
    law, Z = part(model).outside, inputs(model, FAR)
    first, second = law.members[:2]
    prior = float(second.scale * second.prior(Z)[0])
    assert not bool(replace(second, usual=0.9995 * prior).largest_excess(second.prior(Z)).any())
    unable = replace(second, usual=1e9)  # above its prior variance: never outside
    both = replace(law, members=[first, unable])
    alone = replace(law, members=[replace(first, weight=1.0)])
    torch.testing.assert_close(both.depth(Z)[0], alone.depth(Z)[0])
    none = replace(law, members=[replace(first, usual=1e9), unable])
    assert not bool(none.depth(Z)[0].any())


def test_the_variance_of_part_2_is_at_most_that_of_the_target():
    """A residual process with a huge prior variance and a long lengthscale must not explode."""
    fit, Z = part(fitted()), inputs(fitted(), MIXED)
    posterior, variance = fit.variance.posterior, copy.copy(fit.variance)
    parameters = posterior.parameters.copy()
    parameters[-2] += 12.0  # the output scale
    variance.posterior = ExactPosterior(posterior.kernel, parameters, posterior.rows)
    assert float(variance.latent(Z).max()) > 100.0
    bounded, plain = replace(fit, variance=variance), replace(fit, variance=variance, outside=None)
    assert (bounded.largest_latent, plain.largest_latent) == (1.0, np.inf)
    held = fit.variance.heldout_variance.copy()
    held[3] = 7.0 + variance.noise
    variance_known = copy.copy(variance)
    variance_known.heldout_variance = held
    assert replace(fit, variance=variance_known).largest_latent == pytest.approx(7.0)
    mean, disagreement = fit.mean.predict_with_disagreement(Z)
    added = fit.outside.moments(Z, mean, disagreement.square(), fit.mean.predict)[1]
    _, latent, observed = bounded.moments(Z)
    factor = fit.calibration.local.overall
    assert float((latent - added).max()) <= 2.0 * factor
    assert float(plain.moments(Z)[1].max()) > 20.0 * float((latent - added).max())
    torch.testing.assert_close(bounded.covariance(Z).diagonal(), observed)


@pytest.mark.parametrize("method", ["exact", "neighbors"])
def test_a_small_cluster_of_training_rows_is_inside(method):
    rng = np.random.default_rng(0)
    X = np.vstack([rng.normal(size=(600, 2)), 0.3 * rng.normal(size=(20, 2)) + 9.0])
    y = np.sin(X[:, 0]) + 0.5 * X[:, 1] + 0.05 * rng.normal(size=620)
    settings = Settings(outside=OutsideSettings(rows=60), sample=SMALL_TREES)
    model = quick(method=method, settings=settings).fit(X, y)
    new = 0.3 * rng.normal(size=(50, 2)) + 9.0
    assert support_of(model, new).mean() > 0.9
    assert support_of(model, X).min() > 0.5
    assert support_of(model, np.array([[4e3, -4e3]]))[0] < 0.01
    law = part(model).outside
    assert 60 < len(law.index) <= 120
    few = replace(law, settings=OutsideSettings(rows=60, checked_rows=0))
    rows = model.fitted_.data[0].rows
    np.testing.assert_array_equal(few.knowing(rows).index, law.index)


def test_updates_do_not_forget_distant_rows():
    """In one update or two, rows that were just added are inside."""
    rng = np.random.default_rng(1)
    far, near = 0.2 * rng.normal(size=(8, 2)) + 9.0, rng.uniform(-2.0, 2.0, size=(150, 2))
    settings = Settings(outside=OutsideSettings(rows=40))
    f = lambda X: np.sin(2.0 * X[:, 0]) + 0.7 * X[:, 1]  # noqa: E731
    for parts in ([np.vstack([far, near])], [far, near]):
        model = quick(settings=settings).fit(*table(400))
        for new in parts:
            model.update(new, f(new) + 0.1 * rng.normal(size=len(new)))
        assert len(part(model).outside.index) <= 120
        assert support_of(model, far).min() > 0.5
        assert model.predict(far, return_std=True)[1].max() < 1.0


def test_the_added_variance_of_a_member_has_a_limit():
    law, Z = part(fitted()).outside, inputs(fitted(), FAR)
    huge = [replace(member, scale=1e6 * member.scale) for member in law.members]
    law = replace(law, members=huge, shares=np.eye(4)[0])
    mean = torch.zeros(len(Z), dtype=torch.float64)
    added = law.moments(Z, mean, mean, lambda X: torch.zeros(len(X), dtype=torch.float64))[1]
    torch.testing.assert_close(added, torch.full_like(added, 4.0 * law.factor))


def test_near_the_rows_nothing_changes():
    X, y = table(200)
    model, off = quick().fit(X, y), quick(settings=OFF).fit(X, y)
    assert part(off).outside is None
    new = table(2000, seed=7)[0]
    inside = support_of(model, new) == 1.0
    assert inside.mean() >= 0.97
    for ours, theirs in zip(
        model.predict(new, return_std=True), off.predict(new, return_std=True), strict=True
    ):
        np.testing.assert_array_equal(ours[inside], theirs[inside])
    np.testing.assert_array_equal(
        model.predict_interval(new)[inside], off.predict_interval(new)[inside]
    )
    far = model.predict_interval(FAR) - model.predict(FAR)[:, None]
    assert (np.diff(far) > np.diff(off.predict_interval(FAR))).all()
    np.testing.assert_array_equal(support_of(off, FAR), 1.0)


def test_the_covariance_has_the_variances_on_its_diagonal_and_is_positive():
    for X in (FAR, MIXED, NEAR[:6], np.vstack([FAR, FAR + 0.01])):
        mean, C = fitted().predict(X, return_cov=True)
        np.testing.assert_allclose(mean, fitted().predict(X))
        std = fitted().predict(X, return_std=True)[1]
        np.testing.assert_allclose(np.sqrt(C.diagonal()), std, rtol=1e-6)
        np.testing.assert_allclose(C, C.T, rtol=1e-10, atol=1e-12)
        assert np.linalg.eigvalsh(C).min() > -1e-9 * C.diagonal().max()
    added = part(fitted()).outside.covariance
    Z = inputs(fitted(), NEAR)
    zero = torch.zeros(len(Z), dtype=torch.float64)
    assert not bool(added(Z[:0], zero[:0], zero[:0], part(fitted()).mean.predict).any())
    # Two rows far away on the same side have the same unknown trend.
    C = fitted().predict(np.array([[9.0, 0.0], [9.05, 0.0]]), return_cov=True)[1]
    assert C[0, 1] / np.sqrt(C[0, 0] * C[1, 1]) > 0.9
    draws = fitted().sample_y(FAR, 50, random_state=0, joint=True)
    assert np.isfinite(draws).all()


def test_nearest_seen_at_gaps_edges_and_ties():
    seen = torch.tensor([[0.0, 1.0, 4.0, 4.0], [2.0, 2.0, 2.0, 2.0]])
    X = torch.tensor([[-5.0, 9.0], [0.5, 2.0], [2.4, -1.0], [2.6, 2.1], [4.0, 0.0], [99.0, 3.0]])
    expected = [0.0, 0.5, 1.0, 4.0, 4.0, 4.0]  # the gap from 0 to 1 is not wide
    got = nearest_seen(X, seen)
    assert got[:, 0].tolist() == expected
    assert got[:, 1].tolist() == [2.0] * 6
    batch = nearest_seen(X.reshape(2, 3, 2), seen)
    torch.testing.assert_close(batch, got.reshape(2, 3, 2))
    X.requires_grad_()
    nearest_seen(X, seen)[:, 0].sum().backward()
    assert X.grad[:, 0].tolist() == [0.0, 1.0, 0.0, 0.0, 0.0, 0.0]


def test_seen_values_are_sorted_distinct_and_not_too_many():
    X = torch.tensor([[3.0, 5.0], [1.0, 5.0], [3.0, 5.0], [2.0, 5.0]])
    assert seen_values(X, 10).tolist() == [[1.0, 2.0, 3.0], [5.0, 5.0, 5.0]]
    many = seen_values(torch.randn(500, 1), 20)
    assert many.shape == (1, 20)
    assert bool((many[0].diff() > 0.0).all())
    assert seen_values(torch.ones(3, 1), 5).tolist() == [[1.0, 1.0]]


def test_the_linear_trend_ends_at_twice_the_distance_over_which_it_was_tested():
    rng = np.random.default_rng(0)
    x = rng.uniform(-3.0, 3.0, 100)
    model = quick().fit(x[:, None], x + 0.1 * rng.normal(size=100))
    law, reached = part(model).outside, np.sort(x)
    reach = max(reached[round(100 / 3)] - reached[0], reached[-1] - reached[-round(100 / 3) - 1])
    scale, centre = x.std(), x.mean()
    limits = torch.stack(
        [law.seen[0, 0] - 2 * law.reach[0, 0], law.seen[0, -1] + 2 * law.reach[1, 0]]
    )
    limits = limits.numpy() * scale + centre
    assert limits[0] == pytest.approx(reached[0] - 2 * (reached[33] - reached[0]), abs=0.2)
    assert limits[1] == pytest.approx(reached[-1] + 2 * (reached[-1] - reached[-34]), abs=0.2)
    assert limits[1] < reached[-1] + 2.2 * reach
    assert law.shares[2:].sum() > 0.5  # linear and secant
    a, b, c, d = model.predict(np.array([[4.5], [6.5], [500.0], [5000.0]]))
    assert b > a + 0.5
    assert c == pytest.approx(d)
    assert d < model.predict(limits[1:, None])[0] + 0.5


@pytest.mark.parametrize(
    ("f", "least", "more"),
    [(lambda x: np.sin(2 * x), 0.85, 0.2), (np.abs, 0.3, 0.25), (lambda x: x, 0.9, 0.0)],
    ids=["sin 2x", "|x|", "x"],
)
def test_intervals_cover_outside(f, least, more):
    """Nothing in the data says that |x| goes on: there the coverage is better, and still low."""
    ours, before = [], []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        x = rng.uniform(-3.0, 3.0, 120)
        new = rng.uniform(4.0, 8.0, 200) * np.repeat([-1.0, 1.0], 100)
        y, outcome = (f(v) + 0.2 * rng.normal(size=len(v)) for v in (x, new))
        model = quick().fit(x[:, None], y)
        for scores, each in ((ours, model), (before, replace_outside(model))):
            low, high = each.predict_interval(new[:, None]).T
            scores.append(np.mean((low <= outcome) & (outcome <= high)))
    assert np.mean(ours) >= least
    assert np.mean(ours) >= np.mean(before) + more


# --- other tables and options --------------------------------------------------------------------


def test_without_a_kernel_ridge_in_the_stack_support_is_one():
    forest = RandomForestRegressor(5, random_state=0, n_jobs=1)
    model = quick(mean=forest).fit(*table(60))
    assert part(model).outside is None
    np.testing.assert_array_equal(support_of(model, FAR), 1.0)


CASES = {
    "groups": ({}, {"groups": np.arange(80) // 2}),
    "weights": ({}, {"sample_weight": np.arange(80) % 4}),
    "known noise": ({}, {"noise_var": np.linspace(0.0, 0.2, 80)}),
    "float32": ({"dtype": "float32"}, {}),
    "neighbors": (
        {"method": "neighbors", "mean": "rbf", "settings": Settings(sample=SMALL_TREES)},
        {},
    ),
    "svgp": ({"method": "svgp", "mean": "rbf", "settings": Settings(sample=SMALL_TREES)}, {}),
    "one member": ({"settings": Settings(outside=OutsideSettings(members=1))}, {}),
    "no ends": ({"settings": Settings(outside=OutsideSettings(sizes=()))}, {}),
    "few rows of many": ({"settings": Settings(outside=OutsideSettings(rows=30))}, {}),
}


@pytest.mark.parametrize("case", CASES)
def test_other_fits_widen_outside_too(case):
    options, given = CASES[case]
    X, y = table()
    model = quick(**options).fit(X, y, **given)
    law = part(model).outside
    assert len(law.members) >= 1
    mean, support = model.predict(FAR, return_support=True)
    assert np.isfinite(mean).all()
    assert support[4] == pytest.approx(0.0, abs=1e-5)
    assert (support_of(model, X) == 1.0).mean() > 0.9
    std = model.predict(MIXED, return_std=True)[1]
    assert std[:5].min() > 1.2 * std[5:].max()
    if case == "no ends":
        np.testing.assert_array_equal(law.shares, [1.0, 0.0, 0.0, 0.0])
        assert (law.factor, law.n_ends) == (1.0, 0)
        np.testing.assert_allclose(mean, replace_outside(model).predict(FAR), rtol=1e-9)


def test_a_fit_with_members_0_is_the_fit_without():
    X, y = table()
    one, two = replace_outside(fitted()), quick(settings=OFF).fit(X, y)
    np.testing.assert_array_equal(one.predict_interval(MIXED), two.predict_interval(MIXED))


def test_repeated_rows_count_as_weights_do():
    X, y = table(60)
    counts = 1 + np.arange(60) % 3
    rows = np.repeat(np.arange(60), counts)
    noise = 0.1 * np.random.default_rng(0).normal(size=len(rows))
    repeated = quick().fit(X[rows], y[rows] + noise)
    again = quick().fit(X[rows[::-1]], (y[rows] + noise)[::-1])
    np.testing.assert_allclose(repeated.predict(FAR), again.predict(FAR), rtol=1e-6)
    assert support_of(repeated, FAR)[4] == pytest.approx(0.0, abs=1e-5)


def test_several_targets_have_their_own_support():
    X, y = table()
    model = quick(mean="rbf").fit(X, np.column_stack([y, -2.0 * y + X[:, 1]]))
    mean, support = model.predict(MIXED, return_support=True)
    assert mean.shape == support.shape == (10, 2)
    one = quick(mean="rbf").fit(X, y)
    np.testing.assert_allclose(support[:, 0], support_of(one, MIXED))


def test_data_frames_with_categories_and_constant_columns():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "area": rng.uniform(30.0, 150.0, 70),
            "town": rng.choice(["a", "b", "c"], 70),
            "same": 1.0,
        }
    )
    price = 3.0 * frame["area"] + 50.0 * (frame["town"] == "b") + rng.normal(size=70)
    model = quick().fit(frame, price)
    new = pd.DataFrame({"area": [90.0, 900.0], "town": ["a", "b"], "same": [1.0, 1.0]})
    mean, support = model.predict(new, return_support=True)
    assert support[0] == 1.0
    assert support[1] < 1.0
    assert mean[1] > mean[0]


@pytest.mark.parametrize(("n", "d"), [(5, 1), (5, 3), (30, 40), (12, 2)])
def test_few_rows_and_many_columns(n, d):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TwoStageGPWarning)
        model = quick().fit(X, X[:, 0] + 0.1 * rng.normal(size=n))
    far = np.vstack([X, 100.0 * X])
    mean, support = model.predict(far, return_support=True)
    assert np.isfinite(mean).all()
    assert ((support >= 0.0) & (support <= 1.0)).all()
    assert np.isfinite(model.predict_interval(far)).all()


def test_a_constant_target_and_a_column_of_two_values():
    X, _ = table(40)
    with pytest.warns(TwoStageGPWarning, match="constant"):
        model = quick().fit(X, np.ones(40))
    np.testing.assert_array_equal(support_of(model, FAR), 1.0)
    Z = np.column_stack([X[:, 0], np.arange(40) % 2])
    model = quick().fit(Z, X[:, 0])
    assert np.isfinite(model.predict_interval(np.array([[9.0, 5.0]]))).all()


def test_the_papers_settings_and_other_calibrations_are_unchanged():
    X, y = table(60)
    for model in (
        quick(calibration="scale"),
        quick(calibration=None),
        TwoStageGPRegressor.from_paper(mean="laplacian", variance="rbf", random_state=0),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TwoStageGPWarning)
            model.fit(X, y)
        assert part(model).outside is None
        np.testing.assert_array_equal(support_of(model, FAR), 1.0)
    for single in (ExactGPRegressor(random_state=0), GPNNRegressor(random_state=0)):
        np.testing.assert_array_equal(support_of(single.fit(X, y), FAR), 1.0)


def test_one_measure_of_uncertainty_at_a_time():
    for other in ("return_std", "return_latent_std", "return_cov"):
        with pytest.raises(InputError, match="return_support at a time"):
            fitted().predict(FAR, return_support=True, **{other: True})


# --- pickles, files, updates, exports ------------------------------------------------------------


def test_pickles_and_files_keep_it(tmp_path):
    fitted().save(tmp_path / "model")
    for other in (pickle.loads(pickle.dumps(fitted())), twostagegp.load(tmp_path / "model")):
        np.testing.assert_allclose(support_of(other, MIXED), support_of(fitted(), MIXED))
        np.testing.assert_allclose(
            other.predict_interval(MIXED), fitted().predict_interval(MIXED), rtol=1e-8
        )


@pytest.mark.parametrize(
    ("part_name", "field", "value"),
    [
        ("Outside", "factor", -1.0),
        ("Outside", "factor", {"float": "nan"}),
        ("Outside", "plain_factor", {"float": "inf"}),
        ("Outside", "members", []),
        ("Member", "weight", -0.1),
        ("Member", "scale", {"float": "nan"}),
        ("Member", "usual", {"float": "inf"}),
        ("Outside", "slopes", "reach"),
        ("Outside", "reach", "seen"),
        ("Outside", "seen", "slopes"),
    ],
)
def test_bad_files_are_refused(part_name, field, value, tmp_path):
    fitted().save(tmp_path / "model")
    manifest = read_manifest(tmp_path / "model")
    files = dict(read_files(tmp_path / "model", manifest))
    content = json.loads(files["model"])
    for each in content["parts"]:
        if each["class"] == part_name:
            state = each["state"]
            state[field] = state[value] if isinstance(value, str) else value
    files["model"] = json.dumps(content).encode()
    head = {key: manifest[key] for key in manifest if key not in ("files", "sha256", "kind")}
    write_folder(tmp_path / "forged", head, files)
    with pytest.raises(ModelFileError):
        twostagegp.load(tmp_path / "forged")


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_an_update_makes_the_surroundings_of_new_rows_supported(dtype):
    model = quick(dtype=dtype).fit(*table())
    law = part(model).outside
    new = np.array([[9.0, 9.0], [9.1, 9.0], [9.0, 9.1]])
    around = new.mean(0, keepdims=True)
    assert support_of(model, around)[0] < 0.5
    model.update(new, np.array([1.0, 1.1, 0.9]))
    after = part(model).outside
    assert support_of(model, around)[0] > 0.9
    assert (after.factor, after.n_ends) == (law.factor, law.n_ends)
    np.testing.assert_array_equal(after.shares, law.shares)
    assert len(after.members[0].posterior.rows) == len(law.members[0].posterior.rows) + 3
    assert after.members[0].posterior.rows.X.dtype == torch.float64
    Z = inputs(model, new)
    torch.testing.assert_close(nearest_seen(Z, after.seen), Z)
    assert bool((after.seen[:, -1] >= Z.max(0).values).all())
    torch.testing.assert_close(after.reach, law.reach)


def test_after_many_updates_there_are_as_many_rows_as_in_a_fit():
    settings = Settings(outside=OutsideSettings(rows=30, seen_values=50))
    model = quick(settings=settings).fit(*table())
    with pytest.warns(TwoStageGPWarning, match="refit is due"):
        model.update(*table(70, seed=3))
    law = part(model).outside
    assert 30 <= len(law.index) == len(law.members[0].posterior.rows) <= 60
    assert law.seen.shape == (2, 50)
    assert support_of(model, FAR)[4] == pytest.approx(0.0, abs=1e-6)


def test_exports_to_botorch_equal_predict_far_outside_and_have_gradients():
    pytest.importorskip("botorch")
    model = fitted().to_botorch()
    X = torch.as_tensor(MIXED).requires_grad_()
    posterior = model.posterior(X)
    mean, latent = fitted().predict(MIXED, return_latent_std=True)
    np.testing.assert_allclose(posterior.mean[:, 0].detach(), mean, rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(posterior.variance[:, 0].detach(), latent**2, rtol=1e-6)
    C = fitted().fitted_.covariances(MIXED, noise=False)[0]
    C[np.diag_indices(len(C))] = fitted().fitted_.moments(MIXED)[2][:, 0]
    joint = model.posterior(X, observation_noise=True).distribution.covariance_matrix.detach()
    np.testing.assert_allclose(joint, C, rtol=1e-6, atol=1e-8)
    (posterior.mean.sum() + posterior.variance.sqrt().sum()).backward()
    assert bool(torch.isfinite(X.grad).all())
    assert bool(X.grad[3].any())
    inside = fitted().to_botorch(local_scale=False).posterior(torch.as_tensor(FAR)).variance
    assert bool((inside < posterior.variance[:5].detach()).all())


def test_a_mean_that_is_not_continued_has_its_own_factor():
    law = part(fitted()).outside
    other = law.without_trends()
    assert not other.has_trends
    assert other.factor == law.plain_factor
    Z = inputs(fitted(), FAR)
    mean = part(fitted()).mean.predict(Z)

    def no_prediction(X):
        raise AssertionError("nothing is to be predicted at other rows")

    same, added = other.moments(Z, mean, torch.zeros_like(mean), no_prediction)
    torch.testing.assert_close(same, mean)
    assert bool((added > 0.0).all())


def test_without_ridges_or_members_nothing_is_learned():
    fit, rows = part(fitted()), fitted().fitted_.data[0].rows
    assert learn_outside(rows, fit.mean, 0.1, 0, OutsideSettings(members=0)) is None


def test_a_classifier_has_no_support():
    X, y = table(40)
    model = TwoStageGPClassifier(kernels=("rbf",), random_state=0).fit(X, y > 0)
    with pytest.raises(TypeError):
        model.predict(X, return_support=True)
