r"""The common base of text and image encoders: batches, cache, checks.

An encoder maps each row to features :math:`h = \phi_\omega(x)` with fixed weights :math:`\omega`;
``fit`` learns nothing. The model is loaded when a row has to be encoded, stays loaded until the
parameters change, and is not part of a pickle.
"""

from __future__ import annotations

import logging
import math
import os
import time
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from numbers import Integral, Real
from typing import Any, Protocol

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from torch import Tensor

from twostagegp.data.checks import check_choice, check_count
from twostagegp.errors import InputError
from twostagegp.foundation.cache import FeatureCache, digest
from twostagegp.foundation.pretrained import Source
from twostagegp.runtime.device import resolve_device
from twostagegp.runtime.threads import show_log

__all__ = ["FrozenEncoder", "FrozenModel", "is_missing"]

_LOG = logging.getLogger("twostagegp")
_DTYPES = {"float32": torch.float32, "float64": torch.float64}
#: Parameters on which a loaded model does not depend.
_WITHOUT_EFFECT = ("batch_size", "cache_dir", "verbose")


class FrozenModel(Protocol):
    """A loaded model."""

    def prepare(self, rows: Sequence[Any]) -> list[Any]:
        """Return one input of :meth:`encode` per row; all of them must fit into memory."""

    def order(self, items: list[Any]) -> list[int]:
        """Return the order in which rows are encoded, similar ones next to each other."""

    def encode(self, items: list[Any]) -> Tensor:
        """Return the features of one batch, shape (b, d)."""


class FrozenEncoder(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Base class of the encoders.

    Attributes
    ----------
    write_every : float
        Seconds after which new features are written to the cache. An interruption loses one batch,
        a power cut at most this time.
    log_every : float
        Seconds between two log messages.
    """

    model: str | os.PathLike[str]
    batch_size: int
    revision: str | None
    device: str
    dtype: str
    cache_dir: str | os.PathLike[str] | None
    verbose: int

    write_every: float = 20.0
    log_every: float = 5.0

    #: The parameters for which a model was loaded, the model, and the number of features.
    _held: dict[str, Any] | None = None

    @abstractmethod
    def _check_own_parameters(self) -> None:
        """Raise InputError if a parameter of the subclass is invalid."""

    @abstractmethod
    def _rows(self, X: Any) -> list[Any]:
        """Return the rows of X in one form, or raise InputError that names the invalid row."""

    @abstractmethod
    def _content(self, row: Any) -> Iterable[bytes]:
        """Return everything of a row on which its features depend."""

    @abstractmethod
    def _source(self) -> Source:
        """Locate the model; a connection is used only for a model of the hub."""

    @abstractmethod
    def _settings(self) -> dict[str, Any]:
        """Return the settings on which features depend, apart from row and model."""

    @abstractmethod
    def _load(self, source: Source, device: torch.device, dtype: torch.dtype) -> FrozenModel:
        """Load the model."""

    @property
    @abstractmethod
    def _probe(self) -> Any:
        """A row that every model can encode."""

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in super().__getstate__().items() if k != "_held"}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        tags.input_tags.two_d_array = False
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def fit(self, X: Any, y: Any = None) -> Any:
        """Check the parameters, the rows and that the model exists; nothing is learned."""
        self._check_parameters()
        self._rows(X)
        self._source()
        return self

    def transform(self, X: Any) -> NDArray[Any]:
        """Encode rows.

        Returns
        -------
        features : array of shape (n, d)
        """
        self._check_parameters()
        rows = self._rows(X)
        with show_log(self.verbose):
            features = self._encode(rows)
        self._memory()["width"] = features.shape[1]
        return features

    @property
    def _n_features_out(self) -> int:
        memory = self._memory()
        if "width" not in memory:
            self._check_parameters()
            model = self.loaded_model()
            with torch.inference_mode():
                memory["width"] = model.encode(model.prepare([self._probe])).shape[1]
        return int(memory["width"])

    def _memory(self) -> dict[str, Any]:
        """Return what is known for the present parameters."""
        parameters = {k: v for k, v in self.get_params().items() if k not in _WITHOUT_EFFECT}
        if self._held is None or self._held["parameters"] != parameters:
            self._held = {"parameters": parameters}
        return self._held

    def loaded_model(self) -> FrozenModel:
        """Return the model for the present parameters; load it if necessary."""
        memory, source = self._memory(), self._source()
        # The files may have changed, and the cache would store these features for other weights.
        if "model" not in memory or memory["state"] != source.state:
            device = resolve_device(self.device, 1, batched=True)
            memory["state"] = source.state
            memory["model"] = self._load(source, device, _DTYPES[self.dtype])
        model: FrozenModel = memory["model"]
        return model

    def _check_parameters(self) -> None:
        if not isinstance(self.model, str | os.PathLike) or not os.fspath(self.model):
            raise InputError(f"model={self.model!r}: use a name or a folder.")
        if self.revision is not None and not isinstance(self.revision, str):
            raise InputError(f"revision={self.revision!r}: use a commit, tag or branch, or None.")
        if self.cache_dir is not None and not isinstance(self.cache_dir, str | os.PathLike):
            raise InputError(f"cache_dir={self.cache_dir!r}: use a folder, or None for no cache.")
        if not isinstance(self.verbose, Integral):
            raise InputError(f"verbose={self.verbose!r}: use 0 (silent) or 1 (progress).")
        check_count("batch_size", self.batch_size, 1)
        check_choice("dtype", self.dtype, tuple(_DTYPES))
        resolve_device(self.device, 1, batched=True)
        self._check_own_parameters()

    def _cache(self) -> FeatureCache | None:
        if self.cache_dir is None:
            return None
        identity = self._source().identity
        settings = {"model": identity, "dtype": self.dtype, **self._settings()}
        return FeatureCache(self.cache_dir, settings)

    def _encode(self, rows: list[Any]) -> NDArray[Any]:
        if not rows:
            raise InputError("X has no rows; at least one is needed.")
        cache = self._cache()
        keys = [digest(self._content(row)) for row in rows]
        positions: dict[str, int] = {}
        for i, key in enumerate(keys):
            positions.setdefault(key, i)  # equal rows are encoded once
        known = {} if cache is None else cache.read(positions.keys())
        missing = [key for key in positions if key not in known]
        _LOG.info("%d rows: %d distinct, %d to encode", len(rows), len(positions), len(missing))
        if missing:
            known |= self._encode_missing({key: rows[positions[key]] for key in missing}, cache)
        return np.stack([known[key] for key in keys])

    def _encode_missing(
        self, rows: dict[str, Any], cache: FeatureCache | None
    ) -> dict[str, NDArray[Any]]:
        model = self.loaded_model()
        keys = list(rows)
        items = model.prepare(list(rows.values()))
        order = model.order(items)
        done: dict[str, NDArray[Any]] = {}
        pending: list[str] = []

        def write() -> None:
            if cache is not None and pending:
                cache.write(pending, np.stack([done[key] for key in pending]))
            pending.clear()

        logged = written = time.monotonic()
        try:
            for begin in range(0, len(order), int(self.batch_size)):
                batch = order[begin : begin + int(self.batch_size)]
                with torch.inference_mode():
                    features = model.encode([items[i] for i in batch]).cpu().numpy()
                done.update(zip([keys[i] for i in batch], features, strict=True))
                pending += [keys[i] for i in batch]
                now = time.monotonic()
                if now - logged > self.log_every:
                    _LOG.info("encoded %d of %d rows", len(done), len(keys))
                    logged = now
                if now - written > self.write_every:
                    write()
                    written = now
        finally:
            write()
        return done


def is_missing(value: Any) -> bool:
    """Return whether a cell is a missing value: None, NaN, NA or NaT."""
    nothing = value is None or value is pd.NA or value is pd.NaT
    return nothing or (isinstance(value, Real) and math.isnan(value))
