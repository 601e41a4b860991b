"""scikit-learn estimators in files of skops: data and names of known types, without pickle.

skops trusts all types of scikit-learn. The list here is shorter, and it is checked twice: first in
the description of the file, before skops opens it (every type, and every way of making an object),
then by skops. The compiled code of trees uses numbers of the file as positions; these numbers are
checked. Estimators for which such a check is not possible (support vectors, neighbour trees) are
not in the list.
"""

from __future__ import annotations

import io
import json
import math
import zipfile
from collections.abc import Iterator
from typing import Any

import numpy as np

from twostagegp.errors import ModelFileError

__all__ = ["TYPES", "dump_estimator", "load_estimator"]

_MODULES = {
    "linear_model._base": "LinearRegression",
    "linear_model._ridge": "Ridge RidgeCV",
    "linear_model._coordinate_descent": "Lasso LassoCV ElasticNet ElasticNetCV",
    "linear_model._bayes": "BayesianRidge ARDRegression",
    "linear_model._huber": "HuberRegressor",
    "linear_model._logistic": "LogisticRegression LogisticRegressionCV",
    "ensemble._hist_gradient_boosting.gradient_boosting": (
        "HistGradientBoostingRegressor HistGradientBoostingClassifier"
    ),
    "ensemble._hist_gradient_boosting.predictor": "TreePredictor",
    "ensemble._hist_gradient_boosting.binning": "_BinMapper",
    "ensemble._forest": (
        "RandomForestRegressor RandomForestClassifier ExtraTreesRegressor ExtraTreesClassifier"
    ),
    "ensemble._gb": "GradientBoostingRegressor GradientBoostingClassifier",
    "ensemble._voting": "VotingRegressor VotingClassifier",
    "tree._classes": (
        "DecisionTreeRegressor DecisionTreeClassifier ExtraTreeRegressor ExtraTreeClassifier"
    ),
    "neural_network._multilayer_perceptron": "MLPRegressor MLPClassifier",
    "neural_network._stochastic_optimizers": "AdamOptimizer SGDOptimizer",
    "kernel_ridge": "KernelRidge",
    "dummy": "DummyRegressor DummyClassifier",
    "naive_bayes": "GaussianNB",
    "discriminant_analysis": "LinearDiscriminantAnalysis QuadraticDiscriminantAnalysis",
    "decomposition._pca": "PCA",
    "impute._base": "SimpleImputer",
    "pipeline": "Pipeline FeatureUnion",
    "compose._column_transformer": "ColumnTransformer",
    "compose._target": "TransformedTargetRegressor",
    "preprocessing._data": (
        "StandardScaler MinMaxScaler MaxAbsScaler RobustScaler PowerTransformer QuantileTransformer"
    ),
    "preprocessing._encoders": "OneHotEncoder OrdinalEncoder",
    "preprocessing._label": "LabelBinarizer LabelEncoder",
    "preprocessing._polynomial": "PolynomialFeatures",
    "_loss.loss": (
        "HalfSquaredError AbsoluteError PinballLoss HuberLoss HalfPoissonLoss HalfGammaLoss "
        "HalfBinomialLoss HalfMultinomialLoss ExponentialLoss"
    ),
    "_loss.link": "IdentityLink LogLink LogitLink HalfLogitLink MultinomialLogit Interval",
}

#: Objects that are made by filling in attributes.
TYPES = frozenset(
    f"sklearn.{module}.{name}" for module, names in _MODULES.items() for name in names.split()
)
_NUMBERS = "bool float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64"
_SCALARS = {f"numpy.{name}" for name in _NUMBERS.split()} | {"numpy.bool_"}
_PLAIN = {f"builtins.{name}" for name in ("str", "int", "float", "bool", "NoneType")}
_LOSSES = {
    f"sklearn._loss._loss.Cy{name}" for name in _MODULES["_loss.loss"].replace("(", "").split()
}
#: Types that each way of making an object ("loader" of skops) may make.
_LOADERS: dict[str, frozenset[str]] = {
    "ObjectNode": TYPES,
    "DictNode": frozenset({"builtins.dict", "sklearn.utils._bunch.Bunch"}),
    "ListNode": frozenset({"builtins.list"}),
    "TupleNode": frozenset({"builtins.tuple"}),
    "SetNode": frozenset({"builtins.set"}),
    "SliceNode": frozenset({"builtins.slice"}),
    "JsonNode": frozenset(_PLAIN),
    "TypeNode": frozenset(_PLAIN | _SCALARS),
    "NdArrayNode": frozenset({"numpy.ndarray"} | _SCALARS),
    "DTypeNode": frozenset({"numpy.dtype"}),
    "LossNode": frozenset(_LOSSES),
    "TreeNode": frozenset({"sklearn.tree._tree.Tree"}),
    "RandomStateNode": frozenset({"numpy.random.mtrand.RandomState"}),
    "RandomGeneratorNode": frozenset({"numpy.random._generator.Generator"}),
}
#: Types that skops is told to trust, beyond those that it trusts itself.
_TRUSTED = sorted(TYPES | _LOSSES | {"sklearn.tree._tree.Tree"})

_SCHEMA_BYTES = 1 << 28
_MOST_MEMBERS = 200_000
#: Size of an archive's content at most, relative to the archive: protects from decompression bombs.
_MOST_GROWTH = 200
_MARKS = ("__class__", "__module__", "__loader__")


def _skops() -> Any:
    from twostagegp.runtime.optional import require

    return require("skops.io", "files")


def dump_estimator(estimator: Any, where: str) -> bytes:
    """Return an estimator as the content of a file, after a check that it can be loaded."""
    name = f"{type(estimator).__module__}.{type(estimator).__qualname__}"
    way_out = (
        "A file holds scikit-learn estimators of known types only (docs/files.md), because others "
        "would run their own code when they are loaded; use one of these types as the mean, or "
        "keep the training data and fit again."
    )
    if name not in TYPES:
        raise ModelFileError(f"{where} of the type {name} cannot be saved. {way_out}")
    skops = _skops()
    try:
        data: bytes = skops.dumps(estimator, compression=zipfile.ZIP_DEFLATED, compresslevel=6)
        check_archive(data)
        check_numbers(estimator)
    except ModelFileError as error:
        reason = f"{where} of the type {name} cannot be saved: {error}"
        raise ModelFileError(f"{reason} {way_out}") from None
    except Exception as error:  # whatever an estimator's own state does to skops
        raise ModelFileError(f"{where} of the type {name} cannot be saved: {error}") from error
    return data


def load_estimator(data: bytes) -> Any:
    """Return the estimator in the content of a file, after :func:`check_archive`."""
    skops = _skops()
    check_archive(data)
    unknown = set(skops.get_untrusted_types(data=data)) - set(_TRUSTED)
    if unknown:
        raise ModelFileError(f"a scikit-learn part has the types {', '.join(sorted(unknown))}.")
    estimator = skops.loads(data, trusted=_TRUSTED)
    check_numbers(estimator)
    return estimator


# --- the archive ---------------------------------------------------------------------------------


def check_archive(data: bytes) -> None:
    """Raise ModelFileError if an archive holds anything but numbers and known types."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = archive.infolist()
            total = sum(member.file_size for member in members)
            if len(members) > _MOST_MEMBERS or total > _MOST_GROWTH * len(data) + (1 << 20):
                raise ModelFileError("a scikit-learn part is too large when it is unpacked.")
            names = {member.filename for member in members}
            if len(names) != len(members):
                raise ModelFileError("a scikit-learn part has two files of the same name.")
            if (
                "schema.json" not in names
                or archive.getinfo("schema.json").file_size > _SCHEMA_BYTES
            ):
                raise ModelFileError("a scikit-learn part has no description.")
            schema = json.loads(archive.read("schema.json"))
            for name in names - {"schema.json"}:
                with archive.open(name) as file:
                    _check_array(file, name, archive.getinfo(name).file_size)
    except ModelFileError:
        raise
    except Exception as error:  # zipfile and json raise many kinds
        raise ModelFileError(f"a scikit-learn part cannot be read ({error}).") from error
    if not isinstance(schema, dict) or schema.get("__loader__") != "ObjectNode":
        raise ModelFileError("a scikit-learn part is not an estimator.")
    for node in _nodes(schema):
        _check_node(node, names)


def _check_array(file: Any, name: str, size: int) -> None:
    """Check that a file is an array of the size it claims, before memory is allocated."""
    if not name.endswith(".npy"):
        raise ModelFileError(f"a scikit-learn part has a file {name[:40]!r}.")
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0
    shape, _, dtype = (read if version == (1, 0) else np.lib.format.read_array_header_2_0)(file)
    if dtype.hasobject or math.prod(shape) * dtype.itemsize != size - file.tell():
        raise ModelFileError("a scikit-learn part has an array of another size than it claims.")


def _nodes(schema: Any) -> Iterator[dict[str, Any]]:
    waiting = [schema]
    while waiting:
        here = waiting.pop()
        if isinstance(here, dict):
            if any(mark in here for mark in _MARKS):
                yield here
            waiting.extend(here.values())
        elif isinstance(here, list):
            waiting.extend(here)


def _check_node(node: dict[str, Any], names: set[str]) -> None:
    cls, module, loader = (node.get(mark) for mark in _MARKS)
    name = f"{module}.{cls}"
    known = _LOADERS.get(loader) if isinstance(loader, str) else None
    if known is None or name not in known:
        raise ModelFileError(
            f"it has a part of the type {name[:80]!r} ({str(loader)[:40]}), not in the list."
        )
    if "file" in node and node["file"] not in names:
        raise ModelFileError("a scikit-learn part refers to a file that it does not have.")


# --- the numbers ---------------------------------------------------------------------------------


def check_numbers(estimator: Any) -> None:
    """Check that tree nodes refer to later nodes and to existing columns only."""
    seen: set[int] = set()
    waiting = [estimator]
    while waiting:
        here = waiting.pop()
        if id(here) in seen:
            continue
        seen.add(id(here))
        if isinstance(here, dict):
            waiting.extend(here.values())
        elif isinstance(here, list | tuple):
            waiting.extend(here)
        elif isinstance(here, np.ndarray):
            if here.dtype == object:
                waiting.extend(here.ravel().tolist())
        elif type(here).__module__.startswith("sklearn."):
            _check_trees(here)
            waiting.extend(getattr(here, "__dict__", {}).values())


def _check_trees(estimator: Any) -> None:
    columns = getattr(estimator, "n_features_in_", 0)
    for several in getattr(estimator, "_predictors", ()):
        for predictor in several:
            nodes = predictor.nodes
            if nodes.dtype.names is None or bool(nodes["is_categorical"].any()):
                raise ModelFileError(
                    "it has trees that split by categories, which a file cannot hold."
                )
            inner = ~nodes["is_leaf"].astype(bool)
            left, right = nodes["left"][inner], nodes["right"][inner]
            _check_tree(len(nodes), inner, left, right, nodes["feature_idx"][inner], columns)
    tree = getattr(estimator, "tree_", None)
    if tree is not None:
        inner = tree.children_left != -1
        left, right = tree.children_left[inner], tree.children_right[inner]
        _check_tree(tree.node_count, inner, left, right, tree.feature[inner], columns)
        if tree.n_features != columns:
            raise ModelFileError("it has a tree with another number of columns.")
    for part in np.ravel(np.asarray(getattr(estimator, "estimators_", ()), dtype=object)):
        if hasattr(part, "tree_") and part.n_features_in_ != columns:
            raise ModelFileError("it has a tree with another number of columns.")


def _check_tree(size: int, inner: Any, left: Any, right: Any, feature: Any, columns: int) -> None:
    own = np.flatnonzero(inner)
    fine = size >= 1
    for child in (left, right):
        child = child.astype(np.int64)
        fine = fine and bool(((child > own) & (child < size)).all())
    column = feature.astype(np.int64)
    if not (fine and bool(((column >= 0) & (column < columns)).all())):
        raise ModelFileError(
            "it has a tree whose nodes refer to nodes or columns that do not exist."
        )
