"""``twostagegp evaluate``: scores of the predictions for rows with a known target."""

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

#: Meaning of each score, in the order of the table.
MEANING = {
    "rmse": "root mean squared error of the mean, in units of the target",
    "nlpd": "mean negative log density per row, of the model's distribution",
    "nlpd_gaussian": "the same for a Gaussian with the model's mean and std",
    "crps": "mean distance between distribution and outcome, in units of the target",
    "pinball": "mean loss of the quantiles at 5, 25, 50, 75 and 95 %",
    "coverage": "share of outcomes inside their 95 % interval",
    "interval_width": "mean width of the 95 % intervals",
    "qice": "calibration error in ten bins, in percent",
    "qice_floor": "QICE that a perfect model would have on as many rows",
    "hc_rmse": "RMSE of the 10 % of rows with the smallest std",
    "lc_rmse": "RMSE of the 10 % of rows with the largest std",
    "accuracy": "share of rows whose class is predicted correctly",
    "log_loss": "mean negative log probability of the true class",
    "brier": "mean squared error of the probabilities",
    "ece": "calibration error of the largest probability",
    "aurc": "mean error rate when the least certain rows are left out one by one",
    "accuracy_certain": "accuracy of the rows that the model calls certain",
    "accuracy_uncertain": "accuracy of the other rows",
    "share_certain": "share of rows that the model calls certain",
    "n_certain": "number of rows that the model calls certain",
    "n_uncertain": "number of the other rows",
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
    """Score a model on rows that were not used in its fit.

    All scores except nlpd_gaussian use the predictive distribution of the model.
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
