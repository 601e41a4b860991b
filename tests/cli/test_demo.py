"""The pictures are drawn, the page is whole, and the demonstration runs from end to end."""

import base64
import re

import numpy as np
import pytest
from jinja2 import UndefinedError
from matplotlib.figure import Figure
from page_reader import PageReader

from twostagegp import plotting
from twostagegp.cli import demo
from twostagegp.errors import InputError
from twostagegp.report import Picture, page, render_page, write_page


@pytest.fixture
def ax():
    return Figure().subplots()


@pytest.fixture(scope="module")
def results():
    return demo.run_all(demo.load_tasks(quick=True), quick=True, console=demo.Console(quiet=True))


@pytest.fixture(scope="module")
def context(results):
    return demo.page_context(results)


@pytest.fixture(scope="module")
def html(context):
    return render_page(context)


@pytest.fixture(scope="module")
def reader(html):
    reader = PageReader()
    reader.feed(html)
    reader.close()
    return reader


# --- pictures ------------------------------------------------------------------------------------


def test_plot_band_draws_a_band_two_lines_and_the_points(ax):
    x = np.array([2.0, 0.0, 1.0])
    interval = np.column_stack([x - 1, x + 1])
    plotting.plot_band(ax, x[:, None], x, interval, [[0.5]], [0.4], truth=x**2)
    assert len(ax.collections) == 1
    truth, mean, points = ax.lines
    assert mean.get_xdata().tolist() == [0.0, 1.0, 2.0]  # sorted for drawing
    assert truth.get_ydata().tolist() == [0.0, 1.0, 4.0]
    assert points.get_ydata().tolist() == [0.4]


def test_plot_observed_separates_rows_inside_and_outside(ax):
    plotting.plot_observed(ax, [0.0, 1.0, 9.0], [0.1, 1.1, 2.0], [[-1, 1], [0, 2], [1, 3]])
    _, inside, outside = ax.lines
    assert (len(inside.get_xdata()), len(outside.get_xdata())) == (2, 1)
    assert len(ax.collections) == 2


def test_observed_with_every_row_inside_has_one_colour(ax):
    plotting.plot_observed(ax, [0.0, 1.0], [0.0, 1.0], [[-1, 1], [0, 2]])
    assert len(ax.collections) == 1


def test_pit_bars_count_the_rows_and_the_band_is_binomial(ax):
    n = 200
    plotting.plot_pit(ax, (np.arange(n) + 0.5) / n, n_bins=10)
    *bars, band = ax.patches
    assert [bar.get_height() for bar in bars] == [20] * 10
    # Near the normal approximation 20 ± 1.96 sqrt(200 · 0.1 · 0.9), that is 11.7 and 28.3.
    low, high = band.get_y(), band.get_y() + band.get_height()
    assert (low, high) == pytest.approx((12.0, 28.0), abs=1.0)


def test_reliability_of_uniform_values_is_the_diagonal(ax):
    n = 1000
    plotting.plot_reliability(ax, (np.arange(n) + 0.5) / n)
    _, line = ax.lines
    np.testing.assert_allclose(line.get_xdata(), line.get_ydata(), atol=2 / n)
    assert len(ax.collections) == 1


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda ax: plotting.plot_pit(ax, [0.5, 1.5]), "between 0 and 1"),
        (lambda ax: plotting.plot_pit(ax, []), "at least one"),
        (lambda ax: plotting.plot_reliability(ax, [0.5], levels=[1.0]), "between 0 and 1"),
        (lambda ax: plotting.plot_band(ax, [0, 1], [0, 1], [[0, 1]]), r"must have shape \(2, 2\)"),
        (lambda ax: plotting.plot_band(ax, [0, 1], [0], [[0, 1]] * 2), "mean must hold 2 values"),
        (lambda ax: plotting.plot_band(ax, [[0, 1]], [0], [[0, 1]]), "single column"),
    ],
)
def test_wrong_shapes_are_named(ax, draw, message):
    with pytest.raises(InputError, match=message):
        draw(ax)


def test_pictures_follow_the_colour_scheme(ax):
    plotting.plot_pit(ax, [0.2, 0.7])
    source = Picture.from_figure(ax.figure, "title", "alt").src
    svg = base64.b64decode(source.partition(",")[2]).decode()
    assert "prefers-color-scheme:dark" in svg
    assert "var(--model)" in svg
    # Outside the rule that defines the light colours none of them is left.
    assert plotting.MODEL not in svg.partition("</style>")[2]


# --- the page ------------------------------------------------------------------------------------


def test_page_is_well_formed(reader):
    assert reader.open == []
    assert reader.tags.count("h1") == 1
    assert reader.tags.count("table") == reader.tags.count("caption") >= 8
    assert len(reader.ids) == len(set(reader.ids))


def test_every_picture_has_an_alternative_text(reader):
    assert len(reader.images) >= 15
    assert all(len(image["alt"]) > 30 for image in reader.images)


def test_page_needs_no_network(html, reader):
    assert not re.search(r"https?://", html)
    assert all(image["src"].startswith("data:image/svg+xml;base64,") for image in reader.images)
    assert not {"link", "iframe"} & set(reader.tags)


def test_page_shows_the_record_the_comparison_and_the_verdict(html, context):
    assert "noise std" in html
    assert "Single-stage, optimised" in html
    assert "Two-stage" in context["extra"][0]["verdict"]


def test_missing_name_fails_and_leaves_the_old_page(tmp_path, context):
    path = tmp_path / "page.html"
    path.write_text("old")
    with pytest.raises(UndefinedError):
        write_page(path, {k: v for k, v in context.items() if k != "title"})
    assert path.read_text() == "old"


def test_a_failed_write_leaves_the_old_page_and_no_temporary_files(tmp_path, context, monkeypatch):
    path = tmp_path / "page.html"
    path.write_text("old")

    def full_disk(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(page.os, "replace", full_disk)
    with pytest.raises(OSError, match="no space"):
        write_page(path, context)
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["page.html"]


# --- the demonstration ---------------------------------------------------------------------------


class FakeResult:
    """What ``verdict`` reads of a result."""

    def __init__(self, data, model, log_density):
        self.task = type("Task", (), {"name": data})
        self.model_name = model
        self.log_density = np.asarray(log_density)


def _fake(two_stage):
    noise = np.linspace(-0.1, 0.1, 20)
    zeros = np.zeros(20)
    rivals = [FakeResult("A", name, zeros) for name in (demo.PAPER, demo.OPTIMISED)]
    return [*rivals, FakeResult("A", demo.TWO_STAGE, two_stage + noise)]


@pytest.mark.parametrize(
    ("two_stage", "words"), [(-1.0, "worse than"), (0.0, "no better than"), (1.0, "is better than")]
)
def test_the_verdict_follows_from_the_scores(two_stage, words):
    assert words in demo.verdict(_fake(two_stage))


def test_toy_is_tested_on_fresh_points():
    toy, table = demo.load_tasks()
    assert (toy.X_train.shape, toy.X_test.shape) == ((24, 1), (1000, 1))
    assert (len(table.y_train), len(table.y_test)) == (353, 89)
    assert not np.isin(toy.X_test, toy.X_train).any()


def test_the_demo_runs_from_end_to_end(tmp_path, capsys):
    path = tmp_path / "new folder" / "page.html"
    assert demo.main(["--output", str(path)], quick=True) == 0
    out = capsys.readouterr().out
    assert "Fitting Two-stage" in out
    assert "95 % coverage" in out
    assert "page.html" in out
    assert path.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
