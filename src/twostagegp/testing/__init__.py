"""Contract tests for engines, kernels and mean models, to be inherited by tests of one's own.

``docs/extending.md`` shows how.
"""

from twostagegp.testing.engines import EngineContract as EngineContract
from twostagegp.testing.engines import example_rows as example_rows
from twostagegp.testing.kernels import KernelContract as KernelContract
from twostagegp.testing.mean_models import MeanModelContract as MeanModelContract
