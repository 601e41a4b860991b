"""The page of ``kernel_search``: goals, tables, and what they leave out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from measurements.pages import NO_RECORDS, joined, scored
from measurements.store import Record
from measurements.tables import MISSING, figure, markdown_table, yes_no

__all__ = ["KERNELS", "report"]

KERNELS = ("rbf", "matern32", "matern12")
#: How many times faster than the loop the search has to be, all repetitions and early decision.
FULL_GOAL, EARLY_GOAL = 20.0, 60.0
#: Seconds of the full search on a GPU.
GPU_SECONDS_GOAL = 3.0
#: How much worse than the loop's the likelihood of one repetition may be, per row.
NLL_GOAL = 1e-3


def report(records: list[Record]) -> str:
    """Return the page."""
    records = scored(records)
    if not records:
        return joined("# Speed of the kernel search", NO_RECORDS)
    parts = ["# Speed of the kernel search\n"]
    parts += [f"{_head(record)}\n" for record in records]
    parts += ["## Seconds\n", _seconds_note(records), _seconds_table(records)]
    compared = [record for record in records if "loop" in record]
    if compared:
        parts += ["## Likelihood reached\n", _likelihood_note(compared)]
        parts += [_likelihood_table(record) for record in compared]
    parts += ["## Where the time goes\n", _breakdown_note(records), _breakdown_table(records)]
    return "\n".join(parts)


def _head(record: Record) -> str:
    return (
        f"twostagegp {record['version']} (source {record['code']}), torch {record['torch']}, "
        f"{record['machine']}, {record['threads']} thread(s), load {record['load']:.1f} at the "
        f"start. {len(KERNELS)} kernels, {record['repeats']} repetitions, {record['subsample']} "
        f"rows each, {record['full']['n_train']} of them trained on."
    )


def _seconds_note(records: list[Record]) -> str:
    text = (
        f"The fastest of {max(record['runs'] for record in records)} searches, as other programs "
        "on the machine only add time, with the slowest beside it; a small search before them "
        "loads the libraries. *Evaluations* are those of one problem, without the pilots'."
    )
    loops = [record["loop"] for record in records if "loop" in record]
    if loops:
        text += (
            " The loop's seconds are **extrapolated** from the fastest (and the slowest) of "
            f"{loops[0]['repeats']} repetitions of each kernel, and leave out the drawing of "
            "subsamples and the scores, which ours include."
        )
    return f"{text}\n"


def _seconds_table(records: list[Record]) -> str:
    header = ["device", "what", "repetitions", "evaluations", "seconds", "slowest", "CPU seconds"]
    fields = ("wall_seconds", "slowest_wall_seconds", "cpu_seconds")
    lines = []
    for record in records:
        device, loop = record["device"], record.get("loop")
        if loop is not None:
            cells = [figure(loop[field]) for field in fields]
            what = ["GPyTorch loop, extrapolated", str(record["repeats"]), "100"]
            lines.append([device, *what, *cells, MISSING, MISSING, MISSING])
        for name, label in (("full", "search, all repetitions"), ("early", "search, early")):
            facts = record[name]
            evaluations = fmean(facts["evaluations"].values())
            cells = [label, str(facts["repeats"]), figure(evaluations)]
            cells += [figure(facts[field]) for field in fields]
            lines.append([device, *cells, *_against_goal(record, name)])
    return markdown_table([*header, "loop / ours, seconds", "goal", "met"], lines)


def _against_goal(record: Record, name: str) -> list[str]:
    """Return the ratio to the loop, the goal and whether it is met."""
    seconds, loop = record[name]["wall_seconds"], record.get("loop")
    ratio = None if loop is None else loop["wall_seconds"] / seconds
    if record["device"] == "cuda":
        if name == "early":
            return [figure(ratio), MISSING, MISSING]
        met = yes_no(seconds < GPU_SECONDS_GOAL)
        return [figure(ratio), f"< {GPU_SECONDS_GOAL:g} s", met]
    goal = FULL_GOAL if name == "full" else EARLY_GOAL
    return [figure(ratio), f"≥ {goal:g}×", yes_no(None if ratio is None else ratio >= goal)]


def _likelihood_note(records: list[Record]) -> str:
    loop = records[0]["loop"]
    rows = [fit["rows"] for fit in loop["fits"]]
    return (
        "Negative log likelihood per row, without prior, at the hyperparameters of both sides on "
        f"the rows of the loop's {loop['repeats']} repetitions: {min(rows)} to {max(rows)}, the "
        "distinct rows with their repeats. *To the end*: the loop's models trained until the "
        "likelihood no longer improves. Goal: ours minus the loop's at most "
        f"{NLL_GOAL:g} in every repetition.\n"
    )


def _likelihood_table(record: Record) -> str:
    fits = record["loop"]["fits"]
    header = ["kernel", "loop", "loop, to the end", "ours", "ours − loop, mean", "worst"]
    header += ["ours − to the end, mean", "worst", "met"]
    lines = []
    for name in KERNELS:
        mine = [fit["nll"] for fit in fits if fit["kernel"] == name]
        cells = [fmean(nll[who] for nll in mine) for who in ("loop", "end", "ours")]
        for peer in ("loop", "end"):
            differences = [nll["ours"] - nll[peer] for nll in mine]
            cells += [fmean(differences), max(differences)]
        met = yes_no(max(nll["ours"] - nll["loop"] for nll in mine) <= NLL_GOAL)
        lines.append([name, *(figure(cell) for cell in cells), met])
    ranked = {who: _ranking(fits, who) for who in ("loop", "end", "ours")}
    sentences = [
        f"Ranking on these repetitions, best first: loop {_listed(ranked['loop'])}; loop trained "
        f"to the end {_listed(ranked['end'])}; ours {_listed(ranked['ours'])}. Ours is that of the "
        f"loop: {yes_no(ranked['ours'] == ranked['loop'])}; that of the loop trained to the end: "
        f"{yes_no(ranked['ours'] == ranked['end'])}. Ours over all repetitions: "
        f"{_listed(record['full']['ranking'])}; after the early decision "
        f"({record['early']['repeats']} repetitions): {_listed(record['early']['ranking'])}."
    ]
    return "\n".join([markdown_table(header, lines), *sentences, ""])


def _ranking(fits: list[Record], who: str) -> list[str]:
    means: Mapping[str, float] = {
        name: fmean(fit["nll"][who] for fit in fits if fit["kernel"] == name) for name in KERNELS
    }
    return sorted(means, key=lambda name: means[name])


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)


def _breakdown_note(records: list[Record]) -> str:
    text = (
        "One more search with all repetitions and stopwatches in it, on the CPU with one thread. "
        "*Matrices*: factorisations on all training rows, for each problem, with those of the "
        "pilots, of the Hessian and of the scores; *small* are the pilots' on fewer rows, in all."
    )
    peaks = [record["peak_gib"] for record in records if "peak_gib" in record]
    if peaks:
        text += f" Peak of the GPU's memory: {figure(max(peaks))} GiB."
    return f"{text}\n"


def _breakdown_table(records: list[Record]) -> str:
    names = list(records[0]["breakdown"]["seconds"])
    lines = []
    for record in records:
        facts = record["breakdown"]
        total = facts["wall_seconds"]
        cells = [
            f"{figure(seconds)} s ({seconds / total:.0%})" for seconds in facts["seconds"].values()
        ]
        counts = [figure(facts["matrices_a_problem"]), str(facts["small_matrices"])]
        lines.append([record["device"], *cells, f"{figure(total)} s", *counts])
    header = ["device", *names, "all", "matrices", "small"]
    return markdown_table(header, lines)
