"""The paper's tests, the evidence and the bootstrap against literal formulas; level and power."""

import itertools
import math

import gpytorch
import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.figure import Figure
from scipy.spatial.distance import cdist
from scipy.stats import kurtosis, norm

from twostagegp import check_misspecification
from twostagegp.data.rows import Rows
from twostagegp.engines.batched_problem import Extras, ProblemBatch
from twostagegp.errors import InputError, NotFittableError, TwoStageGPError
from twostagegp.kernels import NamedKernel, make_kernel
from twostagegp.search.bootstrap import adjusted_p_values, draw_targets, simulate_and_refit
from twostagegp.search.evidence import CAUSES, evidence, rougher_direction, smoothness_score
from twostagegp.search.misspecification import explain_cause
from twostagegp.search.paper_tests import bound_beta, error_ratio, passes_bound, rkhs_norm
from twostagegp.search.repetitions import PAPER_PENALTIES, RepetitionOptions, Repetitions
from twostagegp.search.settings import DEFAULT_SEARCH, SearchSettings

B, N, M = 3, 14, 5


class Trained:
    """A few problems at some parameters, with test rows, in torch and in numpy."""

    def __init__(self, kernel="matern32", noise=0.2, seed=0, extras=False, n=N, d=2):
        rng = np.random.default_rng(seed)
        self.kernel = NamedKernel(kernel, d)
        self.X, self.Z = rng.normal(size=(B, n, d)), rng.normal(size=(B, M, d))
        self.t, self.y = rng.normal(size=(B, n)), rng.normal(size=(B, M))
        self.noise = noise * np.array([0.5, 1.0, 4.0])
        shift = rng.normal(scale=0.3, size=(B, self.kernel.size))
        self.theta = self.kernel.start() + shift
        self.parameters = np.column_stack([self.theta, np.log(self.noise)])
        self.s = np.repeat(self.noise[:, None], n, 1)
        options = {}
        if extras:
            weight, known = rng.choice([1.0, 3.0], (B, n)), rng.choice([0.0, 0.3], (B, n))
            q = (weight - 1.0) * rng.chisquare(1, (B, n))
            self.s = (self.s + known) / weight
            options = {"extras": Extras(*(torch.as_tensor(v) for v in (weight, q, known)))}
        X, t = torch.as_tensor(self.X), torch.as_tensor(self.t)
        self.problems = ProblemBatch.of(self.kernel, X, t, **options)
        (self.block,) = self.problems.map(self.parameters, np.arange(B), lambda block: block)
        self.cross = self.problems.covariance.cross(
            torch.as_tensor(self.Z), X, torch.as_tensor(self.theta)
        )

    def of(self, b):
        """Return K(X, X), K(Z, X), noise variances of the rows and targets of problem b."""
        X, Z = torch.as_tensor(self.X[b]), torch.as_tensor(self.Z[b])
        K = self.kernel.cross(X, X, self.theta[b]).numpy()
        return K, self.kernel.cross(Z, X, self.theta[b]).numpy(), self.s[b], self.t[b], self.y[b]


with_extras = pytest.mark.parametrize(
    "extras", [False, True], ids=["plain", "weights and known noise"]
)


# --- the error ratio, Algorithm 2 ----------------------------------------------------------------


def literal_ratio(K, cross, s, t, y, noise=None):
    """Return line 7 of Algorithm 2, with the fitted noise or with the true one."""
    inverse = np.linalg.inv(K + np.diag(s))
    mean_train, mean_test = K @ inverse @ t, cross @ inverse @ t
    e_train, e_test = (t - mean_train, y - mean_test) if noise is None else noise
    return np.abs(mean_test - y) / np.abs(cross @ inverse @ e_train - e_test)


@with_extras
def test_the_error_ratio_is_the_papers_formula(extras):
    trained = Trained(extras=extras)
    found = error_ratio(trained.block, trained.cross, torch.as_tensor(trained.y)).numpy()
    for b in range(B):
        np.testing.assert_allclose(found[b], literal_ratio(*trained.of(b)), rtol=1e-8)


def test_the_error_ratio_with_the_true_noise_is_the_papers_formula():
    trained = Trained()
    rng = np.random.default_rng(1)
    e_train, e_test = rng.normal(size=(B, N)), rng.normal(size=(B, M))
    noise = torch.as_tensor(e_train), torch.as_tensor(e_test)
    found = error_ratio(trained.block, trained.cross, torch.as_tensor(trained.y), noise).numpy()
    for b in range(B):
        expected = literal_ratio(*trained.of(b), noise=(e_train[b], e_test[b]))
        np.testing.assert_allclose(found[b], expected, rtol=1e-8)


def test_without_noise_every_ratio_is_one_whatever_the_kernel():
    for name in ("matern12", "matern52"):
        trained = Trained(name, noise=1e-9)
        found = error_ratio(trained.block, trained.cross, torch.as_tensor(trained.y)).numpy()
        np.testing.assert_allclose(found, 1.0, atol=1e-4)


def test_the_ratio_is_one_if_error_and_noise_are_zero():
    trained = Trained()
    zero = torch.zeros(B, N, dtype=torch.float64), torch.zeros(B, M, dtype=torch.float64)
    exact = (trained.cross @ trained.block.alpha[:, :, None])[:, :, 0]
    assert (error_ratio(trained.block, trained.cross, exact, zero) == 1.0).all()
    # An error that no noise explains is infinitely too large.
    assert torch.isinf(error_ratio(trained.block, trained.cross, exact + 1.0, zero)).all()


# --- the error bound, Algorithm 5 ----------------------------------------------------------------


def literal_beta(K, noise, norm_bound, delta, printed):
    """Return the bound of the theorem (variances) or as it is printed (deviations)."""
    a = math.sqrt(noise) if printed else noise
    a_bar = max(1.0, a)
    sign, logdet = np.linalg.slogdet(a_bar / a * K + a_bar * np.eye(len(K)))
    assert sign > 0
    root = math.sqrt(logdet - 2.0 * math.log(delta))
    return norm_bound + (root / math.sqrt(noise) if printed else root)


@pytest.mark.parametrize("printed", [False, True], ids=["corrected", "printed"])
@pytest.mark.parametrize("noise", [1e-3, 0.2, 2.0])
@with_extras
def test_beta_follows_from_determinants(noise, printed, extras):
    # Also where rows have weights and known noise: the bound is stated for equal noise.
    trained = Trained(noise=noise, extras=extras)
    found = bound_beta(trained.block, 1.7, 0.1, printed).numpy()
    for b in range(B):
        expected = literal_beta(trained.of(b)[0], trained.noise[b], 1.7, 0.1, printed)
        assert found[b] == pytest.approx(expected, rel=1e-9)


def test_rkhs_bounds_may_differ_between_problems():
    trained = Trained()
    norms = torch.tensor([0.0, 1.0, 5.0], dtype=torch.float64)
    found = bound_beta(trained.block, norms, 0.05, False) - bound_beta(
        trained.block, 0.0, 0.05, False
    )
    torch.testing.assert_close(found, norms)


def test_a_row_passes_within_the_bound_plus_the_noise():
    trained = Trained(noise=0.25)
    beta, delta = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64), 0.05
    sd = torch.full((B, 2), 0.5, dtype=torch.float64)
    limit = 0.5 * beta.numpy() + norm.ppf(0.975) * np.sqrt(trained.noise)
    just_within = torch.as_tensor(np.column_stack([limit - 1e-9, -limit + 1e-9]))
    just_beyond = torch.as_tensor(np.column_stack([limit + 1e-9, -limit - 1e-9]))
    assert passes_bound(just_within, sd, beta, trained.block, delta).all()
    assert not passes_bound(just_beyond, sd, beta, trained.block, delta).any()


def test_the_rkhs_norm_is_computed_from_the_kernel_expansion():
    trained = Trained()
    for b in range(B):
        K, _, s, t, _ = trained.of(b)
        weights = np.linalg.solve(K + np.diag(s), t)
        found = float(rkhs_norm(trained.block)[b])
        assert found == pytest.approx(math.sqrt(weights @ K @ weights), rel=1e-9)
        # From below: an interpolant of the same values has the larger norm.
        assert found < math.sqrt(t @ np.linalg.solve(K, t))


# --- repetitions ---------------------------------------------------------------------------------


def table(n=40, d=2, seed=0, extras=False):
    """Return a smooth function with noise, as rows."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1.5, 1.5, size=(n, d))
    t = np.sin(2 * X[:, 0]) + 0.3 * rng.normal(size=n)
    c = rng.choice([1.0, 2.0], n) if extras else np.ones(n)
    extra = rng.choice([0.0, 0.2], n) if extras else np.zeros(n)
    q = 0.09 * (c - 1.0) * rng.chisquare(1, n)
    return Rows(*(torch.as_tensor(v) for v in (X, t, c, q, extra)))


def repetitions_of(rows, size=25, n_repeats=4, settings=DEFAULT_SEARCH):
    repetitions = Repetitions(rows, size, "random", np.random.default_rng(1), settings)
    repetitions.draw(n_repeats)
    return repetitions


def numpy_parts(repetitions, r):
    """Return inputs, targets, weights, spreads and known noise of training and test rows."""
    rows, index = repetitions.rows, repetitions.index[r]
    columns = [np.asarray(v) for v in (rows.X, rows.t, rows.c, rows.q, rows.extra)]
    cut = repetitions.n_train
    return [v[index[:cut]] for v in columns], [v[index[cut:]] for v in columns]


def test_four_fifths_of_a_subsample_are_trained_on():
    repetitions = repetitions_of(table(), size=25)
    assert (repetitions.n_train, repetitions.index.shape) == (20, (4, 25))
    assert repetitions_of(table(n=12), size=500).index.shape == (4, 12)


def test_repetitions_do_not_depend_on_how_many_are_drawn_at_a_time():
    at_once = repetitions_of(table(), n_repeats=5)
    in_parts = repetitions_of(table(), n_repeats=2)
    in_parts.draw(5)
    np.testing.assert_array_equal(at_once.index, in_parts.index)


@pytest.mark.parametrize(
    ("name", "covariance"),
    [
        ("rbf", lambda X, Z: np.exp(-(cdist(X, Z) ** 2) / X.shape[1])),
        ("laplacian", lambda X, Z: np.exp(-cdist(X, Z, "cityblock") / X.shape[1])),
        ("matern12", lambda X, Z: np.exp(-cdist(X, Z) / math.sqrt(X.shape[1]))),
    ],
)
def test_the_penalty_of_kernel_ridge_is_that_of_refits_without_each_row(name, covariance):
    repetitions = repetitions_of(table())
    settings = RepetitionOptions(model="krr")
    repeated = repetitions.run(NamedKernel(name, 2), settings)
    for r in range(4):
        (X, t, *_), (Z, y, *_) = numpy_parts(repetitions, r)
        K, errors = covariance(X, X), []
        for penalty in PAPER_PENALTIES:
            residuals = []
            for i in range(len(X)):
                rest = np.arange(len(X)) != i
                A = K[rest][:, rest] + penalty * np.eye(len(X) - 1)
                residuals.append(t[i] - K[i, rest] @ np.linalg.solve(A, t[rest]))
            errors.append(np.mean(np.square(residuals)))
        best = PAPER_PENALTIES[int(np.argmin(errors))]
        assert math.exp(repeated.parameters[r, -1]) == pytest.approx(best)
        assert repeated.noise[r] == pytest.approx(math.sqrt(best))
        assert repeated.loo[r] == pytest.approx(min(errors), rel=1e-8)
        mean = covariance(Z, X) @ np.linalg.solve(K + best * np.eye(len(X)), t)
        assert repeated.heldout[r] == pytest.approx(np.mean((mean - y) ** 2), rel=1e-8)
        ratio = literal_ratio(K, covariance(Z, X), np.full(len(X), best), t, y)
        assert repeated.ratio[r] == pytest.approx(np.mean(ratio <= 1.1))
    # Some choice is not at an end of the grid.
    assert set(repeated.noise.round(6)) - {1.0, round(math.sqrt(1e-5), 6)}


def copies_of(t, c, q, rng):
    """Return row numbers and targets of copies with given means, counts and sums of squares."""
    row = np.repeat(np.arange(len(t)), c.astype(int))
    y = np.empty(len(row))
    for i in range(len(t)):
        deviation = rng.normal(size=int(c[i]))
        deviation -= deviation.mean()
        size = math.sqrt(q[i] / (deviation @ deviation)) if c[i] > 1 else 0.0
        y[row == i] = t[i] + size * deviation
    return row, y


@pytest.mark.parametrize("name", ["rbf", "matern12"])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_penalty_of_kernel_ridge_is_that_of_refits_without_each_copy(name, seed):
    rng = np.random.default_rng(seed)
    rows = table(seed=seed)
    c = torch.as_tensor(rng.choice([1.0, 2.0, 4.0], len(rows)))
    q = torch.as_tensor(0.3 * rng.chisquare(c.numpy())) * (c > 1.0)
    repetitions = repetitions_of(Rows(rows.X, rows.t, c, q, rows.extra))
    kernel = NamedKernel(name, 2)
    repeated = repetitions.run(kernel, RepetitionOptions(model="krr"))
    unweighted = repetitions_of(rows).run(kernel, RepetitionOptions(model="krr"))
    for r in range(4):
        (X, t, count, spread, _), _ = numpy_parts(repetitions, r)
        row, y = copies_of(t, count, spread, rng)
        X, errors = torch.as_tensor(X[row]), []
        K = kernel.cross(X, X, kernel.classical()).numpy()
        for penalty in PAPER_PENALTIES:
            residuals = []
            for i in range(len(y)):
                rest = np.arange(len(y)) != i
                A = K[rest][:, rest] + penalty * np.eye(len(y) - 1)
                residuals.append(y[i] - K[i, rest] @ np.linalg.solve(A, y[rest]))
            errors.append(np.mean(np.square(residuals)))
        best = PAPER_PENALTIES[int(np.argmin(errors))]
        assert repeated.noise[r] == pytest.approx(math.sqrt(best))
        assert repeated.loo[r] == pytest.approx(min(errors), rel=1e-7)
    # The copies matter.
    assert not np.allclose(repeated.loo, unweighted.loo, rtol=1e-2)


def test_a_given_penalty_is_used():
    repeated = repetitions_of(table()).run(
        NamedKernel("rbf", 2), RepetitionOptions(model="krr", penalties=(0.37,))
    )
    np.testing.assert_allclose(repeated.noise, math.sqrt(0.37))
    assert np.isnan(repeated.nll).all()


@pytest.mark.parametrize(("model", "tolerance"), [("krr", 1e-10), ("gp", 1e-2)])
def test_repetitions_beyond_the_memory_limit_are_run_in_parts(model, tolerance, monkeypatch):
    kernel, settings = NamedKernel("matern32", 2), RepetitionOptions(model=model)
    whole = repetitions_of(table(), n_repeats=5).run(kernel, settings)
    sizes, of = [], ProblemBatch.of
    monkeypatch.setattr(
        ProblemBatch, "of", lambda *args, **kw: sizes.append(len(args[1])) or of(*args, **kw)
    )
    limit = SearchSettings(matrix_bytes=2 * 20 * 20 * 8)
    parts = repetitions_of(table(), n_repeats=5, settings=limit).run(kernel, settings)
    assert sizes == [2, 2, 1]
    assert len(parts) == 5
    np.testing.assert_allclose(parts.loo, whole.loo, atol=tolerance)
    np.testing.assert_allclose(parts.heldout, whole.heldout, atol=tolerance)


def densities_of_copies(K, s, y):
    """Return negative log density and leave-one-out density of rows, each per row."""
    C, n = K + np.diag(s), len(y)
    A = np.linalg.inv(C)
    density = 0.5 * (y @ A @ y + np.linalg.slogdet(C)[1] + n * math.log(2 * math.pi))
    residual, variance = (A @ y) / np.diag(A), 1.0 / np.diag(A)
    return density / n, -norm.logpdf(residual, scale=np.sqrt(variance)).mean()


@with_extras
@pytest.mark.parametrize("rkhs_bound", [None, 0.8, "estimate"])
def test_every_score_of_a_repetition_equals_its_formula(rkhs_bound, extras):
    kernel, repetitions = NamedKernel("matern32", 2), repetitions_of(table(extras=extras))
    settings = RepetitionOptions(threshold=1.05, delta=0.2, rkhs_bound=rkhs_bound, with_bound=True)
    repeated = repetitions.run(kernel, settings)
    for r in range(4):
        (X, t, c, q, extra), (Z, y, c_test, _, extra_test) = numpy_parts(repetitions, r)
        theta, noise = repeated.parameters[r, :-1], math.exp(repeated.parameters[r, -1])
        X, Z = torch.as_tensor(X), torch.as_tensor(Z)
        K, cross = kernel.cross(X, X, theta).numpy(), kernel.cross(Z, X, theta).numpy()
        s = (noise + extra) / c
        A = np.linalg.inv(K + np.diag(s))
        row, copies = copies_of(t, c, q, np.random.default_rng(r))
        density, loo = densities_of_copies(K[row][:, row], (noise + extra)[row], copies)
        assert repeated.nll[r] == pytest.approx(density, rel=1e-7)
        assert repeated.loo[r] == pytest.approx(loo, rel=1e-7)
        mean = cross @ A @ t
        latent = math.exp(theta[-1]) - np.einsum("ij,jk,ik->i", cross, A, cross)
        predicted = np.sqrt(latent + (noise + extra_test) / c_test)
        heldout = -norm.logpdf(y, mean, predicted).mean()
        assert repeated.heldout[r] == pytest.approx(heldout, rel=1e-7)
        assert repeated.noise[r] == pytest.approx(math.sqrt(noise))
        ratio = literal_ratio(K, cross, s, t, y)
        assert repeated.ratio[r] == pytest.approx(np.mean(ratio <= 1.05))
        norm_bound = {None: 0.0, 0.8: 0.8}.get(rkhs_bound, math.sqrt(t @ A @ K @ A @ t))
        for printed, found in ((False, repeated.bound[r]), (True, repeated.bound_printed[r])):
            beta = literal_beta(K, noise, norm_bound, 0.2, printed)
            limit = beta * np.sqrt(latent) + norm.ppf(0.9) * math.sqrt(noise)
            assert found == pytest.approx(np.mean(np.abs(mean - y) <= limit))


# --- the paper's tests through check_misspecification ---------------------------------------------


def smooth_data(n=60, seed=0, noise=0.2):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-3, 3, size=(n, 1))
    return X, np.sin(2 * X[:, 0]) + noise * rng.normal(size=n)


PAPER_OPTIONS = [
    {"test": "ratio"},
    {"test": "ratio", "model": "krr"},
    {"test": "ratio", "threshold": 1.01, "sampling": "random"},
    {"test": "bound"},
    {"test": "bound", "beta": "printed"},
    {"test": "bound", "rkhs_bound": 2.0},
    {"test": "bound", "rkhs_bound": "estimate"},
]


@pytest.mark.parametrize("options", PAPER_OPTIONS, ids=str)
@pytest.mark.parametrize("delta", [0.02, 0.6])
def test_share_error_and_decision_follow_from_the_repetitions(options, delta):
    check = check_misspecification(
        *smooth_data(), "matern12", **options, delta=delta, n_repeats=6, random_state=0
    )
    shares = check.per_repeat["p_hat"]
    assert len(shares) == 6
    forms = ["p_hat_corrected", "p_hat_printed"] if options["test"] == "bound" else []
    assert list(check.per_repeat.columns) == ["p_hat", *forms, "noise", "nll"]
    if forms:
        decides = check.per_repeat[f"p_hat_{options.get('beta', 'corrected')}"]
        np.testing.assert_array_equal(shares, decides)
    assert check.p_hat == pytest.approx(shares.mean())
    assert check.standard_error == pytest.approx(shares.std(ddof=1) / math.sqrt(6))
    assert check.rejected == (check.p_hat < 1.0 - delta)
    assert check.noise == pytest.approx(check.per_repeat["noise"].median())
    assert check.p_value is None
    verdict = "rejected" if check.rejected else "not rejected"
    assert str(check).startswith(f"matern12: {verdict} by the {options['test']} test")


def test_good_kernels_are_accepted_and_bad_ones_rejected():
    X, y = smooth_data()
    strict, lax = (
        check_misspecification(X, y, test="ratio", threshold=threshold, n_repeats=4, random_state=0)
        for threshold in (1e-6, 1e6)
    )
    assert (strict.p_hat, strict.rejected) == (0.0, True)
    assert (lax.p_hat, lax.rejected) == (1.0, False)


@pytest.mark.parametrize(
    ("rkhs_bound", "words"),
    [(None, "dropped"), (3.5, "B: 3.5"), ("estimate", "estimated from below")],
)
def test_notes_say_where_the_rkhs_bound_comes_from(rkhs_bound, words):
    check = check_misspecification(
        *smooth_data(), test="bound", rkhs_bound=rkhs_bound, n_repeats=2, random_state=0
    )
    assert any(words in note for note in check.notes)
    assert any("48 training rows and 12 test rows" in note for note in check.notes)


def hard_data():
    """Return a step with outliers: with a smooth kernel some rows fail unless they get help."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, size=(80, 1))
    return X, np.sign(X[:, 0]) + 0.01 * rng.standard_t(2, size=80)


def test_a_larger_rkhs_bound_lets_more_rows_pass():
    shares = [
        check_misspecification(
            *hard_data(), test="bound", rkhs_bound=bound, delta=0.9, n_repeats=4, random_state=0
        ).p_hat
        for bound in (None, 1e3)
    ]
    assert shares[0] < shares[1]


@pytest.mark.parametrize("test", ["ratio", "bound"])
def test_units_of_the_target_change_the_noise_only(test):
    X, y = smooth_data()
    options = {"test": test, "n_repeats": 4, "random_state": 0}
    first = check_misspecification(X, y, **options)
    other = check_misspecification(X, 1000.0 - 50.0 * y, **options)
    assert other.p_hat == pytest.approx(first.p_hat)
    assert other.noise == pytest.approx(50.0 * first.noise, rel=1e-3)
    assert first.noise == pytest.approx(0.2, rel=0.3)


def test_the_paper_tests_give_no_diagnosis():
    check = check_misspecification(*smooth_data(), test="ratio", n_repeats=2, random_state=0)
    assert "test='bootstrap'" in check.diagnosis
    assert check.named == ()


# --- evidence ------------------------------------------------------------------------------------


def evidence_of(trained, X=None):
    return evidence(trained.block, torch.as_tensor(trained.X) if X is None else X).numpy()


def linear(X):
    return np.column_stack([np.ones(len(X)), X])


@pytest.mark.parametrize("name", ["rbf", "matern12", "matern52", "rq"])
def test_the_direction_of_roughness_is_the_derivative_of_the_power_family(name):
    K = Trained(name).block.K

    def member(gamma):
        scale = K.diagonal(dim1=-2, dim2=-1)[:, :, None]
        u = -(K / scale).log()
        return scale * torch.exp(-u.clamp(min=0.0).pow(gamma))

    slope = -(member(1.0 + 1e-5) - member(1.0 - 1e-5)) / 2e-5
    torch.testing.assert_close(rougher_direction(K), slope, rtol=1e-5, atol=1e-8)


def test_the_direction_of_roughness_allows_for_unequal_variances():
    K = Trained("rbf").block.K
    sizes = torch.linspace(0.5, 3.0, N, dtype=torch.float64)
    outer = sizes[:, None] * sizes[None, :]
    D = rougher_direction(K)
    torch.testing.assert_close(rougher_direction(K * outer), D * outer)


def test_kernel_entries_that_are_not_positive_give_finite_evidence():
    trained = Trained("rbf")
    K = trained.block.K.clone()
    K[:, 0, 1] = K[:, 1, 0] = -0.1
    K[:, 0, 2] = K[:, 2, 0] = 0.0
    assert torch.isfinite(rougher_direction(K)).all()


def literal_smoothness(K, s, t, H):
    """Return the score in the module's docstring, written out with dense matrices."""
    n, q = H.shape
    A = np.linalg.inv(K + np.diag(s))
    P = A - A @ H @ np.linalg.inv(H.T @ A @ H) @ H.T @ A
    scale = np.sqrt(np.outer(np.diag(K), np.diag(K)))
    off = ~np.eye(n, dtype=bool)
    D = np.zeros_like(K)
    u = -np.log(K[off] / scale[off])
    D[off] = K[off] * u * np.log(u)
    rho = (n - q) / (t @ P @ t)
    score = 0.5 * rho * t @ P @ D @ P @ t - 0.5 * np.trace(P @ D)
    return score / math.sqrt(0.5 * np.trace(A @ D @ A @ D)), D, P


@with_extras
@pytest.mark.parametrize("name", ["rbf", "matern12", "matern32"])
def test_the_smoothness_score_is_its_dense_formula(name, extras):
    trained = Trained(name, extras=extras)
    found = evidence_of(trained)
    for b in range(B):
        K, _, s, t, _ = trained.of(b)
        expected, _, _ = literal_smoothness(K, s, t, linear(trained.X[b]))
        assert found[b, 0] == pytest.approx(expected, rel=1e-5)
        assert found[b, 1] == -found[b, 0]


def test_the_smoothness_score_is_the_slope_of_the_restricted_likelihood():
    trained = Trained("matern32")
    K, _, s, t, _ = trained.of(0)
    H = linear(trained.X[0])
    _, D, P = literal_smoothness(K, s, t, H)
    t = t * math.sqrt((N - H.shape[1]) / (t @ P @ t))  # the size that the score scales to

    def restricted(step):
        C = K + step * D + np.diag(s)
        A = np.linalg.inv(C)
        information = H.T @ A @ H
        rest = t @ A @ t - t @ A @ H @ np.linalg.solve(information, H.T @ A @ t)
        return -0.5 * (np.linalg.slogdet(C)[1] + np.linalg.slogdet(information)[1] + rest)

    slope = (restricted(1e-5) - restricted(-1e-5)) / 2e-5
    A = np.linalg.inv(K + np.diag(s))
    expected = slope / math.sqrt(0.5 * np.trace(A @ D @ A @ D))
    found = smoothness_score(trained.block, torch.as_tensor(H)[None])
    assert float(found[0]) == pytest.approx(expected, rel=1e-5)


def likelihood_terms(K, s, t, H):
    """Return -2 log density up to a constant; the linear mean is by least squares of white rows."""
    C = K + np.diag(s)
    root = np.linalg.cholesky(C)
    white_H, white_t = np.linalg.solve(root, H), np.linalg.solve(root, t)
    rest = white_t - white_H @ np.linalg.lstsq(white_H, white_t, rcond=None)[0]
    return rest @ rest + np.linalg.slogdet(C)[1]


@with_extras
def test_the_evidence_for_a_trend_is_the_gain_of_generalised_least_squares(extras):
    trained = Trained(extras=extras)
    found = evidence_of(trained)[:, CAUSES.index("trend left over")]
    for b in range(B):
        K, _, s, t, _ = trained.of(b)
        H = linear(trained.X[b])
        without = likelihood_terms(K, s, t, np.zeros_like(H))
        gain = max(without - likelihood_terms(a * K, s, t, H) for a in (1.0, 0.3, 0.1))
        assert found[b] == pytest.approx(gain ** (1 / 3), rel=1e-6)


def loo_scores(K, s, t):
    """Return residuals of refits without each row, in units of their standard deviation."""
    z = np.empty(len(t))
    for i in range(len(t)):
        rest = np.arange(len(t)) != i
        solve = np.linalg.solve(K[rest][:, rest] + np.diag(s[rest]), K[rest, i])
        z[i] = (t[i] - solve @ t[rest]) / math.sqrt(K[i, i] + s[i] - K[i, rest] @ solve)
    return z


@with_extras
def test_noise_and_tails_are_a_regression_on_scores_of_refits(extras):
    trained = Trained(extras=extras)
    found = evidence_of(trained)
    for b in range(B):
        K, _, s, t, _ = trained.of(b)
        size, X = np.abs(loo_scores(K, s, t)), trained.X[b]
        m = K @ np.linalg.solve(K + np.diag(s), t)
        h = np.column_stack([np.ones(N), X, (X**2).sum(1), m, m**2])
        fitted = h @ np.linalg.lstsq(h, size, rcond=None)[0]
        share = 1.0 - ((size - fitted) ** 2).sum() / ((size - size.mean()) ** 2).sum()
        assert found[b, 2] == pytest.approx((N * share) ** (1 / 3), rel=1e-4)
        z = loo_scores(K, s, t) / np.clip(fitted / size.mean(), 0.2, 5.0)
        assert found[b, 3] == pytest.approx(math.log(kurtosis(z, fisher=False)), rel=1e-4)


def at_scaled_target(trained, factor, kernel_too):
    """Return the evidence for factor * t, with the same or with scaled variances."""
    problems = trained.problems.with_targets(factor * trained.problems.t)
    parameters = trained.parameters.copy()
    if kernel_too:
        parameters[:, -2:] += 2.0 * math.log(abs(factor))
    parts = problems.map(parameters, np.arange(B), lambda block: evidence(block, problems.X))
    return torch.cat(parts).numpy()


def test_evidence_does_not_depend_on_the_sign_of_the_target():
    trained = Trained()
    np.testing.assert_allclose(at_scaled_target(trained, -1.0, False), evidence_of(trained))


def test_evidence_does_not_depend_on_units():
    trained = Trained()
    np.testing.assert_allclose(
        at_scaled_target(trained, 7.0, True), evidence_of(trained), rtol=1e-6
    )


def test_only_the_trend_depends_on_the_size_of_the_target_at_fixed_parameters():
    trained = Trained()
    before, after = evidence_of(trained), at_scaled_target(trained, 2.0, False)
    np.testing.assert_allclose(after[:, :4], before[:, :4], rtol=1e-6)
    assert (np.abs(after[:, 4] / before[:, 4] - 1.0) > 0.1).all()


def test_evidence_of_a_problem_does_not_depend_on_the_rest_of_the_batch():
    trained = Trained()
    (alone,) = trained.problems.map(
        trained.parameters[1:2],
        np.array([1]),
        lambda block: evidence(block, trained.problems.X[1:2]),
    )
    np.testing.assert_allclose(alone[0].numpy(), evidence_of(trained)[1], rtol=1e-9)


def test_a_column_that_is_a_multiple_of_another_does_not_break_the_evidence():
    trained = Trained(n=20)
    X = torch.as_tensor(trained.X)
    both = torch.cat([X, 2.0 * X], dim=2)
    assert both.shape[2] <= 20 // 4
    trend = CAUSES.index("trend left over")
    np.testing.assert_allclose(
        evidence_of(trained, both)[:, trend], evidence_of(trained)[:, trend], rtol=1e-4
    )
    assert np.isfinite(evidence_of(trained, both)).all()


@pytest.mark.parametrize(("n", "d", "used"), [(16, 4, True), (15, 4, False), (14, 9, False)])
def test_more_columns_than_a_quarter_of_the_rows_are_left_out(n, d, used):
    trained = Trained(n=n, d=d)
    found = evidence_of(trained)
    assert np.isfinite(found).all()
    nothing = np.zeros((n, 0))
    for b in range(B):
        K, _, s, t, _ = trained.of(b)
        X = trained.X[b] if used else nothing
        H = linear(X)
        assert found[b, 0] == pytest.approx(literal_smoothness(K, s, t, H)[0], rel=1e-5)
        without = likelihood_terms(K, s, t, np.zeros_like(H))
        gain = max(without - likelihood_terms(a * K, s, t, H) for a in (1.0, 0.3, 0.1))
        assert found[b, 4] == pytest.approx(gain ** (1 / 3), rel=1e-5)
        z = loo_scores(K, s, t)
        m = K @ np.linalg.solve(K + np.diag(s), t)
        squared = (X**2).sum(1)[:, None] if used else nothing
        h = np.column_stack([np.ones(n), X, squared, m, m**2])
        fitted = h @ np.linalg.lstsq(h, np.abs(z), rcond=None)[0]
        size = np.abs(z)
        share = 1.0 - ((size - fitted) ** 2).sum() / ((size - size.mean()) ** 2).sum()
        assert found[b, 2] == pytest.approx((n * share) ** (1 / 3), rel=1e-4)


def test_a_steep_line_is_evidence_for_a_trend():
    rng = np.random.default_rng(0)
    X = np.sort(rng.uniform(-2, 2, size=(1, 60, 1)), axis=1)
    wiggle = np.sin(8 * X[:, :, 0]) + 0.1 * rng.normal(size=(1, 60))
    parameters = np.log([[0.2, 0.5, 0.01]])
    found = []
    for slope in (0.0, 3.0):
        t = torch.as_tensor(wiggle + slope * X[:, :, 0])
        problems = ProblemBatch.of(NamedKernel("rbf", 1), torch.as_tensor(X), t)
        (block,) = problems.map(parameters, np.arange(1), lambda block: block)
        found.append(evidence(block, problems.X)[0, CAUSES.index("trend left over")])
    assert found[1] > 3.0 * found[0]


# --- the bootstrap's arithmetic ------------------------------------------------------------------


def literal_p_values(observed, simulated):
    everyone = [observed, *simulated]
    k = len(observed)
    mean = [sum(row[j] for row in everyone) / len(everyone) for j in range(k)]
    spread = [
        math.sqrt(sum((row[j] - mean[j]) ** 2 for row in everyone) / len(everyone))
        for j in range(k)
    ]
    z = [[(row[j] - mean[j]) / spread[j] for j in range(k)] for row in everyone]
    largest = [max(row) for row in z[1:]]
    adjusted = [(1 + sum(m >= z[0][j] for m in largest)) / len(everyone) for j in range(k)]
    overall = (1 + sum(m >= max(z[0]) for m in largest)) / len(everyone)
    return adjusted, overall


def test_p_values_of_a_small_table():
    # Three of the four simulations have a maximum above the first column, none above the other.
    observed = np.array([1.0, 4.0])
    simulated = np.array([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0], [0.0, 0.0]])
    p, z = adjusted_p_values(observed, simulated)
    np.testing.assert_allclose(p, [4 / 5, 1 / 5])
    np.testing.assert_allclose(z.mean(0), 0.0, atol=1e-12)
    np.testing.assert_allclose(z.std(0), 1.0)


@pytest.mark.parametrize("seed", range(5))
def test_p_values_are_those_of_the_formula_and_the_smallest_is_the_overall_one(seed):
    rng = np.random.default_rng(seed)
    observed, simulated = rng.normal(size=3), rng.normal(size=(19, 3))
    observed[0] += 1.0
    p, _ = adjusted_p_values(observed, simulated)
    adjusted, overall = literal_p_values(observed.tolist(), simulated.tolist())
    np.testing.assert_allclose(p, adjusted)
    assert p.min() == pytest.approx(overall)


def test_p_values_of_exchangeable_rows_keep_every_level_exactly():
    rows = np.random.default_rng(0).normal(size=(25, 4)) ** 3
    p = np.array(
        [adjusted_p_values(rows[i], np.delete(rows, i, axis=0))[0].min() for i in range(25)]
    )
    for count in range(1, 26):
        assert (p <= count / 25 + 1e-12).sum() <= count


def test_ties_and_constant_statistics_do_not_reject():
    p, z = adjusted_p_values(np.zeros(2), np.zeros((9, 2)))
    np.testing.assert_array_equal(p, 1.0)
    assert np.isfinite(z).all()


def test_simulations_with_a_statistic_that_is_not_finite_are_dropped():
    rng = np.random.default_rng(0)
    observed, simulated = rng.normal(size=3), rng.normal(size=(30, 3))
    broken = simulated.copy()
    broken[[2, 11, 12], [0, 1, 2]] = math.nan, math.inf, -math.inf
    p, z = adjusted_p_values(observed, broken)
    expected_p, expected_z = adjusted_p_values(observed, np.delete(simulated, [2, 11, 12], axis=0))
    np.testing.assert_array_equal(p, expected_p)
    np.testing.assert_array_equal(z, expected_z)
    assert len(z) == 28


def test_nothing_is_rejected_without_simulations():
    p, z = adjusted_p_values(np.array([9.0, 9.0]), np.full((5, 2), math.nan))
    np.testing.assert_array_equal(p, 1.0)
    assert z.shape == (1, 2)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_statistic_that_is_not_finite_for_the_data_has_p_value_one(value):
    rng = np.random.default_rng(0)
    observed, simulated = np.array([value, 5.0, -1.0]), rng.normal(size=(39, 3))
    p, z = adjusted_p_values(observed, simulated)
    assert p[0] == 1.0
    assert p[1] == 1 / 40
    assert p[2] > 0.5
    assert np.isfinite(z).all()
    others, expected = adjusted_p_values(observed[1:], simulated[:, 1:])
    np.testing.assert_allclose(z[:, 1:], expected)
    assert (p[1:] >= others).all()  # looked at together with one cause more


def one_problem(n=25, extras=False):
    rows = table(n=n, d=1, extras=extras)
    found = Extras(rows.c[None], rows.q[None], rows.extra[None]) if extras else None
    return ProblemBatch.of(NamedKernel("rbf", 1), rows.X[None], rows.t[None], extras=found)


def raw_draws(problem, parameters, count, seed):
    """Return draws of the fitted model before standardisation, with the same random numbers."""
    K = problem.kernel.evaluate(problem.X[0], parameters[0, :-1])[0].numpy()
    noise = np.full(len(K), math.exp(parameters[0, -1]))
    if problem.extras is not None:
        noise = (noise + problem.extras.known[0].numpy()) / problem.extras.c[0].numpy()
    white = np.random.default_rng(seed).normal(size=(count, len(K)))
    return white @ np.linalg.cholesky(K + np.diag(noise)).T, K + np.diag(noise)


def moments_of(t, c, q):
    """Return mean and variance of all copies, one per row of t."""
    mean = np.average(t, weights=c, axis=1)
    squares = (c * (t - mean[:, None]) ** 2).sum(1) + q.sum(-1)
    return mean, squares / c.sum()


@with_extras
def test_draws_have_the_mean_and_variance_of_the_data(extras):
    problem = one_problem(n=8, extras=extras)
    draws, spreads = draw_targets(problem, problem.starts(), 200, np.random.default_rng(0))
    assert (spreads is None) == (not extras)
    c = problem.extras.c[0].numpy() if extras else np.ones(8)
    q = problem.extras.q.numpy() if extras else np.zeros((1, 8))
    mean, variance = moments_of(problem.t.numpy(), c, q)
    means, variances = moments_of(
        draws.numpy(), c, spreads.numpy() if extras else np.zeros((200, 8))
    )
    np.testing.assert_allclose(means, mean[0], atol=1e-12)
    np.testing.assert_allclose(variances, variance[0], rtol=1e-10)
    assert abs(mean[0]) > 0.01  # a subsample has a mean of its own


@with_extras
def test_draws_are_those_of_the_fitted_model_up_to_location_and_size(extras):
    problem = one_problem(n=8, extras=extras)
    parameters = problem.starts()
    draws = draw_targets(problem, parameters, 40_000, np.random.default_rng(0))[0].numpy()
    raw, covariance = raw_draws(problem, parameters, 40_000, 0)
    np.testing.assert_allclose(raw.T @ raw / len(raw), covariance, atol=0.05)
    c = problem.extras.c[0].numpy() if extras else np.ones(8)
    centred, own = (x - np.average(x, weights=c, axis=1)[:, None] for x in (draws, raw))
    scale = np.linalg.norm(centred, axis=1) / np.linalg.norm(own, axis=1)
    np.testing.assert_allclose(centred, scale[:, None] * own, atol=1e-9)


def test_draws_of_many_rows_have_the_covariance_of_the_fitted_model():
    """Where rows are many, standardising changes little: short lengthscale, unit variance."""
    n = 200
    X = torch.linspace(-3, 3, n, dtype=torch.float64)[None, :, None]
    rng = np.random.default_rng(0)
    parameters = np.log([[0.05, 0.8, 0.2]])
    K = NamedKernel("rbf", 1).evaluate(X[0], parameters[0, :-1])[0].numpy() + 0.2 * np.eye(n)
    t = np.linalg.cholesky(K) @ rng.normal(size=n)
    t = (t - t.mean()) / t.std()
    problem = ProblemBatch.of(NamedKernel("rbf", 1), X, torch.as_tensor(t)[None])
    draws = draw_targets(problem, parameters, 20_000, rng)[0].numpy()
    np.testing.assert_allclose(draws.T @ draws / len(draws), K, atol=0.1)


def test_simulated_sums_of_squares_are_those_of_copies_and_independent_of_their_means():
    rows = table(n=12, d=1)
    c = torch.tensor([1.0, 2.0, 3.0, 7.0, 0.5, 1.5], dtype=torch.float64).repeat(2)
    known = torch.tensor([0.0, 0.2], dtype=torch.float64).repeat_interleave(6)
    extras = Extras(c[None], torch.zeros(1, 12, dtype=torch.float64), known[None])
    problem = ProblemBatch.of(NamedKernel("rbf", 1), rows.X[None], rows.t[None], extras=extras)
    parameters = problem.starts()
    draws, spreads = draw_targets(problem, parameters, 40_000, np.random.default_rng(0))
    assert draws.shape == spreads.shape == (40_000, 12)
    # Undo the size to which each draw was brought, spreads with their means.
    raw, _ = raw_draws(problem, parameters, 40_000, 0)
    scale = np.ptp(draws.numpy(), axis=1) / np.ptp(raw, axis=1)
    spreads = spreads.numpy() / scale[:, None] ** 2
    s = math.exp(parameters[0, -1]) + known.numpy()
    free = np.maximum(c.numpy() - 1.0, 0.0)
    # Chi-squared variables: mean s (c - 1), variance 2 s^2 (c - 1); five standard errors.
    error = s * np.sqrt(2.0 * free / len(spreads))
    assert (np.abs(spreads.mean(0) - s * free) <= 5.0 * error).all()
    np.testing.assert_allclose(spreads.var(0), 2.0 * s**2 * free, rtol=0.1)
    assert (spreads[:, free == 0.0] == 0.0).all()
    moving = free > 0.0
    both = np.corrcoef(raw[:, moving] ** 2, spreads[:, moving], rowvar=False)
    count = int(moving.sum())
    assert np.abs(both[:count, count:]).max() < 0.03


def test_a_repeated_row_is_simulated_like_its_copies():
    rows, copies = table(n=6, d=1), 4
    c = torch.full((1, 6), float(copies), dtype=torch.float64)
    extras = Extras(c, 0 * c, 0 * c)
    merged = ProblemBatch.of(NamedKernel("rbf", 1), rows.X[None], rows.t[None], extras=extras)
    apart = rows.X.repeat_interleave(copies, 0)[None], rows.t.repeat_interleave(copies)[None]
    plain = ProblemBatch.of(NamedKernel("rbf", 1), *apart)
    rng = np.random.default_rng(0)
    draws, spreads = draw_targets(merged, merged.starts(), 20_000, rng)
    single, _ = draw_targets(plain, plain.starts(), 20_000, rng)
    single = single.reshape(-1, 6, copies)
    means = single.mean(2)
    moments = means.T @ means / len(means)
    torch.testing.assert_close(draws.T @ draws / len(draws), moments, rtol=0.0, atol=0.07)
    expected = (
        (single - means[:, :, None])
        .square()
        .sum(2)
        .quantile(torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64), dim=0)
    )
    found = spreads.quantile(torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64), dim=0)
    torch.testing.assert_close(found, expected, rtol=0.06, atol=0.0)


def test_every_simulation_is_refitted_and_measured_at_its_own_optimum():
    problem = one_problem()

    def statistic(block, X):
        return torch.stack([block.noise, block.theta[:, 0], block.t[:, 0]], dim=1)

    result = simulate_and_refit(problem, statistic, 12, np.random.default_rng(0))
    assert result.simulated.shape == (12, 3)
    np.testing.assert_allclose(result.simulated[:, 0], np.exp(result.refits.parameters[:, -1]))
    np.testing.assert_allclose(result.simulated[:, 1], result.refits.parameters[:, 0])
    draws, _ = draw_targets(problem, result.parameters[None], 12, np.random.default_rng(0))
    np.testing.assert_allclose(result.simulated[:, 2], draws[:, 0].numpy())
    assert result.observed[2] == float(problem.t[0, 0])
    assert result.observed[0] == pytest.approx(math.exp(result.parameters[-1]))
    # Each refit is better than the parameters that it was drawn with.
    at_truth, _ = problem.with_targets(draws)(np.tile(result.parameters, (12, 1)), np.arange(12))
    assert (result.refits.value < at_truth).all()


def test_simulations_of_merged_rows_are_refitted_with_their_own_sums_of_squares():
    problem = one_problem(extras=True)

    def statistic(block, X):
        q = block.extras.q.expand(len(block.t), -1)
        return torch.stack([block.noise, q.sum(1), block.t[:, 0]], dim=1)

    result = simulate_and_refit(problem, statistic, 12, np.random.default_rng(0))
    draws, q = draw_targets(problem, result.parameters[None], 12, np.random.default_rng(0))
    np.testing.assert_allclose(result.simulated[:, 1], q.sum(1).numpy())
    np.testing.assert_allclose(result.simulated[:, 2], draws[:, 0].numpy())
    assert result.observed[1] == pytest.approx(float(problem.extras.q.sum()))
    at_truth, _ = problem.with_targets(draws, q)(np.tile(result.parameters, (12, 1)), np.arange(12))
    assert (result.refits.value < at_truth).all()


# --- level and power -----------------------------------------------------------------------------


def test_the_bootstrap_keeps_its_level():
    kernel, rejected, named = make_kernel("matern32", 1), 0, 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        X = rng.uniform(-3, 3, size=(30, 1))
        K = kernel.evaluate(torch.as_tensor(X), np.zeros(2))[0].numpy() + 0.05 * np.eye(30)
        y = np.linalg.cholesky(K) @ rng.normal(size=30)
        check = check_misspecification(X, y, "matern32", n_repeats=19, random_state=seed)
        rejected += check.rejected
        named += bool(check.named)
    # 8 or more of 40 would have a probability below 1/1000 at a level of 5 %.
    assert rejected <= 7
    assert named <= 7


def violated(how, seed):
    """Return data with one violation, and the kernel that is fitted to them."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-3, 3, size=(150, 1))
    x, e = X[:, 0], rng.normal(size=150)
    smooth = np.sin(2 * x)
    if how == "too smooth":
        return X, np.sign(x) + 0.05 * e, "rbf"
    if how == "too rough":
        return X, smooth + 0.02 * e, "matern12"
    if how == "noise not constant":
        return X, smooth + 0.02 * 10 ** ((x + 3) / 6) * e, "rbf"
    return X, smooth + 0.2 * rng.standard_t(3, size=150), "rbf"


@pytest.mark.parametrize("how", ["too smooth", "too rough", "noise not constant", "heavy tails"])
def test_a_gross_violation_is_rejected_and_named_first(how):
    X, y, kernel = violated(how, seed=1)
    check = check_misspecification(X, y, kernel, n_repeats=39, random_state=0)
    assert check.rejected
    assert check.named[0] == how
    assert check.diagnosis.startswith(explain_cause(how, kernel))


# --- the result of the bootstrap -----------------------------------------------------------------


@pytest.fixture(scope="module")
def bootstrap_check():
    X, y, kernel = violated("too smooth", seed=0)
    return check_misspecification(X, y, kernel, subsample=60, n_repeats=39, random_state=0)


@pytest.fixture(scope="module")
def harmless_check():
    return check_misspecification(*smooth_data(), "rbf", n_repeats=19, random_state=0)


def test_the_decision_follows_from_the_causes(bootstrap_check, harmless_check):
    assert bootstrap_check.rejected
    assert not harmless_check.rejected
    for check in (bootstrap_check, harmless_check):
        assert list(check.causes.index) == list(CAUSES)
        assert check.p_value == check.causes["p_value"].min()
        assert check.rejected == (check.p_value <= 0.05)
        significant = set(check.causes.index[check.causes["p_value"] <= 0.05])
        assert set(check.named) == significant
        assert check.p_hat is None


def test_p_values_follow_from_the_simulations(bootstrap_check):
    largest = bootstrap_check.per_repeat.max(axis=1)
    assert len(largest) == 39
    for _, cause in bootstrap_check.causes.iterrows():
        expected = (1 + (largest >= cause["evidence"]).sum()) / 40
        assert cause["p_value"] == pytest.approx(expected)


def test_the_diagnosis_explains_the_causes(bootstrap_check, harmless_check):
    assert "too smooth for the data; try matern52 or matern32" in bootstrap_check.diagnosis
    assert harmless_check.diagnosis == "no evidence of misspecification"
    assert "rbf: rejected (p = 0.025)" in str(bootstrap_check)
    assert "not rejected" in str(harmless_check)


@pytest.mark.parametrize(
    ("cause", "kernel", "hint"),
    [
        ("too smooth", "rbf", "; try matern52 or matern32"),
        ("too smooth", "rbf-ard", "; try matern52 or matern32"),
        ("too smooth", "matern52", "; try matern32 or matern12"),
        ("too smooth", "matern32", "; try matern12"),
        ("too smooth", "matern12", "; look for jumps"),
        ("too smooth", "laplacian", "; look for jumps"),
        ("too smooth", "laplacian-ard", "; look for jumps"),
        ("too smooth", "RBFKernel", "; try matern12"),
        ("too rough", "matern12", "; try matern32 or matern52"),
        ("too rough", "laplacian", "; try matern32 or matern52"),
        ("too rough", "matern32-ard", "; try matern52 or rbf"),
        ("too rough", "matern52", "; try rbf"),
        ("too rough", "rbf", "; look for outliers, which look like roughness"),
        ("too rough", "rq", "; try rbf"),
    ],
)
def test_the_advice_names_kernels_on_the_right_side_of_the_tested_one(cause, kernel, hint):
    assert explain_cause(cause, kernel) == f"the kernel is {cause} for the data{hint}"


@pytest.mark.parametrize("cause", ["noise not constant", "heavy tails", "trend left over"])
def test_advice_that_is_not_about_smoothness_is_the_same_for_every_kernel(cause):
    texts = {explain_cause(cause, kernel) for kernel in ("rbf", "matern12", "laplacian", "mine")}
    assert len(texts) == 1
    assert "matern" not in texts.pop()


def test_the_number_of_rows_is_noted(bootstrap_check, harmless_check):
    assert "60 of 150 distinct rows, 39 simulations" in bootstrap_check.notes[0]
    assert "60 of 60 distinct rows, 19 simulations" in harmless_check.notes[0]


def test_the_fitted_noise_is_in_units_of_the_target(harmless_check):
    assert harmless_check.noise == pytest.approx(0.2, rel=0.3)


def test_the_seed_determines_the_result(harmless_check):
    again = check_misspecification(*smooth_data(), "rbf", n_repeats=19, random_state=0)
    pd.testing.assert_frame_equal(again.per_repeat, harmless_check.per_repeat)
    other = check_misspecification(*smooth_data(), "rbf", n_repeats=19, random_state=1)
    assert not np.allclose(other.per_repeat, harmless_check.per_repeat)


def test_the_bootstrap_does_not_depend_on_units_and_sign_of_the_target(harmless_check):
    X, y = smooth_data()
    other = check_misspecification(X, 5.0 - 3.0 * y, "rbf", n_repeats=19, random_state=0)
    assert other.noise == pytest.approx(3.0 * harmless_check.noise, rel=1e-3)
    np.testing.assert_allclose(
        other.causes["evidence"], harmless_check.causes["evidence"], atol=0.3
    )


def test_weights_are_counts():
    # Every input twice with different targets, so that counts matter.
    rng = np.random.default_rng(0)
    X, y = smooth_data(n=30)
    X, y = np.tile(X, (2, 1)), np.r_[y, y + 0.3 * rng.normal(size=30)]
    weight = rng.integers(0, 3, size=60)
    copies = np.repeat(np.arange(60), weight)
    options = {"n_repeats": 19, "random_state": 0}
    weighted = check_misspecification(X, y, "rbf", sample_weight=weight, **options)
    repeated = check_misspecification(X[copies], y[copies], "rbf", **options)
    pd.testing.assert_frame_equal(weighted.causes, repeated.causes)
    assert weighted.noise == pytest.approx(repeated.noise)
    once = check_misspecification(X[weight > 0], y[weight > 0], "rbf", **options)
    assert weighted.noise != pytest.approx(once.noise, rel=1e-3)


@pytest.mark.parametrize(
    "options",
    [
        {"test": "bootstrap"},
        {"test": "ratio"},
        {"test": "ratio", "model": "krr"},
        {"test": "bound"},
    ],
    ids=str,
)
def test_exact_copies_count_once(options):
    X, y = smooth_data(n=40)
    options = {"n_repeats": 19, "random_state": 0, **options}
    single = check_misspecification(X, y, "rbf", **options)
    double = check_misspecification(np.tile(X, (2, 1)), np.tile(y, 2), "rbf", **options)
    weighted = check_misspecification(X, y, "rbf", sample_weight=np.full(40, 3.0), **options)
    for other in (double, weighted):
        np.testing.assert_allclose(other.per_repeat, single.per_repeat, atol=1e-5)
        assert other.noise == pytest.approx(single.noise, rel=1e-6)
        assert other.rejected == single.rejected


def test_copies_are_rows_of_weight_above_one_whose_targets_agree():
    c = torch.tensor([1.0, 2.0, 2.0, 0.5, 7.5], dtype=torch.float64)
    q = torch.tensor([0.0, 0.0, 0.3, 0.0, 1e-25], dtype=torch.float64)
    zero = torch.zeros(5, dtype=torch.float64)
    rows = Rows(zero[:, None], zero, c, q, zero)
    once = rows.counting_copies_once()
    assert once.c.tolist() == [1.0, 1.0, 2.0, 0.5, 1.0]
    assert once.q is rows.q
    assert rows.c.tolist() == c.tolist()  # not changed in place


@pytest.mark.parametrize(
    ("delta", "needed"), [(0.05, 19), (0.01, 99), (0.1, 9), (0.07, 14), (0.15, 6), (1 / 3, 2)]
)
def test_too_few_simulations_for_the_level_are_refused(delta, needed, monkeypatch):
    X, y = smooth_data(n=12)
    options = {"delta": delta, "random_state": 0}
    if needed > 2:
        message = rf"n_repeats={needed - 1} .*delta={delta:g} or less; use at least {needed}\."
        with pytest.raises(InputError, match=message):
            check_misspecification(X, y, n_repeats=needed - 1, **options)
    check = check_misspecification(X, y, n_repeats=needed, **options)
    assert 1.0 / (len(check.per_repeat) + 1) <= delta
    # The paper's tests need no such number.
    check_misspecification(X, y, test="ratio", n_repeats=2, **options)


@pytest.mark.parametrize("test", ["bootstrap", "ratio", "bound"])
def test_a_gpytorch_kernel_can_be_tested(test):
    module = gpytorch.kernels.RBFKernel() + gpytorch.kernels.LinearKernel()
    state = {name: value.clone() for name, value in module.state_dict().items()}
    X, y = smooth_data(n=40)
    check = check_misspecification(X, y, module, test=test, delta=0.25, n_repeats=3, random_state=0)
    assert check.kernel == "(RBFKernel + LinearKernel)"
    assert check.noise == pytest.approx(0.2, rel=0.5)
    assert all(torch.equal(state[name], value) for name, value in module.state_dict().items())


@pytest.mark.parametrize(("test", "n_repeats"), [("bootstrap", 5), ("ratio", 3)])
def test_active_dims_count_the_columns_of_the_users_table(test, n_repeats):
    rng = np.random.default_rng(0)
    signal, noise = rng.uniform(-3, 3, size=(2, 60))
    y = np.sin(2 * signal) + 0.2 * rng.normal(size=60)
    wide = np.column_stack([np.ones(60), signal, noise])
    options = {"test": test, "n_repeats": n_repeats, "delta": 0.25, "random_state": 0}
    kernel = gpytorch.kernels.RBFKernel
    found = check_misspecification(wide, y, kernel(active_dims=[1]), **options)
    expected = check_misspecification(wide[:, 1:], y, kernel(active_dims=[0]), **options)
    pd.testing.assert_frame_equal(found.per_repeat, expected.per_repeat)
    assert found.noise == pytest.approx(expected.noise)
    assert found.noise == pytest.approx(0.2, rel=0.4)
    other = check_misspecification(wide, y, kernel(active_dims=[2]), **options)
    assert other.noise != pytest.approx(found.noise, rel=0.3)
    assert check_misspecification(wide, y, kernel(ard_num_dims=3), **options).noise < 0.4


def test_a_numpy_random_state_is_accepted():
    X, y = smooth_data(n=30)
    checks = [
        check_misspecification(
            X, y, test="ratio", n_repeats=3, random_state=np.random.RandomState(seed)
        )
        for seed in (0, 0, 1)
    ]
    pd.testing.assert_frame_equal(checks[0].per_repeat, checks[1].per_repeat)
    assert not checks[0].per_repeat.equals(checks[2].per_repeat)


@pytest.mark.parametrize("shape", ["wide", "factorial"])
def test_constant_regressors_do_not_break_the_bootstrap(shape):
    """More columns than a quarter of the rows; and rows that all have the same length."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20, 6))
    if shape == "factorial":
        X = np.array(list(itertools.product([-1.0, 1.0], repeat=5)))
    y = X[:, 0] + 0.1 * rng.normal(size=len(X))
    check = check_misspecification(X, y, "rbf", n_repeats=19, random_state=0)
    assert np.isfinite(check.causes).all(axis=None)
    assert len(check.per_repeat) == 19


def test_a_data_frame_and_a_series_are_accepted():
    X, y = smooth_data(n=30)
    options = {"n_repeats": 5, "delta": 0.2, "random_state": 0}
    frame = check_misspecification(pd.DataFrame(X, columns=["a"]), pd.Series(y), **options)
    plain = check_misspecification(X, y, **options)
    pd.testing.assert_frame_equal(frame.causes, plain.causes)


# --- pictures and progress -----------------------------------------------------------------------


def test_the_causes_are_drawn(bootstrap_check):
    ax = bootstrap_check.plot()
    assert [tick.get_text() for tick in ax.get_yticklabels()] == list(CAUSES)
    drawn = {float(x) for dots in ax.collections for x, _ in dots.get_offsets()}
    assert set(bootstrap_check.causes["evidence"]) <= drawn
    assert "rejected" in ax.get_title()


@pytest.mark.parametrize("options", PAPER_OPTIONS, ids=str)
def test_the_shares_that_decide_are_drawn(options):
    check = check_misspecification(*hard_data(), **options, delta=0.9, n_repeats=5, random_state=0)
    given = Figure().subplots()
    ax = check.plot(ax=given)
    assert ax is given
    shares = check.per_repeat["p_hat"]
    edges = [bar.get_x() for bar in ax.patches] + [1.0]
    heights = [bar.get_height() for bar in ax.patches]
    np.testing.assert_array_equal(heights, np.histogram(shares, edges)[0])
    assert [line.get_xdata()[0] for line in ax.lines] == pytest.approx([check.p_hat, 0.1])


@pytest.mark.parametrize("test", ["bootstrap", "ratio"])
def test_verbose_shows_progress(test, capsys):
    X, y = smooth_data(n=30)
    options = {"test": test, "delta": 0.25, "n_repeats": 3, "random_state": 0}
    check_misspecification(X, y, **options)
    assert capsys.readouterr().err == ""
    check_misspecification(X, y, **options, verbose=1)
    assert f"{test} test of rbf: 3" in capsys.readouterr().err


# --- what cannot be tested -----------------------------------------------------------------------


def with_nan(values, row):
    values = np.array(values)
    values[row] = math.nan
    return values


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"test": "chi2"}, "test='chi2' is not one of 'bootstrap', 'ratio', 'bound'"),
        ({"model": "svm"}, "model='svm'"),
        ({"beta": "best"}, "beta='best'"),
        ({"ard": "both"}, "ard='both'"),
        ({"delta": 1.5}, "delta=1.5 must lie between 0 and 1"),
        ({"delta": "small"}, "delta='small'"),
        ({"threshold": -1.0}, "threshold=-1.0"),
        ({"threshold": math.nan}, "threshold=nan"),
        ({"threshold": math.inf}, "threshold=inf"),
        ({"threshold": "wide"}, "threshold='wide' must be a positive number"),
        ({"threshold": None}, "threshold=None"),
        ({"threshold": True}, "threshold=True must be a positive number"),
        ({"threshold": np.bool_(True)}, "threshold=.*True.* must be a positive number"),
        ({"rkhs_bound": True}, "rkhs_bound=True"),
        ({"n_repeats": 18}, "n_repeats=18 simulations .*; use at least 19"),
        ({"rkhs_bound": "guess"}, "rkhs_bound='guess'"),
        ({"rkhs_bound": -2.0}, "rkhs_bound=-2.0"),
        ({"rkhs_bound": math.nan}, "rkhs_bound=nan"),
        ({"rkhs_bound": math.inf}, "rkhs_bound=inf"),
        ({"rkhs_bound": [1.0]}, r"rkhs_bound=\[1.0\]"),
        ({"n_jobs": 0}, "n_jobs=0"),
        ({"n_jobs": 1.5}, "n_jobs=1.5"),
        ({"n_jobs": "all"}, "n_jobs='all': use a number of threads"),
        ({"model": "krr"}, "model='krr' has no distribution"),
        ({"model": "krr", "test": "bound"}, "test='bound'"),
        ({"test": "ratio", "model": "krr", "penalty": -0.1}, "penalty=-0.1"),
        ({"test": "ratio", "model": "krr", "penalty": "best"}, "penalty='best'"),
        ({"sampling": "sobol"}, "sampling='sobol'"),
        ({"n_repeats": 1}, "n_repeats=1 must be a whole number of at least 2"),
        ({"n_repeats": 10.0}, "n_repeats=10.0"),
        ({"subsample": 9}, "subsample=9 must be a whole number of at least 10"),
        ({"noise_floor": 0.0}, "noise_floor=0.0"),
        ({"kernel": "cubic"}, "unknown kernel 'cubic'"),
        ({"kernel": 7}, "not int 7"),
        ({"random_state": "seed"}, "random_state='seed'"),
        ({"device": "abacus"}, "device='abacus'"),
        ({"sample_weight": np.full(30, -1.0)}, "sample_weight must not be negative; row 0 has -1"),
        ({"sample_weight": np.ones(7)}, r"sample_weight has shape \(7,\), expected \(30,\)"),
    ],
    ids=str,
)
def test_invalid_parameters_are_named(options, message):
    X, y = smooth_data(n=30)
    with pytest.raises(InputError, match=message):
        check_misspecification(X, y, **{"n_repeats": 2, **options})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda X, y: (with_nan(X, 3), y), "X contains NaN: 1 of 30 values, the first in row 3"),
        (lambda X, y: (X, with_nan(y, 5)), "y contains NaN: 1 of 30 values, the first in row 5"),
        (lambda X, y: (X, np.column_stack([y, y])), r"y has shape \(30, 2\), expected \(n,\)"),
        (lambda X, y: (X[:, 0], y), "X must be a table of numbers"),
        (lambda X, y: (X, y[:29]), r"inconsistent numbers of samples: \[30, 29\]"),
        (lambda X, y: (X, ["a"] * 30), "y a column of them"),
        (lambda X, y: (X[:9], y[:9]), "X has 9 distinct rows; at least 10 are needed"),
        (lambda X, y: (np.repeat(X[:6], 5, 0), y), "X has 6 distinct rows"),
        (lambda X, y: (X, np.full(30, 3.0)), "y is constant"),
        (lambda X, y: (np.ones_like(X), y), "every column of X is constant"),
    ],
    ids=[
        "nan in X", "nan in y", "2-d y", "1-d X", "unequal lengths", "words", "few rows",
        "few distinct rows", "constant y", "no X",
    ],
)  # fmt: skip
def test_invalid_data_are_named(change, message):
    X, y = change(*smooth_data(n=30))
    with pytest.raises(InputError, match=message):
        check_misspecification(X, y, n_repeats=2)


class Hopeless(gpytorch.kernels.Kernel):
    """A matrix of whatever size that cannot be factorised."""

    def forward(self, x1, x2, diag=False, **params):
        if diag:
            return -torch.ones_like(x1[..., 0])
        return -torch.ones(len(x1), len(x2), dtype=x1.dtype) - 1e6 * (x1 == x2.mT)


@pytest.mark.parametrize("test", ["bootstrap", "ratio"])
def test_a_kernel_that_cannot_be_fitted_is_refused(test):
    X, y = smooth_data(n=30)
    with pytest.raises(NotFittableError, match="Hopeless"):
        check_misspecification(X, y, Hopeless(), test=test, delta=0.25, n_repeats=3, random_state=0)
    assert issubclass(NotFittableError, TwoStageGPError)
