"""The list of classes that a file may hold.

A class that is not here is neither written nor made, whatever a file says. The fields of a class
and the types of their values come from its annotations (``fields.py``). Here stands only what the
annotations cannot say: attributes that are not stored (caches, which are made again when they are
needed), factors (matrices of n × n numbers, stored on demand only), how an object is made if its
attributes are not simply set, and which function checks that its fields are consistent.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from twostagegp.errors import ModelFileError
from twostagegp.storage import checks, making, older_classifiers
from twostagegp.storage.fields import (
    Field,
    annotated_fields,
    constructor_fields,
    estimator_fields,
)

__all__ = ["ESTIMATORS", "PARTS", "ROLES", "Part"]

_PACKAGE = "twostagegp"
#: Attributes that scikit-learn sets for data frames only.
_OPTIONAL = frozenset({"feature_names_in_"})


@dataclass(frozen=True)
class Part:
    """How objects of one class are written and made.

    Attributes
    ----------
    path : str
        Module and name of the class, inside the package.
    is_estimator : bool
        Whether it is an estimator that ``save`` takes; it may also be stored before ``fit``.
    is_member : bool
        An estimator that is stored inside another one only, such as a mean.
    by_constructor : bool
        Store the arguments of the constructor only; it computes all other attributes again.
    not_stored : tuple of str
        Attributes that are not written.
    factors : tuple of str
        Attributes that are written only if factors are asked for.
    rebuild : str
        Name of the method that computes absent factors.
    make : callable, optional
        Makes the object from the class and its fields; by default the constructor is called or
        the attributes are set, as ``by_constructor`` says.
    check : callable, optional
        Raises ModelFileError if the fields of an object are not consistent.
    """

    path: str
    is_estimator: bool = False
    by_constructor: bool = False
    is_member: bool = False
    not_stored: tuple[str, ...] = ()
    factors: tuple[str, ...] = ()
    rebuild: str = ""
    make: Callable[[Any, dict[str, Any]], Any] | None = None
    check: Callable[[Any], None] | None = None

    @property
    def name(self) -> str:
        """Name of the class in a file."""
        return self.path.rpartition(".")[2]

    @property
    def module(self) -> str:
        """Full name of the module that defines the class."""
        return f"{_PACKAGE}.{self.path.rpartition('.')[0]}"

    @cached_property
    def cls(self) -> Any:
        """The class, imported when it is first needed."""
        return getattr(importlib.import_module(self.module), self.name)

    @cached_property
    def fields(self) -> dict[str, Field]:
        """The fields that a file may have."""
        derive = annotated_fields
        if self.is_estimator:
            derive = estimator_fields
        elif self.by_constructor:
            derive = constructor_fields
        found = derive(self.cls, _find_class)
        return {name: field for name, field in found.items() if name not in self.not_stored}

    @cached_property
    def fitted(self) -> frozenset[str]:
        """The fields of an estimator that ``fit`` sets."""
        return frozenset(name for name in self.fields if self.is_estimator and name.endswith("_"))

    def is_unfitted(self, given: Set[str]) -> bool:
        """Return whether these are the fields of an estimator before ``fit``."""
        return self.is_estimator and not given & self.fitted

    def absent(self, given: Set[str]) -> dict[str, Field]:
        """Return the fields that an object must have and that are not given."""
        optional = _OPTIONAL.union(self.factors)
        if self.is_unfitted(given):
            optional |= self.fitted
        return {name: self.fields[name] for name in self.fields if name not in optional | given}

    def make_object(self, fields: dict[str, Any]) -> Any:
        """Return an object of the class with these fields."""
        default = making.call_constructor if self.by_constructor else making.set_attributes
        return (self.make or default)(self.cls, fields)

    def is_cache(self, name: str) -> bool:
        """Return whether an attribute is computed again instead of stored."""
        defined = inspect.getattr_static(self.cls, name, None)
        return name in self.not_stored or isinstance(defined, cached_property)


def _find_class(name: str) -> Any:
    if name not in PARTS:
        raise ModelFileError(f"the class {name} of an annotation is not in storage/registry.py")
    return PARTS[name].cls


def _column(path: str) -> Part:
    return Part(f"data.columns.{path}", not_stored=("told", "zone"), make=making.make_column)


def _older(name: str, make: Callable[[Any, dict[str, Any]], Any]) -> Part:
    return Part(f"storage.older_classifiers.{name}", make=make)


_ALL = (
    # estimators
    Part("estimators.regressor.TwoStageGPRegressor", True, check=checks.check_regressor),
    Part("estimators.exact_gp.ExactGPRegressor", True, check=checks.check_regressor),
    Part("estimators.gpnn.GPNNRegressor", True, check=checks.check_regressor),
    Part("estimators.classifier.TwoStageGPClassifier", True, check=checks.check_classifier),
    Part("estimators.cv_plus.CVPlusRegressor", True, check=checks.check_cv_plus),
    Part("pipeline.mean.tabpfn.TabPFNMean", True, is_member=True, check=checks.check_tabpfn),
    # parameters of estimators
    Part("training.schedule.Training"),
    Part("training.rounds.Schedule"),
    Part("pipeline.settings.Settings"),
    Part("pipeline.settings.ClassSettings"),
    Part("pipeline.settings.LevelSettings"),
    Part("pipeline.settings.LocalScaleSettings"),
    Part("pipeline.settings.MeanSettings"),
    Part("pipeline.settings.MethodSettings"),
    Part("pipeline.settings.OutsideSettings"),
    Part("pipeline.settings.SampleSettings"),
    Part("pipeline.settings.ShapeSettings"),
    Part("pipeline.settings.ValueSettings"),
    Part("pipeline.settings.VarianceSettings"),
    Part("runtime.dask_cluster.DaskSettings"),
    Part("search.settings.SearchSettings"),
    Part("engines.exact.settings.ExactSettings"),
    # the fitted state and its record
    Part("estimators.fitted.FittedRegression", check=checks.check_targets),
    Part("estimators.fitted.FittedTarget", check=checks.check_target),
    Part("estimators.fitted.FittedClasses"),
    Part("estimators.fit_report.FitReport", check=checks.check_report),
    Part("search.stages.SearchRecord", by_constructor=True),
    Part("search.kernel_search.KernelSearch"),
    Part("search.kernel_search.Entry"),
    Part("search.repetitions.Repeated"),
    # columns of the user's table
    Part("data.columns.encoder.TableEncoder", check=checks.check_encoder),
    _column("numbers.NumberColumn"),
    _column("numbers.EmptyColumn"),
    _column("numbers.BooleanColumn"),
    _column("numbers.OrderedColumn"),
    _column("times.DurationColumn"),
    _column("times.DateColumn"),
    _column("categories.CategoryColumn"),
    Part("data.columns.levels.Levels"),
    # training rows and units
    Part("data.scaling.Prepared", not_stored=("y",), check=checks.check_prepared),
    Part("data.scaling.Scaling", check=checks.check_scaling),
    Part("data.rows.Rows", check=checks.check_rows),
    Part("data.rows.Merged", check=checks.check_merged),
    # kernels
    Part("kernels.stationary.NamedKernel", check=checks.check_named_kernel),
    Part("kernels.linear.LinearKernel"),
    Part("kernels.plus_constant.PlusConstant", by_constructor=True),
    Part("kernels.wrapped.WrappedKernel", not_stored=("_takes_batches",)),
    Part("data.kept_columns.Columns", check=checks.check_columns),
    Part("training.candidates.Candidate"),
    # engines
    Part(
        "engines.exact.engine.ExactPosterior",
        not_stored=("settings",),
        factors=("_factor",),
        rebuild="rebuild_factor",
        check=checks.check_exact_posterior,
    ),
    Part(
        "engines.exact.several.SeveralPosterior",
        factors=("_A", "_factors"),
        rebuild="rebuild_factor",
        check=checks.check_several_posterior,
    ),
    Part("engines.several.PerTargetPosterior", check=checks.check_per_target),
    Part("engines.neighbors.engine.NeighborEngine", check=checks.check_neighbor_engine),
    Part("engines.neighbors.engine.IndexStore", by_constructor=True),
    Part("engines.neighbors.engine.NeighborPosterior", by_constructor=True, make=making.condition),
    Part("engines.svgp.SparsePosterior", by_constructor=True, make=making.condition),
    # the three parts of a regressor
    Part("pipeline.model.TwoStageFit"),
    Part("pipeline.mean.stacked.StackedMean", check=checks.check_stack),
    Part("pipeline.mean.models.ConstantMean"),
    Part("pipeline.mean.models.RidgeMean", by_constructor=True),
    Part("pipeline.mean.crossfit.RegressorMean"),
    Part("pipeline.variance.GPVariance"),
    Part("pipeline.variance.ConstantVariance"),
    Part("pipeline.calibration.fit.Calibration"),
    Part("pipeline.calibration.by_level.LevelFactors", check=checks.check_level_factors),
    Part("pipeline.calibration.local_scale.LocalScale"),
    Part("pipeline.calibration.local_scale.Combination"),
    Part("pipeline.calibration.local_scale.ScaleRidge"),
    Part("pipeline.calibration.local_scale.ScaleTrees"),
    Part("pipeline.calibration.shape.Shape", check=checks.check_shape),
    Part("pipeline.calibration.value_weights.ValueWeights", check=checks.check_value_weights),
    Part("pipeline.outside.law.Outside", check=checks.check_outside),
    Part("pipeline.outside.law.Member", check=checks.check_outside_member),
    # regressors of a single stage
    Part("estimators.exact_gp.SingleStageFit"),
    Part("estimators.gpnn.GPNNFit"),
    Part("estimators.gpnn.Whitening", by_constructor=True, check=checks.check_whitening),
    # classification
    Part("classification.fit.ClassFit"),
    Part("classification.mean.ClassMean"),
    Part("classification.ridges.Tried"),
    Part("classification.ridges.GPMember"),
    Part("classification.classifiers.CrossFitted"),
    Part("classification.latents.Latents", check=checks.check_latents),
    Part("classification.pool.Pool"),
    Part("classification.views.View"),
    Part("classification.table.ClassTable", check=checks.check_class_table),
    Part("classification.dirichlet.Dirichlet"),
    Part("classification.variance.TrainedKernel"),
    Part("classification.calibration.LatentScale"),
    # classifiers of older files
    _older("ExactRidge", older_classifiers.make_ridge),
    _older("NeighborRidge", older_classifiers.make_ridge),
    _older("ExactLatents", older_classifiers.make_latents),
    _older("LocalLatents", older_classifiers.make_latents),
    Part("storage.older_classifiers.LocalRows", check=checks.check_local_rows),
)

#: Every class that a file may hold, by its name in the file.
PARTS: dict[str, Part] = {part.name: part for part in _ALL}
#: Estimators that can be saved.
ESTIMATORS = tuple(part.name for part in _ALL if part.is_estimator and not part.is_member)
#: The classes of the list that may stand where an annotation names a protocol; ``"sklearn"`` is
#: any scikit-learn estimator of a known type (``sklearn_estimators.py``).
ROLES: dict[str, tuple[str, ...]] = {
    "engines.protocol.Posterior": (
        "ExactPosterior",
        "NeighborPosterior",
        "PerTargetPosterior",
        "SeveralPosterior",
        "SparsePosterior",
    ),
    "estimators.fitted.TargetFit": ("TwoStageFit", "SingleStageFit", "GPNNFit"),
    "pipeline.mean.models.MeanModel": ("ConstantMean", "RidgeMean", "RegressorMean"),
    "pipeline.mean.crossfit.Regressor": (
        "sklearn",
        "TwoStageGPRegressor",
        "ExactGPRegressor",
        "GPNNRegressor",
        "TabPFNMean",
    ),
    "pipeline.calibration.local_scale.Member": ("ScaleRidge", "ScaleTrees"),
    "classification.mean.Member": ("GPMember", "CrossFitted"),
    "classification.classifiers.Classifier": ("sklearn",),
}
