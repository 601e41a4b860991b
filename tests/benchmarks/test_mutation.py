"""Faults put into modules: what they are, that they take effect, and what is kept of them."""

import ast
import types

import pytest

from benchmarks import mutation
from benchmarks._mutants import Source, sample
from benchmarks._mutation_runs import Core, Limits, examine
from benchmarks._store import JsonLines
from benchmarks._transplant import transplant

TEXT = '''
"""Of no importance: 1 + 1."""
from functools import cached_property, lru_cache
SCALE = 2.0
Number = float | int

def area(r: float, factor: int = 3) -> float:
    """Not 2 * r."""
    if r < 0:
        raise ValueError(f"{r + 1} is negative")
    return factor * r ** 2

@lru_cache
def shifted(x):
    return x + SCALE

class Shape:
    sides = 4

    def __init__(self, r):
        self.r = r

    @property
    def size(self):
        return -area(self.r)

    @cached_property
    def first(self):
        return [self.r, 5][0]
'''


@pytest.fixture(scope="module")
def source():
    return Source(TEXT)


def test_the_mutants_of_a_module(source):
    assert [m.name for m in source.mutants] == [
        "module: SCALE = 2.0 → SCALE = 4.0",
        "area: r: float, factor: int=3 → r: float, factor: int=4",
        "area: r < 0 → r <= 0",
        "area: r < 0 → r >= 0",
        "area: r < 0 → r < 1",
        "area: return factor * r ** 2 → return None",
        "area: return factor * r ** 2 → return factor / r ** 2",
        "area: return factor * r ** 2 → return factor * (r * 2)",
        "area: return factor * r ** 2 → return factor * r ** 3",
        "shifted: return x + SCALE → return None",
        "shifted: return x + SCALE → return x - SCALE",
        "Shape: sides = 4 → sides = 5",
        "Shape.size: return -area(self.r) → return None",
        "Shape.size: return -area(self.r) → return area(self.r)",
        "Shape.first: return [self.r, 5][0] → return None",
        "Shape.first: return [self.r, 5][0] → return [self.r, 6][0]",
        "Shape.first: return [self.r, 5][0] → return [self.r, 5][1]",
    ]


def test_a_mutant_changes_one_place_and_leaves_the_tree_as_it_was(source):
    before = ast.unparse(source.tree)
    for mutant in source.mutants:
        source.compiled(mutant, "example.py")
    assert ast.unparse(source.tree) == before


def answers(module, kept):
    area, shifted, shape = kept
    values = (area(3.0), shifted(1.0), shape.sides, shape(3.0).size, shape(3.0).first)
    return values, module.SCALE


def test_every_mutant_takes_effect_in_functions_that_were_imported_before(source):
    unchanged = ((27.0, 3.0, 4, -27.0, 3.0), 2.0)
    same = []
    for mutant in source.mutants:
        module = types.ModuleType("example")
        exec(TEXT, module.__dict__)
        kept = module.area, module.shifted, module.Shape
        assert answers(module, kept) == unchanged
        module.shifted.cache_clear()
        transplant(module, source.compiled(mutant, "example.py"), [])
        try:
            changed = answers(module, kept)
        except (TypeError, ValueError):
            continue
        if changed == unchanged:
            same.append(mutant.name)
    # These two need a radius of zero or of one half to be seen, the other another index.
    assert same == [
        "area: r < 0 → r <= 0",
        "area: r < 0 → r < 1",
        "Shape.first: return [self.r, 5][0] → return [self.r, 6][0]",
    ]


def test_a_sample_is_stable_when_other_code_changes(source):
    some = [m.name for m in sample(source.mutants, 8, seed=0)]
    assert len(some) == 8
    shorter = Source(TEXT.replace("    sides = 4\n", "    pass\n"))
    again = [m.name for m in sample(shorter.mutants, 8, seed=0)]
    assert len(set(some) & set(again)) >= 7
    assert [m.name for m in sample(source.mutants, None, seed=0)] == [
        m.name for m in source.mutants
    ]


@pytest.mark.slow
def test_a_fault_in_the_stack_is_found_by_its_tests():
    core = Core("stack", ("stack",))
    names = [m.name for m in Source(core.path.read_text(encoding="utf-8")).mutants]
    wanted = [n for n in names if n.startswith("crossfitted_residuals: out = folds == fold")]
    assert examine(core, Limits(), wanted) == {wanted[0]: "killed"}


RECORD = {"module": "rows", "possible": 9, "tried": 5, "killed": 3, "timeout": 0}


def test_the_report_counts_and_explains():
    records = [{**RECORD, "survivors": ["f: a → b", "f: a → c"]}]
    reasons = {"rows": {"f: a → b": "Nothing changes."}}
    page = mutation.report(records, reasons)
    assert [cell.strip() for cell in page.splitlines()[6].split("|")[1:-1]] == [
        *("rows", "9", "5", "3", "0", "2")
    ]
    assert "- Nothing changes.\n  - `f: a → b`" in page
    assert "- not explained yet\n  - `f: a → c`" in page
    assert mutation.unexplained(records, reasons) == ["rows: f: a → c"]


def test_every_recorded_survivor_has_a_reason_and_every_reason_a_survivor():
    store = JsonLines(mutation.RESULTS / "mutation.jsonl", ("module",))
    records = list(store.records().values())
    assert {record["module"] for record in records} == set(mutation.CORES)
    path = mutation.RESULTS / "mutation_reasons.json"
    reasons = mutation.read_reasons(path)
    assert mutation.unexplained(records, reasons) == []
    survivors = {record["module"]: set(record["survivors"]) for record in records}
    for module, explained in reasons.items():
        assert set(explained) <= survivors[module], module
