r"""Test whether a Gaussian process with a given kernel fits the data.

``test="bootstrap"`` simulates from the fitted model and refits (``bootstrap.py``): it keeps its
level and names the cause of a misfit. ``test="ratio"`` and ``test="bound"`` are the paper's
Algorithms 2 and 5 (``paper_tests.py``): the share :math:`\hat p` of held-out rows within a bound,
averaged over repetitions on subsamples; the model is rejected if it is below :math:`1 - \delta`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray

from twostagegp.data.checks import check_choice
from twostagegp.data.sampling import draw_subsamples
from twostagegp.data.scaling import Prepared
from twostagegp.engines.batched_problem import Extras, ProblemBatch
from twostagegp.errors import InputError, NotFittableError
from twostagegp.kernels import Kernel, make_kernel
from twostagegp.kernels.catalogue import CATALOGUE
from twostagegp.runtime.cores import use_cores
from twostagegp.runtime.threads import show_log
from twostagegp.search.bootstrap import adjusted_p_values, simulate_and_refit
from twostagegp.search.evidence import CAUSES, evidence
from twostagegp.search.inputs import (
    LOG,
    check_between_0_and_1,
    check_positive,
    prepare_table,
    resolve_sampling,
)
from twostagegp.search.repetitions import Repeated, RepetitionOptions, Repetitions, penalty_grid
from twostagegp.search.runners import RepetitionRunner, client_and_device, open_runner

__all__ = ["MisspecificationCheck", "check_misspecification", "explain_cause", "order_of_causes"]

Array = NDArray[np.float64]

#: Causes in the mean or the covariance. They are named first, because such a misfit also makes
#: residuals look heavy-tailed or heteroscedastic, while the reverse does not happen.
_STRUCTURAL_CAUSES = ("too smooth", "too rough", "trend left over")
_EXPLANATIONS = {
    "too smooth": "the kernel is too smooth for the data",
    "too rough": "the kernel is too rough for the data",
    "noise not constant": (
        "the noise is not constant: it changes with the inputs or with the level of the target; "
        "transform the target, or model the noise"
    ),
    "heavy tails": "the noise has heavier tails than a Gaussian; look for outliers",
    "trend left over": "a trend is left over that a zero-mean process does not explain; model it",
}
#: Kernels to try instead, with their smoothness: those of the Euclidean distance.
_SMOOTHNESS = {
    name: form.smoothness
    for name, form in CATALOGUE.items()
    if form.metric == 2 and form.smoothness is not None
}
_FROM_ROUGH_TO_SMOOTH = tuple(sorted(_SMOOTHNESS, key=lambda name: _SMOOTHNESS[name]))
#: Advice if there is no rougher or smoother kernel to try.
_NO_OTHER_KERNEL = {
    "too smooth": "; look for jumps",
    "too rough": "; look for outliers, which look like roughness",
}


def explain_cause(cause: str, kernel: str) -> str:
    """Return what a cause means for a kernel, and which kernels to try instead.

    Examples
    --------
    >>> explain_cause("too smooth", "matern52-ard")
    'the kernel is too smooth for the data; try matern32 or matern12'
    """
    if cause not in _NO_OTHER_KERNEL:
        return _EXPLANATIONS[cause]
    form = CATALOGUE.get(kernel.removesuffix("-ard"))
    smoothness = None if form is None else form.smoothness
    ladder = _FROM_ROUGH_TO_SMOOTH
    if smoothness is None:
        others = [ladder[0] if cause == "too smooth" else ladder[-1]]
    elif cause == "too smooth":
        others = [name for name in reversed(ladder) if _SMOOTHNESS[name] < smoothness]
    else:
        others = [name for name in ladder if _SMOOTHNESS[name] > smoothness]
    hint = f"; try {' or '.join(others[:2])}" if others else _NO_OTHER_KERNEL[cause]
    return _EXPLANATIONS[cause] + hint


@dataclass(frozen=True)
class MisspecificationCheck:
    r"""Result of :func:`check_misspecification`.

    Attributes
    ----------
    test : str
    kernel : str
        Label of the kernel.
    rejected : bool
        Whether the hypothesis that the model is correct is rejected at level ``delta``.
    delta : float
    p_value : float or None
        For ``test="bootstrap"``.
    p_hat : float or None
        For the paper's tests: mean share of test rows within the bound.
    standard_error : float or None
        Standard error of ``p_hat`` over repetitions.
    per_repeat : DataFrame
        One row per repetition. For the paper's tests: ``p_hat``, ``noise`` and ``nll``; for the
        bound also ``p_hat_corrected`` and ``p_hat_printed``, one of which is ``p_hat``. For the
        bootstrap: the standardised evidence of every simulation, one column per cause.
    noise : float
        Fitted noise standard deviation in the units of y, the median over repetitions; for kernel
        ridge the square root of the penalty, in the same units.
    causes : DataFrame
        For ``test="bootstrap"``: standardised evidence and p-value of each cause; p-values are
        corrected for testing all causes.
    named : tuple of str
        Causes that are significant at level ``delta``, most important first.
    diagnosis : str
        What is wrong, most important first; for the bootstrap only.
    notes : tuple of str
        Details of how the test was carried out.
    """

    test: str
    kernel: str
    rejected: bool
    delta: float
    per_repeat: pd.DataFrame = field(repr=False)
    noise: float
    p_value: float | None = None
    p_hat: float | None = None
    standard_error: float | None = None
    causes: pd.DataFrame = field(repr=False, default_factory=pd.DataFrame)
    named: tuple[str, ...] = ()
    threshold: float = 1.1
    notes: tuple[str, ...] = ()

    @property
    def diagnosis(self) -> str:
        """What is wrong, most important first."""
        if self.test != "bootstrap":
            return "this test does not say what is wrong; test='bootstrap' does"
        if not self.named:
            return "no evidence of misspecification"
        return "; ".join(explain_cause(cause, self.kernel) for cause in self.named)

    def __str__(self) -> str:
        verdict = "rejected" if self.rejected else "not rejected"
        if self.test == "bootstrap":
            return f"{self.kernel}: {verdict} (p = {self.p_value:.3f}); {self.diagnosis}"
        figure = f"p_hat = {self.p_hat:.3f} ± {self.standard_error:.3f}"
        return f"{self.kernel}: {verdict} by the {self.test} test ({figure})"

    def plot(self, ax: Any = None) -> Any:
        """Draw the evidence against its simulated spread, or the distribution of p_hat.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            New axes by default.

        Returns
        -------
        ax : matplotlib Axes
        """
        # The one import of a higher layer, and lazy: results can be drawn without a function call.
        from twostagegp.plotting.searches import draw_check

        return draw_check(self, ax)


def check_misspecification(
    X: Any,
    y: ArrayLike,
    kernel: Any = "rbf",
    *,
    test: str = "bootstrap",
    model: str = "gp",
    ard: bool = False,
    n_repeats: int = 100,
    subsample: int = 500,
    sampling: str = "auto",
    threshold: float = 1.1,
    delta: float = 0.05,
    penalty: Any = "auto",
    rkhs_bound: float | str | None = None,
    beta: str = "corrected",
    sample_weight: ArrayLike | None = None,
    noise_floor: float = 1e-8,
    device: str = "auto",
    n_jobs: int | None = None,
    random_state: Any = None,
    verbose: int = 0,
    client: Any = None,
) -> MisspecificationCheck:
    r"""Test whether a zero-mean Gaussian process with this kernel fits the data.

    Parameters
    ----------
    X : data frame or array-like of shape (n, d)
        A frame may hold categories, booleans, text labels, dates and gaps: docs/tables.md.
    y : array-like of shape (n,)
    kernel : str or GPyTorch kernel
    test : {"bootstrap", "ratio", "bound"}
        ``"bootstrap"`` (default): one subsample, ``n_repeats`` simulations of the fitted model,
        each fitted again; a p-value and a diagnosis. ``"ratio"``: the paper's Algorithm 2.
        ``"bound"``: its Algorithm 5.
    model : {"gp", "krr"}
        Gaussian process trained by its likelihood, or kernel ridge with the classical
        lengthscale; the latter for ``test="ratio"`` only.
    ard : bool
        For a kernel given by name: one lengthscale per column.
    n_repeats, subsample : int
        Number of repetitions (simulations), and of rows of a subsample; the paper's tests train on
        80 % of them.
    sampling : {"auto", "fps", "random"}
        Spread subsamples (farthest points from a random start in a random pool) or plain random
        ones. ``"auto"`` follows the algorithms: spread for ``"ratio"``, else random.
    threshold : float
        Largest error ratio that passes: 1.1 in the paper's text, 1.01 in its proof.
    delta : float
        Level of the test.
    penalty : "auto", float or sequence of float
        Penalty of kernel ridge, or a grid from which the best is taken by leave-one-out error;
        ``"auto"`` is the paper's grid.
    rkhs_bound : float, "estimate" or None
        B in the error bound, in units of the standardised target: a given value; an estimate from
        below by the norm of the fitted mean; or zero (None), as the paper proposes.
    beta : {"corrected", "printed"}
        Which form of the error bound decides; both are in ``per_repeat``.
    sample_weight : array-like of shape (n,), optional
        Counts of rows.
    noise_floor, device, n_jobs, random_state, verbose
        As in :class:`~twostagegp.TwoStageGPRegressor`.
    client : distributed.Client or "auto", optional
        Distribute the repetitions over the workers of a Dask cluster: that of this client, or,
        with ``"auto"``, that of the client in use or of a new ``LocalCluster``. The result is the
        same up to rounding: docs/dask.md.

    Returns
    -------
    MisspecificationCheck

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-3, 3, size=(120, 1))
    >>> y = np.where(X[:, 0] > 0, 1.0, -1.0) + 0.05 * rng.normal(size=120)
    >>> check = check_misspecification(X, y, "rbf", n_repeats=40, random_state=0)
    >>> check.rejected, check.named[0]
    (True, 'too smooth')
    """
    check_choice("test", test, ("bootstrap", "ratio", "bound"))
    check_choice("model", model, ("gp", "krr"))
    check_choice("beta", beta, ("corrected", "printed"))
    check_choice("ard", ard, (True, False))
    check_between_0_and_1("delta", delta)
    if model == "krr" and test != "ratio":
        raise InputError(
            f"model='krr' has no distribution to test with test={test!r}; use test='ratio', or "
            "model='gp'."
        )
    check_positive("threshold", threshold, "the paper has 1.1")
    if isinstance(rkhs_bound, str):
        check_choice("rkhs_bound", rkhs_bound, ("estimate",))
    elif rkhs_bound is not None:
        check_positive("rkhs_bound", rkhs_bound, "or use 'estimate', or None to drop it")
    client, device = client_and_device(client, device)
    with use_cores(n_jobs), show_log(verbose), open_runner(client) as runner:
        data, rng = prepare_table(
            X, y, sample_weight, noise_floor, n_repeats, subsample, device, random_state
        )
        used = make_kernel(kernel, data.rows.X.shape[1], ard, data.columns)
        sampled = resolve_sampling(sampling, "fps" if test == "ratio" else "random")
        if test == "bootstrap":
            _check_simulations(n_repeats, delta)
            drawn = _one_subsample(data, used, subsample, sampled, noise_floor, rng)
            return _bootstrap_test(drawn, data, n_repeats, delta, rng, runner)
        options = RepetitionOptions(
            model="krr" if model == "krr" else "gp",
            penalties=penalty_grid(penalty),
            threshold=threshold,
            delta=delta,
            rkhs_bound=rkhs_bound,
            noise_floor=noise_floor,
            with_bound=test == "bound",
        )
        repetitions = Repetitions(data.rows, subsample, sampled, rng)
        LOG.info("%s test of %s: %d repetitions", test, used.label, n_repeats)
        repetitions.draw(n_repeats)
        (result,) = runner.start(repetitions, [used], options, 0)
        repeated = result()
    return _paper_test(test, beta, used.label, repeated, repetitions, options, data)


def _paper_test(
    test: str,
    beta: str,
    label: str,
    repeated: Repeated,
    repetitions: Repetitions,
    options: RepetitionOptions,
    data: Prepared,
) -> MisspecificationCheck:
    """Return the result of the ratio or bound test from the scores of all repetitions."""
    shares = {"ratio": repeated.ratio, "bound": repeated.bound}[test]
    both = {}
    if test == "bound":
        both = {"p_hat_corrected": shares, "p_hat_printed": repeated.bound_printed}
        shares = both[f"p_hat_{beta}"]
    table = pd.DataFrame({"p_hat": shares, **both})
    scale = data.scaling.y_scale
    table = table.assign(noise=scale * repeated.noise, nll=repeated.nll)
    fitted = shares[np.isfinite(shares)]
    if fitted.size == 0:
        raise NotFittableError(
            f"kernel {label} could not be fitted in any of {len(shares)} repetitions; raise "
            "noise_floor, or choose another kernel."
        )
    p_hat = float(fitted.mean())
    error = float(fitted.std(ddof=1) / np.sqrt(fitted.size)) if fitted.size > 1 else float("nan")
    notes = [
        f"{repetitions.n_train} training rows and {repetitions.size - repetitions.n_train} test "
        f"rows, {repetitions.sampling} subsamples",
    ]
    if fitted.size < len(shares):
        notes.append(f"{len(shares) - fitted.size} repetitions could not be fitted")
    if test == "bound":
        bound = options.rkhs_bound
        known = "dropped" if bound is None else str(bound)
        known = "estimated from below" if bound == "estimate" else known
        notes.append(f"RKHS bound B: {known}; {beta} beta")
    return MisspecificationCheck(
        test=test,
        kernel=label,
        rejected=p_hat < 1.0 - options.delta,
        delta=options.delta,
        per_repeat=table,
        noise=float(np.nanmedian(table["noise"])),
        p_hat=p_hat,
        standard_error=error,
        threshold=options.threshold,
        notes=tuple(notes),
    )


def order_of_causes(p: Array, z: Array, delta: float) -> tuple[str, ...]:
    """Return the causes with a p-value of at most ``delta``, most important first.

    Causes in the mean and the covariance come first; otherwise the order is that of the evidence.

    Examples
    --------
    >>> import numpy as np
    >>> order_of_causes(np.array([0.01, 1, 1, 0.01, 1]), np.array([3.0, -3, 0, 5, 0]), 0.05)
    ('too smooth', 'heavy tails')
    """
    found = [k for k in range(len(CAUSES)) if p[k] <= delta]
    found.sort(key=lambda k: (CAUSES[k] not in _STRUCTURAL_CAUSES, -z[k]))
    return tuple(CAUSES[k] for k in found)


def _check_simulations(n_repeats: int, delta: float) -> None:
    if n_repeats + 1 < 1.0 / delta:
        raise InputError(
            f"n_repeats={n_repeats} simulations cannot give a p-value of delta={delta:g} or less; "
            f"use at least {math.ceil(1.0 / delta) - 1}."
        )


def _one_subsample(
    data: Prepared,
    kernel: Kernel,
    subsample: int,
    sampling: str,
    noise_floor: float,
    rng: np.random.Generator,
) -> ProblemBatch:
    """Draw one subsample and return it as a batch of one problem."""
    rows = data.rows.counting_copies_once()
    index = draw_subsamples(rows.X.cpu().numpy(), subsample, 1, sampling, rng)
    where = torch.as_tensor(index, device=rows.X.device)
    return ProblemBatch.of(
        kernel,
        rows.X[where],
        rows.t[where],
        extras=Extras.of(rows, where),
        noise_floor=noise_floor,
    )


def _bootstrap_test(
    problem: ProblemBatch,
    data: Prepared,
    n_repeats: int,
    delta: float,
    rng: np.random.Generator,
    runner: RepetitionRunner,
) -> MisspecificationCheck:
    """Simulate from the fitted model, refit, and return the result of the test."""
    label, n = problem.kernel.label, problem.n_rows
    LOG.info("bootstrap test of %s: %d simulations of %d rows", label, n_repeats, n)
    result = simulate_and_refit(problem, evidence, n_repeats, rng, runner.refit)
    p, z = adjusted_p_values(result.observed, result.simulated)
    if len(z) < 1.0 / delta:
        raise NotFittableError(
            f"only {len(z) - 1} of {n_repeats} simulations of kernel {label} could be "
            "fitted again, too few for a test; raise noise_floor, or choose another kernel."
        )
    scale = data.scaling.y_scale
    return MisspecificationCheck(
        test="bootstrap",
        kernel=label,
        rejected=bool(p.min() <= delta),
        delta=delta,
        per_repeat=pd.DataFrame(z[1:], columns=list(CAUSES)),
        noise=scale * float(np.exp(0.5 * result.parameters[-1])),
        p_value=float(p.min()),
        causes=pd.DataFrame({"evidence": z[0], "p_value": p}, index=list(CAUSES)),
        named=order_of_causes(p, z[0], delta),
        notes=(f"{n} of {len(data.rows)} distinct rows, {len(z) - 1} simulations",),
    )
