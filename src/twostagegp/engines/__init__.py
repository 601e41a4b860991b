"""Engines: how a Gaussian process is trained and conditioned; the stages only compose them."""

from twostagegp.engines.exact.engine import ExactEngine as ExactEngine
from twostagegp.engines.protocol import Engine as Engine
from twostagegp.engines.protocol import Posterior as Posterior
