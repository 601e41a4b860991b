"""Structures of older files, rewritten as the present version writes them.

A structure is the list of parts of a file, each ``{"class": name, "state": fields}``, where
``{"part": number}`` refers to an earlier part. An upgrade renames, moves and drops fields before
any object is made; its result is checked like any other file. A field that is missing because it is
newer than the file needs no upgrade if its class has a default for it.
"""

from __future__ import annotations

from typing import Any

from twostagegp.storage.renames import with_present_names

__all__ = ["from_format_1", "from_format_2"]

_REGRESSORS = ("TwoStageGPRegressor", "ExactGPRegressor", "GPNNRegressor")
#: Attributes of estimators that have become properties.
_COMPUTED = ("mean_", "variance_", "calibration_", "gp_", "relevance_")
#: Fields of a ridge that repeat those of its posterior and its candidate.
_REPEATED = ("kernel", "parameters", "label")


def from_format_1(parts: Any) -> Any:
    """Return the parts of a file of format 1 as the present version writes them.

    The state of a fitted estimator, in several private attributes before, is one part now.
    """
    if not isinstance(parts, list):
        return parts
    made: list[Any] = []
    places: dict[int, int] = {}  # from numbers in the old list to numbers in the new one
    for number, part in enumerate(parts):
        if _is_part(part):
            name = part.get("class")
            state = {key: _moved(value, places) for key, value in part["state"].items()}
            if name in _REGRESSORS and "_fits" in state:
                made += _regression_state(state, len(made))
            elif name == "TwoStageGPClassifier" and "_fit" in state:
                made += _classes_state(state, len(made))
            part = {**part, "state": state}
        places[number] = len(made)
        made.append(part)
    return from_format_2(made)


def from_format_2(parts: Any) -> Any:
    """Return the parts of a file of format 2 as the present version writes them.

    Early files of this format have two classes of ridges, which repeat fields of other parts, and
    classifiers whose rows and kernel are fields of their latent functions.
    """
    if not isinstance(parts, list):
        return parts
    parts = [_single_ridge(part) if _is_part(part) else part for part in parts]
    return with_present_names([_with_own_rows(part, parts) for part in parts])


def _with_own_rows(part: Any, parts: list[Any]) -> Any:
    """Return the fit of a classifier with the rows and the kernel that its latents refer to."""
    if not _is_part(part):
        return part
    state = part["state"]
    if part.get("class") == "CrossFitted":
        return {**part, "state": {"prior_share": 1e-3, **state}}
    place = state.get("latents")
    number = place.get("part") if isinstance(place, dict) else None
    if part.get("class") != "ClassFit" or type(number) is not int or not 0 <= number < len(parts):
        return part
    latents = parts[number]
    if not _is_part(latents) or latents.get("class") not in ("ExactLatents", "LocalLatents"):
        return part
    moved = {key: latents["state"].get(key) for key in ("table", "trained")}
    return {**part, "state": {**moved, **state}}


def _is_part(part: Any) -> bool:
    return isinstance(part, dict) and isinstance(part.get("state"), dict)


def _single_ridge(part: dict[str, Any]) -> dict[str, Any]:
    if part.get("class") not in ("RidgeMean", "NeighborMean"):
        return part
    state = {key: value for key, value in part["state"].items() if key not in _REPEATED}
    return {**part, "class": "RidgeMean", "state": state}


def _moved(value: Any, places: dict[int, int]) -> Any:
    """Return a value with its references changed to numbers in the new list."""
    if isinstance(value, list):
        return [_moved(each, places) for each in value]
    if not isinstance(value, dict):
        return value
    number = value.get("part")
    if type(number) is int and set(value) == {"part"}:
        return {"part": places.get(number, -1)}
    return {key: _moved(each, places) for key, each in value.items()}


def _regression_state(state: dict[str, Any], number: int) -> list[dict[str, Any]]:
    """Take the private attributes out of a regressor's state and return them as parts."""
    fits, data = state.pop("_fits"), state.pop("_data", None)
    is_1d = state.pop("_target_ndim", None) == 1
    for name in _COMPUTED:
        state.pop(name, None)
    pairs = zip(data, fits, strict=False) if isinstance(data, list) else ()
    made = [{"class": "FittedTarget", "state": {"data": d, "fit": f}} for d, f in pairs]
    targets = {"tuple": [{"part": number + k} for k in range(len(made))]}
    fields = {"targets": targets, "is_1d": is_1d, "remote": None}
    state["fitted_"] = {"part": number + len(made)}
    state.setdefault("columns_", None)
    return [*made, {"class": "FittedRegression", "state": fields}]


def _classes_state(state: dict[str, Any], number: int) -> list[dict[str, Any]]:
    """Take the private attributes out of a classifier's state and return them as a part."""
    fields = {"fit": state.pop("_fit"), "draws": state.pop("_draws", None)}
    for name in _COMPUTED:
        state.pop(name, None)
    state["fitted_"] = {"part": number}
    state.setdefault("columns_", None)
    return [{"class": "FittedClasses", "state": fields}]
