"""Draw the pictures of the documentation: ``python docs/make_pictures.py``.

Runs every script of docs/gallery and saves its figure in docs/pictures. If Chromium is installed,
it also writes a report page and saves a picture of its top as docs/pictures/report.png.
"""

import runpy
import shutil
import subprocess
import tempfile
from pathlib import Path

import matplotlib

from twostagegp import TwoStageGPRegressor
from twostagegp.report import write_report

DOCS = Path(__file__).parent
#: Pictures saved as PNG: maps consist of many small squares, which would be large as SVG.
AS_PNG = {"maps"}


def draw_gallery() -> None:
    """Run every script and save its figure."""
    for script in sorted((DOCS / "gallery").glob("*.py")):
        figure = runpy.run_path(str(script))["draw"]()
        with matplotlib.rc_context({"svg.hashsalt": "twostagegp", "svg.fonttype": "path"}):
            if script.stem in AS_PNG:
                figure.savefig(DOCS / "pictures" / f"{script.stem}.png", dpi=80)
            else:
                file = DOCS / "pictures" / f"{script.stem}.svg"
                figure.savefig(file, metadata={"Date": None})


def photograph_report() -> None:
    """Write a report page and save a picture of its top."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chrome"))), None)
    if chromium is None:
        return
    X, price = runpy.run_path(str(DOCS / "gallery" / "slices.py"))["houses"](300)
    model = TwoStageGPRegressor(kernels=("rbf", "matern32"), random_state=0)
    model.fit(X[:200], price[:200])
    with tempfile.TemporaryDirectory() as folder:
        page = write_report(model, X[200:], price[200:], Path(folder) / "page.html")
        subprocess.run(
            [
                chromium, "--headless", "--no-sandbox", "--hide-scrollbars",
                f"--user-data-dir={folder}/browser", "--window-size=800,1270",
                f"--screenshot={DOCS / 'pictures' / 'report.png'}", page.as_uri(),
            ],
            check=True, capture_output=True, timeout=120,
        )  # fmt: skip


if __name__ == "__main__":
    (DOCS / "pictures").mkdir(exist_ok=True)
    draw_gallery()
    photograph_report()
