"""The stack's weights against a general optimiser, and residuals under weights of other folds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from twostagegp.numerics.stacking import crossfitted_residuals, simplex_weights


def residuals(seed, n=60, C=4):
    """Correlated held-out residuals of candidates of different quality."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=(n, 1))
    return (common + rng.uniform(0.3, 2.0, size=C) * rng.normal(size=(n, C))) * 3.0


def objective(E, weight, ridge):
    G = (E * weight[:, None]).T @ E / weight.sum()
    return G + ridge * np.diag(np.diag(G))


def by_slsqp(G):
    C = len(G)
    result = minimize(
        lambda w: w @ G @ w,
        np.full(C, 1 / C),
        jac=lambda w: 2 * G @ w,
        method="SLSQP",
        bounds=[(0, 1)] * C,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1, "jac": np.ones_like},
        options={"ftol": 1e-14, "maxiter": 500},
    )
    return result.x


@pytest.mark.parametrize("ridge", [0.0, 0.03, 1.0])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_weights_equal_slsqp(seed, weighted, ridge):
    E = residuals(seed)
    weight = np.random.default_rng(seed).uniform(0.1, 3.0, size=len(E)) if weighted else None
    G = objective(E, np.ones(len(E)) if weight is None else weight, ridge)
    expected = by_slsqp(G)
    np.testing.assert_allclose(simplex_weights(E, weight, ridge), expected, atol=1e-5)


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 2**16), n=st.integers(1, 20), C=st.integers(1, 8))
def test_weights_lie_on_the_simplex_and_beat_every_candidate(seed, n, C):
    E = residuals(seed, n, C)
    w = simplex_weights(E, ridge=0.0)
    assert np.all(w >= 0.0)
    assert w.sum() == pytest.approx(1.0)
    assert np.mean((E @ w) ** 2) <= np.mean(E**2, axis=0).min() * (1 + 1e-6)


def test_a_weight_is_a_number_of_repeats():
    E = residuals(1)
    weight = np.random.default_rng(0).integers(1, 4, size=len(E))
    np.testing.assert_allclose(
        simplex_weights(E, weight.astype(float)),
        simplex_weights(np.repeat(E, weight, axis=0)),
        atol=1e-12,
    )


def test_the_unit_of_the_target_does_not_matter():
    E = residuals(2)
    np.testing.assert_allclose(simplex_weights(1e-6 * E), simplex_weights(E), atol=1e-9)


def test_candidates_with_equal_residuals_share_the_weight():
    e = residuals(3, C=1)
    np.testing.assert_allclose(simplex_weights(np.hstack([e, e, e])), 1 / 3, atol=1e-9)


def test_one_candidate_has_all_weight():
    np.testing.assert_array_equal(simplex_weights(np.zeros((5, 1))), [1.0])


def test_a_candidate_without_error_has_all_weight():
    E = residuals(4, C=3)
    E[:, 1] = 0.0
    np.testing.assert_array_equal(simplex_weights(E), [0.0, 1.0, 0.0])


def test_candidates_without_error_share_the_weight():
    E = residuals(4, C=3)
    E[:, :2] = 0.0
    np.testing.assert_array_equal(simplex_weights(E), [0.5, 0.5, 0.0])


def test_the_constant_has_all_weight_on_pure_noise():
    rng = np.random.default_rng(5)
    y = rng.normal(size=400)
    # Candidates that predict independent noise have larger errors than the constant.
    overfitted = y[:, None] - rng.normal(scale=0.7, size=(400, 3))
    overfitted += 0.5 * y[:, None]
    w = simplex_weights(np.column_stack([overfitted, y]))
    np.testing.assert_allclose(w, [0.0, 0.0, 0.0, 1.0], atol=1e-12)


# --- cross-fitting -------------------------------------------------------------------------------


def test_crossfitted_residuals_use_weights_of_the_other_folds():
    E, folds = residuals(6), np.arange(60) % 4
    weight = np.random.default_rng(0).uniform(0.5, 2.0, size=60)
    expected = np.empty(60)
    for i in range(60):
        others = folds != folds[i]
        expected[i] = E[i] @ simplex_weights(E[others], weight[others])
    np.testing.assert_allclose(crossfitted_residuals(E, folds, weight), expected, rtol=1e-12)


def test_a_folds_own_residuals_never_choose_its_weights():
    E, folds = residuals(7), np.arange(60) % 3
    out = folds == 1
    changed = E.copy()
    changed[out] *= np.array([0.01, 5.0, 2.0, -3.0])
    # Fold 1 has the weights that were fitted to the residuals of the other folds.
    weights = simplex_weights(E[~out])
    np.testing.assert_allclose(crossfitted_residuals(E, folds)[out], E[out] @ weights)
    np.testing.assert_allclose(crossfitted_residuals(changed, folds)[out], changed[out] @ weights)
    assert not np.allclose(
        crossfitted_residuals(changed, folds)[~out], crossfitted_residuals(E, folds)[~out]
    )


def test_a_single_fold_falls_back_on_its_own_weights():
    E = residuals(8)
    expected = E @ simplex_weights(E)
    np.testing.assert_allclose(crossfitted_residuals(E, np.zeros(60, dtype=np.int64)), expected)


def test_the_default_ridge_is_the_one_of_the_documentation():
    E = np.random.default_rng(1).normal(size=(30, 3)) * [1.0, 1.1, 1.3]
    np.testing.assert_array_equal(simplex_weights(E), simplex_weights(E, ridge=0.03))
    assert not np.allclose(simplex_weights(E), simplex_weights(E, ridge=0.06), rtol=1e-3)
