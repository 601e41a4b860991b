"""The peers of Table 2's likelihoods: our other models, and other libraries.

Every fitted model but the default is a peer, and so is every library that
:mod:`benchmarks.uci_small_peers` has run on the same splits. A library may have fewer splits than
we have, so all comparisons are paired: ours less the peer's NLPD, split by split, on the splits
that both have. The best peer of a table is the one with the largest mean of these differences; ours
leads if that mean is at most one standard error of the differences above 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from benchmarks.peers import PEERS as LIBRARIES
from experiments.from_benchmarks import Source
from experiments.printed import SMALL_SETS
from measurements.pages import scored, standard_error
from measurements.store import Record
from measurements.tables import MISSING, figure, markdown_table

__all__ = ["DEFAULT", "SOURCE", "Gap", "Peers", "library_records"]

DEFAULT = "default"
SOURCE = Source("uci_small_peers.jsonl", ("model", "set", "fold"))
SCORE = "nlpd_standardized"


def library_records() -> list[Record]:
    """Return the benchmark's records of other libraries in our form; [] without its file."""
    return [
        {"model": r["model"], "set": r["set"], "split": r["fold"], SCORE: r["nlpd"]}
        | {"version": r.get("version")}
        for r in scored(SOURCE.records())
        if r["model"] in LIBRARIES and r.get("nlpd") is not None
    ]


@dataclass(frozen=True)
class Gap:
    """Our NLPD against one peer's on the splits that both have.

    Attributes
    ----------
    peer : str
    ours, theirs : sequence of float
        By split, in the same order.
    """

    peer: str
    ours: Sequence[float]
    theirs: Sequence[float]

    @property
    def differences(self) -> list[float]:
        """Ours less theirs: above 0 theirs is better."""
        return [one - two for one, two in zip(self.ours, self.theirs, strict=True)]

    @property
    def mean(self) -> float:
        return fmean(self.differences)

    @property
    def error(self) -> float:
        """Standard error of the mean; 0 for a single split, which gives no allowance."""
        return standard_error(self.differences)

    @property
    def behind(self) -> bool:
        """Whether ours is worse by more than one standard error."""
        return self.mean > self.error

    def text(self) -> str:
        """Return difference, standard error and number of splits; bold if the peer is better."""
        error = f" ± {figure(self.error, 2)}" if len(self.ours) > 1 else ""
        found = f"{self.mean:+.3f}{error}"
        return f"{f'**{found}**' if self.behind else found} ({len(self.ours)})"


class Peers:
    """All peers of the default model.

    Parameters
    ----------
    records : iterable of record
        Of Table 2, without failures; the models named in ``own`` are peers.
    own : mapping
        Our other models and their labels.
    libraries : iterable of record
        As :func:`library_records` makes them.
    """

    def __init__(
        self, records: Iterable[Record], own: Mapping[str, str], libraries: Iterable[Record] = ()
    ) -> None:
        self._scores: dict[tuple[str, str], dict[int, float]] = {}
        self._versions: dict[str, str] = {}
        for record in records:
            if record["model"] == DEFAULT or record["model"] in own:
                self._add(record)
        for record in libraries:
            self._add(record)
            self._versions[record["model"]] = record.get("version") or MISSING
        self._labels = {**own, **{name: LIBRARIES[name].label for name in LIBRARIES}}
        self.libraries = [name for name in LIBRARIES if name in self._versions]
        self.names = [*own, *self.libraries]

    def _add(self, record: Record) -> None:
        place = self._scores.setdefault((record["model"], record["set"]), {})
        place[record["split"]] = record[SCORE]

    def gaps(self, name: str) -> list[Gap]:
        """Return a table's gaps to every peer that shares a split with us."""
        ours = self._scores.get((DEFAULT, name), {})
        found = []
        for peer in self.names:
            theirs = self._scores.get((peer, name), {})
            if both := sorted(ours.keys() & theirs.keys()):
                found.append(Gap(peer, [ours[k] for k in both], [theirs[k] for k in both]))
        return found

    def best(self, name: str) -> Gap | None:
        """Return the gap to the peer that we are furthest behind, or least ahead of."""
        return max(self.gaps(name), key=lambda gap: gap.mean, default=None)

    def leads(self, name: str) -> bool | None:
        """Return whether ours is the best or within one standard error; None without a peer."""
        best = self.best(name)
        return None if best is None else not best.behind

    def ahead_of_us(self) -> str:
        """Return the peers that are better by more than one standard error, by table."""
        found = {name: [gap.peer for gap in self.gaps(name) if gap.behind] for name in SMALL_SETS}
        return "; ".join(f"{name}: {', '.join(peers)}" for name, peers in found.items() if peers)

    def best_text(self, name: str) -> str:
        """Return the best peer's NLPD; with ours on its splits if it has fewer than ours."""
        best = self.best(name)
        if best is None:
            return MISSING
        text = f"{fmean(best.theirs):.3f} ({best.peer}"
        if len(best.ours) < len(self._scores[DEFAULT, name]):
            text += f"; ours {fmean(best.ours):.3f} on its {len(best.ours)} splits"
        return f"{text})"

    def listed(self) -> str:
        """Return the list of peers with their descriptions."""
        return "; ".join(
            f"{name} ({self._labels[name]}"
            + (f"; {self._versions[name]})" if name in self._versions else ")")
            for name in self.names
        )

    def table(self) -> str:
        """Return the table of gaps: one row per peer, one column per data set."""
        by_set = {name: {gap.peer: gap for gap in self.gaps(name)} for name in SMALL_SETS}
        rows = [
            [peer, *(by_set[n][peer].text() if peer in by_set[n] else MISSING for n in SMALL_SETS)]
            for peer in self.names
        ]
        return markdown_table(["peer", *SMALL_SETS], rows)
