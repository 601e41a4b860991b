"""Pictures of predictive distributions, each drawn on matplotlib axes given by the caller.

- What does the model predict? :func:`plot_band`, :func:`plot_slice`, :func:`plot_maps`.
- Is the mean right? :func:`plot_observed`, :func:`plot_residuals`.
- Is the whole distribution right? :func:`plot_pit`.
- Do the intervals have their nominal coverage? :func:`plot_reliability`.

The last two need only the probability integral transform, ``pit = model.predict_pit(X_test,
y_test)``, which is uniformly distributed for a calibrated model. Both show the band in which a
calibrated model would lie on that number of test rows, so that chance is not mistaken for a fault.
For classes there are :func:`plot_class_reliability`, :func:`plot_risk_coverage` and
:func:`plot_confusion`.

Nothing here uses ``matplotlib.pyplot`` or its global state:

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
