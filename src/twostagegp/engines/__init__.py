"""Engines: how a Gaussian process is trained and conditioned; the stages only compose them."""

from twostagegp.engines.base import Engine as Engine
from twostagegp.engines.base import Posterior as Posterior
from twostagegp.engines.exact import ExactEngine as ExactEngine
