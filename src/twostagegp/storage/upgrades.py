"""Structures of older formats, rewritten into the present one before anything is made of them.

A structure is the list of parts of a file, each ``{"class": name, "state": fields}``, where
``{"part": number}`` refers to an earlier part. An upgrade only rewrites names and moves fields;
what it returns is checked as any other file is.
"""

from __future__ import annotations

from typing import Any

from twostagegp.storage.renames import with_present_names

__all__ = ["from_format_1"]

_REGRESSORS = ("TwoStageGPRegressor", "ExactGPRegressor", "GPNNRegressor")
#: Attributes of estimators that have become properties.
_COMPUTED = ("mean_", "variance_", "calibration_", "gp_", "relevance_")


def from_format_1(parts: Any) -> Any:
    """Return the parts of a file of format 1 as parts of format 2.

    The state of a fitted estimator, in several private attributes before, is one part now.
    """
    if not isinstance(parts, list):
        return parts
    made: list[Any] = []
    places: dict[int, int] = {}  # of the parts of before in the new list
    for number, part in enumerate(parts):
        if isinstance(part, dict) and isinstance(part.get("state"), dict):
            name = part.get("class")
            state = {key: _moved(value, places) for key, value in part["state"].items()}
            if name in _REGRESSORS and "_fits" in state:
                made += _regression_state(state, len(made))
            elif name == "TwoStageGPClassifier" and "_fit" in state:
                made += _classes_state(state, len(made))
            part = {**part, "state": state}
        places[number] = len(made)
        made.append(part)
    return with_present_names(made)


def _moved(value: Any, places: dict[int, int]) -> Any:
    """Return a value whose references point to the new list; others stay as they are."""
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
    return [*made, {"class": "FittedRegression", "state": fields}]


def _classes_state(state: dict[str, Any], number: int) -> list[dict[str, Any]]:
    """Take the private attributes out of a classifier's state and return them as a part."""
    fields = {"fit": state.pop("_fit"), "draws": state.pop("_draws", None)}
    for name in _COMPUTED:
        state.pop(name, None)
    state["fitted_"] = {"part": number}
    return [{"class": "FittedClasses", "state": fields}]
