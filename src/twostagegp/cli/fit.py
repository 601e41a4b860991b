"""``twostagegp fit``: fit a model to a file and save it."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from twostagegp.cli.options import (
    CategoryOption,
    DebugOption,
    DecimalOption,
    DelimiterOption,
    DropGapsOption,
    DropOption,
    EncodingOption,
    JsonOption,
    SeedOption,
    TableArgument,
    TargetOption,
    split_names,
)
from twostagegp.cli.output import fit_progress, print_json, print_pairs
from twostagegp.errors import InputError

__all__ = ["fit", "parse_options"]

#: Parameters of the estimators that have their own option, or cannot be written as text.
_ELSEWHERE = {
    "random_state": "use --seed",
    "method": "use --method",
    "calibrate_by": "use --calibrate-by",
    "training": "a Training(...) can be given in Python only",
}


def fit(
    table: TableArgument,
    target: TargetOption,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="MODEL", help="Folder for the model.")
    ],
    classify: Annotated[
        bool | None,
        typer.Option(
            "--classify/--regress",
            help="Fit a classifier or a regressor. By default a target of text, categories or "
            "booleans is classified; a target of numbers, even 0 and 1, is regressed.",
            show_default=False,
        ),
    ] = None,
    groups: Annotated[
        str | None,
        typer.Option(help="Column of group labels; rows of the same group are held out together."),
    ] = None,
    weights: Annotated[str | None, typer.Option(help="Column with one weight per row.")] = None,
    drop: DropOption = None,
    category: CategoryOption = None,
    method: Annotated[str, typer.Option(help="auto, exact, neighbors, vecchia or svgp.")] = "auto",
    calibrate_by: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="Input column of categories, or of few distinct values, within whose levels the "
            "intervals should hold.",
        ),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="Another parameter of the estimator, such as kernels=rbf,matern32.",
        ),
    ] = None,
    seed: SeedOption = 0,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing model.")] = False,
    drop_missing_target: DropGapsOption = False,
    encoding: EncodingOption = "utf-8",
    delimiter: DelimiterOption = None,
    decimal: DecimalOption = ".",
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Fit a model to a table and save it.

    Every column except the target and those of --groups, --weights and --drop is an input.
    Categories, text labels, true/false, ISO dates and missing values are handled (docs/tables.md);
    free text must be dropped.
    """
    from twostagegp.cli.fitting import (
        calibration_option,
        column_hints,
        held_out_scores,
        make_model,
        report_of,
        rows_for_fit,
    )
    from twostagegp.cli.source import open_source
    from twostagegp.runtime.optional import require
    from twostagegp.storage.folder import check_replaceable
    from twostagegp.storage.model import save_model

    require("safetensors.numpy", "files")
    if output.exists():
        check_replaceable(output)
        if any(output.iterdir()) and not force:
            raise InputError(f"{output} already contains a model; --force replaces it.")
    source = open_source(table, encoding, delimiter, decimal)
    data = rows_for_fit(
        source,
        target,
        groups=groups,
        weights=weights,
        drop=split_names(drop, source.names),
        category=split_names(category, source.names),
        drop_gaps=drop_missing_target,
        classify=classify,
    )
    options = parse_options(option) | calibration_option(calibrate_by, data, source)
    model = make_model(data.classify, method, seed, options)
    with (
        fit_progress(f"fitting {len(data.X):,} rows and {data.X.shape[1]} columns"),
        column_hints(),
    ):
        model.fit(data.X, data.y, **data.extra)
    save_model(model, output, table={"target": target, "file": table.name})
    result = {
        "model": str(output),
        "estimator": type(model).__name__,
        "target": target,
        "rows": len(data.X),
        "inputs": list(data.X.columns),
        "dates": data.dates,
        "held_out": held_out_scores(model),
        "report": report_of(model),
    }
    if as_json:
        print_json(result)
    else:
        _show(result)


def parse_options(given: Sequence[str] | None) -> dict[str, Any]:
    """Parse ``NAME=VALUE``: numbers, true, false, none, words, or several separated by commas.

    Examples
    --------
    >>> parse_options(["ard=true", "kernels=rbf,matern32", "noise_floor=1e-6", "mean=rbf"])
    {'ard': True, 'kernels': ('rbf', 'matern32'), 'noise_floor': 1e-06, 'mean': 'rbf'}
    """
    found: dict[str, Any] = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        name = name.strip()
        if not equals or not name.isidentifier():
            raise InputError(f"--option {text}: write NAME=VALUE, such as kernels=rbf,matern32.")
        if name in _ELSEWHERE:
            raise InputError(f"--option {text}: {_ELSEWHERE[name]}.")
        parts = [_value(part) for part in value.split(",")]
        several_values = "," in value or name == "kernels"
        found[name] = tuple(p for p in parts if p != "") if several_values else parts[0]
    return found


_WORDS: dict[str, Any] = {"true": True, "false": False, "none": None, "null": None}


def _value(text: str) -> Any:
    text = text.strip()
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        number = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
    return number if isinstance(number, int | float | str) else text


def _show(result: dict[str, Any]) -> None:
    """Print a short table about the fit."""
    report, held_out = result["report"], result["held_out"]
    pairs: dict[str, Any] = {
        "rows": result["rows"],
        "inputs": f"{len(result['inputs'])} columns: {', '.join(result['inputs'][:8])}"
        + (" …" if len(result["inputs"]) > 8 else ""),
        "method": f"{report['method']} ({report['method_reason']})",
        **{part: report[part] for part in ("mean", "variance", "calibration")},
    }
    if "noise_std" in report:
        pairs["noise std"] = report["noise_std"]
    for each in report.get("levels", ()):
        pairs[f"level {each['level']}"] = (
            f"{each['rows']:.6g} held-out rows, {100.0 * each['coverage']:.1f} % in their 95 % "
            f"interval; variance × {each['factor']:.2f}"
        )
    pairs |= {f"held-out {name}": value for name, value in held_out.items()}
    foretold = report.get("foretold_seconds")
    words = "" if foretold is None else f" ({foretold:.1f} foretold)"
    pairs["seconds"] = f"{report['seconds']['total']:.1f}{words}"
    print_pairs(pairs, f"{result['estimator']} of {result['target']!r} in {result['model']}")
