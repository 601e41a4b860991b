"""Each metric against a hand calculation or an independent route."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from twostagegp import metrics
from twostagegp.errors import InputError


@pytest.fixture
def gaussian():
    """Outcomes with means and stds that vary, and are not calibrated."""
    rng = np.random.default_rng(0)
    mean = rng.normal(size=60)
    std = rng.uniform(0.3, 2.0, size=60)
    y = mean + 1.4 * std * rng.normal(size=60) + 0.2
    return y, mean, std


def test_all_lists_the_public_functions():
    assert sorted(metrics.__all__) == metrics.__all__
    assert all(callable(getattr(metrics, name)) for name in metrics.__all__)


# --- mean and density ----------------------------------------------------------------------------


def test_rmse_equals_a_hand_calculation():
    assert metrics.rmse([1.0, 2.0, 4.0], [1.0, 0.0, 3.0]) == pytest.approx(np.sqrt(5 / 3))


def test_nlpd_equals_the_mean_log_density_of_scipy(gaussian):
    y, mean, std = gaussian
    assert metrics.nlpd(y, mean, std) == pytest.approx(-stats.norm(mean, std).logpdf(y).mean())


def test_joint_nll_equals_the_multivariate_normal_of_scipy():
    rng = np.random.default_rng(1)
    A = rng.normal(size=(6, 6))
    cov = A @ A.T + np.eye(6)
    mean, y = rng.normal(size=6), rng.normal(size=6)
    expected = -stats.multivariate_normal(mean, cov).logpdf(y) / 6
    assert metrics.joint_nll(y, mean, cov) == pytest.approx(expected)


def test_joint_nll_of_a_diagonal_covariance_is_nlpd(gaussian):
    y, mean, std = gaussian
    assert metrics.joint_nll(y, mean, np.diag(std**2)) == pytest.approx(metrics.nlpd(y, mean, std))


@given(scale=st.floats(1e-3, 1e3), shift=st.floats(-100, 100))
def test_scores_follow_a_change_of_units(scale, shift):
    rng = np.random.default_rng(2)
    y, mean, std = rng.normal(size=40), rng.normal(size=40), rng.uniform(0.5, 2.0, size=40)
    before = metrics.evaluate(y, mean, std, y_train=y)
    after = metrics.evaluate(
        scale * y + shift, scale * mean + shift, scale * std, y_train=scale * y + shift
    )
    assert after["nlpd"] == pytest.approx(before["nlpd"] + np.log(scale), abs=1e-6)
    for name in ("rmse", "crps", "pinball", "interval_width", "hc_rmse", "lc_rmse"):
        assert after[name] == pytest.approx(scale * before[name], rel=1e-6), name
    for name in ("nlpd_standardized", "coverage", "qice", "qice_floor"):
        assert after[name] == pytest.approx(before[name], abs=1e-6), name


# --- QICE ----------------------------------------------------------------------------------------


def test_qice_counts_bins_between_predicted_quantiles(gaussian):
    y, mean, std = gaussian
    edges = stats.norm(mean[:, None], std[:, None]).ppf(np.linspace(0, 1, 11))
    shares = [np.mean((edges[:, m] <= y) & (y < edges[:, m + 1])) for m in range(10)]
    expected = 100 * np.mean(np.abs(np.array(shares) - 0.1))
    assert metrics.qice(y, mean, std) == pytest.approx(expected)


def test_qice_from_pit_equals_qice_from_mean_and_std(gaussian):
    y, mean, std = gaussian
    pit = stats.norm(mean, std).cdf(y)
    assert metrics.qice(pit=pit) == pytest.approx(metrics.qice(y, mean, std))
    assert metrics.qice(y, pit=pit) == metrics.qice(pit=pit)


def test_qice_has_its_extremes_at_uniform_and_constant_pit():
    assert metrics.qice(pit=(np.arange(100) + 0.5) / 100) == pytest.approx(0.0)
    assert metrics.qice(pit=np.full(7, 0.05)) == pytest.approx(18.0)
    assert metrics.qice(pit=[0.0, 1.0], n_bins=2) == 0.0  # both ends belong to a bin


@pytest.mark.parametrize(
    ("n", "percent"),
    [
        (31, 4.25),
        (51, 3.33),
        (77, 2.74),
        (103, 2.37),
        (160, 1.88),
        (819, 0.84),
        (957, 0.77),
        (1193, 0.69),
    ],
)
def test_qice_floor_at_the_sizes_of_the_benchmark_folds(n, percent):
    assert round(metrics.qice_floor(n), 2) == percent


@given(n=st.integers(1, 400), n_bins=st.integers(2, 30))
def test_qice_floor_is_the_binomial_mean_absolute_deviation(n, n_bins):
    counts = np.arange(n + 1)
    probability = stats.binom.pmf(counts, n, 1 / n_bins)
    expected = 100 * np.sum(probability * np.abs(counts / n - 1 / n_bins))
    assert metrics.qice_floor(n, n_bins) == pytest.approx(expected, rel=1e-8)


def test_qice_floor_is_the_mean_score_of_a_calibrated_model():
    rng = np.random.default_rng(3)
    scores = [metrics.qice(pit=rng.uniform(size=50)) for _ in range(2000)]
    error = np.std(scores) / np.sqrt(len(scores))
    assert np.mean(scores) == pytest.approx(metrics.qice_floor(50), abs=4 * error)


def test_a_randomized_pit_lies_in_its_cell_and_follows_the_seed():
    lower, upper = np.array([0.0, 0.2, 0.5, 0.7]), np.array([0.1, 0.2, 0.5000001, 1.0])
    u = metrics.randomized_pit(lower, upper, random_state=3)
    assert np.all((lower <= u) & (u <= upper))
    assert np.array_equal(u, metrics.randomized_pit(lower, upper, np.random.default_rng(3)))
    assert not np.array_equal(u, metrics.randomized_pit(lower, upper))


def test_a_rounded_target_is_calibrated_by_its_randomized_pit_only():
    rng = np.random.default_rng(7)
    mean = rng.normal(size=20_000)
    y = np.round(mean + 0.4 * rng.normal(size=20_000))
    law = stats.norm(mean, 0.4)
    u = metrics.randomized_pit(law.cdf(y - 0.5), law.cdf(y + 0.5))
    assert metrics.qice(pit=u) < 3 * metrics.qice_floor(20_000)
    assert metrics.qice(pit=law.cdf(y)) > 10 * metrics.qice_floor(20_000)
    assert stats.kstest(u, "uniform").pvalue > 0.01


# --- intervals -----------------------------------------------------------------------------------


def test_coverage_and_width_of_gaussian_intervals(gaussian):
    y, mean, std = gaussian
    lower, upper = stats.norm(mean, std).interval(0.8)
    assert metrics.coverage(y, mean, std, 0.8) == np.mean((lower <= y) & (y <= upper))
    assert metrics.interval_width(y, mean, std, 0.8) == pytest.approx(np.mean(upper - lower))


def test_given_intervals_score_like_the_equal_gaussian_intervals(gaussian):
    y, mean, std = gaussian
    interval = np.column_stack(stats.norm(mean, std).interval(0.95))
    assert metrics.coverage(y, interval=interval) == metrics.coverage(y, mean, std)
    assert metrics.interval_width(y, interval=interval) == pytest.approx(
        metrics.interval_width(y, mean, std)
    )


def test_an_end_belongs_to_the_interval_and_may_be_infinite():
    assert metrics.coverage([1.0, 1.0], interval=[[0.0, 1.0], [-np.inf, np.inf]]) == 1.0
    assert metrics.interval_width([1.0], interval=[[-np.inf, 0.0]]) == np.inf


# --- CRPS and pinball ----------------------------------------------------------------------------


@pytest.mark.parametrize(("y", "mean", "std"), [(0.3, -1.0, 0.7), (5.0, 0.0, 1.0), (0.0, 0.0, 2.0)])
def test_crps_equals_the_integral_that_defines_it(y, mean, std):
    F = stats.norm(mean, std).cdf
    below, _ = integrate.quad(lambda t: F(t) ** 2, mean - 12 * std, y)
    above, _ = integrate.quad(lambda t: (1 - F(t)) ** 2, y, max(y, mean) + 12 * std)
    assert metrics.crps([y], [mean], [std]) == pytest.approx(below + above, abs=1e-7)


def test_crps_tends_to_the_absolute_error():
    assert metrics.crps([2.0], [0.5], [1e-9]) == pytest.approx(1.5)


def test_crps_is_twice_the_mean_pinball_loss(gaussian):
    y, mean, std = gaussian
    levels = (np.arange(4000) + 0.5) / 4000
    quantiles = stats.norm(mean[:, None], std[:, None]).ppf(levels)
    loss = metrics.pinball(y, quantiles, levels)
    assert 2 * loss == pytest.approx(metrics.crps(y, mean, std), rel=1e-3)


@pytest.mark.parametrize("spread", [0.5, 1.0, 3.0])
def test_crps_from_quantiles_of_a_gaussian_is_its_crps(gaussian, spread):
    y, mean, std = gaussian
    y = mean + spread * (y - mean)
    levels = (np.arange(999) + 0.5) / 999
    quantiles = stats.norm(mean[:, None], std[:, None]).ppf(levels)
    got = metrics.crps_from_quantiles(y, quantiles, levels)
    assert got == pytest.approx(metrics.crps(y, mean, std), abs=1e-3)
    assert got == pytest.approx(2 * metrics.pinball(y, quantiles, levels))


def test_crps_from_quantiles_equals_a_hand_calculation():
    # The median alone: twice half the absolute error; a point mass at any number of levels.
    assert metrics.crps_from_quantiles([3.0], [[1.0]], [0.5]) == 2.0
    assert metrics.crps_from_quantiles([3.0], np.ones((1, 4)), (np.arange(4) + 0.5) / 4) == 2.0


def test_pinball_equals_a_hand_calculation():
    # y - q = 1 and -2: 0.9 * 1 at level 0.9, and (1 - 0.1) * 2 at level 0.1.
    assert metrics.pinball([1.0], [[3.0, 0.0]], [0.1, 0.9]) == pytest.approx((1.8 + 0.9) / 2)


def test_pinball_takes_one_level_as_a_number_and_is_least_at_the_quantile():
    y = np.random.default_rng(4).normal(size=501)
    losses = [metrics.pinball(y, np.full(501, q), 0.3) for q in np.quantile(y, [0.2, 0.3, 0.4])]
    assert np.argmin(losses) == 1


# --- high and low certainty ----------------------------------------------------------------------


def test_hc_and_lc_rmse_equal_sorting(gaussian):
    y, mean, std = gaussian
    squared = ((y - mean) ** 2)[np.argsort(std)]
    assert metrics.hc_rmse(y, mean, std, q=0.1) == pytest.approx(np.sqrt(squared[:6].mean()))
    assert metrics.lc_rmse(y, mean, std, q=0.1) == pytest.approx(np.sqrt(squared[-6:].mean()))


def test_a_constant_std_gives_the_plain_rmse(gaussian):
    y, mean, _ = gaussian
    std = np.full_like(y, 0.1 + 0.2)
    expected = pytest.approx(metrics.rmse(y, mean))
    assert metrics.hc_rmse(y, mean, std) == expected
    assert metrics.lc_rmse(y, mean, std) == expected


# --- evaluate ------------------------------------------------------------------------------------


def test_evaluate_returns_every_score(gaussian):
    y, mean, std = gaussian
    scores = metrics.evaluate(y, mean, std)
    direct = ("rmse", "nlpd", "crps", "qice", "coverage", "interval_width", "hc_rmse", "lc_rmse")
    for name in direct:
        arguments = (y, mean) if name == "rmse" else (y, mean, std)
        assert scores.pop(name) == getattr(metrics, name)(*arguments)
    assert scores.pop("qice_floor") == metrics.qice_floor(60)
    quantiles = stats.norm(mean[:, None], std[:, None]).ppf([0.05, 0.25, 0.5, 0.75, 0.95])
    expected = metrics.pinball(y, quantiles, [0.05, 0.25, 0.5, 0.75, 0.95])
    assert scores.pop("pinball") == pytest.approx(expected)
    assert scores == {}


def test_standardized_nlpd_is_the_nlpd_of_the_standardised_target(gaussian):
    y, mean, std = gaussian
    y_train = np.random.default_rng(5).normal(3.0, 7.0, size=200)
    centre, scale = y_train.mean(), y_train.std()
    expected = metrics.nlpd((y - centre) / scale, (mean - centre) / scale, std / scale)
    got = metrics.evaluate(y, mean, std, y_train=y_train)["nlpd_standardized"]
    assert got == pytest.approx(expected)


def test_results_are_plain_floats_for_any_input_type(gaussian):
    y, mean, std = gaussian
    frame = pd.DataFrame({"y": y, "mean": mean, "std": std}).astype("float32")
    scores = metrics.evaluate(frame["y"], frame["mean"], list(frame["std"]))
    assert {type(value) for value in scores.values()} == {float}


# --- errors --------------------------------------------------------------------------------------

GAUSSIAN_METRICS = ("nlpd", "qice", "coverage", "interval_width", "crps", "hc_rmse", "evaluate")


@pytest.mark.parametrize("name", GAUSSIAN_METRICS)
@pytest.mark.parametrize(
    ("y", "mean", "std", "message"),
    [
        ([0.0, 1.0], [0.0], [1.0, 1.0], r"mean has 1 rows, but y has 2"),
        ([0.0, 1.0], [0.0, 1.0], [1.0], r"std has 1 rows, but y has 2"),
        ([0.0, np.nan], [0.0, 1.0], [1.0, 1.0], r"y must be finite, but y\[1\] = nan"),
        ([0.0, 1.0], [np.inf, 1.0], [1.0, 1.0], r"mean must be finite, but mean\[0\] = inf"),
        ([0.0, 1.0], [0.0, 1.0], [1.0, -0.5], r"std must be positive, but std\[1\] = -0.5"),
        ([0.0, 1.0], [0.0, 1.0], [0.0, 1.0], r"std must be positive, but std\[0\] = 0.0"),
        ([[0.0], [1.0]], [0.0, 1.0], [1.0, 1.0], r"y must have shape \(n,\), got \(2, 1\)"),
        ([], [], [], r"y is empty"),
    ],
)
def test_bad_input_is_named(name, y, mean, std, message):
    with pytest.raises(ValueError, match=message):
        getattr(metrics, name)(y, mean, std)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: metrics.rmse([1.0], [1.0, 2.0]), "mean has 2 rows"),
        (lambda: metrics.qice(), "give y, mean and std, or pit"),
        (lambda: metrics.qice([0.0], [0.0], [1.0], pit=[0.5]), "not both"),
        (lambda: metrics.qice([0.0, 1.0], pit=[0.5]), "pit has 1 rows, but y has 2"),
        (lambda: metrics.qice(pit=[0.5, 1.5]), r"pit\[1\] = 1.5"),
        (lambda: metrics.qice(pit=[0.5], n_bins=1), "n_bins must be at least 2, got 1"),
        (lambda: metrics.qice_floor(0), "n must be at least 1, got 0"),
        (lambda: metrics.coverage([0.0]), "give both mean and std"),
        (lambda: metrics.coverage([0.0], [0.0], [1.0], 95), "level must lie strictly"),
        (lambda: metrics.coverage([0.0], [0.0], [1.0], interval=[[0, 1]]), "not both"),
        (lambda: metrics.coverage([0.0], interval=[[0, 1, 2]]), r"shape \(1, 2\), got \(1, 3\)"),
        (lambda: metrics.coverage([0.0], interval=[[0, np.nan]]), "interval is NaN in row 0"),
        (lambda: metrics.coverage([0.0], interval=[[2, 1]]), r"interval\[0\] has its ends"),
        (lambda: metrics.pinball([0.0], [[0.0]], [1.0]), "levels must lie strictly"),
        (lambda: metrics.pinball([0.0], [[0.0, 1.0]], [0.5]), r"shape \(1, 1\)"),
        (lambda: metrics.crps_from_quantiles([0.0], [[0.0]], [0.4]), "midpoints"),
        (lambda: metrics.crps_from_quantiles([0.0], [[0.0, 1.0]], [0.75, 0.25]), "midpoints"),
        (lambda: metrics.crps_from_quantiles([0.0], [[0.0]], [0.25, 0.75]), r"shape \(1, 2\)"),
        (lambda: metrics.randomized_pit([0.1], [0.2, 0.3]), "upper has 2 rows, but lower has 1"),
        (lambda: metrics.randomized_pit([0.3], [0.2]), r"lower\[0\] = 0.3 exceeds upper\[0\]"),
        (lambda: metrics.randomized_pit([0.3], [1.2]), r"but upper\[0\] = 1.2"),
        (lambda: metrics.hc_rmse([0.0], [0.0], [1.0], q=1.0), "q must lie strictly"),
        (lambda: metrics.joint_nll([0.0], [0.0], [1.0]), r"cov must have shape \(1, 1\)"),
        (lambda: metrics.joint_nll([0.0] * 2, [0.0] * 2, [[1, 0], [1, 1]]), "symmetric"),
        (lambda: metrics.joint_nll([0.0] * 2, [0.0] * 2, [[1, 2], [2, 1]]), "positive definite"),
        (lambda: metrics.joint_nll([0.0], [0.0], [[np.nan]]), r"cov\[0, 0\] = nan"),
        (
            lambda: metrics.evaluate([0.0], [0.0], [1.0], y_train=[2.0, 2.0]),
            "y_train is constant",
        ),
    ],
)
def test_bad_calls_are_explained(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# --- limits of what is accepted -------------------------------------------------------------------


def refused(of, *args, match, **options):
    with pytest.raises(InputError, match=match):
        of(*args, **options)


def test_asymmetry_is_relative_to_the_largest_entry():
    C = np.array([[1e6, 1e-5], [0.0, 1e6]])
    assert np.isfinite(metrics.joint_nll([0.0, 0.0], [0.0, 0.0], C))
    refused(metrics.joint_nll, [0.0, 0.0], [0.0, 0.0], C / 1e6 + [[0, 1e-3], [0, 0]], match="symm")


def test_incomplete_or_contradictory_arguments_are_refused():
    refused(metrics.qice, [0.0], [0.0], match="y, mean and std")
    refused(metrics.qice, [0.0], std=[1.0], match="y, mean and std")
    refused(metrics.qice, pit=[0.5], std=[1.0], match="not both")
    refused(metrics.qice, pit=[0.5], mean=[1.0], match="not both")
    for of in (metrics.coverage, metrics.interval_width):
        refused(of, [0.0], [0.0], match="give both mean and std")
        refused(of, [0.0], std=[1.0], match="give both mean and std")
        refused(of, [0.0], [0.0], interval=[[0.0, 1.0]], match="not both")
        refused(of, [0.0], std=[1.0], interval=[[0.0, 1.0]], match="not both")


def test_messages_name_the_invalid_row():
    refused(metrics.randomized_pit, [0.1, 0.5, 0.5], [0.2, 0.5, 0.4], match=r"lower\[2\] = 0.5 exc")
    refused(metrics.coverage, [0, 0, 0], interval=[[0, 1], [1, 1], [2, 1]], match=r"interval\[2\]")
    refused(metrics.nlpd, [0, 0, 0], [0, 0, 0], [1.0, 0.0, -1.0], match=r"std\[1\] = 0.0")


def test_an_interval_may_be_a_point_and_its_ends_belong_to_it():
    assert metrics.coverage([1.0, 2.0], interval=[[1.0, 1.0], [2.0, 3.0]]) == 1.0
    assert metrics.coverage([1.0, 3.0], interval=[[1.1, 1.1], [2.0, 3.0]]) == 0.5


@pytest.mark.parametrize("level", [0.0, 1.0, 1.5])
def test_levels_outside_of_the_unit_interval_are_refused(level):
    refused(metrics.coverage, [0.0], [0.0], [1.0], level=level, match="level")
    refused(metrics.pinball, [0.0], [[0.0, 1.0]], [0.5, level], match="levels")
    refused(metrics.hc_rmse, [0.0], [0.0], [1.0], q=level, match="q must")


def test_levels_that_are_not_midpoints_are_refused():
    levels = (np.arange(3) + 0.5) / 3
    quantiles = np.zeros((1, 3))
    assert metrics.crps_from_quantiles([0.0], quantiles, levels + 3e-4) == 0.0
    refused(metrics.crps_from_quantiles, [0.0], quantiles, levels + 5e-4, match="midpoints")


def test_qice_floor_refuses_zero_bins():
    refused(metrics.qice_floor, 100, 0, match="n_bins")


def test_a_tenth_of_the_rows_are_the_certain_ones(gaussian):
    for of in (metrics.hc_rmse, metrics.lc_rmse):
        assert of(*gaussian) == of(*gaussian, q=0.1) != of(*gaussian, q=0.2)
