"""Files of older versions."""

import json
from pathlib import Path

import numpy as np
import pytest
from stored_models import NEW, folder_bytes

import twostagegp
from twostagegp.pipeline.settings import SearchSettings

DATA = Path(__file__).parents[1] / "data"


def test_a_folder_of_format_1_still_loads():
    path = DATA / "model_format_1"
    assert folder_bytes(path) < 60_000
    expected = json.loads((DATA / "model_format_1_predictions.json").read_text())
    model = twostagegp.load(path)
    mean, std = model.predict(np.array(expected["X"]), return_std=True)
    np.testing.assert_allclose(mean, expected["mean"], rtol=1e-7)
    np.testing.assert_allclose(std, expected["std"], rtol=1e-7)


@pytest.mark.parametrize("name", ["exact", "neighbors", "forest", "single"])
def test_classifiers_with_ridges_and_neighbours_of_their_own_still_load(name, tmp_path):
    path = DATA / f"classifier_format_1_{name}"
    assert folder_bytes(path) < 60_000
    expected = json.loads((DATA / "classifier_format_1_predictions.json").read_text())[name]
    new = np.array(expected["new"])
    model = twostagegp.load(path)
    np.testing.assert_allclose(model.predict_proba(new), expected["proba"], atol=1e-9)
    np.testing.assert_allclose(model.predict_latent(new), expected["latent"], atol=1e-8)
    model.save(tmp_path / "again", include_factors=True)
    again = twostagegp.load(tmp_path / "again")
    np.testing.assert_allclose(again.predict_proba(new), expected["proba"], atol=1e-9)


def test_ridges_of_early_files_of_format_2_still_load(models, forge):
    def as_before(files):
        content = json.loads(files["model"])
        for part in content["parts"]:
            if part["class"] == "RidgeMean":
                posterior = content["parts"][part["state"]["posterior"]["part"]]["state"]
                repeated = {key: posterior[key] for key in ("kernel", "parameters")}
                part["state"] |= {**repeated, "label": "rbf/nll"}
                part["class"] = "NeighborMean"
        assert "NeighborMean" in json.dumps(content)
        return {**files, "model": json.dumps(content).encode()}

    loaded = twostagegp.load(forge("neighbors", as_before))
    np.testing.assert_allclose(loaded.predict(NEW), models("neighbors").predict(NEW), rtol=1e-9)


def test_fields_and_parameters_that_an_older_file_does_not_have_take_their_defaults(models, forge):
    def older(files):
        content = json.loads(files["model"])
        for part in content["parts"]:
            newer = {"Prepared": "weight_unit", "FitReport": "updates", "Settings": "search"}
            part["state"].pop(newer.get(part["class"]), None)
            if part["class"] == "TwoStageGPRegressor":
                del part["state"]["missing"]
        return {**files, "model": json.dumps(content).encode()}

    loaded = twostagegp.load(forge("neighbors", older))
    assert loaded.missing == "auto"
    assert loaded.fit_report_.updates == []
    assert loaded.settings.search == SearchSettings()
    assert loaded.fitted_.data[0].weight_unit == 1.0
