"""Models that cannot be saved."""

import sys

import gpytorch
import numpy as np
import pytest
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.svm import SVR
from stored_models import X, Y, short_regressor

import twostagegp
from twostagegp import ExactGPRegressor, TwoStageGPRegressor
from twostagegp.errors import InputError, ModelFileError


class MyRidge(Ridge):
    pass


class NoEstimator:
    def fit(self, X, y):
        return self

    def predict(self, X):
        return np.zeros(len(X))

    def get_params(self, deep=True):
        return {}

    def set_params(self):
        return self


class MyModel(TwoStageGPRegressor):
    pass


@pytest.mark.parametrize(
    ("mean", "reason"),
    [
        (MyRidge(), r"MyRidge cannot be saved.*docs/files.md"),
        (SVR(), r"sklearn.svm._classes.SVR cannot be saved"),
        (NoEstimator(), r"NoEstimator, which cannot be saved"),
        (make_pipeline(FunctionTransformer(np.tanh), Ridge()), r"FunctionTransformer"),
    ],
)
def test_an_unknown_regressor_is_refused_when_it_is_saved(mean, reason, tmp_path):
    model = short_regressor(mean=mean, calibration=None).fit(X, Y)
    with pytest.raises(ModelFileError, match=reason):
        model.save(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_what_a_file_does_not_hold_is_said(models, tmp_path):
    with pytest.raises(NotFittedError):
        TwoStageGPRegressor().save(tmp_path / "model")
    with pytest.raises(ModelFileError, match="derived from one of ours"):
        MyModel(kernels=("rbf",), random_state=0).fit(X, Y).save(tmp_path / "model")
    model = short_regressor(mean="rbf", calibration=None).fit(X, Y)
    model.remark = "mine"
    with pytest.raises(ModelFileError, match="remark is no attribute"):
        model.save(tmp_path / "model")
    del model.remark
    model.fit_report_.updates = [3]
    with pytest.raises(ModelFileError, match=r"FitReport.updates is \[3\], not of the type list"):
        model.save(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


class MyKernel(gpytorch.kernels.RBFKernel):
    pass


def _with_prior():
    prior = gpytorch.priors.GammaPrior(2.0, 2.0)
    return gpytorch.kernels.RBFKernel(lengthscale_prior=prior)


@pytest.mark.parametrize(
    ("kernel", "reason"), [(MyKernel(), "MyKernel"), (_with_prior(), "a prior")]
)
def test_an_unknown_kernel_is_refused(kernel, reason, tmp_path):
    model = ExactGPRegressor(kernel, random_state=0).fit(X, Y)
    with pytest.raises(ModelFileError, match=reason):
        model.save(tmp_path / "model")


def test_missing_packages_are_named(models, tmp_path, monkeypatch):
    models("exact").save(tmp_path / "model")
    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
    with pytest.raises(InputError, match=r"pip install 'twostagegp\[files\]'"):
        models("exact").save(tmp_path / "other")
    with pytest.raises(InputError, match=r"pip install 'twostagegp\[files\]'"):
        twostagegp.load(tmp_path / "model")
