"""Present names for what older files call otherwise: parameters, fields of reports, classes.

Like an upgrade of the format, this rewrites the list of parts of a file before any object is made.
Files with the present names pass through unchanged.
"""

from __future__ import annotations

from typing import Any

__all__ = ["with_present_names"]


def with_present_names(parts: Any) -> Any:
    """Return the parts of a file with the names of the present version."""
    if not isinstance(parts, list):
        return parts
    made: list[Any] = []
    for part in parts:
        if isinstance(part, dict) and isinstance(part.get("state"), dict):
            name, state = part.get("class"), dict(part["state"])
            if name in ("TwoStageGPRegressor", "ExactGPRegressor", "GPNNRegressor"):
                state.pop("search_", None)  # made from the report when it is asked for
            if name == "TwoStageGPRegressor":
                _split_selection(state)
            elif name == "GPNNRegressor":
                _rename_parameters_of_gpnn(state)
            elif name == "TwoStageGPClassifier":
                state.pop("search_", None)
                _complete_report(state, made)
            elif name == "FitReport":
                _rename(state, full_factorisations="full_factorizations")
            elif name == "GPVariance":
                _rename(state, everyone="searched")
            elif name == "LocalScale":
                _rename(state, telling="uses_mean")
            elif name == "LocalScaleSettings":
                _rename(state, hardly_weighted="least_mean_weight")
            elif name == "ShapeSettings":
                for gone in ("names", "standard_errors"):  # how one of three shapes was chosen
                    state.pop(gone, None)
            elif name == "ClassReport":
                name = "FitReport"
                _rename(state, n_distinct="n_distinct_rows")
                state = {"candidates": [], "variance_candidates": [], "warnings": [], **state}
            part = {**part, "class": name, "state": state}
        made.append(part)
    return made


def _rename(state: dict[str, Any], **names: str) -> None:
    """Give fields their present names; absent fields stay absent."""
    for old, new in names.items():
        if old in state:
            state[new] = state.pop(old)


def _split_selection(state: dict[str, Any]) -> None:
    """Split ``selection``, which once also named the training objective of the mean."""
    if "objective" in state or "selection" not in state:
        return
    given = state["selection"]
    pair = given.get("tuple") if isinstance(given, dict) else given
    if isinstance(pair, list):  # for the mean and for the variance
        state["objective"] = "nll" if pair[:1] == ["nll"] else "loo"
        state["selection"] = {"tuple": [_chosen(each) for each in pair]}
    else:
        state["objective"] = "nll" if given == "nll" else "loo"
        state["selection"] = _chosen(given)


def _chosen(selection: Any) -> Any:
    return "heldout" if selection in ("loo", "nll") else selection


def _rename_parameters_of_gpnn(state: dict[str, Any]) -> None:
    _rename(state, hyperparameters="objective", calibrate="calibration")
    if isinstance(state.get("calibration"), bool):
        state["calibration"] = "scale" if state["calibration"] else None
    if state.get("preprocess") == "standardise":
        state["preprocess"] = "standardize"


def _complete_report(state: dict[str, Any], made: list[Any]) -> None:
    """Add the precision of a classifier to its report, which older versions did not state."""
    place = state.get("fit_report_")
    number = place.get("part") if isinstance(place, dict) else None
    if type(number) is int and 0 <= number < len(made) and made[number]["class"] == "FitReport":
        made[number]["state"].setdefault("dtype", state.get("dtype"))
