"""Tests that every mean model must pass, to be inherited.

A subclass defines how to fit the model to a table; pytest finds the inherited tests::

    class TestMyMean(MeanModelContract):
        def make_model(self, data):
            return MyMean(data.merged)

The most important one: a held-out residual comes from a prediction that depends neither on the
target of its row nor, with groups, on the target of any row of the group.
"""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from twostagegp.data.appending import append_rows
from twostagegp.data.rows import merge_rows
from twostagegp.data.scaling import Prepared, Scaling, to_rows

__all__ = ["MeanModelContract", "example_table"]

Array = NDArray[np.float64]

#: Numbers of rows and columns of the test tables.
_N_ROWS, _N_COLUMNS = 40, 2


def example_table(
    y: Array | None = None, weight: Array | None = None, groups: NDArray[np.int64] | None = None
) -> Prepared:
    """Return a table of 40 rows and 2 columns, already on a standardised scale.

    Rows 0 and 1 have equal inputs. ``y`` is a smooth function with noise by default.

    Examples
    --------
    >>> data = example_table()
    >>> data.n_rows, len(data.rows)
    (40, 39)
    """
    rng = np.random.default_rng(0)
    X = rng.normal(size=(_N_ROWS, _N_COLUMNS))
    X[1] = X[0]
    if y is None:
        y = np.sin(2.0 * X[:, 0]) + 0.5 * X[:, 1] + 0.2 * rng.normal(size=_N_ROWS)
    return _prepared(X, y, weight, groups)


def _prepared(
    X: Array, y: Array, weight: Array | None = None, groups: NDArray[np.int64] | None = None
) -> Prepared:
    """Return a table without standardisation, which would make every row depend on each target."""
    merged = merge_rows(X, y, weight, groups=groups)
    rows = to_rows(merged, torch.device("cpu"), torch.float64)
    d = X.shape[1]
    scaling = Scaling(np.arange(d), np.zeros(d), np.ones(d), 0.0, 1.0)
    return Prepared(rows, merged, scaling, [], constant_target=False)


class MeanModelContract:
    """Tests of the protocol :class:`~twostagegp.pipeline.mean.models.MeanModel`.

    Attributes
    ----------
    uses_weights : bool
        Whether a row of weight 2 counts as two rows.
    tolerance : float
        Largest difference between predictions that should be equal; the target has about unit size.
    """

    uses_weights = True
    tolerance = 1e-8

    def make_model(self, data: Prepared) -> Any:
        """Return the model fitted to a table, at fixed hyperparameters and a fixed seed.

        ``data.merged`` has the table in numpy: ``merged.X[merged.inverse]``, ``merged.y``,
        ``merged.weight`` and, per distinct row, ``merged.groups``. ``data.rows`` has the distinct
        rows as tensors.
        """
        raise NotImplementedError

    @property
    def queries(self) -> Tensor:
        """Points to predict."""
        return torch.as_tensor(np.random.default_rng(1).normal(size=(7, _N_COLUMNS)))

    def heldout_predictions(self, data: Prepared) -> Array:
        """Return the held-out prediction of every row of the table."""
        return data.merged.y - np.asarray(self.make_model(data).heldout_residuals)

    def assert_same_predictions(self, one: Any, other: Any) -> None:
        """Compare the predictions of two models."""
        found, expected = one.predict(self.queries), other.predict(self.queries)
        torch.testing.assert_close(found, expected, atol=self.tolerance, rtol=0.0)

    # --- predictions -----------------------------------------------------------------------------

    def test_shapes_and_label(self) -> None:
        data = example_table()
        model, queries = self.make_model(data), self.queries
        given = queries.clone()
        predicted = model.predict(queries)
        assert isinstance(model.label, str)
        assert model.label
        assert predicted.shape == (len(queries),)
        assert (predicted.dtype, predicted.device) == (queries.dtype, queries.device)
        assert bool(torch.isfinite(predicted).all())
        assert bool((queries == given).all()), "predict changed its input"

    def test_every_row_of_the_table_has_a_held_out_residual(self) -> None:
        """Check that there is one residual per row, also for rows with equal inputs."""
        data = example_table()
        residuals = self.make_model(data).heldout_residuals
        assert residuals.shape == (data.n_rows,)
        assert residuals.dtype == np.float64
        assert np.isfinite(residuals).all()

    def test_a_prediction_does_not_depend_on_the_other_queries(self) -> None:
        model = self.make_model(example_table())
        alone = torch.cat([model.predict(point[None]) for point in self.queries])
        together = model.predict(self.queries)
        torch.testing.assert_close(alone, together, atol=self.tolerance, rtol=0.0)

    def test_the_same_table_gives_the_same_model(self) -> None:
        one, other = self.make_model(example_table()), self.make_model(example_table())
        torch.testing.assert_close(
            one.predict(self.queries), other.predict(self.queries), atol=0.0, rtol=0.0
        )
        np.testing.assert_array_equal(one.heldout_residuals, other.heldout_residuals)

    def test_pickling_keeps_predictions_and_residuals(self) -> None:
        model = self.make_model(example_table())
        again = pickle.loads(pickle.dumps(model))
        self.assert_same_predictions(again, model)
        np.testing.assert_array_equal(again.heldout_residuals, model.heldout_residuals)

    # --- held-out rows ---------------------------------------------------------------------------

    def test_held_out_predictions_do_not_depend_on_the_target_of_their_row(self) -> None:
        before = example_table()
        predicted = self.heldout_predictions(before)
        for i in (0, 7, 23):  # row 0 has the inputs of row 1
            y = before.merged.y.copy()
            y[i] += 3.0
            after = self.heldout_predictions(example_table(y))
            assert abs(after[i] - predicted[i]) < 10 * self.tolerance, f"row {i}"

    def test_held_out_predictions_do_not_depend_on_the_targets_of_their_group(self) -> None:
        groups = np.arange(_N_ROWS) // 4
        before = example_table(groups=groups)
        predicted = self.heldout_predictions(before)
        for group in (0, 5):
            own = groups == group
            y = before.merged.y + 3.0 * own
            after = self.heldout_predictions(example_table(y, groups=groups))
            difference = np.abs(after - predicted)[own].max()
            assert difference < 10 * self.tolerance, f"group {group}"

    def test_held_out_predictions_use_the_other_rows(self) -> None:
        """Add 3 to all targets: held-out predictions rise by more than 1 on average."""
        before = example_table()
        shifted = self.heldout_predictions(example_table(before.merged.y + 3.0))
        assert float(np.mean(shifted - self.heldout_predictions(before))) > 1.0

    # --- weights and more rows -------------------------------------------------------------------

    def test_a_row_of_weight_two_counts_as_two_rows(self) -> None:
        if not self.uses_weights:
            return
        data = example_table()
        X, y = data.merged.X[data.merged.inverse], data.merged.y
        doubled = [5, 11]
        weight = np.ones(len(y))
        weight[doubled] = 2.0
        weighted = self.make_model(_prepared(X, y, weight))
        repeated = self.make_model(
            _prepared(np.vstack([X, X[doubled]]), np.concatenate([y, y[doubled]]))
        )
        self.assert_same_predictions(weighted, repeated)

    def test_extending_keeps_the_held_out_residuals_and_the_first_model(self) -> None:
        """Append four rows, one of which repeats known inputs."""
        data = example_table()
        model = self.make_model(data)
        before = model.predict(self.queries).clone()
        known = data.merged.X[data.merged.inverse[3]]
        X = np.vstack([np.random.default_rng(2).normal(size=(3, _N_COLUMNS)), known[None]])
        appended = append_rows(data, X, np.array([0.5, -1.0, 0.0, 1.0]), np.ones(4))
        for keep_factors in (False, True):
            extended = model.extended(appended, keep_factors)
            assert bool(torch.isfinite(extended.predict(self.queries)).all())
            np.testing.assert_array_equal(extended.heldout_residuals, model.heldout_residuals)
        torch.testing.assert_close(model.predict(self.queries), before, atol=0.0, rtol=0.0)
