r"""The neighbour engine: every prediction from the k nearest training rows alone.

Neighbours are found in the kernel's own metric: inputs divided by its lengthscales, L1 for the
Laplacian. A row that is held out is predicted from its k nearest *other* rows (without its whole
group, if groups are given), which costs no more than a prediction. With k = n this is the exact
engine. Of a row with several copies one is left out (:mod:`twostagegp.numerics.held_out`).
"""

from __future__ import annotations

import math
import threading
import weakref
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from twostagegp.data.rows import Rows
from twostagegp.engines.metric import Metric
from twostagegp.engines.neighbors.index import NeighborIndex, neighbor_index
from twostagegp.engines.neighbors.local_gp import local_density, local_predict
from twostagegp.engines.problem import ObjectiveName, Problem
from twostagegp.engines.several import PerTargetPosterior, SumProblem
from twostagegp.errors import InputError, MemoryBudgetError
from twostagegp.kernels import Kernel, Vector
from twostagegp.numerics.held_out import Heldout, copy_from_others
from twostagegp.numerics.linalg import safe_cholesky

__all__ = ["NeighborEngine", "NeighborPosterior", "NeighborProblem"]


class KnownPoints:
    """Points whose result is stored, recognised as the same tensor, not changed since."""

    def __init__(self, points: Tensor) -> None:
        self.reference = weakref.ref(points)
        # A tensor made in inference mode does not count its changes, so it is never recognised.
        self.version = -1 if points.is_inference() else points._version

    def same(self, points: Tensor) -> bool:
        """Whether these are the stored points, unchanged."""
        if self.reference() is not points or points.is_inference():
            return False
        return self.version == points._version


@dataclass(frozen=True)
class KnownRows:
    """The nearest other rows of some training rows in one metric."""

    metric: Metric
    k: int
    #: Row numbers in increasing order, shape (m,), and their neighbours, shape (m, k).
    index: Tensor
    near: Tensor

    def places(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return the places of rows in ``self.index``, and whether each row is in it."""
        place = torch.searchsorted(self.index, index).clamp(max=max(len(self.index) - 1, 0))
        known = self.index[place] == index if len(self.index) else torch.zeros_like(index).bool()
        return place, known

    def with_rows(self, index: Tensor, near: Tensor) -> KnownRows:
        """Return these and further rows."""
        index, order = torch.cat([self.index, index]).sort()
        return replace(self, index=index, near=torch.cat([self.near, near])[order])


class IndexStore:
    """Indexes of the same rows in several metrics, and the results of the last queries.

    The parts of a model that share a metric query the same points one after the other.
    """

    #: Indexes and answers that are kept, for the metrics that were used last.
    kept: ClassVar[int] = 6
    #: Metrics whose neighbours of training rows are kept, and rows of all of them together; those
    #: of the last metric are kept in any case.
    kept_metrics: ClassVar[int] = 16
    kept_rows: ClassVar[int] = 72_000

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self._indexes: dict[Metric, NeighborIndex] = {}
        self._answers: list[tuple[KnownPoints, Metric, int, Tensor]] = []
        self._known_rows: tuple[KnownRows, ...] = ()  # last used, last
        self._lock = threading.Lock()
        self._grown: weakref.ref[IndexStore] | None = None

    def extended(self, rows: Rows) -> IndexStore:
        """Return the store for these and more rows; a second call with the same rows shares it.

        Indexes are built again at the first query, which costs little compared with predictions
        (benchmarks.update_speed).
        """
        grown = None if self._grown is None else self._grown()
        if grown is None or grown.rows is not rows:
            grown = IndexStore(rows)
            self._grown = weakref.ref(grown)
        return grown

    def __getstate__(self) -> dict[str, Any]:
        return {"rows": self.rows}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["rows"])  # type: ignore[misc]

    def index(self, metric: Metric) -> NeighborIndex:
        """Return the index of a metric; build it at the first call."""
        with self._lock:
            found = self._indexes.pop(metric, None)
            if found is None:
                inputs = metric.scale(self.rows.X)
                found = neighbor_index(inputs, metric.manhattan, self.rows.groups)
            self._indexes[metric] = found  # last used, last dropped
            while len(self._indexes) > self.kept:
                self._indexes.pop(next(iter(self._indexes)))
        return found

    def near(self, metric: Metric, points: Tensor, k: int) -> Tensor:
        """Return the nearest rows of points; the same query is not searched twice."""
        for points_known, known, size, answer in self._answers:
            if points_known.same(points) and known == metric and size == k:
                return answer
        answer = self.index(metric).query(metric.scale(points), k)
        kept = [known for known in self._answers if known[0].same(points)][-self.kept :]
        self._answers = [*kept, (KnownPoints(points), metric, k, answer)]
        return answer

    def near_rows(self, metric: Metric, index: Tensor, k: int) -> Tensor:
        """Return the nearest other rows of some rows, without those of their own group.

        Rows whose neighbours in this metric are known from earlier calls are not searched again: a
        penalty is tuned by several predictions of the same rows, and the variance shares the metric
        and the rows of the mean.
        """
        every = self._known_rows  # read once: another thread may store its own
        empty = index.new_zeros(0), index.new_zeros((0, k), dtype=torch.int32)
        found = next((r for r in every if (r.metric, r.k) == (metric, k)), None)
        known = found or KnownRows(metric, k, *empty)
        asked = torch.unique(index)
        new = asked[~known.places(asked)[1]]
        if len(new):
            groups = self.rows.groups
            own_group = None if groups is None else groups[new]
            points = metric.scale(self.rows.X[new])
            near = self.index(metric).query(points, k, new, own_group)
            known = known.with_rows(new, near)
        others = [r for r in every if r is not found][1 - self.kept_metrics :]
        left = self.kept_rows - len(known.index)
        kept: list[KnownRows] = []
        for other in reversed(others):
            left -= len(other.index)
            if left < 0:
                break
            kept.append(other)
        self._known_rows = (*reversed(kept), known)
        return known.near[known.places(index)[0]]


@dataclass
class NeighborProblem(Problem):
    """The mean density of some rows, each predicted from fixed neighbours.

    Parameters
    ----------
    batch : Tensor of shape (m,)
        Rows whose density counts.
    near : Tensor of shape (m, k)
        Their neighbours.
    metric : Metric
        The metric in which they are the nearest.
    """

    batch: Tensor = field(kw_only=True)
    near: Tensor = field(kw_only=True)
    metric: Metric = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._total = float(self.rows.c[self.batch].sum())

    def is_stale(self, parameters: Vector) -> bool:
        """Whether the metric of these parameters would give other neighbours."""
        metric = Metric.of(self.kernel, parameters[:-1], self.rows.X.shape[1])
        return metric.has_left(self.metric)

    def __call__(self, parameters: Vector) -> tuple[float, Vector]:
        self.evaluations += 1
        R = self.R if self.objective == "heldout" else None
        value, gradient = local_density(
            self.kernel, parameters, self.rows, self.batch, self.near, self.objective, R
        )
        if self.use_prior:
            penalty, slope = self._prior(parameters)
            value, gradient = value + penalty, gradient + slope
        return value / self._total, gradient / self._total


@dataclass(frozen=True)
class NeighborEngine:
    """Training rows for the neighbour method.

    Parameters
    ----------
    rows : Rows
    n_neighbors : int
        Rows that a prediction is made from; all rows if there are fewer.
    noise_floor : float
        Lower bound of the noise variance on the standardised target.
    use_prior : bool
        Whether training adds the weak prior on hyperparameters.
    order : integer Tensor of shape (n,), optional
        Position of each row in the order of Vecchia's likelihood (``objective="nll"``).
    store : IndexStore, optional
        Indexes, shared by engines on the same inputs.
    """

    rows: Rows
    n_neighbors: int = 50
    noise_floor: float = 1e-8
    use_prior: bool = True
    order: Tensor | None = None
    store: IndexStore = field(default=None)  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if self.store is None:
            object.__setattr__(self, "store", IndexStore(self.rows))

    def subset(self, index: NDArray[np.int64]) -> NeighborEngine:
        rows = self.rows.subset(index)
        order = self.order
        if order is not None:
            order = order[torch.as_tensor(index, device=order.device)]
        return replace(self, rows=rows, order=order, store=None)  # type: ignore[arg-type]

    def with_rows(self, rows: Rows) -> NeighborEngine:
        same = rows.X is self.rows.X and rows.groups is self.rows.groups
        return replace(self, rows=rows, store=self.store if same else None)  # type: ignore[arg-type]

    def with_noise_floor(self, noise_floor: float) -> NeighborEngine:
        return replace(self, noise_floor=noise_floor)

    def extended(self, rows: Rows) -> NeighborEngine:
        """Return the same engine on these rows and new ones after them."""
        order = self.order
        if order is not None:
            places = torch.arange(len(self.rows), len(rows), device=order.device)
            order = torch.cat([order, places.to(order)])
        return replace(self, rows=rows, order=order, store=self.store.extended(rows))

    def metric(self, kernel: Kernel, theta: Vector) -> Metric:
        """Return the kernel's metric on these rows."""
        return Metric.of(kernel, theta, self.rows.X.shape[1])

    def near_rows(self, kernel: Kernel, theta: Vector, index: Tensor) -> Tensor:
        """Return the nearest other rows of training rows in the kernel's metric."""
        k = min(self.n_neighbors, max(1, len(self.rows) - 1))
        return self.store.near_rows(self.metric(kernel, theta), index, k)

    def near_before(self, kernel: Kernel, theta: Vector, index: Tensor) -> Tensor:
        """Return the nearest rows among those earlier in ``order``: Vecchia's conditioning sets."""
        if self.order is None:
            raise InputError(
                "objective='nll' of neighbours is Vecchia's likelihood, which needs an order of "
                "the rows: give NeighborEngine(order=...), or use objective='loo'."
            )
        k = min(self.n_neighbors, max(1, len(self.rows) - 1))
        metric = self.metric(kernel, theta)
        index_of = neighbor_index(
            metric.scale(self.rows.X), metric.manhattan, self.order, ordered=True
        )
        return index_of.query(metric.scale(self.rows.X[index]), k, index, self.order[index])

    def problem(
        self,
        kernel: Kernel,
        objective: ObjectiveName,
        R: Tensor | None = None,
        batch: Tensor | None = None,
        start: Vector | None = None,
    ) -> Problem:
        """Return the problem of predicting ``batch``, each row from its neighbours at ``start``."""
        if self.rows.several:
            return SumProblem.of(self, kernel, objective, R, batch, start, self.use_prior)
        theta = kernel.start() if start is None else start[:-1]
        index = torch.arange(len(self.rows), device=self.rows.X.device) if batch is None else batch
        find = self.near_before if objective == "nll" else self.near_rows
        return NeighborProblem(
            kernel, self.rows, objective, R, self.noise_floor, self.use_prior,
            batch=index, near=find(kernel, theta, index), metric=self.metric(kernel, theta),
        )  # fmt: skip

    def condition(
        self, kernel: Kernel, parameters: Vector
    ) -> NeighborPosterior | PerTargetPosterior:
        parameters = np.asarray(parameters, dtype=np.float64)
        if self.rows.extra.ndim == 2:
            return PerTargetPosterior.of(self, kernel, parameters)
        return NeighborPosterior(kernel, parameters, self)


class NeighborPosterior:
    """A zero-mean GP whose predictions are conditioned on the k nearest rows.

    Examples
    --------
    >>> import numpy as np, torch
    >>> from twostagegp.kernels import NamedKernel
    >>> X = torch.linspace(0, 1, 100, dtype=torch.float64)[:, None]
    >>> one = torch.ones(100, dtype=torch.float64)
    >>> rows = Rows(X, X[:, 0], one, 0 * one, 0 * one)
    >>> engine = NeighborEngine(rows, n_neighbors=10)
    >>> gp = engine.condition(NamedKernel("rbf", 1), np.array([0.0, 0.0, np.log(1e-6)]))
    >>> bool(torch.allclose(gp.mean(X), X[:, 0], atol=1e-3))
    True
    """

    jitter = 0.0
    #: Rows that a joint covariance is conditioned on at most: a dense factor of them is made.
    joint_rows = 5000

    def __init__(self, kernel: Kernel, parameters: Vector, engine: NeighborEngine) -> None:
        self.kernel = kernel
        self.parameters = parameters
        self.engine = engine
        self.noise = math.exp(parameters[-1])
        self.metric = engine.metric(kernel, parameters[:-1])
        self._last: tuple[KnownPoints, Tensor, Tensor] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_last": None}

    @property
    def rows(self) -> Rows:
        return self.engine.rows

    def _moments(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance, which come from one factorisation; the last result is kept."""
        last = self._last  # read once: another thread may store its own
        if last is not None and last[0].same(X):
            return last[1], last[2]
        k = min(self.engine.n_neighbors, len(self.rows))
        near = self.engine.store.near(self.metric, X, k)
        mean, variance = local_predict(self.kernel, self.parameters, self.rows, near, X)
        self._last = KnownPoints(X), mean, variance
        return mean, variance

    def mean(self, X: Tensor) -> Tensor:
        return self._moments(X)[0].clone()

    def variance(self, X: Tensor) -> Tensor:
        return self._moments(X)[1].clone()

    def covariance(self, X: Tensor) -> Tensor:
        """Return variances as in :meth:`variance`, with correlations given all neighbours together.

        Predictions from different rows have no joint distribution; correlations conditioned on the
        union of those rows take its place.
        """
        k = min(self.engine.n_neighbors, len(self.rows))
        union = torch.unique(self.engine.store.near(self.metric, X, k).long())
        if len(union) > self.joint_rows:
            raise MemoryBudgetError(
                f"the joint covariance of {len(X)} points depends on {len(union)} training rows, "
                f"more than {self.joint_rows}; ask for fewer points at a time, or use return_std."
            )
        theta, near = self.parameters[:-1], self.rows.subset(union)
        K, _ = self.kernel.evaluate(near.X, theta)
        K = K.detach()
        K.diagonal().add_((self.noise + near.extra) / near.c)
        L, _ = safe_cholesky(K)
        V = torch.linalg.solve_triangular(L, self.kernel.cross(near.X, X, theta), upper=False)
        C = self.kernel.cross(X, X, theta) - V.T @ V
        v = self.variance(X)
        # A smaller conditional variance is rounding error, and so are its correlations.
        prior = self.kernel.diagonal(X, theta)
        size = torch.maximum(C.diagonal(), 1e-15 * prior).sqrt()
        C = (C / size[:, None] / size).clamp_(-1.0, 1.0) * v.sqrt()[:, None] * v.sqrt()
        C.diagonal().copy_(v)
        return C

    def heldout(self, index: Tensor | None = None) -> Heldout:
        if index is None:
            index = torch.arange(len(self.rows), device=self.rows.X.device)
        near = self.engine.near_rows(self.kernel, self.parameters[:-1], index)
        rows = self.rows.subset(index)
        mu, v = local_predict(self.kernel, self.parameters, self.rows, near, rows.X)
        s = self.noise + rows.extra
        ratio, slope, variance = copy_from_others(v, rows.c, s, rows.groups is not None)
        if rows.several:
            ratio = ratio[:, None]
        return Heldout(ratio * (rows.t - mu), slope, variance)

    def drop_factor(self) -> None:
        """Do nothing: no factor is kept after a prediction."""

    def extended(self, rows: Rows, changed: Tensor) -> NeighborPosterior:
        """Return the same Gaussian process with more rows to choose neighbours from."""
        return NeighborPosterior(self.kernel, self.parameters, self.engine.extended(rows))
