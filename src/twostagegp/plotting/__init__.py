"""Pictures of a predictive distribution, each drawn on axes that the caller owns.

What does the model believe (:func:`plot_band`, :func:`plot_slice`, :func:`plot_maps`), is the mean
right (:func:`plot_observed`, :func:`plot_residuals`), is the whole distribution right
(:func:`plot_pit`), and do the intervals hold what they promise (:func:`plot_reliability`). The last
two need the probability integral transform only, ``pit = model.predict_cdf(X_test, y_test)``, which
is uniform for a calibrated model; both show the band in which a calibrated model would lie on so
many test rows, so that chance is not mistaken for a fault. For classes there are
:func:`plot_class_reliability`, :func:`plot_risk_coverage` and :func:`plot_confusion`.

Nothing here touches ``matplotlib.pyplot`` or its global state:

>>> import numpy as np
>>> from matplotlib.figure import Figure
>>> ax = Figure().subplots()
>>> plot_pit(ax, np.linspace(0.01, 0.99, 50))
>>> len(ax.patches) >= 10
True
"""

from twostagegp.plotting.classes import plot_class_reliability as plot_class_reliability
from twostagegp.plotting.classes import plot_confusion as plot_confusion
from twostagegp.plotting.classes import plot_risk_coverage as plot_risk_coverage
from twostagegp.plotting.inputs import plot_maps as plot_maps
from twostagegp.plotting.inputs import plot_slice as plot_slice
from twostagegp.plotting.regression import LEVELS as LEVELS
from twostagegp.plotting.regression import plot_band as plot_band
from twostagegp.plotting.regression import plot_observed as plot_observed
from twostagegp.plotting.regression import plot_pit as plot_pit
from twostagegp.plotting.regression import plot_reliability as plot_reliability
from twostagegp.plotting.regression import plot_residuals as plot_residuals
from twostagegp.plotting.style import INK as INK
from twostagegp.plotting.style import LEGEND as LEGEND
from twostagegp.plotting.style import MODEL as MODEL
from twostagegp.plotting.style import MUTED as MUTED
from twostagegp.plotting.style import TRUTH as TRUTH
from twostagegp.plotting.style import tidy as tidy
