r"""Scores of a predictive distribution.

A regression model with uncertainty predicts a distribution for every row, so a single score cannot
judge it. The scores answer three separate questions:

- **Is the mean right?** :func:`rmse`.
- **Is the distribution calibrated?** Do outcomes fall into predicted intervals as often as stated?
  :func:`coverage` checks one interval, :func:`coverage_by_group` checks it within each of several
  groups of rows, :func:`qice` checks ten bins of equal predicted probability.
  On a finite test set even a perfect model has a QICE above zero; :func:`qice_floor` returns its
  expected value. For a target with few distinct values, :func:`randomized_pit` returns values to
  which both checks apply.
- **Is it sharp as well?** Proper scores reward calibration and sharpness together: :func:`nlpd`,
  :func:`crps` (for any distribution: :func:`crps_from_quantiles`) and :func:`pinball`.
  :func:`interval_width` measures sharpness alone, while :func:`hc_rmse` and :func:`lc_rmse` measure
  whether the rows with a small predicted std also have small errors.

``y`` and ``mean`` are in the same units; ``std`` is the standard deviation of an observation, with
the noise included. Every score takes array-likes of shape ``(n,)`` and returns a plain float. Lower
is better unless the docstring says otherwise.

The scores of class probabilities are explained in :mod:`twostagegp.metrics.classification` and can
be imported from here too: :func:`log_loss`, :func:`brier`, :func:`ece`, :func:`risk_coverage`,
:func:`certainty_split` and, for all of them at once, :func:`evaluate_classification`.
"""

from twostagegp.metrics.classification import CertaintySplit as CertaintySplit
from twostagegp.metrics.classification import RiskCoverage as RiskCoverage
from twostagegp.metrics.classification import brier as brier
from twostagegp.metrics.classification import certainty_split as certainty_split
from twostagegp.metrics.classification import ece as ece
from twostagegp.metrics.classification import evaluate_classification as evaluate_classification
from twostagegp.metrics.classification import log_loss as log_loss
from twostagegp.metrics.classification import risk_coverage as risk_coverage
from twostagegp.metrics.groups import GroupCoverage as GroupCoverage
from twostagegp.metrics.groups import coverage_by_group as coverage_by_group
from twostagegp.metrics.regression import PINBALL_LEVELS as PINBALL_LEVELS
from twostagegp.metrics.regression import coverage as coverage
from twostagegp.metrics.regression import crps as crps
from twostagegp.metrics.regression import crps_from_quantiles as crps_from_quantiles
from twostagegp.metrics.regression import evaluate as evaluate
from twostagegp.metrics.regression import hc_rmse as hc_rmse
from twostagegp.metrics.regression import interval_width as interval_width
from twostagegp.metrics.regression import joint_nll as joint_nll
from twostagegp.metrics.regression import lc_rmse as lc_rmse
from twostagegp.metrics.regression import nlpd as nlpd
from twostagegp.metrics.regression import pinball as pinball
from twostagegp.metrics.regression import qice as qice
from twostagegp.metrics.regression import qice_floor as qice_floor
from twostagegp.metrics.regression import randomized_pit as randomized_pit
from twostagegp.metrics.regression import rmse as rmse

__all__ = [
    "CertaintySplit",
    "GroupCoverage",
    "RiskCoverage",
    "brier",
    "certainty_split",
    "coverage",
    "coverage_by_group",
    "crps",
    "crps_from_quantiles",
    "ece",
    "evaluate",
    "evaluate_classification",
    "hc_rmse",
    "interval_width",
    "joint_nll",
    "lc_rmse",
    "log_loss",
    "nlpd",
    "pinball",
    "qice",
    "qice_floor",
    "randomized_pit",
    "risk_coverage",
    "rmse",
]
