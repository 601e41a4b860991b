"""The list of classes in files, and their fields."""

import inspect
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal, TypeVar, get_args

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from typing_extensions import TypeAliasType

import twostagegp
from twostagegp.engines.protocol import Posterior
from twostagegp.kernels import Kernel, NamedKernel
from twostagegp.kernels.linear import LinearKernel
from twostagegp.storage.fields import annotated_fields, constructor_fields, estimator_fields
from twostagegp.storage.kinds import matches
from twostagegp.storage.registry import ESTIMATORS, PARTS, ROLES

#: Protocols whose objects are never stored.
NEVER_STORED = {"estimators.fitted.RemoteRows"}


def named_classes(annotation):
    """Classes of the package in an annotation."""
    if isinstance(annotation, type) and annotation.__module__.startswith("twostagegp."):
        yield annotation
    for argument in get_args(annotation):
        yield from named_classes(argument)


@pytest.mark.parametrize("name", PARTS)
def test_every_annotation_names_classes_of_the_list(name):
    """Otherwise no value would ever match, and models could not be saved."""
    bases = {base for part in PARTS.values() for base in part.cls.__mro__}
    for stored in PARTS[name].fields.values():
        for cls in named_classes(stored.annotation):
            path = f"{cls.__module__}.{cls.__qualname__}".removeprefix("twostagegp.")
            assert cls in bases or path in {*ROLES, *NEVER_STORED}, path


def test_an_alias_of_a_generic_type_stands_for_the_type():
    """NumPy's NDArray is such an alias from version 2.5 on."""
    scalar = TypeVar("scalar", bound=np.generic)
    array = np.ndarray[tuple[Any, ...], np.dtype[scalar]]
    alias = TypeAliasType("alias", array, type_params=(scalar,))
    assert matches(np.zeros(2), alias[np.float64])
    assert matches(None, alias[np.float64] | None)
    assert not matches([0.0], alias[np.float64])


def test_entries_are_classes_of_this_name_and_roles_have_entries():
    for name, part in PARTS.items():
        assert part.cls.__name__ == name
        assert part.cls.__module__ == part.module
        assert set(part.factors) <= set(part.fields)
        assert not set(part.not_stored) & set(part.fields)
    assert {name for names in ROLES.values() for name in names} <= {*PARTS, "sklearn"}


def test_all_public_estimators_with_save_are_in_the_list():
    public = (getattr(twostagegp, name) for name in twostagegp.__all__ if name != "foundation")
    saved = {each.__name__ for each in public if inspect.isclass(each) and hasattr(each, "save")}
    assert saved == set(ESTIMATORS)


@dataclass
class Record:
    size: int
    labels: list[str] = field(default_factory=list)
    common: ClassVar[int] = 3

    @cached_property
    def doubled(self):
        return 2 * self.size


class Plain:
    constant: int = 1
    learned: float

    def __init__(self, rows: int, cache: str = "") -> None:
        self.learned = 1.0


class Estimator(Plain):
    weight_: float

    def __init__(self, penalty: float = 0.5) -> None:
        self.penalty = penalty


def test_fields_come_from_annotations():
    found = annotated_fields(Record, None)
    assert {name: each.annotation for name, each in found.items()} == {
        "size": int,
        "labels": list[str],
    }
    assert found["size"].default is None
    assert found["labels"].default() == []
    assert list(annotated_fields(Plain, None)) == ["learned"]
    assert list(constructor_fields(Plain, None)) == ["rows", "cache"]
    parameters = estimator_fields(Estimator, None)
    assert list(parameters) == ["penalty", "weight_"]
    assert parameters["penalty"].default() == 0.5


@pytest.mark.parametrize(
    ("value", "annotation"),
    [
        (1, int),
        (np.int64(1), int),
        (1, float),
        (None, int | None),
        (np.zeros(2), NDArray[np.float64]),
        (torch.zeros(2), torch.Tensor),
        (["a"], list[str]),
        ({"a": 1.0}, dict[str, float]),
        (("a", 1), tuple[str, int]),
        ((1, 2, 3), tuple[int, ...]),
        ("nll", Literal["nll", "loo"]),
        (LinearKernel(2), Kernel),
        (object(), Any),
    ],
)
def test_values_that_match(value, annotation):
    assert matches(value, annotation)


class OtherKernel(LinearKernel):
    pass


@pytest.mark.parametrize(
    ("value", "annotation"),
    [
        (True, int),
        (1.5, int),
        (True, float),
        ("1", float),
        (0, bool),
        (None, int),
        ([1], NDArray[np.float64]),
        (np.zeros(2), torch.Tensor),
        (["a", 1], list[str]),
        ({1: 1.0}, dict[str, float]),
        ({"a": "b"}, dict[str, float]),
        (("a",), tuple[str, int]),
        ((1, "b"), tuple[int, ...]),
        ([1], tuple[int, ...]),
        ("exec", Literal["nll", "loo"]),
        (True, Literal[1]),
        (LinearKernel(2), NamedKernel),
        (OtherKernel(2), Kernel),
        (LinearKernel(2), Posterior),
        (Record(1), Record),
        (1, "int"),
        (print, print),
    ],
)
def test_values_that_do_not_match(value, annotation):
    assert not matches(value, annotation)
