"""From a fitted model to JSON, arrays and scikit-learn parts.

Objects of this package become entries of one list, each after those that it refers to: a reference
is the number of an earlier entry, no entry refers to itself, and none is written twice. An array
that several parts share, as an array or as a tensor, is stored once.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.base import BaseEstimator

from twostagegp.errors import ModelFileError
from twostagegp.storage.gpytorch_modules import describe_module
from twostagegp.storage.kinds import find_part, kind_of, matches
from twostagegp.storage.registry import ESTIMATORS, PARTS, Part

__all__ = ["ARRAY_TYPES", "Encoder"]

#: Types of numbers that a file may hold.
ARRAY_TYPES = frozenset({"float64", "float32", "int64", "int32", "uint8", "bool"})
_PLAIN = frozenset({"bool", "int", "float", "str", "none", "list", "tuple", "dict"})


class Encoder:
    """Collects the parts, arrays and scikit-learn estimators of a model."""

    def __init__(self, include_factors: bool) -> None:
        self.include_factors = include_factors
        self.parts: list[dict[str, Any]] = []
        self.arrays: dict[str, np.ndarray[Any, Any]] = {}
        self.estimators: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._names: dict[Any, str] = {}
        self._open: set[int] = set()
        self._alive: list[Any] = []  # addresses are keys: nothing may be freed meanwhile

    def part(self, value: Any, where: str) -> int:
        """Return the number of an object's entry, which is added if there is none yet."""
        if id(value) in self._numbers:
            return self._numbers[id(value)]
        if id(value) in self._open:
            raise ModelFileError(f"{where} refers to itself and cannot be saved.")
        part = find_part(value)
        assert part is not None
        self._open.add(id(value))
        state = self._state(value, part)
        self._open.discard(id(value))
        self.parts.append({"class": part.name, "state": state})
        self._alive.append(value)
        self._numbers[id(value)] = len(self.parts) - 1
        return len(self.parts) - 1

    def _state(self, value: Any, part: Part) -> dict[str, Any]:
        if part.by_constructor:
            attributes = {key: getattr(value, key) for key in part.fields}
        else:
            attributes = {key: held for key, held in vars(value).items() if not part.is_cache(key)}
        state: dict[str, Any] = {}
        for key, held in attributes.items():
            where = f"{part.name}.{key}"
            if key not in part.fields:
                raise ModelFileError(
                    f"{where} is no attribute that a {part.name} has in this version, and would "
                    "not be in the file; delete it before saving."
                )
            if key in part.factors and held is not None and not self.include_factors:
                continue  # computed again by load
            if not matches(held, part.fields[key].annotation):
                raise ModelFileError(_reason(held, where, part.fields[key].annotation))
            state[key] = self.value(held, where)
        # Factors that the object has dropped are stored as None and not computed again.
        return state | {key: None for key in part.factors if key not in attributes}

    def value(self, value: Any, where: str) -> Any:
        """Return the JSON of a value."""
        kind = kind_of(value)
        if kind in PARTS:
            return {"part": self.part(value, where)}
        if kind == "?" or not hasattr(self, f"_{kind}"):
            raise ModelFileError(_reason(value, where))
        return getattr(self, f"_{kind}")(value, where)

    def _none(self, value: None, where: str) -> None:
        return None

    def _bool(self, value: Any, where: str) -> bool:
        return bool(value)

    def _int(self, value: Any, where: str) -> int:
        return int(value)

    def _str(self, value: str, where: str) -> str:
        return str(value)

    def _float(self, value: Any, where: str) -> Any:
        return float(value) if math.isfinite(value) else {"float": repr(float(value))}

    def _list(self, value: list[Any], where: str) -> list[Any]:
        return [self.value(each, f"{where}[{i}]") for i, each in enumerate(value)]

    def _tuple(self, value: tuple[Any, ...], where: str) -> dict[str, Any]:
        return {"tuple": self._list(list(value), where)}

    def _dict(self, value: dict[Any, Any], where: str) -> dict[str, Any]:
        for key in value:
            if kind_of(key) not in ("str", "int", "float", "bool", "none"):
                raise ModelFileError(f"{where} has the key {key!r}; keys are texts or numbers.")
        return {"dict": [[self.value(k, where), self.value(v, where)] for k, v in value.items()]}

    def _array(self, value: np.ndarray[Any, Any], where: str) -> dict[str, Any]:
        if value.dtype.kind == "U" or value.dtype == object:
            texts = value.ravel().tolist()
            if value.ndim != 1 or not all(isinstance(text, str) for text in texts):
                raise ModelFileError(
                    f"{where} is an array of objects that are not all texts; use numbers or texts."
                )
            return {"texts": texts, "type": "object" if value.dtype == object else value.dtype.str}
        return {"array": self._stored(value, where), **_order(value)}

    def _tensor(self, value: torch.Tensor, where: str) -> dict[str, Any]:
        try:
            numbers = value.detach().cpu().numpy()
        except TypeError as error:
            raise ModelFileError(f"{where} cannot be saved ({error}).") from None
        device = {} if value.device.type == "cpu" else {"device": value.device.type}
        return {"tensor": self._stored(numbers, where), **_order(numbers), **device}

    def _stored(self, value: np.ndarray[Any, Any], where: str) -> str:
        if value.dtype.name not in ARRAY_TYPES or not value.dtype.isnative:
            raise ModelFileError(f"{where} has the type {value.dtype}, which a file cannot hold.")
        address = value.__array_interface__["data"][0]
        key = (address, value.shape, value.strides, value.dtype.name)
        if key not in self._names:
            self._alive.append(value)
            self._names[key] = f"a{len(self.arrays)}"
            turned = value.T if _order(value) else value
            self.arrays[self._names[key]] = np.asarray(turned, order="C")
        return self._names[key]

    def _device(self, value: torch.device, where: str) -> dict[str, str]:
        return {"device": value.type}

    def _dtype(self, value: torch.dtype, where: str) -> dict[str, str]:
        return {"dtype": str(value).removeprefix("torch.")}

    def _frame(self, value: pd.DataFrame, where: str) -> dict[str, Any]:
        columns = [
            [str(name), self._list(value[name].tolist(), f"{where}.{name}")] for name in value
        ]
        name = None if value.index.name is None else str(value.index.name)
        index = self._list(value.index.tolist(), f"{where}.index")
        return {"frame": columns, "index": index, "name": name}

    def _time(self, value: pd.Timestamp, where: str) -> dict[str, Any]:
        zone = None if value.tz is None else str(value.tz)
        text = value.isoformat()
        try:
            again = pd.Timestamp(text) if zone is None else pd.Timestamp(text).tz_convert(zone)
        except Exception:
            again = None
        if again is None or again != value or again.utcoffset() != value.utcoffset():
            raise ModelFileError(
                f"{where} is {value!r}, whose time zone a file cannot name; use one with a name, "
                "such as 'Europe/Paris' or 'UTC'."
            )
        return {"time": text, "zone": zone}

    def _random_state(self, value: np.random.RandomState, where: str) -> dict[str, Any]:
        state: Any = value.get_state(legacy=True)
        if state[0] != "MT19937":
            raise ModelFileError(f"{where} is a RandomState of {state[0]}; use an int as a seed.")
        return {"random_state": [state[1].tolist(), int(state[2]), int(state[3]), float(state[4])]}

    def _kernel(self, value: Any, where: str) -> dict[str, Any]:
        return {"kernel": describe_module(value, where, self._tensor)}

    def _sklearn(self, value: Any, where: str) -> dict[str, int]:
        for number, known in enumerate(self.estimators):
            if known is value:
                return {"sklearn": number}
        self.estimators.append(value)
        return {"sklearn": len(self.estimators) - 1}


def _order(value: np.ndarray[Any, Any]) -> dict[str, str]:
    """Return the layout if it is by columns: sums then have the same order after loading."""
    flags = value.flags
    return {"order": "F"} if flags.f_contiguous and not flags.c_contiguous else {}


def _reason(value: Any, where: str, annotation: Any = None) -> str:
    name = f"{type(value).__module__}.{type(value).__qualname__}"
    if isinstance(value, BaseEstimator) and type(value).__name__ in ESTIMATORS:
        return f"{where} is {name}, a class derived from one of ours; only ours can be saved."
    if kind_of(value) in _PLAIN:
        return f"{where} is {value!r:.80}, not of the type {annotation}, and cannot be saved."
    return (
        f"{where} is of the type {name}, which cannot be saved: a file holds parts of this "
        "package, and scikit-learn estimators and GPyTorch kernels of known types (docs/files.md)."
    )
