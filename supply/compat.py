"""Run the core of the tests in another environment, and record the versions and the result.

    python -m supply.compat --python .venv/bin/python --name "the lock"
    python -m supply.compat --python .venv-minimum/bin/python --name constraints-minimum.txt

runs the tests below with an interpreter that has the packages to be tried, and writes versions and
counts into ``docs/compatibility.md``. The row replaces an earlier one with the same name and Python
version. It exits with an error if a test failed. The page says how to make such environments.
Nothing in the table is typed by hand.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

__all__ = ["PACKAGES", "TESTS", "main", "with_row"]

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "compatibility.md"
BEGIN, END = "<!-- begin rows -->\n", "<!-- end rows -->"
PACKAGES = ("torch", "gpytorch", "numpy", "scipy", "scikit-learn", "pandas", "numba", "dask")
#: Both methods, the estimators' contract, files, the command line and Dask.
TESTS = (
    "pipeline/test_two_stage.py",
    "engines/test_exact_engine.py",
    "kernels/test_catalogue.py",
    "kernels/test_wrapped.py",
    "numerics/test_linalg.py",
    "numerics/test_objectives.py",
    "engines/test_neighbor_engine.py",
    "storage/test_round_trip.py",
    "cli/test_cli.py",
    "cli/test_cli_tables.py",
    "distributed/test_dask.py",
    "data/test_columns.py",
    "estimators/test_estimators.py",
)
_PROGRAM = """
import json, platform
from importlib.metadata import PackageNotFoundError, version
def of(name):
    try: return version(name)
    except PackageNotFoundError: return "–"
print(json.dumps([platform.python_version(), *map(of, {names!r})]))
"""


def with_row(page: str, row: Sequence[str]) -> str:
    """Return a page with a row in its table; it replaces a row with the same first two cells.

    Examples
    --------
    >>> page = BEGIN + "| lock | 3.11 | 9 |" + chr(10) + END
    >>> print(with_row(page, ["lock", "3.11", "10"]))
    <!-- begin rows -->
    | lock | 3.11 | 10 |
    <!-- end rows -->
    """
    head, rest = page.split(BEGIN)
    rows, tail = rest.split(END)
    old = {tuple(line.split(" | ")[:2]): line for line in rows.splitlines()}
    line = f"| {' | '.join(row)} |"
    old[tuple(line.split(" | ")[:2])] = line
    return head + BEGIN + "".join(f"{line}\n" for line in old.values()) + END + tail


def versions(python: str) -> list[str]:
    """Return the versions of Python and of ``PACKAGES`` in an environment."""
    program = _PROGRAM.format(names=PACKAGES)
    done = subprocess.run([python, "-c", program], check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def counts(python: str, tests: Sequence[str]) -> list[str]:
    """Return how many tests passed, failed and were skipped in an environment."""
    paths = [str(ROOT / "tests" / name) for name in tests]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
        # Old packages warn about newer ones, which we cannot change: warnings are not errors here.
        command += ["-o", "filterwarnings=default", "--disable-warnings"]
        subprocess.run([*command, *paths], cwd=ROOT, env=environment)
        if not report.exists():
            raise SystemExit(f"{python} could not run the tests; its output is above.")
        suite = ElementTree.parse(report).getroot().find("testsuite")
    assert suite is not None
    total, *others = (int(suite.attrib[k]) for k in ("tests", "failures", "errors", "skipped"))
    failures, errors, skipped = others
    return [str(total - sum(others)), str(failures + errors), str(skipped)]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the tests and write the row; exit with an error if a test failed."""
    parser = argparse.ArgumentParser(description="Try an environment; write docs/compatibility.md.")
    parser.add_argument("--python", required=True, help="the interpreter of the environment")
    parser.add_argument("--name", required=True, help="where its versions come from")
    parser.add_argument("--tests", default=",".join(TESTS), help="files in tests/, comma-separated")
    options = parser.parse_args(arguments)
    if re.search(r"[|\n]", options.name):
        parser.error(f"--name {options.name!r} does not fit into a table.")
    python, *packages = versions(options.python)
    ran = counts(options.python, options.tests.split(","))
    tests = options.tests.replace("test_", "").replace(".py", "").replace(",", ", ")
    row = [options.name, python, *packages, *ran, tests]
    PAGE.write_text(with_row(PAGE.read_text(encoding="utf-8"), row), encoding="utf-8")
    print(" ".join(row))
    if ran[1] != "0":
        raise SystemExit(f"{ran[1]} tests failed.")


if __name__ == "__main__":
    main()
