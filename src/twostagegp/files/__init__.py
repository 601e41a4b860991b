"""Models on disk: ``model.save(path)`` and ``load(path)``, a folder without anything executable."""

from twostagegp.files.model import load as load
from twostagegp.files.savable import Savable as Savable
