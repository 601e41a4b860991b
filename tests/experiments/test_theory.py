"""The paper's theory: formulas against differences and simulations, and verdicts both ways."""

import argparse
import copy
import math
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import norm

from experiments import theory
from experiments import theory_band as band
from experiments import theory_concentration as concentration
from experiments import theory_expected as expected
from experiments import theory_lemmas as lemmas
from experiments import theory_mean as mean
from experiments import theory_ratio as ratio
from experiments.theory_model import (
    KernelSum,
    covariance,
    cross,
    curvature,
    expected_gradient,
    expected_loss,
    inverse,
    log_theta,
    lowest,
    posterior,
    random_function,
    smoothness,
    symmetric_difference,
)
from experiments.theory_report import SECTIONS, picture, report
from experiments.theory_verdicts import ITEMS, Check, Slope, item_checks, of, slope, verdict
from measurements.runner import run
from twostagegp.engines.batched_problem import ProblemBatch
from twostagegp.kernels import NamedKernel
from twostagegp.search.paper_tests import bound_beta, error_ratio

KERNELS = ("rbf", "matern12", "matern32", "matern52")
TRUE = log_theta(0.2, 1.0, 0.1)


@pytest.fixture
def X():
    return np.sort(np.random.default_rng(0).uniform(size=(25, 1)), axis=0)


# --- the model -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", KERNELS)
def test_derivatives_of_the_covariance_are_those_of_differences(kernel, X):
    _, dK = covariance(kernel, X, TRUE)
    differences = symmetric_difference(lambda theta: covariance(kernel, X, theta)[0], TRUE)
    np.testing.assert_allclose(dK, differences, atol=1e-9)


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_slope_of_an_expected_loss_is_that_of_differences(kernel, X):
    rng = np.random.default_rng(1)
    M = rng.normal(size=(25, 25))
    S, theta = M @ M.T, TRUE + 0.3
    found = expected_gradient(*covariance(kernel, X, theta), S)
    differences = symmetric_difference(
        lambda t: np.array([expected_loss(covariance(kernel, X, t)[0], S)]), theta
    )[:, 0]
    np.testing.assert_allclose(found, differences, rtol=1e-7)


def test_the_expected_loss_is_the_mean_of_the_librarys_likelihood(X):
    K = covariance("matern32", X, TRUE + 0.4)[0]
    K_true = covariance("matern32", X, TRUE)[0]
    y = np.linalg.cholesky(K_true) @ np.random.default_rng(2).normal(size=(25, 2000))
    problems = ProblemBatch.of(
        NamedKernel("matern32", 1), torch.as_tensor(X)[None], torch.as_tensor(y.T), use_prior=False
    )
    values = problems(np.tile(TRUE + 0.4, (2000, 1)), np.arange(2000))[0]
    values = values - 0.5 * math.log(2.0 * math.pi)
    error = values.std() / math.sqrt(len(values))
    assert abs(values.mean() - expected_loss(K, K_true)) < 4.0 * error


def test_a_search_finds_the_truth_again(X):
    K = covariance("matern32", X, TRUE)[0]
    found, left = lowest("matern32", X, K, TRUE + np.array([0.5, -0.4, 0.3]))
    np.testing.assert_allclose(found, TRUE, atol=1e-6)
    assert left < 1e-8
    alone, _ = lowest("matern32", X, K, TRUE + np.array([0.5, 0.0, 0.0]), (0,))
    np.testing.assert_allclose(alone, TRUE, atol=1e-6)


def test_the_norm_of_a_sum_of_kernels_bounds_its_values_with_equality_at_one_centre():
    f = random_function("matern52", TRUE, 3.0, np.random.default_rng(0))
    assert f.norm == pytest.approx(3.0)
    x = np.linspace(0.0, 1.0, 200)[:, None]
    assert np.abs(f(x)).max() <= 3.0
    single = KernelSum("rbf", TRUE, np.array([[0.5]]), np.ones(1))
    assert single(np.array([[0.5]]))[0] == pytest.approx(single.norm)


def test_posterior_is_the_textbooks(X):
    Z = np.array([[0.3], [0.9]])
    post = posterior("matern32", X, Z, TRUE)
    K, k = covariance("matern32", X, TRUE)[0], cross("matern32", Z, X, TRUE)
    np.testing.assert_allclose(post.weights, k @ np.linalg.inv(K), atol=1e-10)
    np.testing.assert_allclose(post.variance, 1.0 - np.diag(k @ np.linalg.inv(K) @ k.T), atol=1e-10)


# --- 1, Theorem 1 --------------------------------------------------------------------------------


@pytest.mark.parametrize("case", mean.MEANS)
def test_theorem_one(case):
    r = mean.measure_mean(case, 20, seed=0)
    assert abs(r["simulated"] - r["right"]) < 4.0 * r["simulated_se"]
    assert r["right"] >= r["printed"] - 1e-9
    np.testing.assert_allclose(r["slope_exact"], r["slope_formula"], atol=1e-12)
    np.testing.assert_allclose(r["slope_differences"], r["slope_formula"], atol=1e-8)
    zero = {"": (), "lengthscale": (0,), "all": (0, 1, 2)}[mean.MEANS[case]]
    for j in range(3):
        assert (abs(r["slope_formula"][j]) < 1e-12) == (j in zero)
        assert (abs(math.log(r["alone"][j])) < 1e-6) == (j in zero)
        if j > 0 and j not in zero:
            assert r["alone"][j] > 1.0


def test_the_printed_minus_is_off_by_twice_the_means_form(X):
    m = mean.mean_vector("line", X)
    K = covariance("matern32", X, TRUE)[0]
    r = mean.quadratic_form(X, m, K, seed=3)
    A = inverse(covariance("matern32", X, mean.ELSEWHERE)[0])[0]
    assert r["right"] - r["printed"] == pytest.approx(2.0 * m @ A @ m)
    assert abs(r["simulated"] - r["printed"]) > 100.0 * r["simulated_se"]


def test_the_balanced_mean_is_an_exception_that_the_printed_condition_misses():
    r = mean.measure_mean("balanced", 20, seed=0)
    assert abs(r["form"]) < 1e-10
    assert abs(r["form_slope"]) > 1e-2  # so that the truth is no stationary point of the form


# --- 2, Theorem 2 --------------------------------------------------------------------------------


@pytest.mark.parametrize("tau", ratio.EXCESSES)
def test_the_probability_of_a_large_ratio(tau):
    b, v = np.array([0.02, -0.3, 2.0]), np.array([1.0, 0.5, 1.5])
    u = v[:, None] * np.random.default_rng(0).normal(size=(3, 400_000))
    simulated = (np.abs(b[:, None] + u) > (1.0 + tau) * np.abs(u)).mean(1)
    exact = ratio.exceedance(b, v, tau)
    assert np.all(np.abs(simulated - exact) < 4.0 * np.sqrt(exact * (1 - exact) / 400_000))


def test_the_guarantee_is_above_the_probability_for_every_bias():
    v = np.linspace(0.01, 3.0, 300)
    bias = np.full_like(v, 0.05)
    assert np.all(ratio.exceedance(bias, v, 0.1) <= ratio.guarantee(bias, v, 0.1))


def test_ratios_are_those_of_the_library():
    setting = ratio.Setting(ratio.FITS["too rough"], 12, 0.1, 0.05, seed=0)
    state = setting.rng.bit_generator.state
    known, fitted = setting.simulated()
    setting.rng.bit_generator.state = state
    draws = known.shape[1]
    train = math.sqrt(0.1) * setting.rng.normal(size=(12, draws))[:, :3].T
    new = math.sqrt(0.1) * setting.rng.normal(size=(len(setting.Z), draws))[:, :3].T
    t, y = torch.as_tensor(setting.f(setting.X) + train), setting.f(setting.Z) + new
    problems = ProblemBatch.of(
        NamedKernel("matern12", 1), torch.as_tensor(setting.X)[None], t, use_prior=False
    )
    block = problems.block(np.tile(setting.theta, (3, 1)), np.arange(3))
    given = (block, torch.as_tensor(setting.post.k_cross).expand(3, -1, -1), torch.as_tensor(y))
    np.testing.assert_allclose(known[:, :3].T, error_ratio(
        *given, noise=(torch.as_tensor(train), torch.as_tensor(new))), rtol=1e-6)  # fmt: skip
    np.testing.assert_allclose(fitted[:, :3].T, error_ratio(*given), rtol=1e-6)


def test_the_theorem_is_judged_for_the_right_kernel_and_the_own_kernel_for_others():
    right = ratio.measure_ratio("right, flat", 25, 0.1, seed=0)
    assert right["bound_holds"]
    assert right["worst_where_met"] <= ratio.DELTA
    wrong = ratio.measure_ratio("too long", 25, 0.1, seed=0)
    own = ratio.measure_ratio("right", 25, 0.1, seed=0)
    assert wrong["own_exact_0.1"] == pytest.approx(own["exact_0.1"])
    assert wrong["exact_0.1"] > own["exact_0.1"]


def test_with_residuals_every_kernel_passes_as_the_models_noise_vanishes():
    for case in ("too rough", "too smooth", "too long"):
        assert ratio.measure_limit(case, 10, 1e-12, seed=0)["residuals_0.1"] < 1e-3
    assert ratio.measure_limit("too smooth", 10, 1e-12, seed=0)["exact_0.1"] > 0.2


# --- 3, Theorem 3 --------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", KERNELS)
def test_theorem_three(kernel):
    r = expected.measure_expected(kernel, 30, seed=0)
    assert max(r["slope"], r["slope_some_rows"]) < 1e-13
    assert r["curvature_error"] < 1e-7
    assert min(*r["curvature"], r["curvature_least"], r["divergence_least"]) > 0.0
    assert r["case_two_right"] == pytest.approx(1.0, abs=1e-9)
    assert abs(r["case_two_printed"] - 1.0) > 0.1
    assert r["beyond"] == 0.0


def test_the_printed_curvature_is_another_number(X):
    K, dK = covariance("matern32", X, TRUE)
    A = np.linalg.inv(K)
    right = np.trace(A @ dK[0] @ A @ dK[0]) / 50
    assert curvature(K, dK)[0, 0] == pytest.approx(right)
    printed = np.trace(A @ A @ dK[0] @ dK[0]) / 50
    assert expected.printed_curvature(K, dK) == pytest.approx(printed)
    assert printed > 1.05 * right


def test_the_expected_losses_differ_by_the_divergence_of_two_normals(X):
    K_true, K = (covariance("matern52", X, TRUE + shift)[0] for shift in (0.0, 0.7))
    values = np.linalg.eigvals(np.linalg.solve(K, K_true)).real
    divergence = 0.5 * np.sum(values - 1.0 - np.log(values))
    difference = expected_loss(K, K_true) - expected_loss(K_true, K_true)
    assert difference == pytest.approx(divergence / 25)


# --- 4, concentration ----------------------------------------------------------------------------


def test_quadratic_forms_have_the_spread_of_the_frobenius_norm_and_stay_in_the_bound():
    r = concentration.measure_concentration("growing", 64, seed=0)["quantities"]
    assert tuple(r) == concentration.QUANTITIES
    for found in r.values():
        assert found["sd"] == pytest.approx(math.sqrt(2.0) * found["frobenius"] / 64, rel=0.06)
        for delta in concentration.DELTAS:
            assert found[f"at_{delta:g}"]["inside_right"] >= 1.0 - delta
    assert r["loss, true θ"]["frobenius"] == pytest.approx(8.0)
    assert r["loss, true θ"]["largest"] == pytest.approx(1.0)


def test_the_deviation_inverts_the_tail_bound():
    n, frobenius, largest, delta = 500, 20.0, 1.0, 0.05
    t = expected.deviation(frobenius, largest, n, delta, square=True)
    least = min((n * t / frobenius) ** 2, n * t / largest) / (2.0 * expected.HANSON_WRIGHT)
    assert 2.0 * math.exp(-least) == pytest.approx(delta)
    printed = expected.deviation(frobenius, 0.0, n, delta, square=False)
    assert printed == pytest.approx(t / math.sqrt(frobenius))


# --- 5, the band ---------------------------------------------------------------------------------


@pytest.mark.parametrize("printed", [True, False])
@pytest.mark.parametrize("sd", [0.05, 3.0])
def test_beta_is_that_of_the_library(X, sd, printed):
    theta = log_theta(0.2, 1.0, sd**2)
    problems = ProblemBatch.of(
        NamedKernel("matern52", 1), torch.as_tensor(X)[None], torch.zeros(1, 25).double()
    )
    block = problems.block(theta[None], np.arange(1))
    K_f = covariance("matern52", X, theta)[1][1]
    found = band.beta(K_f, sd, 1.5, 0.05, printed)
    assert found == pytest.approx(float(bound_beta(block, 1.5, 0.05, printed)[0]))


def test_the_printed_band_is_too_narrow_for_much_noise_and_useless_for_little():
    level = band.measure_band("level", 10, 5.0, seed=0)["at_0.01"]
    assert level["printed"]["coverage_all_n"] < 0.97
    assert level["corrected"]["coverage_all_n"] >= 0.99
    little = band.measure_band("random", 10, 1e-3, seed=0)
    assert little["norm"] == pytest.approx(1.0)
    assert little["at_0.05"]["printed"]["beta"] > 1000.0 > little["at_0.05"]["corrected"]["beta"]


def test_the_worst_function_has_the_largest_error_that_its_norm_allows():
    theta = log_theta(0.2, 1.0, 0.01)
    rng = np.random.default_rng(0)
    rows, new = rng.uniform(size=(8, 1)), np.linspace(0.0, 1.0, 50)[:, None]
    f = band.drawn_function("worst", rows, new, theta, rng)
    post = posterior("matern52", rows, new, theta)
    i = post.variance.argmax()
    error = abs(post.weights[i] @ f(rows) - f(new)[i])
    assert error == pytest.approx(math.sqrt(post.variance[i] - 0.01 * post.noise_gain[i]), rel=1e-6)


# --- 6, lemmas -----------------------------------------------------------------------------------


def test_rates_of_contraction_come_from_the_smoothness():
    assert smoothness("matern32", 2) == 2.5
    assert lemmas.Contraction("matern12", 1).power == pytest.approx(0.5)
    assert lemmas.Contraction("matern12", 1, edge="variance").variance(10) == pytest.approx(0.1)
    assert lemmas.Contraction("matern12", 1, edge="deviation").variance(10) == pytest.approx(0.01)
    small, large = (lemmas.measure_contraction("matern12, d=1", n) for n in (200, 400))
    assert math.log2(large["variance"] / small["variance"]) == pytest.approx(-0.5, abs=0.02)
    assert lemmas.measure_contraction("matern12, d=2", 30)["rows"] == 25


def test_lemma_two_needs_the_posterior_deviation():
    r = lemmas.measure_worst_case(5, 1e-4, seed=0)
    assert r["over_sd"] <= 1.0
    assert r["over_noise"] > 10.0
    assert r["drawn_over_largest"] <= 1.0


def test_the_tail_bound_is_two_sided():
    a = np.linspace(0.0, 8.0, 400)
    assert np.all(2.0 * norm.sf(a) >= lemmas.lower_tail(a))
    r = lemmas.measure_tail(20, 1e-2, seed=0)
    assert r["one_sided_least"] == pytest.approx(0.5)
    start = np.array([r["one_sided_from"]])
    assert norm.sf(start) == pytest.approx(lemmas.lower_tail(start))
    assert r["probability_right"] >= 0.9 > r["probability_printed"]
    assert r["lemma4_noise_over_right"] <= 1.0 < r["lemma4_over_right"]


def test_the_deviation_of_the_irreducible_error():
    post = posterior("matern32", np.linspace(0, 1, 6)[:, None], np.array([[0.33]]), TRUE)
    rng = np.random.default_rng(0)
    noise = 0.3 * rng.normal(size=(7, 100_000))
    u = post.weights[0] @ noise[:6] - noise[6]
    assert u.std() == pytest.approx(0.3 * math.sqrt(1.0 + post.noise_gain[0]), rel=0.01)


def test_assumption_c2_excludes_the_rbf_kernel():
    assert lemmas.measure_spectrum("rbf")["log10_spread"] > 50.0
    assert lemmas.measure_spectrum("matern52")["log10_spread"] < 3.0


# --- verdicts ------------------------------------------------------------------------------------


def tiny(given):
    """A few tasks of every item."""
    plan = theory.Plan(
        mean_rows=(12,),
        ratio_rows=(8, 24),
        expected_kernels=("matern32",),
        expected_rows=(12,),
        concentration_rows=(16, 64),
        band_rows=(6,),
        contraction_rows=(16, 36),
        few=1,
        many=1,
        slopes=2,
    )
    return [*theory.theorem_tasks(plan), *theory.bound_tasks(plan)]


@pytest.fixture(scope="module")
def records():
    module = pytest.MonkeyPatch()
    for part, name, value in (
        (mean, "_DRAWS", 2000),
        (ratio, "_DRAWS", 50),
        (ratio, "_NEW_ROWS", 100),
        (expected, "_DRAWS", 50),
        (concentration, "_DRAWS", 500),
        (band, "_DRAWS", 200),
    ):
        module.setattr(part, name, value)
    found = []
    for task in tiny(None):
        fields = {name: getattr(task, name) for name in ("item", "case", "n", "noise", "seed")}
        found.append(fields | {"version": "0", "code": "x"} | theory.measure(task))
    module.undo()
    return found


def outcome(item, records, part, number):
    return item_checks(item, records)[part][number].holds


def changed(records, item, **values):
    """The records with some values of an item replaced."""
    new = copy.deepcopy(records)
    for record in new:
        if record["item"] == item:
            record.update(values)
    return new


def test_verdicts_count():
    yes, no = Check("a", "", True), Check("b", "", False)
    assert verdict([yes, yes]) == "holds (2 of 2)"
    assert verdict([yes, no]) == "holds in part (1 of 2)"
    assert verdict([no]) == "does not hold (0 of 1)"
    assert verdict([]) == "not measured"


@pytest.mark.parametrize("item", ITEMS)
def test_without_records_nothing_is_judged(item):
    assert item_checks(item, []) == ([], [])


def test_records_that_failed_do_not_count(records):
    broken = [r | {"error": "no"} for r in records]
    assert all(item_checks(item, broken) == ([], []) for item in ITEMS)


def test_verdict_on_the_mean_follows_the_figures(records):
    assert outcome("mean", records, 1, 0)
    assert not outcome("mean", records, 0, 0)
    other = [r | {"right": r["printed"], "printed": r["right"]} for r in of(records, "mean")]
    assert not outcome("mean", other, 1, 0)
    assert outcome("mean", other, 0, 0)
    assert not outcome("mean", changed(records, "mean", alone=[1.0, 1.0, 1.0]), 1, 2)
    assert not outcome("mean", changed(records, "mean", alone=[2.0, 0.5, 0.5]), 1, 3)
    assert outcome("mean", changed(records, "mean", printed_data_fit=0.1), 0, 2)
    assert outcome("mean", changed(records, "mean", form_slope=0.0), 0, 3)


def test_verdict_on_the_ratio_follows_the_figures(records):
    assert outcome("ratio", records, 1, 1)
    assert not outcome("ratio", changed(records, "ratio", bound_holds=False), 1, 1)
    beyond = changed(records, "ratio", worst_where_met=0.5, condition_met=1.0)
    assert not outcome("ratio", beyond, 0, 0)
    passed = changed(records, "ratio", worst_where_met=0.0, condition_met=1.0)
    assert outcome("ratio", passed, 0, 0)
    assert outcome("ratio", changed(passed, "ratio", **{"all_rows_0.1": 0.95}), 0, 1)
    assert not outcome("ratio", changed(passed, "ratio", **{"all_rows_0.1": 0.5}), 0, 1)
    assert not outcome("ratio", records, 0, 5)
    assert outcome("ratio", changed(records, "limit", **{"residuals_0.1": 0.4}), 0, 5)
    assert outcome("ratio", changed(records, "ratio", **{"residuals_0.1": 0.01}), 0, 3)
    worse = changed(records, "ratio", **{"residuals_0.1": 0.3, "own_residuals_0.1": 0.1})
    assert outcome("ratio", worse, 0, 4)
    assert not outcome("ratio", changed(worse, "ratio", **{"own_residuals_0.1": 0.4}), 0, 4)


def test_verdict_on_the_expected_loss_follows_the_figures(records):
    assert [check.holds for check in item_checks("expected", records)[1]] == [True] * 5
    for field, value, number in (
        ("case_two_right", 1.1, 0),
        ("curvature_error", 0.1, 1),
        ("curvature_least", -1.0, 2),
        ("divergence_least", -1.0, 3),
        ("beyond", 0.5, 4),
    ):
        assert not outcome("expected", changed(records, "expected", **{field: value}), 1, number)
    assert not outcome("expected", changed(records, "expected", slope=1e-3), 0, 0)
    assert not outcome("expected", changed(records, "expected", slope_some_rows=1e-3), 0, 1)


def decaying(power, inside):
    """Records whose quantiles fall with a power of n and whose bounds hold so often."""
    at = {f"inside_{form}": inside for form in ("right", "printed", "without_c")}
    at |= {"quantile": 1.0, "right": 2.0, "printed": 1.0}

    def quantities(n):
        bounds = {f"at_{d:g}": at | {"c_needed": n ** (2 * power + 1.5)} for d in (0.1, 0.01)}
        return {
            q: {"quantile": n**power, "sd": n**power, "frobenius": n ** (power + 1) / math.sqrt(2)}
            | bounds
            for q in concentration.QUANTITIES
        }

    fields = {"item": "concentration", "noise": 0.0, "version": "0", "code": "x"}
    return [
        fields | {"case": case, "n": n, "seed": seed, "quantities": quantities(n)}
        for case in ("growing", "infill")
        for n in (10, 100)
        for seed in (0, 1)
    ]


def test_verdict_on_the_concentration_follows_the_figures():
    printed, right = item_checks("concentration", decaying(-0.5, 1.0))
    assert [check.holds for check in printed] == [False, True, False, True]
    assert [check.holds for check in right] == [True, True, True]
    printed, right = item_checks("concentration", decaying(-0.75, 0.5))
    assert [check.holds for check in printed] == [True, False, True, False]
    assert [check.holds for check in right] == [False, True, False]


def test_exponents_are_fitted_a_seed():
    rows = [{"seed": s, "n": n, "v": (s + 1) * n**-0.5} for s in (0, 1) for n in (4, 16, 64)]
    found = slope(rows, lambda r: r["v"])
    assert (found.mean, found.se) == (pytest.approx(-0.5), pytest.approx(0.0, abs=1e-12))
    assert str(Slope(-0.5, 0.01)) == "-0.500 ± 0.010"
    assert Slope(-0.55, 0.02).agrees(-0.5)
    assert not Slope(-0.55, 0.01).agrees(-0.5)
    assert math.isnan(slope(rows[:1], lambda r: r["v"]).mean)
    assert slope(rows[:3], lambda r: r["v"]).se == 0.0


def test_verdict_on_the_band_follows_the_figures(records):
    assert [check.holds for check in item_checks("band", records)[1]] == [True, True]
    swapped = copy.deepcopy(records)
    for record in of(swapped, "band"):
        for delta in band.DELTAS:
            at = record[f"at_{delta:g}"]
            at["printed"], at["corrected"] = at["corrected"], at["printed"]
    assert [check.holds for check in item_checks("band", swapped)[0]] == [True, True]
    assert not any(check.holds for check in item_checks("band", swapped)[1])


def test_verdict_on_the_lemmas_follows_the_figures(records):
    right = [check.holds for check in item_checks("lemmas", records)[1]]
    assert right[2:] == [True] * 4
    for item, field, value, number in (
        ("worst_case", "over_sd", 1.2, 2),
        ("worst_case", "drawn_over_largest", 1.2, 3),
        ("tail", "two_sided_least", 0.9, 4),
        ("tail", "lemma4_noise_over_right", 2.0, 5),
    ):
        assert not outcome("lemmas", changed(records, item, **{field: value}), 1, number)
    assert not outcome("lemmas", records, 0, 3)
    assert outcome("lemmas", changed(records, "worst_case", over_noise=0.5), 0, 3)
    assert outcome("lemmas", changed(records, "spectrum", log10_spread=1.0), 0, 2)
    flat = changed(records, "contraction", over_bound=1.0)
    assert all(outcome("lemmas", flat, part, number) for part in (0, 1) for number in (0, 1))


# --- page, picture, command line -----------------------------------------------------------------


def test_the_page_has_a_section_an_item_with_formula_table_and_verdict(records):
    page = report(records)
    sections = page.split("\n## ")[1:]
    assert [text.splitlines()[0] for text in sections] == [s.title for s in SECTIONS]
    for text in sections:
        assert "As printed: `" in text
        assert "Put right: `" in text
        assert text.count("| as printed |") >= 2
        assert "**Verdict.** As printed: " in text
    assert "`python -m experiments theory`" in page
    assert "](theory.svg)" in page
    assert "nan" not in page


def test_the_order_of_the_records_does_not_matter(records):
    assert report(records[::-1]) == report(records)


def test_failures_and_missing_items_are_named(records):
    broken = records[0] | {"error": "ValueError: no"}
    page = report([*of(records, "band"), broken])
    assert "ValueError: no" in page
    assert page.count("Not measured yet.") == len(SECTIONS) - 1
    assert picture(of(records, "band")) is None


def test_the_picture_shows_rates_and_coverage(records):
    tree = ElementTree.fromstring(picture(records))
    axes = [e for e in tree.iter() if e.get("id", "").startswith("axes_")]
    assert len(axes) == 3


@pytest.mark.parametrize("quick", [True, False])
def test_tasks_are_all_different_and_measurable(quick):
    tasks = theory.tasks(argparse.Namespace(quick=quick))
    assert len(set(tasks)) == len(tasks)
    assert {task.item for task in tasks} == set(theory.MEASURES)


def test_the_command_resumes(tmp_path, monkeypatch, capsys):
    calls = []
    kept = [task for task in tiny(None) if task.item in ("tail", "spectrum")]

    def measure(task):
        calls.append(task)
        return theory.measure(task)

    experiment = replace(theory.MEASUREMENT, cells=lambda given: kept, measure=measure)
    assert run(experiment, ["--results", str(tmp_path)]) == 0
    assert calls == kept
    assert run(experiment, ["--results", str(tmp_path)]) == 0
    assert calls == kept
    assert f"{len(kept)} of {len(kept)} are stored already" in capsys.readouterr().out
    assert (tmp_path / "theory.md").read_text().startswith("# The theory in numbers")
    assert run(theory.MEASUREMENT, ["--table-only", "--results", str(tmp_path)]) == 0
