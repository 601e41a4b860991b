"""Benchmark tables with their standard splits, and the toy functions of the paper.

:func:`load` reads a table from the user's folder and never downloads. :func:`fetch` downloads a
table from its public source, prepares it by a documented recipe, and writes it where :func:`load`
reads it. :func:`toy` draws the one-dimensional examples.
"""

from twostagegp.datasets.fetching import ChecksumError as ChecksumError
from twostagegp.datasets.fetching import DamagedFileError as DamagedFileError
from twostagegp.datasets.fetching import DownloadError as DownloadError
from twostagegp.datasets.fetching import cache_folder as cache_folder
from twostagegp.datasets.fetching import fetch as fetch
from twostagegp.datasets.fetching import fetchable as fetchable
from twostagegp.datasets.tables import FOLDER_VARIABLE as FOLDER_VARIABLE
from twostagegp.datasets.tables import DatasetNotFoundError as DatasetNotFoundError
from twostagegp.datasets.tables import RegressionData as RegressionData
from twostagegp.datasets.tables import load as load
from twostagegp.datasets.tables import names as names
from twostagegp.datasets.toys import toy as toy

__all__ = [
    "FOLDER_VARIABLE",
    "ChecksumError",
    "DamagedFileError",
    "DatasetNotFoundError",
    "DownloadError",
    "RegressionData",
    "cache_folder",
    "fetch",
    "fetchable",
    "load",
    "names",
    "toy",
]
