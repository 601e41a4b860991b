"""What benchmarks and experiments share: one runner, one store of results, one publisher.

A benchmark or experiment is a module with a ``MEASUREMENT``
(:class:`~measurements.runner.Measurement`): its cells, a function from a cell to a record, and a
page made from all records.

- :mod:`measurements.runner` has the command line, measures the cells whose record is missing, and
  writes page and figure.
- :mod:`measurements.processes` measures cells in processes of their own, with a time limit.
- :mod:`measurements.cores` restricts a process to some cores, and keeps cores busy.
- :mod:`measurements.store` keeps records as JSON lines that survive an interrupted run.
- :mod:`measurements.provenance` says which code and which machine a record comes from.
- :mod:`measurements.pages` and :mod:`measurements.tables` make Markdown from records.
- :mod:`measurements.publish` copies pages into the README and the documentation.
"""
