"""Self-contained HTML pages: one file, no network, readable on a phone and in the dark."""

from twostagegp.report.page import Picture as Picture
from twostagegp.report.page import render_page as render_page
from twostagegp.report.page import write_page as write_page
from twostagegp.report.write import write_report as write_report

__all__ = ["Picture", "render_page", "write_page", "write_report"]
