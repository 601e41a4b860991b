"""Accuracy and speed of twostagegp against its peers and against the paper, in one run each.

- ``python -m benchmarks.uci_small``: eight small UCI tables over their standard splits.
- ``python -m benchmarks.uci_small_peers``: the same tables with the libraries of other authors.
- ``python -m benchmarks.small_tables``: coverage and accuracy on 50 to 1,000 training rows, forty
  tables, with the libraries of other authors.
- ``python -m benchmarks.everyday``: fits, predictions and single rows at everyday sizes, against
  other libraries, by threads and cores.
- ``python -m benchmarks.exact_speed``: the exact engine against GPyTorch, and its own budgets.
- ``python -m benchmarks.first_call``: import, first fit and first prediction in fresh processes.
- ``python -m benchmarks.kernel_search``: the kernel search against a plain loop of GPyTorch fits.
- ``python -m benchmarks.uci_large``: nine larger tables against the libraries of other authors.
- ``python -m benchmarks.neighbors_speed``: predictions from neighbours, against other libraries.
- ``python -m benchmarks.neighbor_search``: ways to find neighbours, by rows, columns and norm.
- ``python -m benchmarks.neighbors_scale``: time and memory from 100,000 rows to millions.
- ``python -m benchmarks.defaults``: one default changed at a time, inside training rows.
- ``python -m benchmarks.neighbor_defaults``: the same for the neighbour method, on larger tables.
- ``python -m benchmarks.calibration``: one fit with three calibrations, on all seventeen tables.
- ``python -m benchmarks.calibration_gpnn``: the rows the model is surest of, as in GPNN's paper.
- ``python -m benchmarks.calibration_shift``: intervals after a shift from winter to summer.
- ``python -m benchmarks.function_intervals``: intervals of a known function, without noise.
- ``python -m benchmarks.loader_fuzz``: hostile model files, counted by what came of them.
- ``python -m benchmarks.reader_fuzz``: the same for hostile tables of the command line.
- ``python -m benchmarks.toy``: the paper's one-dimensional example over many seeds.
- ``python -m benchmarks.two_states``: seconds of two states of the source; it prints a table.
- ``python -m benchmarks.two_states_scores``: accuracy and CPU seconds of two states, many tables.
- ``python -m benchmarks.golden``: predictions of many configurations, before and after a change of
  the code. It stores them in ``build/golden``.

Every other program writes what it measured (JSON) and a page made from it (Markdown) to
``benchmarks/results``. What is stored is not measured again, so an interrupted run is simply
started again; ``--redo`` measures it again, for example the speed of another version.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["RESULTS"]

#: Folder of the stored results.
RESULTS = Path(__file__).parent / "results"
