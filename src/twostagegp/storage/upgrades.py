"""Structures of older formats and names, rewritten into the present ones.

A structure is the list of parts of a file, each ``{"class": name, "state": fields}``, where
``{"part": number}`` refers to an earlier part. An upgrade only renames, moves and drops fields; its
result is checked like any other file. Present structures pass through unchanged.
"""

from __future__ import annotations

from typing import Any

__all__ = ["upgraded"]

_REGRESSORS = ("TwoStageGPRegressor", "ExactGPRegressor", "GPNNRegressor")
#: Attributes of estimators that have become properties.
_COMPUTED = ("mean_", "variance_", "calibration_", "gp_", "relevance_", "search_")


def upgraded(parts: Any) -> Any:
    """Return the parts of a file of any format as parts of the present one.

    The state of a fitted estimator, several private attributes in format 1, is one part now.
    """
    if not isinstance(parts, list):
        return parts
    made: list[Any] = []
    places: dict[int, int] = {}  # from the number of a part in the file to that in ``made``
    for number, part in enumerate(parts):
        if isinstance(part, dict) and isinstance(part.get("state"), dict):
            name = part.get("class")
            if name == "SearchRecord":
                continue  # it is made from the fitted parts when it is asked for
            state = {key: _moved(value, places) for key, value in part["state"].items()}
            if name == "ClassReport":
                name, state = "FitReport", _report_of_classes(state)
            elif name == "FitReport":
                _rename(state, full_factorisations="full_factorizations")
            elif name in _REGRESSORS:
                _rename_parameters(state, name)
                _drop_computed(state)
                if "_fits" in state:
                    made += _regression_state(state, len(made))
            elif name == "TwoStageGPClassifier":
                _drop_computed(state)
                _complete_report(state, made)
                if "_fit" in state:
                    made += _classes_state(state, len(made))
            part = {**part, "class": name, "state": state}
        places[number] = len(made)
        made.append(part)
    return made


def _moved(value: Any, places: dict[int, int]) -> Any:
    """Return a value with its references renumbered for the new list."""
    if isinstance(value, list):
        return [_moved(each, places) for each in value]
    if not isinstance(value, dict):
        return value
    number = value.get("part")
    if type(number) is int and set(value) == {"part"}:
        return {"part": places.get(number, -1)}
    return {key: _moved(each, places) for key, each in value.items()}


def _rename(state: dict[str, Any], **names: str) -> None:
    """Give fields their present names; absent fields stay absent."""
    for old, new in names.items():
        if old in state:
            state[new] = state.pop(old)


def _rename_parameters(state: dict[str, Any], name: str) -> None:
    """Give the constructor parameters of a regressor their present names and values."""
    if name == "TwoStageGPRegressor" and "objective" not in state and "selection" in state:
        # ``selection`` once named the training objective of the mean as well.
        selection = state["selection"]
        pair = selection.get("tuple") if isinstance(selection, dict) else selection
        if isinstance(pair, list) and len(pair) == 2:
            state["objective"] = _objective(pair[0])
            state["selection"] = {"tuple": [_selection(each) for each in pair]}
        else:
            state["objective"] = _objective(selection)
            state["selection"] = _selection(selection)
    if name == "GPNNRegressor":
        _rename(state, hyperparameters="objective", calibrate="calibration")
        if isinstance(state.get("calibration"), bool):
            state["calibration"] = "scale" if state["calibration"] else None
        if state.get("preprocess") == "standardise":
            state["preprocess"] = "standardize"


def _objective(selection: Any) -> str:
    return "nll" if selection == "nll" else "loo"


def _selection(selection: Any) -> Any:
    return "heldout" if selection in ("loo", "nll") else selection


def _drop_computed(state: dict[str, Any]) -> None:
    for name in _COMPUTED:
        state.pop(name, None)


def _report_of_classes(state: dict[str, Any]) -> dict[str, Any]:
    """Return a classifier's report of an older version as the report that all estimators share."""
    _rename(state, n_distinct="n_distinct_rows")
    return {"candidates": [], "variance_candidates": [], "warnings": [], **state}


def _complete_report(state: dict[str, Any], made: list[Any]) -> None:
    """Add the precision of a classifier to its report, which older versions did not state."""
    place = state.get("fit_report_")
    number = place.get("part") if isinstance(place, dict) else None
    if type(number) is int and 0 <= number < len(made) and made[number]["class"] == "FitReport":
        made[number]["state"].setdefault("dtype", state.get("dtype"))


def _regression_state(state: dict[str, Any], number: int) -> list[dict[str, Any]]:
    """Take the private attributes out of a regressor's state and return them as parts."""
    fits, data = state.pop("_fits"), state.pop("_data", None)
    is_1d = state.pop("_target_ndim", None) == 1
    pairs = zip(data, fits, strict=False) if isinstance(data, list) else ()
    made = [{"class": "FittedTarget", "state": {"data": d, "fit": f}} for d, f in pairs]
    targets = {"tuple": [{"part": number + k} for k in range(len(made))]}
    fields = {"targets": targets, "is_1d": is_1d, "remote": None}
    state["fitted_"] = {"part": number + len(made)}
    return [*made, {"class": "FittedRegression", "state": fields}]


def _classes_state(state: dict[str, Any], number: int) -> list[dict[str, Any]]:
    """Take the private attributes out of a classifier's state and return them as a part."""
    fields = {"fit": state.pop("_fit"), "draws": state.pop("_draws", None)}
    state["fitted_"] = {"part": number}
    return [{"class": "FittedClasses", "state": fields}]
