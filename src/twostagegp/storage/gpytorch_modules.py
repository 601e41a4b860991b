"""GPyTorch kernels as JSON: a class from a list, its options, its parameters and its parts.

``save`` refuses a kernel that is not in the list, or that has something which is not described (a
prior, a batch shape, a transform of the user): a kernel is made from the description and compared.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from twostagegp.errors import ModelFileError

__all__ = ["describe_module", "make_module"]

#: Kernels that may be in a file, with the options of their constructors besides columns and parts.
_OPTIONS: dict[str, tuple[str, ...]] = {
    "RBFKernel": (),
    "MaternKernel": ("nu",),
    "RQKernel": (),
    "LaplacianKernel": (),
    "LinearKernel": (),
    "PeriodicKernel": (),
    "CosineKernel": (),
    "PolynomialKernel": ("power",),
    "ConstantKernel": (),
    "ScaleKernel": (),
    "AdditiveKernel": (),
    "ProductKernel": (),
}
_CONSTRAINTS = ("Positive", "GreaterThan", "LessThan", "Interval")
_DEPTH = 16


def _class(name: str) -> Any:
    import gpytorch

    from twostagegp.kernels.gpytorch import LaplacianKernel

    return LaplacianKernel if name == "LaplacianKernel" else getattr(gpytorch.kernels, name)


def _parts(module: Any) -> list[Any]:
    name = type(module).__name__
    if name == "ScaleKernel":
        return [module.base_kernel]
    return list(module.kernels) if name in ("AdditiveKernel", "ProductKernel") else []


def describe_module(
    module: Any, where: str, tensor: Callable[[torch.Tensor, str], dict[str, Any]]
) -> dict[str, Any]:
    """Return the description of a kernel, after a check that it gives the same kernel again."""
    kept: dict[int, torch.Tensor] = {}

    def remember(value: torch.Tensor, _: str) -> dict[str, Any]:
        kept[len(kept)] = value
        return {"tensor": len(kept) - 1}

    twin = make_module(_describe(module, where, remember), lambda node: kept[node["tensor"]])
    if _signature(twin) != _signature(module):
        raise ModelFileError(
            f"{where}: this {type(module).__name__} has a prior, a transform or a batch shape, "
            "which a file cannot hold; use a kernel without it."
        )
    return _describe(module, where, tensor)


def _signature(module: Any) -> Any:
    state = {name: value.tolist() for name, value in module.state_dict().items()}
    priors = [name for name, *_ in module.named_priors()]
    transforms = [
        (name, str(getattr(c, "_transform", None)), str(getattr(c, "_inv_transform", None)))
        for name, c in module.named_constraints()
    ]
    frozen = [(name, p.requires_grad, str(p.dtype)) for name, p in module.named_parameters()]
    return repr(module), repr(state), priors, repr(transforms), frozen


def _describe(module: Any, where: str, tensor: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    name = type(module).__name__
    if name not in _OPTIONS or type(module) is not _class(name):
        raise ModelFileError(
            f"{where} has a kernel of the type {type(module).__module__}.{name}, which a file "
            f"cannot hold; it can hold {', '.join(_OPTIONS)}."
        )
    active = getattr(module, "active_dims", None)
    return {
        "class": name,
        "options": {option: float(getattr(module, option)) for option in _OPTIONS[name]},
        "ard": getattr(module, "ard_num_dims", None),
        "active": None if active is None else active.tolist(),
        "parameters": [
            [key, tensor(value, where), value.requires_grad]
            for key, value in module.named_parameters(recurse=False)
        ],
        "constraints": [
            [key, *_describe_constraint(constraint, where)]
            for key, constraint in _own_constraints(module)
        ],
        "parts": [_describe(part, where, tensor) for part in _parts(module)],
    }


def _own_constraints(module: Any) -> list[tuple[str, Any]]:
    """Return the constraints of a module by name, without those of its parts."""
    return [(key, each) for key, each in module.named_constraints() if "." not in key]


def _describe_constraint(constraint: Any, where: str) -> list[Any]:
    name = type(constraint).__name__
    if name not in _CONSTRAINTS:
        raise ModelFileError(f"{where} has a kernel with a constraint of the type {name}.")
    bounds = [float(constraint.lower_bound), float(constraint.upper_bound)]
    return [name, *(bound if abs(bound) != float("inf") else None for bound in bounds)]


def make_module(node: Any, tensor: Callable[[Any], torch.Tensor], depth: int = 0) -> Any:
    """Return a kernel from its description."""
    import gpytorch

    if depth > _DEPTH or not isinstance(node, dict) or node.get("class") not in _OPTIONS:
        raise ModelFileError("it has a GPyTorch kernel of an unknown type.")
    name = node["class"]
    parts = [make_module(part, tensor, depth + 1) for part in node["parts"]]
    active = None if node["active"] is None else tuple(int(k) for k in node["active"])
    if name in ("AdditiveKernel", "ProductKernel"):
        return _class(name)(*parts)
    options = {key: float(node["options"][key]) for key in _OPTIONS[name]}
    if "power" in options:
        options["power"] = int(options["power"])
    arguments: dict[str, Any] = {**options, "active_dims": active}
    if name == "ScaleKernel":
        (arguments["base_kernel"],) = parts
    elif node["ard"] is not None:
        arguments["ard_num_dims"] = min(int(node["ard"]), 1 << 20)
    module = _class(name)(**arguments)
    for key, kind, low, high in node["constraints"]:
        if key in dict(_own_constraints(module)) and kind in _CONSTRAINTS:
            made = getattr(gpytorch.constraints, kind)
            bounds = [bound for bound in (low, high) if bound is not None]
            constraint = made() if kind == "Positive" else made(*map(float, bounds))
            module.register_constraint(key.removesuffix("_constraint"), constraint)
    for key, value, learned in node["parameters"]:
        known = dict(module.named_parameters(recurse=False)).get(key)
        given = tensor(value)
        if known is None or known.shape != given.shape:
            raise ModelFileError(f"it has a {name} with an unknown parameter {str(key)[:40]!r}.")
        known.data = given.detach().clone()
        known.requires_grad_(learned is True)
        bound = module.constraint_for_parameter_name(key)
        if bound is not None:
            bound.to(given.dtype)
    return module
