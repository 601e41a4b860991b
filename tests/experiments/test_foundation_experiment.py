"""The experiment on foundation features: splits, models, records, page and picture."""

import json
import math
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.container import BarContainer

from experiments import foundation as experiment
from experiments import foundation_report as pages
from measurements import runner
from measurements.runner import measured
from twostagegp import TwoStageGPClassifier
from twostagegp.classification.probability import sampled_softmax
from twostagegp.datasets import FOLDER_VARIABLE

N, D = 150, 6
ROOT = Path(__file__).parents[2]


class Encoder:
    """Numbers of a text's digest in place of a language model."""

    calls: list[int] = []  # noqa: RUF012

    def __init__(self, model, *, max_length, cache_dir, device):
        assert (model, max_length) == ("minilm", 256)

    def transform(self, texts):
        Encoder.calls.append(len(texts))
        return np.stack([features(text) for text in texts])


def features(text):
    """Features that know the class, which is the text's second word."""
    word = re.findall(r"\b[a-z]\b", text)[0]
    rng = np.random.default_rng(list(text.encode()))
    return rng.normal(size=D) + 1.5 * (ord(word[-1]) - ord("b"))


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A data folder with all five sets; the encoder is a stub, and nothing is cached."""
    root = tmp_path / "data"
    (root / "medical_image").mkdir(parents=True)
    (root / "medical_text").mkdir()
    rng = np.random.default_rng(0)
    for file, n_classes in (("breakhis400x", 2), ("retinal_oct", 3)):
        patient = np.sort(rng.integers(0, 30, N))
        label = rng.integers(0, n_classes, N)
        X = rng.normal(size=(N, D)) + 1.5 * label[:, None]
        np.savez(
            root / "medical_image" / f"{file}.npz",
            features=X.astype(np.float16),
            label=label.astype(np.int8),
            test=patient >= 22,
            patient=np.char.add("p", patient.astype(str)),
        )
    for file in ("ade", "medical_abstracts", "chemprot"):
        label = rng.choice(["a", "b", "c"], N)
        number = rng.integers(0, 120, N)  # some texts occur twice
        split = np.where(number < 85, "train", "test").astype(object)
        if file == "chemprot":
            split[number >= 110] = "dev"
            label[np.flatnonzero(split == "test")[:2]] = "z"
        table = pd.DataFrame(
            {"text": [f"{i} {k}" for i, k in zip(number, label, strict=True)], "label": label}
        ).assign(split=split)
        if file == "ade":
            table["pmid"] = 1000 + number // 3
            table["split"] = np.where(number // 3 < 28, "train", "test")
        table.to_csv(root / "medical_text" / f"{file}.csv.gz", index=False)
    monkeypatch.setenv(FOLDER_VARIABLE, str(root))
    monkeypatch.setattr(experiment, "TextEncoder", Encoder)
    Encoder.calls.clear()
    experiment.load_set.cache_clear()
    yield root
    experiment.load_set.cache_clear()


def load(name):
    return experiment.load_set(name, "cpu")


def run(tmp_path, *more):
    given = ["--device", "cpu", "--results", str(tmp_path / "out"), *more]
    return runner.run(experiment.MEASUREMENT, given)


def lines(tmp_path):
    path = tmp_path / "out" / "foundation.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


# --- sets and splits -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", experiment.SETS)
def test_seed_zero_is_the_split_of_the_data(name):
    data = load(name)
    train, test = experiment.split(data, 0, rows=10_000)
    assert np.array_equal(train, data.train)
    assert np.array_equal(test, data.test)
    assert data.X.shape == (N, D)
    assert data.X.dtype == np.float64


@pytest.mark.parametrize("name", experiment.SETS)
def test_other_seeds_keep_groups_together(name):
    data = load(name)
    own = len(np.unique(data.groups[data.test]))
    seen = set()
    for seed in (1, 2, 3, 4):
        train, test = experiment.split(data, seed, rows=10_000)
        assert not set(data.groups[train]) & set(data.groups[test])
        assert len(np.unique(data.groups[test])) == own
        together = np.sort(np.concatenate([train, test]))
        assert np.array_equal(together, np.sort(np.concatenate([data.train, data.test])))
        again = experiment.split(data, seed, rows=10_000)
        assert np.array_equal(train, again[0])
        seen.add(test.tobytes())
    assert len(seen) == 4


def test_groups_are_patients_documents_and_equal_texts(folder):
    with np.load(folder / "medical_image" / "breakhis400x.npz") as arrays:
        patients = arrays["patient"]
    ade = pd.read_csv(folder / "medical_text" / "ade.csv.gz")
    chemprot = pd.read_csv(folder / "medical_text" / "chemprot.csv.gz")
    for name, key in (
        ("breakhis", patients),
        ("ade", ade["pmid"].to_numpy()),
        ("chemprot", chemprot["text"].to_numpy()),
    ):
        groups = load(name).groups
        assert np.array_equal(groups[:, None] == groups, key[:, None] == key)
        assert len(np.unique(groups)) < N


def test_a_sentence_is_one_group_whichever_entities_are_marked(folder):
    path = folder / "medical_text" / "chemprot.csv.gz"
    table = pd.read_csv(path)
    table.loc[:2, "text"] = ["<< 7 >> a (x, [[ y ]])", "<< 7 >> a ([[ x ]], y)", "7 a (x, z)"]
    table.to_csv(path, index=False)
    groups = load("chemprot").groups
    assert groups[0] == groups[1]
    assert groups[0] not in groups[2:]


def test_a_smaller_cap_takes_some_of_the_rows_and_the_same_test():
    data = load("oct")
    many, test = experiment.split(data, 1, rows=60)
    few, same = experiment.split(data, 1, rows=20)
    assert (len(many), len(few)) == (60, 20)
    assert set(few) < set(many)
    assert np.array_equal(test, same)
    assert len(experiment.split(data, 1, rows=60, test_rows=7)[1]) == 7


@pytest.mark.parametrize("missing", ["folder", "file"])
def test_missing_data_is_said_before_any_fit(missing, folder, tmp_path, monkeypatch, capsys):
    if missing == "folder":
        monkeypatch.delenv(FOLDER_VARIABLE)
    else:
        (folder / "medical_image" / "retinal_oct.npz").unlink()
    assert run(tmp_path, "--sets", "breakhis,oct", "--models", "logistic") == 2
    assert FOLDER_VARIABLE in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_incomplete_files_are_named(folder):
    table = pd.DataFrame({"text": ["1 a"], "label": ["a"]})
    table.to_csv(folder / "medical_text" / "ade.csv.gz", index=False)
    with pytest.raises(ValueError, match=r"ade\.csv\.gz lacks the columns \['split', 'pmid'\]"):
        load("ade")
    np.savez(folder / "medical_image" / "retinal_oct.npz", features=np.zeros((2, 2)))
    with pytest.raises(ValueError, match=r"lacks the arrays \['label', 'test', 'patient'\]"):
        load("oct")


def test_flat_folders_are_read_too(folder, monkeypatch):
    monkeypatch.setenv(FOLDER_VARIABLE, str(folder / "medical_image"))
    assert len(load("breakhis").y) == N


def test_cache_is_not_in_the_repository():
    assert not experiment.cache_folder().resolve().is_relative_to(ROOT)


# --- models --------------------------------------------------------------------------------------


def test_certain_rows_are_those_of_the_classifier():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(90, 2))
    y = np.where(X[:, 0] + rng.normal(size=90) > 0, "u", "v")
    model = TwoStageGPClassifier(
        kernels=("rbf",), ard=False, mean="rbf", variance="rbf", device="cpu", random_state=0
    ).fit(X, y)
    new = rng.normal(size=(300, 2))
    mean, sd = model.predict_latent(new)
    draws = np.random.default_rng(0).standard_normal((100, 2))
    samples = sampled_softmax(mean, sd**2, draws)
    assert np.array_equal(experiment.certain_rows(samples), model.predict_certainty(new))


def test_certain_rows_without_spread():
    samples = np.array([[[0.7, 0.3], [0.5, 0.5]]] * 4)
    assert experiment.certain_rows(samples).tolist() == [True, False]
    assert experiment.certain_rows(np.ones((4, 2, 1))).tolist() == [True, True]


def test_logistic_takes_the_best_of_all_it_tried(monkeypatch):
    tried = []
    real = experiment.penalty_losses

    def watched(pairs, scaling):
        for inner, held in pairs:
            assert not set(inner.groups) & set(held.groups)
        for found in real(pairs, scaling):
            tried.append(found)
            yield found

    monkeypatch.setattr(experiment, "penalty_losses", watched)
    data = load("oct")
    table = experiment.Table(data.X, data.y, data.groups)
    fitted = experiment.fit_logistic(table, 0, "cpu")
    assert {scaling for _, scaling, _ in tried} == {"common", "standardised"}
    loss, scaling, C = min(tried)
    chosen = fitted.chosen
    assert (chosen["heldout_log_loss"], chosen["scaling"], chosen["C"]) == (loss, scaling, C)
    assert chosen["converged"]
    assert fitted.certain is None
    assert np.mean(fitted.classes[fitted.predict_proba(data.X).argmax(1)] == data.y) > 0.8


def test_mc_dropout_chooses_by_groups_it_has_not_seen(monkeypatch):
    seen = []
    real = experiment.heldout_loss
    monkeypatch.setattr(
        experiment, "heldout_loss", lambda y, *more: seen.append(len(y)) or real(y, *more)
    )
    data = load("breakhis")
    table = experiment.Table(data.X, data.y, data.groups)
    choices = [
        {"dropout": dropout, "lr": 0.01, "epochs": epochs}
        for dropout in (0.1, 0.5)
        for epochs in (2, 20)
    ]
    fitted = experiment.fit_mc_dropout(table, 0, "cpu", choices)
    assert len(seen) == 4
    assert 0.05 * N < seen[0] < 0.5 * N
    assert fitted.chosen["epochs"] == 20
    certain = fitted.certain(data.X)
    assert certain.dtype == bool
    assert 0.2 < certain.mean() <= 1.0


def test_gaussian_processes_get_the_groups():
    given = {}

    class Stub:
        def __init__(self, **parameters):
            given.update(parameters)

        def fit(self, X, y, groups):
            given["groups"] = groups
            raise ValueError("enough")

    data = load("ade")
    train, _ = experiment.split(data, 1, 40)
    table = experiment.Table(data.X[train], data.y[train], data.groups[train])
    with pytest.raises(ValueError, match="enough"):
        experiment.gaussian_process(Stub)(table, 1, "cpu")
    assert np.array_equal(given["groups"], data.groups[train])
    assert (given["device"], given["random_state"]) == ("cpu", 1)


# --- records -------------------------------------------------------------------------------------


def test_records_and_pages(tmp_path, monkeypatch):
    arguments = ("--sets", "breakhis", "--models", "mc_dropout,logistic", "--seeds", "2")
    short = partial(experiment.fit_mc_dropout, choices=experiment.DROPOUT_CHOICES[:2])
    monkeypatch.setitem(experiment.MODELS, "mc_dropout", short)
    assert run(tmp_path, *arguments) == 0
    found = lines(tmp_path)
    assert {(r["model"], r["seed"]) for r in found} == {
        (model, seed) for model in ("mc_dropout", "logistic") for seed in (0, 1)
    }
    for record in found:
        assert record["n_train"] + record["n_test"] == N
        assert record["n_shared"] == record["n_unseen"] == 0
        assert 0.0 <= record["ece"] <= 1.0
        assert record["accuracy"] > 0.7
        assert record["fit_cpu_seconds"] > 0.0
        assert record["chosen"]["heldout_log_loss"] > 0.0
        assert ("share_certain" in record) == (record["model"] == "mc_dropout")
    page = (tmp_path / "out" / "foundation.md").read_text(encoding="utf-8")
    assert "| breakhis | MC dropout" in page
    assert "](foundation.svg)" in page
    ElementTree.fromstring((tmp_path / "out" / "foundation.svg").read_text(encoding="utf-8"))
    # Another number of rows is another experiment; what has more rows stands below.
    assert run(tmp_path, *arguments, "--rows", "50", "--models", "logistic") == 0
    assert len(lines(tmp_path)) == 6
    page = (tmp_path / "out" / "foundation.md").read_text(encoding="utf-8")
    own, more_rows = page.split("## With more training rows")
    assert "At most 50 training rows" in own
    assert "MC dropout  " not in own
    assert "At most 5000 training rows instead, which is all of them in `breakhis`" in more_rows
    assert "| breakhis | MC dropout" in more_rows


@pytest.mark.parametrize("stages", [1, 2])
def test_the_single_and_the_two_stage_model_run(stages, monkeypatch):
    small = {"kernels": ("rbf",), "ard": False, "mean": "rbf", "variance": "rbf"}
    fit = experiment.gaussian_process(
        lambda **given: TwoStageGPClassifier(stages=stages, **small, **given)
    )
    monkeypatch.setitem(experiment.MODELS, "two_stage", fit)
    record = measured(
        experiment.measure, experiment.Task("chemprot", "two_stage", 0, 60, device="cpu")
    )
    assert record["n_train"] == 60
    assert record["n_unseen"] == 2
    assert record["n_classes"] == 3
    assert 0.0 <= record["share_certain"] <= 1.0
    assert record["chosen"]["method"] == "exact"
    assert record["device"] == "cpu"
    # Two rows at 36 nats each are part of it.
    assert record["log_loss"] >= 2 * 52 * math.log(2.0) / record["n_test"]
    assert record["accuracy"] <= 1.0 - 2 / record["n_test"]


def refuse(train, seed, device):
    """Stand in for a model, when only what it is given matters."""
    raise ValueError(f"{len(train.y)} rows")


def test_texts_are_encoded_once_for_all_fits(tmp_path, monkeypatch):
    monkeypatch.setitem(experiment.MODELS, "logistic", refuse)
    sets = ("--sets", "ade,abstracts", "--models", "logistic", "--seeds", "3")
    assert run(tmp_path, *sets) == 1
    assert Encoder.calls == [N, N]


def test_paper_settings_see_fewer_rows(folder, monkeypatch):
    label = np.arange(1700) % 3
    np.savez(
        folder / "medical_image" / "retinal_oct.npz",
        features=np.zeros((1700, 2)),
        label=label,
        test=np.arange(1700) >= 1600,
        patient=np.arange(1700),
    )
    for model, rows in (("paper", 1500), ("single", 1600)):
        monkeypatch.setitem(experiment.MODELS, model, refuse)
        record = measured(experiment.measure, experiment.Task("oct", model, 0, 5000, "cpu"))
        assert record["error"] == f"ValueError: {rows} rows"


@pytest.mark.slow
def test_the_program_runs_with_several_processes(tmp_path):
    program = [sys.executable, "-m", "experiments.foundation", "--jobs", "2", "--device", "cpu"]
    program += ["--sets", "breakhis", "--models", "logistic", "--seeds", "2"]
    subprocess.run([*program, "--results", str(tmp_path / "out")], cwd=ROOT, check=True)
    assert {r["seed"] for r in lines(tmp_path)} == {0, 1}
    assert not any("error" in r for r in lines(tmp_path))


# --- page ----------------------------------------------------------------------------------------


def record(set_name, model, seed, **scores):
    base = {
        "set": set_name,
        "model": model,
        "seed": seed,
        "rows": 5000,
        "n_train": 100,
        "n_test": 50,
        "n_features": 6,
        "n_classes": 2,
        "n_unseen": 1,
        "n_shared": 0,
        "device": "cpu",
        "version": "0",
        "code": "c",
        "accuracy": 0.8,
        "log_loss": 0.5,
        "brier": 0.3,
        "ece": 0.05,
        "aurc": 0.1,
        "fit_cpu_seconds": 2.0,
        "predict_cpu_seconds": 0.1,
        "chosen": {"C": 0.1, "heldout_log_loss": 0.4},
    }
    if model != "logistic":
        base |= {"accuracy_certain": 0.9, "accuracy_uncertain": None, "share_certain": 1.0}
    return base | scores


def goal_rows(records):
    page = pages.report(records)
    table = page.split("## Goals")[1].split("## Sets")[0]
    rows = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("|")]
    return {row[0].strip(): [cell.strip() for cell in row[1:]] for row in rows[2:]}


def test_differences_are_paired_over_common_seeds():
    records = [record("oct", "two_stage", s, log_loss=v) for s, v in enumerate((0.5, 0.7, 0.9))]
    records += [record("oct", "single", s, log_loss=v) for s, v in ((1, 0.8), (2, 0.9), (3, 9.0))]
    found = pages.difference(records, "oct", "log_loss", "two_stage", "single")
    assert found.n == 2
    assert found.mean == pytest.approx(-0.05)
    assert found.se == pytest.approx(0.05)
    assert pages.difference(records, "oct", "log_loss", "two_stage", "paper") is None
    one = pages.difference(records[:4], "oct", "log_loss", "two_stage", "single")
    assert math.isnan(one.se)
    assert str(one) == "-0.1000"


def test_goals_are_judged_by_set_and_in_all():
    records = []
    for name in ("breakhis", "oct"):
        for seed in (0, 1):
            better = 0.01 * (1 + seed)
            records += [
                record(name, "two_stage", seed),
                record(name, "single", seed, log_loss=0.5, aurc=0.1 + better),
                record(name, "mc_dropout", seed, log_loss=0.5 + better, ece=0.05),
                # A difference of -0.005 ± 0.005: within its standard error.
                record(name, "logistic", seed, accuracy=0.8 + 0.01 * seed),
            ]
    rows = goal_rows(records)
    verdicts = {label: cells[-2:] for label, cells in rows.items()}
    assert verdicts == {
        "log loss − single stage's ≤ 0": ["2 of 2", "yes"],  # equal is enough
        "AURC − single stage's ≤ 0": ["2 of 2", "yes"],
        "log loss − MC dropout's < 0": ["2 of 2", "yes"],
        "ECE − MC dropout's < 0": ["0 of 2", "**no**"],  # equal is not
        "accuracy − logistic regression's ≥ −SE": ["2 of 2", "yes"],
    }
    assert rows["AURC − single stage's ≤ 0"][0] == "-0.0150 ± 0.0050"
    # Worse on one set only.
    for r in records:
        if (r["set"], r["model"]) == ("oct", "two_stage"):
            r["accuracy"] -= 0.001
    cells = goal_rows(records)["accuracy − logistic regression's ≥ −SE"]
    assert cells == ["-0.0050 ± 0.0050", "-0.0060 ± 0.0050 **no**", "1 of 2", "**no**"]
    # A comparison that is missing leaves the verdict open.
    left = [r for r in records if (r["set"], r["model"]) != ("oct", "single")]
    assert goal_rows(left)["AURC − single stage's ≤ 0"][1:] == ["–", "1 of 1", "–"]


def test_page_says_what_there_is():
    records = [record("chemprot", "paper", 0, n_train=30), record("chemprot", "logistic", 0)]
    records.append(record("ade", "two_stage", 0, error="it broke"))
    page = pages.report(records)
    assert "foundation.svg" not in page
    assert "set ade, model two_stage, seed 0: it broke" in page
    assert "see 30 training rows at most" in page
    line = next(x for x in page.splitlines() if x.startswith("| chemprot | 1 "))
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells == ["chemprot", "1", "6", "2", "100", "50", "1", "0"]
    assert "C 0.100 (1)" in page


def test_picture_has_a_bar_for_every_accuracy():
    records = [
        record(name, model, seed, accuracy_uncertain=0.6)
        for name in ("oct", "ade")
        for model in ("mc_dropout", "single", "two_stage", "logistic")
        for seed in (0, 1)
    ]
    ax = pages.draw([r for r in records if r["model"] in pages.DRAWN]).axes[0]
    bars = [bar for group in ax.containers if isinstance(group, BarContainer) for bar in group]
    heights = [bar.get_height() for bar in bars]
    assert sorted(heights) == pytest.approx([0.6] * 6 + [0.9] * 6)
    assert len({round(bar.get_x(), 6) for bar in bars}) == 12
    assert pages.picture([r for r in records if r["model"] == "logistic"]) is None
    assert pages.picture(records) == pages.picture(records)
    # A group without rows leaves its bar out.
    assert pages.picture([record("oct", "single", 0)]).startswith("<?xml")
