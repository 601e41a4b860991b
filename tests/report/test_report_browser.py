"""Tests of the report in a browser: no errors, no horizontal scrolling, both colour schemes."""

import html
import json
import re
import shutil
import subprocess

import numpy as np
import pandas as pd
import pytest

from twostagegp import ExactGPRegressor
from twostagegp.report import write_report

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)
WIDTHS = (360, 768, 1280)
#: Pattern of the coverage of the 80 % intervals in the page's data for the slider.
LEVEL_80 = r'"level": 80.*?"share": "(.*?)"'
#: A script that does inside the page what a reader would do, and reports the results.
PROBE = """
window.addEventListener("load", function () {
  var slider = document.querySelector("input[type=range]");
  slider.value = "80";
  slider.dispatchEvent(new Event("input"));
  var svg = document.querySelector("[data-plot] svg");
  svg.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight" }));
  var table = document.querySelector("table.sortable");
  table.querySelectorAll("thead button")[1].click();
  var pictures = Array.prototype.slice.call(document.images);
  parent.postMessage(JSON.stringify({
    width: window.innerWidth,
    scroll: document.documentElement.scrollWidth,
    dark: matchMedia("(prefers-color-scheme: dark)").matches,
    ground: getComputedStyle(document.body).backgroundColor,
    words: document.querySelector("[data-words]").textContent,
    row: document.querySelector("[data-row]").textContent,
    slices: document.querySelectorAll("[data-chooser] figure:not([hidden])").length,
    sorted: table.querySelector("tbody th").textContent,
    unseen: pictures.filter(function (p) { return p.complete && p.naturalWidth === 0; }).length
  }), "*");
});
"""
HARNESS = """<!DOCTYPE html><meta charset="utf-8"><title>harness</title><body>
<pre id="found"></pre>
<script>
addEventListener("message", function (event) {
  document.getElementById("found").textContent += event.data + "\\n";
});
</script>
<iframe src="page.html" width="500" height="400"></iframe>
%s
</body>"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    rng = np.random.default_rng(0)
    X = pd.DataFrame(
        {
            "a rather long name of a column": rng.normal(size=70),
            "kind": rng.choice(["one", "two"], 70),
            **{f"more{k}": rng.normal(size=70) for k in range(8)},
        }
    )
    y = X.iloc[:, 0] + (X["kind"] == "two") + 0.2 * rng.normal(size=70)
    model = ExactGPRegressor(random_state=0).fit(X[:40], y[:40])
    folder = tmp_path_factory.mktemp("browser")
    page = write_report(model, X[40:], y[40:], folder / "page.html").read_text("utf-8")
    open_page = re.sub(r"script-src '[^']*'", "script-src 'unsafe-inline'", page)
    assert open_page != page
    (folder / "probe.html").write_text(
        open_page.replace("</body>", f"<script>{PROBE}</script></body>"), encoding="utf-8"
    )
    frames = "".join(
        f'<iframe src="probe.html" width="{w}" height="800" frameborder="0" '
        f'style="color-scheme: {scheme}"></iframe>'
        for w in WIDTHS
        for scheme in ("light", "dark")
    )
    (folder / "harness.html").write_text(HARNESS % frames, encoding="utf-8")
    return folder, page


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this computer")
def test_page_works_at_every_width_in_both_colour_schemes(folder, tmp_path):
    path, page = folder
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-extensions",
        f"--user-data-dir={tmp_path}", "--enable-logging=stderr", "--window-size=1400,900",
        "--virtual-time-budget=4000", "--dump-dom", (path / "harness.html").as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    said = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert said == []
    text = html.unescape(re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.S)[1])
    answers = [json.loads(line) for line in text.split("\n")[:-1]]
    found = sorted((answer["width"], answer["dark"]) for answer in answers)
    assert found == [(width, dark) for width in WIDTHS for dark in (False, True)]
    share = json.loads(f'"{re.search(LEVEL_80, page)[1]}"')
    widest_first = re.search(r'<table class="cases sortable">(.*?)</table>', page, re.S)[1]
    narrowest = re.findall(r'<th scope="row">(.*?)</th>', widest_first)[-1]
    for answer in answers:
        assert answer["sorted"] == narrowest
        assert answer["scroll"] <= answer["width"]
        assert answer["ground"] == ("rgb(20, 24, 29)" if answer["dark"] else "rgb(255, 255, 255)")
        assert answer["words"].startswith("At 80 %")
        assert share in answer["words"]
        assert answer["row"].startswith("Row 40: observed")
        assert "80 % interval" in answer["row"]
        assert answer["slices"] == 1
        assert answer["unseen"] == 0
