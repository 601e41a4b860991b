"""From JSON, arrays and scikit-learn parts to a model.

The content of a file is treated as data only: a class must be in the registry, each of its fields
must hold what the annotation of the field says, a reference leads to an earlier part only, and
shapes are checked before anything is computed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch

from twostagegp.errors import ModelFileError
from twostagegp.storage.encoding import ARRAY_TYPES
from twostagegp.storage.gpytorch_modules import make_module
from twostagegp.storage.kinds import kind_of, matches
from twostagegp.storage.registry import PARTS

__all__ = ["Decoder"]

#: Depth of nested lists and dictionaries in one field at most.
_DEPTH = 24
_TEXT_TYPE = re.compile(r"[<>]U(\d{1,5})")
_FLOATS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_SCALARS = (str, int, float, bool, type(None))


def _bad(what: str) -> ModelFileError:
    return ModelFileError(f"the file describes {what}; it is not one that save() wrote.")


class Decoder:
    """Makes the objects of a file, one after the other.

    Parameters
    ----------
    arrays : mapping
        Arrays of the file by name.
    estimators : sequence
        The scikit-learn parts, already loaded.
    device : torch.device
        Where tensors go that were not on a CPU.
    """

    def __init__(
        self,
        arrays: Mapping[str, np.ndarray[Any, Any]],
        estimators: Sequence[Any],
        device: torch.device,
    ) -> None:
        self.arrays, self.estimators, self.device = arrays, estimators, device
        self.made: list[Any] = []
        self._turned: dict[Any, np.ndarray[Any, Any]] = {}
        self._tensors: dict[Any, torch.Tensor] = {}

    def parts(self, nodes: Any) -> Any:
        """Make all objects and return the last one, which is the model."""
        if not isinstance(nodes, list) or not nodes:
            raise _bad("a model without parts")
        for node in nodes:
            self.made.append(self._part(node))
        return self.made[-1]

    def _part(self, node: Any) -> Any:
        if not isinstance(node, dict) or set(node) != {"class", "state"}:
            raise _bad("a part without a class")
        name, state = node["class"], node["state"]
        part = PARTS.get(name) if isinstance(name, str) else None
        if part is None or not isinstance(state, dict):
            raise _bad(f"a part of the class {str(name)[:60]!r}, which is not one of ours")
        fields: dict[str, Any] = {}
        for key, held in state.items():
            if key not in part.fields:
                raise _bad(f"a {name} with a field {key[:60]!r}")
            annotation = part.fields[key].annotation
            if held is None and key in part.factors and not matches(None, annotation):
                continue  # the fit had dropped it
            value = self.value(held)
            if not matches(value, annotation):
                raise _bad(f"a {name} whose {key} is of the kind {kind_of(value)!r}")
            fields[key] = value
        for key, field in part.absent(set(state)).items():
            default = None if field.default is None else field.default()
            if field.default is None or not matches(default, field.annotation):
                raise _bad(f"a {name} without {key}")
            fields[key] = default
        made = part.make_object(fields)
        if part.check is not None and not part.is_unfitted(set(state)):
            part.check(made)
        if part.rebuild and not set(part.factors) <= set(state):
            getattr(made, part.rebuild)()
        return made

    def value(self, node: Any, depth: int = 0) -> Any:
        """Return a value from its JSON."""
        if depth > _DEPTH:
            raise _bad("lists that are nested too deeply")
        if isinstance(node, _SCALARS):
            return node
        if isinstance(node, list):
            return [self.value(each, depth + 1) for each in node]
        # A tensor may have a "device" too, so the order of the keys in this table matters.
        kind = next((key for key in _KINDS if key in node), None)
        if kind is None or not set(node) <= {kind, *_KINDS[kind]}:
            raise _bad(f"a value {str(sorted(node))[:60]}")
        return getattr(self, "_reference" if kind == "part" else f"_{kind}")(node, depth)

    def _reference(self, node: dict[str, Any], depth: int) -> Any:
        number = node["part"]
        if type(number) is not int or not 0 <= number < len(self.made):
            raise _bad("a reference to a part that is not before it")
        return self.made[number]

    def _float(self, node: dict[str, Any], depth: int) -> float:
        if node["float"] not in _FLOATS:
            raise _bad(f"an invalid float {str(node['float'])[:20]!r}")
        return _FLOATS[node["float"]]

    def _tuple(self, node: dict[str, Any], depth: int) -> tuple[Any, ...]:
        return tuple(self.value(each, depth + 1) for each in _list(node["tuple"]))

    def _dict(self, node: dict[str, Any], depth: int) -> dict[Any, Any]:
        made = {}
        for pair in _list(node["dict"]):
            if not isinstance(pair, list) or len(pair) != 2:
                raise _bad("a dictionary with an entry that is not a pair")
            key = self.value(pair[0], depth + 1)
            if not isinstance(key, _SCALARS):
                raise _bad("a dictionary with a key that is neither a text nor a number")
            made[key] = self.value(pair[1], depth + 1)
        return made

    def _numbers(self, name: Any, order: Any) -> np.ndarray[Any, Any]:
        if not isinstance(name, str) or name not in self.arrays or order not in ("C", "F"):
            raise _bad("an array that is not in the file")
        key = (name, order)
        if key not in self._turned:
            array = self.arrays[name]
            if array.dtype.name not in ARRAY_TYPES:
                raise _bad(f"an array of the type {array.dtype}")
            self._turned[key] = array.T if order == "F" else array
        return self._turned[key]

    def _array(self, node: dict[str, Any], depth: int) -> np.ndarray[Any, Any]:
        return self._numbers(node["array"], node.get("order", "C"))

    def _tensor(self, node: dict[str, Any], depth: int) -> torch.Tensor:
        device = node.get("device", "cpu")
        if device not in ("cpu", "cuda"):
            raise _bad("a tensor on an unknown device")
        numbers = self._numbers(node["tensor"], node.get("order", "C"))
        key = (node["tensor"], node.get("order", "C"), device)
        if key not in self._tensors:
            made = torch.from_numpy(numbers)
            self._tensors[key] = made if device == "cpu" else made.to(self.device)
        return self._tensors[key]

    def _texts(self, node: dict[str, Any], depth: int) -> np.ndarray[Any, Any]:
        texts = _list(node["texts"])
        kind = node.get("type")
        if not all(isinstance(text, str) for text in texts) or not isinstance(kind, str):
            raise _bad("an array of texts with something else in it")
        if kind == "object":
            return np.array(texts, dtype=object)
        width = _TEXT_TYPE.fullmatch(kind)
        if width is None or int(width[1]) < max(map(len, texts), default=0):
            raise _bad("an array with longer texts than its type has")
        return np.array(texts, dtype=f"U{width[1]}")

    def _device(self, node: dict[str, Any], depth: int) -> torch.device:
        return torch.device("cpu") if node["device"] == "cpu" else self.device

    def _dtype(self, node: dict[str, Any], depth: int) -> torch.dtype:
        known = {"float64": torch.float64, "float32": torch.float32}
        if node["dtype"] not in known:
            raise _bad(f"the type of numbers {str(node['dtype'])[:20]!r}")
        return known[node["dtype"]]

    def _frame(self, node: dict[str, Any], depth: int) -> pd.DataFrame:
        columns = {}
        for pair in _list(node["frame"]):
            if not isinstance(pair, list) or len(pair) != 2 or not isinstance(pair[0], str):
                raise _bad("a data frame with a column without a name or values")
            columns[pair[0]] = self.value(_list(pair[1]), depth + 1)
        index = self.value(_list(node.get("index")), depth + 1)
        name = node.get("name")
        if not (name is None or isinstance(name, str)):
            raise _bad("a data frame whose index has an invalid name")
        if index == list(range(len(index))) and name is None:
            return pd.DataFrame(columns)
        return pd.DataFrame(columns, index=pd.Index(index, name=name))

    def _time(self, node: dict[str, Any], depth: int) -> pd.Timestamp:
        text, zone = node["time"], node.get("zone")
        if not isinstance(text, str) or not (zone is None or isinstance(zone, str)):
            raise _bad("an invalid time")
        made = pd.Timestamp(text)
        return made if zone is None else made.tz_convert(zone)

    def _random_state(self, node: dict[str, Any], depth: int) -> np.random.RandomState:
        numbers, place, has_gauss, gauss = node["random_state"]
        key = np.array(numbers, dtype=np.uint32)
        if key.shape != (624,) or type(place) is not int or not 0 <= place <= 624:
            raise _bad("an invalid random state")
        made = np.random.RandomState(0)
        made.set_state(("MT19937", key, place, int(has_gauss), float(gauss)))
        return made

    def _kernel(self, node: dict[str, Any], depth: int) -> Any:
        return make_module(node["kernel"], lambda inner: self._tensor(inner, depth))

    def _sklearn(self, node: dict[str, Any], depth: int) -> Any:
        number = node["sklearn"]
        if type(number) is not int or not 0 <= number < len(self.estimators):
            raise _bad("a scikit-learn part that is not in the file")
        return self.estimators[number]


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise _bad(f"a {type(value).__name__} where a list is expected")
    return value


#: Keys that say what a value is, with the further keys that each may have.
_KINDS: dict[str, tuple[str, ...]] = {
    "part": (),
    "float": (),
    "tuple": (),
    "dict": (),
    "array": ("order",),
    "tensor": ("order", "device"),
    "texts": ("type",),
    "device": (),
    "dtype": (),
    "frame": ("index", "name"),
    "time": ("zone",),
    "random_state": (),
    "kernel": (),
    "sklearn": (),
}
