"""Every class of ours that a file may hold, field by field.

A class that is not here is neither written nor made, whatever a file says. A field has one or more
*kinds*: ``float``, ``tensor``, ..., the name of another class of this table, or ``any`` (a
parameter of a constructor, which has checks of its own). Caches are forgotten and made again when
they are asked for; *factors*, the matrices of n × n numbers, are stored only on demand.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from twostagegp.pipeline import settings
from twostagegp.storage import checks, rebuild
from twostagegp.training.rounds import Schedule

__all__ = ["FRONT_DOORS", "PARTS", "Part"]

_DOORS = "TwoStageGPRegressor|ExactGPRegressor|GPNNRegressor"
_KERNELS = "NamedKernel|LinearKernel|WrappedKernel"
_POSTERIORS = "ExactPosterior|NeighborPosterior|SparsePosterior"


def _expanded(text: str) -> str:
    for word, kinds in {"$K": _KERNELS, "$D": _DOORS, "$P": _POSTERIORS}.items():
        text = text.replace(word, kinds)
    return text


def _fields(text: str) -> dict[str, frozenset[str]]:
    """``"a:int b:array|none"`` as a table; a ``?`` after the name says that it may be absent."""
    pairs = [word.split(":") for word in _expanded(text).split()]
    return {name: frozenset(kinds.split("|")) for name, kinds in pairs}


@dataclass(frozen=True)
class Part:
    """How objects of one class are written and made.

    Attributes
    ----------
    module : str
        Where the class is defined.
    fields : dict
        Kinds of each attribute; a name that ends in ``?`` may be absent.
    forgotten : tuple of str
        Attributes that are not written.
    factors : tuple of str
        Attributes that are written only if factors are asked for.
    make : callable, optional
        From the class and its fields to the object; the default fills in the attributes.
    rebuild : callable, optional
        Computes absent factors.
    check : callable, optional
        Raises where the fields do not fit each other.
    defaults : tuple of pairs
        Values of fields that an older version did not write.
    alias : str
        Today's name of a class that older files have under another one.
    """

    module: str
    fields: dict[str, frozenset[str]]
    forgotten: tuple[str, ...] = ()
    factors: tuple[str, ...] = ()
    make: Callable[[Any, dict[str, Any]], Any] | None = None
    rebuild: Callable[[Any], None] | None = None
    check: Callable[[Any], None] | None = None
    front_door: bool = False
    defaults: tuple[tuple[str, Any], ...] = ()
    alias: str = ""

    def kinds(self, name: str) -> frozenset[str] | None:
        """Kinds of an attribute; None where the class has no such attribute."""
        return self.fields.get(name, self.fields.get(f"{name}?"))

    def missing(self, given: set[str]) -> set[str]:
        """Fields that are not given; an estimator that was not fitted has its parameters only."""
        required = {name for name in self.fields if not name.endswith("?")}
        if self.front_door and not given & self.fitted:
            required -= self.fitted
        return required - given

    @property
    def fitted(self) -> set[str]:
        """What an estimator has after ``fit`` only."""
        return {name.rstrip("?") for name, kinds in self.fields.items() if kinds != {"any"}}

    def load_class(self, name: str) -> Any:
        """The class itself."""
        return getattr(importlib.import_module(self.module), self.alias or name)


def _part(module: str, fields: str, **options: Any) -> Part:
    return Part(f"twostagegp.{module}", _fields(fields), **options)


def _front_door(module: str, parameters: str, fitted: str, **options: Any) -> Part:
    fields = " ".join(f"{name}:any" for name in parameters.split())
    return _part(module, f"{fields} {fitted}", front_door=True, **options)


def _column(module: str, fields: str) -> Part:
    return _part(
        f"data.columns.{module}",
        f"name:str {fields}",
        forgotten=("told", "zone"),
        make=rebuild.make_column,
    )


def _ridge(**options: Any) -> Part:
    return _part(
        "pipeline.mean.models",
        "candidate:Candidate posterior:$P heldout_residuals:array "
        "kernel?:$K parameters?:array label?:str",  # in older files, beside the posterior's own
        forgotten=("_whole",),
        make=rebuild.make_ridge,
        **options,
    )


_SEEN = "n_features_in_:int feature_names_in_?:array"
_COLUMNS = "missing?:any columns_?:TableEncoder|none"
_NO_COLUMNS = (("missing", "auto"), ("columns_", None))
_NUMERIC = "fill:array indicator:bool"
_TARGETS = "fitted_:FittedRegression"
_REPORTS = "fit_report_:FitReport|list"
#: Fields of a report that are None for regressors or for classifiers.
_REPORT_FIELDS_OF_ONE_KIND = (
    "noise_std", "evaluations", "full_evaluations", "full_factorizations", "seconds_saved",
    "gradient_norm", "jitter", "refits", "n_classes", "alpha_eps", "log_loss",
)  # fmt: skip
_SHARED = "training noise_floor device dtype n_jobs random_state verbose"

PARTS: dict[str, Part] = {
    # front doors
    "TwoStageGPRegressor": _front_door(
        "estimators.regressor",
        "method kernels ard mean penalty objective variance variance_objective selection "
        f"residuals calibration n_neighbors {_SHARED}",
        f"{_SEEN} {_COLUMNS} {_TARGETS} {_REPORTS} settings?:any",
        check=checks.check_regressor,
        defaults=(*_NO_COLUMNS, ("settings", None)),
    ),
    "ExactGPRegressor": _front_door(
        "estimators.exact_gp",
        f"kernel kernels ard objective selection {_SHARED}",
        f"{_SEEN} {_COLUMNS} {_TARGETS} {_REPORTS} settings?:any",
        check=checks.check_regressor,
        defaults=(*_NO_COLUMNS, ("settings", None)),
    ),
    "GPNNRegressor": _front_door(
        "estimators.gpnn",
        "kernel n_neighbors ard objective n_blocks block_rows calibration n_calibration "
        f"preprocess {_SHARED}",
        f"{_SEEN} {_COLUMNS} {_TARGETS} {_REPORTS}",
        check=checks.check_regressor,
        defaults=_NO_COLUMNS,
    ),
    "TwoStageGPClassifier": _front_door(
        "estimators.classifier",
        "stages alpha_eps latent_scale n_samples smoothing method kernels ard mean variance "
        f"residuals n_neighbors {_SHARED}",
        f"{_SEEN} {_COLUMNS} classes_:array fitted_:FittedClasses "
        "fit_report_:FitReport settings?:any",
        check=checks.check_classifier,
        defaults=(*_NO_COLUMNS, ("settings", None)),
    ),
    "CVPlusRegressor": _front_door(
        "estimators.cv_plus",
        "estimator n_folds random_state",
        f"{_SEEN} folds_:array estimator_:sklearn|$D estimators_:list scores_:array",
        check=checks.check_cv_plus,
    ),
    # fitted states
    "FittedRegression": _part(
        "estimators.fitted", "targets:tuple is_1d:bool remote:none", check=checks.check_targets
    ),
    "FittedTarget": _part(
        "estimators.fitted", "data:Prepared fit:TwoStageFit|SingleStageFit|GPNNFit"
    ),
    "FittedClasses": _part("estimators.fitted", "fit:ClassFit draws:array"),
    # columns of the user's table
    "TableEncoder": _part(
        "data.columns.encoder",
        f"missing:str max_levels:int min_rows:int min_share:number {_SEEN} rules_:list",
        check=checks.check_encoder,
    ),
    "NumberColumn": _column("numbers", _NUMERIC),
    "EmptyColumn": _column("numbers", _NUMERIC),
    "BooleanColumn": _column("numbers", _NUMERIC),
    "OrderedColumn": _column("numbers", f"{_NUMERIC} levels:list"),
    "DurationColumn": _column("times", _NUMERIC),
    "DateColumn": _column("times", f"{_NUMERIC} start:time end:time cycles:list"),
    "CategoryColumn": _column(
        "categories",
        "kind:str max_levels:int min_rows:number missing:bool missing_share:number shares:dict "
        "levels:list pooled:list frequency:bool categorical:bool",
    ),
    "Training": _part(
        "training.schedule",
        "optimizer:str steps:int lr:number schedule:any subsample:int|none refine_steps:int "
        "refine_lr:number|none restart_every:int weight_decay:number",
    ),
    # rows and units
    "Prepared": _part(
        "data.scaling",
        "rows:Rows merged:Merged scaling:Scaling constant_columns:list constant_target:bool "
        "weight_unit?:number",
        check=checks.check_prepared,
        defaults=(("weight_unit", 1.0),),
    ),
    "Scaling": _part(
        "data.scaling",
        "columns:array x_mean:array x_scale:array y_mean:number y_scale:number",
        check=checks.check_scaling,
    ),
    "Rows": _part(
        "data.rows",
        "X:tensor t:tensor c:tensor q:tensor extra:tensor groups:tensor|none",
        forgotten=("plain",),
        check=checks.check_rows,
    ),
    "Merged": _part(
        "data.rows",
        "X:array t:array c:array q:array extra:array groups:array|none inverse:array "
        "deviation:array weight:array",
        check=checks.check_merged,
    ),
    # kernels
    "NamedKernel": _part(
        "kernels.stationary",
        "name:str n_features:int ard:bool shape:array|none metric:int",
        check=checks.check_named_kernel,
    ),
    "LinearKernel": _part("kernels.linear", "n_features:int"),
    "WrappedKernel": _part(
        "kernels.wrapped",
        "name:str n_features:int columns:Columns|none module:kernel",
        forgotten=("_takes_batches",),
    ),
    "Columns": _part("data.kept_columns", "kept:tuple width:int", check=checks.check_columns),
    # what was tried
    "Candidate": _part(
        "training.candidates",
        "kernel:$K objective:str parameters:array|none inverse_hessian:array|none value:number "
        "penalty_shift:number evaluations:int full_evaluations:int refit_evaluations:int "
        "seconds:number full_seconds:number gradient_norm:number failure:str",
    ),
    "SearchRecord": _part(  # in older files
        "search.stages",
        "rows:list mean:KernelSearch|none variance:KernelSearch|none",
        make=rebuild.make_search_record,
    ),
    "KernelSearch": _part(
        "search.kernel_search",
        "best:any best_label:str decided_early:bool entries:list index:array model:str "
        "n_train:int seconds:dict selection:str table:frame",
    ),
    "Entry": _part(
        "search.kernel_search",
        "label:str given:any kernel:$K|none repeated:Repeated|none failure:str",
    ),
    "Repeated": _part(
        "search.repetitions",
        "nll:array loo:array heldout:array ratio:array bound:array bound_printed:array noise:array "
        "parameters:array evaluations:array seconds:number",
    ),
    "FitReport": _part(
        "estimators.fit_report",
        "method:str method_reason:str n_rows:int n_distinct_rows:int n_features:int "
        "constant_columns:list device:str dtype:str mean:str variance:str calibration:str "
        "seconds:dict candidates:list variance_candidates:list warnings:list "
        "noise_std?:number|none evaluations?:int|none full_evaluations?:int|none "
        "full_factorizations?:int|none seconds_saved?:number|none gradient_norm?:number|none "
        "jitter?:number|none refits?:int|none n_classes?:int|none alpha_eps?:number|none "
        "log_loss?:number|none encoded_columns?:list updates?:list refit_due?:str",
        defaults=(
            *((name, None) for name in _REPORT_FIELDS_OF_ONE_KIND),
            ("encoded_columns", []),
            ("updates", []),
            ("refit_due", ""),
        ),
        check=checks.check_report,
    ),
    # engines
    "ExactPosterior": _part(
        "engines.exact.engine",
        "kernel:$K parameters:array rows:Rows noise:number jitter:number alpha:tensor "
        "_factor?:tensor|none",
        forgotten=("blocked_rows",),
        factors=("_factor",),
        rebuild=rebuild.rebuild_posterior,
        check=checks.check_exact_posterior,
    ),
    "NeighborEngine": _part(
        "engines.neighbors.engine",
        "rows:Rows n_neighbors:int noise_floor:number use_prior:bool order:tensor|none "
        "store:IndexStore",
        check=checks.check_neighbor_engine,
    ),
    "IndexStore": _part(
        "engines.neighbors.engine",
        "rows:Rows",
        forgotten=("_indexes", "_answers", "_last_rows", "_lock", "_grown"),
        make=rebuild.make_by_constructor,
    ),
    "NeighborPosterior": _part(
        "engines.neighbors.engine",
        "kernel:$K parameters:array engine:NeighborEngine",
        forgotten=("noise", "metric", "_last"),
        make=rebuild.make_checked_posterior,
    ),
    "SparsePosterior": _part(
        "engines.svgp",
        "kernel:$K parameters:array rows:Rows Z:tensor",
        forgotten=("noise", "jitter", "L", "L_B", "alpha", "_mean_weights"),
        make=rebuild.make_checked_posterior,
    ),
    # the three parts of a regressor
    "TwoStageFit": _part(
        "pipeline.model",
        "mean:StackedMean variance:GPVariance|ConstantVariance calibration:Calibration "
        "seconds:dict n_refits:int noise_floor:number conditionings:int method:tuple",
    ),
    "StackedMean": _part(
        "pipeline.mean.stacked",
        "models:list weights:array heldout_residuals:array searched:list search:KernelSearch|none",
        check=checks.check_stack,
    ),
    "ConstantMean": _part("pipeline.mean.models", "value:number heldout_residuals:array"),
    "RidgeMean": _ridge(),
    "NeighborMean": _ridge(alias="RidgeMean"),  # its name in the format's first files
    "RegressorMean": _part(
        "pipeline.mean.crossfit",
        "regressor:sklearn|$D model:sklearn|$D label:str random_state:int takes_weights:bool "
        "ignored_weights:bool heldout_residuals:array",
    ),
    "GPVariance": _part(
        "pipeline.variance",
        "kernel:$K candidate:Candidate everyone:list posterior:$P "
        "heldout_variance:array search:KernelSearch|none",
    ),
    "ConstantVariance": _part("pipeline.variance", "noise:number heldout_variance:array"),
    "Calibration": _part(
        "pipeline.calibration.fit",
        "kind:str factor:number z:array weight:array local:LocalScale|none shape:Shape "
        "shape_scores:dict note:str",
    ),
    "LocalScale": _part(
        "pipeline.calibration.local_scale",
        "members:list combination:Combination heldout_factor:array largest:number overall:number "
        "telling:bool",
    ),
    "Combination": _part("pipeline.calibration.local_scale", "a:array b:number c:number"),
    "ScaleRidge": _part(
        "pipeline.calibration.local_scale",
        "label:str on_inputs:bool posterior:ExactPosterior heldout:array _centre:number|array "
        "_spread:number|array _t_mean:number _t_spread:number",
    ),
    "ScaleTrees": _part("pipeline.calibration.local_scale", "model:RegressorMean heldout:array"),
    "Shape": _part(
        "pipeline.calibration.shape",
        "name:str degrees:number tail:number centres:array shares:array widths:array",
        check=checks.check_shape,
    ),
    # single stages
    "SingleStageFit": _part(
        "estimators.exact_gp",
        "posterior:ExactPosterior|none candidates:list constant_noise:number factor:number "
        "seconds:dict search:KernelSearch|none",
    ),
    "GPNNFit": _part(
        "estimators.gpnn",
        "posterior:NeighborPosterior|none candidates:list whitening:Whitening|none "
        "constant_noise:number factor:number seconds:dict searches:tuple",
    ),
    "Whitening": _part(
        "estimators.gpnn",
        "mean:tensor matrix:tensor",
        forgotten=("_last",),
        make=rebuild.make_by_constructor,
        check=checks.check_whitening,
    ),
    # classification
    "ClassFit": _part(
        "classification.fit",
        "mean:ClassMean|none latents:ExactLatents|LocalLatents scale:LatentScale seconds:dict "
        "tried_alphas:dict",
    ),
    "GPMember": _part(
        "classification.fit", "latents:ExactLatents|LocalLatents heldout:array label:str"
    ),
    "ClassMean": _part(
        "classification.mean", "members:list pool:Pool heldout:array view:View tried:list"
    ),
    "Tried": _part(
        "classification.mean",
        "label:str view:str loss:number rows:int seconds:number failure:str",
    ),
    "ExactRidge": _part(
        "classification.mean",
        "view:View kernel:$K parameters:array label:str table:ClassTable jitter:number "
        "alpha:tensor heldout:array",
    ),
    "NeighborRidge": _part(
        "classification.mean",
        "view:View kernel:$K parameters:array label:str rows:LocalRows noise:number T:tensor "
        "heldout:array",
    ),
    "CrossFitted": _part(
        "classification.mean",
        "view:View|none label:str prior:array takes_weights:bool heldout:array model:sklearn|none",
    ),
    "Pool": _part("classification.pool", "weights:array bias:array loss:number"),
    "View": _part(
        "classification.views", "name:str columns:array centre:array scale:array unit:bool"
    ),
    "ClassTable": _part(
        "classification.table",
        "X:array codes:array n_classes:int c:array groups:array|none views:list "
        "constant_columns:list device:device dtype:dtype n_rows:int",
        forgotten=("prior", "own", "_inputs"),
        check=checks.check_class_table,
    ),
    "Dirichlet": _part(
        "classification.dirichlet", "n_classes:int alpha_eps:number smoothing:number"
    ),
    "TrainedKernel": _part(
        "classification.variance",
        "view:View kernel:$K parameters:array value:number dirichlet:Dirichlet centre:array "
        "scale:number constant:number tried:dict",
    ),
    "ExactLatents": _part(
        "classification.variance",
        "table:ClassTable trained:TrainedKernel jitter:number members:list T:tensor alpha:tensor "
        "A?:tensor factors?:list",
        factors=("A", "factors"),
        rebuild=rebuild.rebuild_latents,
    ),
    "LocalLatents": _part(
        "classification.variance",
        "table:ClassTable trained:TrainedKernel rows:LocalRows noise:tensor T:tensor",
    ),
    "LocalRows": _part(
        "classification.local",
        "table:ClassTable view:View kernel:$K theta:array k:int constant:number c:tensor",
        forgotten=("_index",),
        make=rebuild.make_local_rows,
        check=checks.check_local_rows,
    ),
    "LatentScale": _part(
        "classification.calibration", "tau:number c:number bias:array loss:number losses:dict"
    ),
}

PARTS |= {
    name: _part("pipeline.settings", " ".join(f"{each.name}:any" for each in fields(cls)))
    for name in settings.__all__
    if isinstance(cls := getattr(settings, name), type)
}
PARTS["Schedule"] = _part(
    "training.rounds", " ".join(f"{each.name}:int" for each in fields(Schedule))
)

FRONT_DOORS = tuple(name for name, part in PARTS.items() if part.front_door)
