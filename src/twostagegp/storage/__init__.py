"""Models on disk: ``model.save(path)`` and ``load(path)``, a folder without anything executable."""

from twostagegp.estimators.savable import Savable as Savable
from twostagegp.storage.model import load as load
