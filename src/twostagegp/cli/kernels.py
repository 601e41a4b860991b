"""``twostagegp search`` ranks kernels, and ``twostagegp check`` tests one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

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
from twostagegp.cli.output import print_json, print_pairs, print_table, working

if TYPE_CHECKING:
    from twostagegp.cli.fitting import TrainingRows

__all__ = ["check", "search"]

RepeatsOption = Annotated[int, typer.Option(min=2, help="Most repetitions.")]
SubsampleOption = Annotated[int, typer.Option(min=10, help="Rows per subsample.")]


def search(
    table: TableArgument,
    target: TargetOption,
    kernels: Annotated[
        str, typer.Option(metavar="KERNEL,…", help="The kernels to try.")
    ] = "rbf,matern12,matern32,matern52,laplacian",
    selection: Annotated[str, typer.Option(help="loo, nll or misspecification.")] = "loo",
    repeats: RepeatsOption = 100,
    subsample: SubsampleOption = 500,
    drop: DropOption = None,
    category: CategoryOption = None,
    seed: SeedOption = 0,
    drop_missing_target: DropGapsOption = False,
    encoding: EncodingOption = "utf-8",
    delimiter: DelimiterOption = None,
    decimal: DecimalOption = ".",
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Rank kernels by repeated fits on subsamples of a table."""
    from twostagegp.cli.fitting import column_hints
    from twostagegp.search.kernel_search import search_kernel

    reading = (encoding, delimiter, decimal)
    data = _rows(table, target, drop, category, drop_missing_target, reading)
    names = split_names([kernels], ())
    with working(f"searching among {len(names)} kernels"), column_hints():
        found = search_kernel(
            data.X,
            data.y,
            names,
            selection=selection,
            n_repeats=repeats,
            subsample=subsample,
            random_state=seed,
        )
    lines: list[dict[Any, Any]] = found.table.reset_index().to_dict("records")
    if as_json:
        result = {"best": found.best_label, "selection": selection, "rows": len(data.X)}
        print_json({**result, "decided_early": found.decided_early, "kernels": lines})
        return
    shown = ["kernel", "score", "spread", "heldout", "noise", "repeats"]
    title = f"best: {found.best_label} (score: {selection}, noise in units of {target!r})"
    print_table(shown, [[line[name] for name in shown] for line in lines], title)
    for line in lines:
        if line["failure"]:
            typer.echo(f"warning: {line['kernel']}: {line['failure']}", err=True)


def check(
    table: TableArgument,
    target: TargetOption,
    kernel: Annotated[str, typer.Option(help="The kernel to test.")] = "rbf",
    test: Annotated[str, typer.Option(help="bootstrap, ratio or bound.")] = "bootstrap",
    repeats: RepeatsOption = 100,
    subsample: SubsampleOption = 500,
    delta: Annotated[float, typer.Option(help="Level of the test.")] = 0.05,
    drop: DropOption = None,
    category: CategoryOption = None,
    seed: SeedOption = 0,
    drop_missing_target: DropGapsOption = False,
    encoding: EncodingOption = "utf-8",
    delimiter: DelimiterOption = None,
    decimal: DecimalOption = ".",
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Test whether a Gaussian process with this kernel fits a table."""
    from twostagegp.cli.fitting import column_hints
    from twostagegp.search.misspecification import check_misspecification

    reading = (encoding, delimiter, decimal)
    data = _rows(table, target, drop, category, drop_missing_target, reading)
    with working(f"testing {kernel}"), column_hints():
        found = check_misspecification(
            data.X,
            data.y,
            kernel,
            test=test,
            n_repeats=repeats,
            subsample=subsample,
            delta=delta,
            random_state=seed,
        )
    result = {
        "kernel": found.kernel,
        "test": found.test,
        "rejected": found.rejected,
        "p_value": found.p_value,
        "p_hat": found.p_hat,
        "noise": found.noise,
        "causes": list(found.named),
        "diagnosis": found.diagnosis,
        "notes": "; ".join(found.notes),
    }
    if as_json:
        print_json({**result, "rows": len(data.X)})
    else:
        print_pairs({name: value for name, value in result.items() if value not in (None, [])})


def _rows(
    table: Any,
    target: str,
    drop: list[str] | None,
    category: list[str] | None,
    drop_gaps: bool,
    reading: tuple[str, str | None, str],
) -> TrainingRows:
    from twostagegp.cli.fitting import rows_for_fit
    from twostagegp.cli.source import open_source

    source = open_source(table, *reading)
    return rows_for_fit(
        source,
        target,
        drop=split_names(drop, source.names),
        category=split_names(category, source.names),
        drop_gaps=drop_gaps,
        classify=False,
    )
