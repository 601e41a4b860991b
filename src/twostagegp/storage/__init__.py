"""Models on disk: ``model.save(path)`` and ``load(path)``, a folder without anything executable."""

from twostagegp.storage.model import load as load
