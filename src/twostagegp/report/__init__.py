"""Self-contained HTML reports on fitted models: one file that loads nothing from a network.

The pages fit narrow screens and follow the reader's light or dark colour scheme.
"""

from twostagegp.report.page import Picture as Picture
from twostagegp.report.page import render_page as render_page
from twostagegp.report.page import write_page as write_page
from twostagegp.report.write import write_report as write_report

__all__ = ["Picture", "render_page", "write_page", "write_report"]
