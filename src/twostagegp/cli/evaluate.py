"""``twostagegp evaluate``: how good the predictions are on rows with a known target."""

from __future__ import annotations

from twostagegp.cli.options import (
    DebugOption,
    DecimalOption,
    DelimiterOption,
    DropGapsOption,
    EncodingOption,
    JsonOption,
    ModelArgument,
    OutcomeOption,
    TableArgument,
)
from twostagegp.cli.output import print_json, print_table, progress

__all__ = ["evaluate"]

#: What each score means, in the order of the table.
MEANING = {
    "rmse": "root mean squared error of the mean, in units of the target",
    "nlpd": "negative log density of the model's own distribution, a row",
    "nlpd_gaussian": "the same of a Gaussian with its mean and standard deviation",
    "crps": "mean distance of the distribution from the outcome, in units of the target",
    "pinball": "mean loss of the quantiles at 5, 25, 50, 75, 95 %",
    "coverage": "share of outcomes in their 95 % interval",
    "interval_width": "mean width of the 95 % intervals",
    "qice": "calibration error of ten bins, in percent",
    "qice_floor": "what a perfect model would have on as many rows",
    "hc_rmse": "RMSE of the tenth of the rows with the smallest std",
    "lc_rmse": "RMSE of the tenth with the largest",
    "accuracy": "share of rows whose class is right",
    "log_loss": "negative log probability of the true class, a row",
    "brier": "mean squared error of the probabilities",
    "ece": "calibration error of the largest probability",
    "aurc": "mean error rate as rows are left out, least certain first",
    "accuracy_certain": "share of right classes among the rows that the model calls certain",
    "accuracy_uncertain": "the same of the other rows",
    "share_certain": "share of rows that the model calls certain",
    "n_certain": "their number",
    "n_uncertain": "number of the others",
}


def evaluate(
    model: ModelArgument,
    table: TableArgument,
    target: OutcomeOption = None,
    drop_missing_target: DropGapsOption = False,
    encoding: EncodingOption = "utf-8",
    delimiter: DelimiterOption = None,
    decimal: DecimalOption = ".",
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Score a model on rows that it has not seen.

    Everything but nlpd_gaussian is of the model's own distribution, as predict gives it out.
    """
    from twostagegp.cli.models import open_model
    from twostagegp.cli.scoring import score_file, target_of
    from twostagegp.cli.source import open_source

    source = open_source(table, encoding, delimiter, decimal)
    saved = open_model(model)
    column = target_of(saved, source, target)
    with progress(f"evaluating {table.name}") as tell:
        rows, scores = score_file(saved, source, column, drop_missing_target, tell)
    if as_json:
        print_json({"model": str(model), "table": str(table), "rows": rows, "scores": scores})
        return
    lines = [(name, value, MEANING.get(name, "")) for name, value in scores.items()]
    print_table(("score", "value", "meaning"), lines, f"{rows:,} rows of {table.name}")
