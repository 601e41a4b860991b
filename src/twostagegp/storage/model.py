"""``save_model`` writes a model into a folder, ``load`` reads it."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from sklearn.utils.validation import check_is_fitted

from twostagegp.errors import MemoryBudgetError, ModelFileError
from twostagegp.runtime.optional import require
from twostagegp.storage.folder import read_files, read_manifest, write_folder
from twostagegp.storage.upgrades import from_format_1, from_format_2

__all__ = ["FORMAT", "load", "save_model"]

#: Version of the format that is written.
FORMAT = 2
#: Formats that are read, with the function that rewrites the parts of each as they are written now.
_UPGRADES: dict[int, Callable[[Any], Any]] = {1: from_format_1, 2: from_format_2}
#: Size of the structure at most.
_MODEL_BYTES = 1 << 30


def save_model(
    model: Any,
    path: str | PathLike[str],
    include_factors: bool = False,
    table: Mapping[str, str] | None = None,
) -> None:
    """Write a fitted model into a folder; see :meth:`twostagegp.TwoStageGPRegressor.save`.

    ``table`` describes where the training rows came from, such as the name of the target's column.
    It is written into the manifest for programs that read tables; :func:`load` does not use it.
    """
    from twostagegp import __version__
    from twostagegp.storage.encoding import Encoder
    from twostagegp.storage.kinds import find_part
    from twostagegp.storage.registry import ESTIMATORS
    from twostagegp.storage.sklearn_estimators import dump_estimator

    safetensors = require("safetensors.numpy", "files")
    check_is_fitted(model)
    name = type(model).__name__
    if name not in ESTIMATORS or find_part(model) is None:
        raise ModelFileError(
            f"{type(model).__module__}.{name} is a class derived from one of ours; a file holds "
            f"{', '.join(ESTIMATORS)} only."
        )
    encoder = Encoder(include_factors)
    encoder.part(model, name)
    structure = json.dumps({"parts": encoder.parts}, allow_nan=False, separators=(",", ":"))
    files = {"model": structure.encode(), "arrays": bytes(safetensors.save(encoder.arrays))}
    for number, estimator in enumerate(encoder.estimators):
        files[f"sklearn-{number}"] = dump_estimator(estimator, "an estimator")
    head: dict[str, Any] = {
        "format": FORMAT,
        "library": __version__,
        "class": name,
        "factors": bool(include_factors),
        "versions": _versions(),
    }
    if table is not None:
        head["table"] = dict(table)
    write_folder(Path(path), head, files)


def _versions() -> dict[str, str]:
    import numpy as np
    import sklearn
    import torch

    return {
        "numpy": np.__version__,
        "scikit-learn": sklearn.__version__,
        "torch": str(torch.__version__),
    }


def load(path: str | PathLike[str], device: str = "cpu") -> Any:
    """Return the model that ``save`` has written into a folder.

    No code of the folder is executed: it holds numbers, texts and names of known classes. A file
    that is damaged or hostile ends in a :class:`~twostagegp.errors.ModelFileError`.

    Parameters
    ----------
    path : path of the folder
    device : str
        Device of the loaded model if it was fitted on a GPU.

    Returns
    -------
    model : estimator
        Fitted; predictions are those of the model that was saved.
    """
    from twostagegp.runtime.device import resolve_device

    require("safetensors.numpy", "files")
    place = resolve_device(device, 0)
    folder = Path(path)
    manifest = read_manifest(folder)
    version = manifest.get("format")
    if type(version) is not int or version not in _UPGRADES:
        raise ModelFileError(
            f"{folder} has format {str(version)[:20]}, written by twostagegp "
            f"{str(manifest.get('library'))[:20]}; this version reads {sorted(_UPGRADES)}. "
            "Install a newer twostagegp."
        )
    files = read_files(folder, manifest)
    if len(files) > 2:
        require("skops.io", "files")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _read(manifest, files, place, _UPGRADES[version])
    except ModelFileError as error:
        raise ModelFileError(f"{folder} cannot be loaded: {error}") from error
    except MemoryBudgetError as error:  # its message has the numbers
        other = " A model that was fitted on a GPU can be loaded with device='cuda'."
        raise MemoryBudgetError(
            f"{folder} cannot be loaded: {error}{other if place.type == 'cpu' else ''}"
        ) from error
    except Exception as error:  # libraries raise many types of errors for a hostile file
        if _is_memory(error):
            raise MemoryBudgetError(
                f"{folder} needs more memory than there is on {place} "
                f"({type(error).__name__}: {str(error)[:200]}). Load it on a machine with more."
            ) from error
        raise ModelFileError(
            f"{folder} cannot be loaded: it does not describe a model that can predict "
            f"({type(error).__name__}: {str(error)[:200]})."
        ) from error


def _is_memory(error: Exception) -> bool:
    """Return whether memory could not be allocated: on a CPU torch raises a RuntimeError."""
    import torch

    if isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError)):
        return True
    texts = ("not enough memory", "can't allocate memory", "out of memory")
    return isinstance(error, RuntimeError) and any(text in str(error) for text in texts)


def _read(
    manifest: Mapping[str, Any],
    files: Mapping[str, bytes],
    device: Any,
    upgrade: Callable[[Any], Any],
) -> Any:
    """Return the model of the files; ``upgrade`` rewrites the parts of an older format."""
    from twostagegp.storage.decoding import Decoder
    from twostagegp.storage.registry import ESTIMATORS
    from twostagegp.storage.sklearn_estimators import load_estimator
    from twostagegp.storage.trial import check_predictions

    if len(files["model"]) > _MODEL_BYTES:
        raise ModelFileError(f"its structure has more than {_MODEL_BYTES} bytes.")
    structure = json.loads(files["model"], parse_constant=_no_constant)
    if not isinstance(structure, dict) or set(structure) != {"parts"}:
        raise ModelFileError("its structure has no parts.")
    loaded = require("safetensors.numpy", "files").load(files["arrays"])
    arrays = {
        key: value if value.flags.writeable else value.copy() for key, value in loaded.items()
    }
    estimators = [load_estimator(files[f"sklearn-{k}"]) for k in range(len(files) - 2)]
    model = Decoder(arrays, estimators, device).parts(upgrade(structure["parts"]))
    name = type(model).__name__
    if name not in ESTIMATORS or name != manifest.get("class"):
        raise ModelFileError(f"it describes a {name} instead of a {manifest.get('class')}.")
    check_predictions(model)
    return model


def _no_constant(name: str) -> None:
    raise ModelFileError(f"its structure has the invalid number {name}.")
