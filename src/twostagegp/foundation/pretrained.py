"""Where a pretrained model lies, which one it is, and how it is loaded.

A model is a folder as ``save_pretrained`` writes it, or a repository of the Hugging Face hub. The
hub is asked only for a model that was named by its repository. What it holds is copied to the hub's
own cache on this computer, and from there on it is a folder too: models are loaded from files, and
never run code that comes with them.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from twostagegp.errors import InputError
from twostagegp.foundation.cache import digest
from twostagegp.runtime.optional import require

__all__ = ["Source", "brief", "load_network", "load_processor", "locate"]

_REPOSITORY = re.compile(r"[\w.-]+(/[\w.-]+)?", re.ASCII)
#: Of a repository: configuration and vocabularies. Weights are large and come in several formats.
_SMALL_FILES = ["*.json", "*.txt", "*.model", "*.bpe", "*.codes", "*.tiktoken"]


@dataclass(frozen=True)
class Source:
    """A model on this computer.

    Parameters
    ----------
    name : str
        As the user knows it.
    folder : path
    commit : str or None
        Of the hub; None for a folder of the user.
    """

    name: str
    folder: Path
    commit: str | None = None

    @property
    def identity(self) -> str:
        """What tells this model from any other: its commit, or a hash of its files."""
        if self.commit is not None:
            return f"{self.name}@{self.commit}"
        parts = [(os.path.basename(state[0]).encode(), _checksum(*state)) for state in self.state]
        return digest(part for pair in parts for part in pair)

    @property
    def state(self) -> list[tuple[str, int, int]]:
        """Path, size and time of the last change of its files."""
        files = sorted(path for path in self.folder.iterdir() if _counts(path))
        states = [(path, path.stat()) for path in files]
        return [(str(path), state.st_size, state.st_mtime_ns) for path, state in states]


def _counts(path: Path) -> bool:
    return path.is_file() and not path.name.startswith(".") and path.suffix.lower() != ".md"


@lru_cache(maxsize=4096)
def _checksum(path: str, size: int, changed: int) -> bytes:
    """Of a file's content, read once however many clones of an encoder a search makes."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "blake2b").digest()


def brief(error: Exception) -> str:
    """The kind of an error of another library and the beginning of what it says."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text if len(text) <= 300 else text[:297] + '...'}"


def locate(model: str | os.PathLike[str], revision: str | None = None) -> Source:
    """Find a model: a folder if there is one of that name, otherwise on the hub."""
    name = os.fspath(model)
    folder = Path(name).expanduser()
    if folder.is_dir():
        return Source(name, folder)
    if not isinstance(model, str) or not _REPOSITORY.fullmatch(name) or name.startswith("."):
        raise InputError(
            f"model={name!r}: there is no such folder. Give one that save_pretrained wrote, or the "
            "name of a repository of the Hugging Face hub, such as 'medicalai/ClinicalBERT'."
        )
    copy = _copy_of_repository(name, revision)
    return Source(name, copy, copy.name)


# Once a process, so that all clones of an encoder hold the same commit.
@lru_cache(maxsize=256)
def _copy_of_repository(name: str, revision: str | None) -> Path:
    hub = require("huggingface_hub", "foundation")

    def fetch(patterns: list[str]) -> Path:
        # Repositories keep other formats of the same weights in subfolders.
        options = {"revision": revision, "allow_patterns": patterns, "ignore_patterns": ["*/*"]}
        try:
            return Path(hub.snapshot_download(name, **options))
        except Exception as error:
            try:  # without a connection, what was copied before
                return Path(hub.snapshot_download(name, **options, local_files_only=True))
            except Exception:
                raise error from None

    try:
        folder = fetch([*_SMALL_FILES, "*.safetensors"])
        if not any(folder.glob("*.safetensors")):
            folder = fetch([*_SMALL_FILES, "*.bin"])
    except Exception as error:  # of the hub, of the network, of the disk: a long list
        raise InputError(
            f"model={name!r} is no folder here, and could not be fetched from the Hugging Face hub "
            f"({brief(error)}). Check the name, the revision and the connection. On a computer "
            f"without one, copy a folder there that 'hf download {name} --local-dir FOLDER' made "
            "elsewhere, and give model='FOLDER'."
        ) from error
    return folder


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the bars and reports of transformers: what matters in them is an error here."""
    logging = require("transformers.utils.logging", "foundation")
    level, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bar:
            logging.enable_progress_bar()


def _load(source: Source, loader: str, what: str, **options: Any) -> Any:
    """Call a loader of transformers, such as ``AutoModel``, on a folder."""
    auto = getattr(require("transformers", "foundation"), loader)
    # Weights that a checkpoint lacks are drawn at random; the caller's generator must not notice.
    with _quiet(), torch.random.fork_rng(devices=[]):
        try:
            return auto.from_pretrained(str(source.folder), local_files_only=True, **options)
        except Exception as error:  # whatever the class behind the folder raises
            raise InputError(
                f"the {what} of model={source.name!r} could not be loaded from "
                f"{str(source.folder)!r} ({brief(error)}). Give a folder that save_pretrained "
                f"wrote, and that transformers.{loader} can load."
            ) from error


def load_processor(source: Source, loader: str, what: str, **options: Any) -> Any:
    """Load what turns a row into the input of a network: a tokenizer or an image processor."""
    return _load(source, loader, what, **options)


def load_network(source: Source, device: torch.device, dtype: torch.dtype) -> Any:
    """Load a network, frozen and ready to encode.

    A checkpoint of a network with a head for some task has no weights for the pooler of the bare
    one. Features are taken before the pooler, so that is no loss; any other gap is an error.
    """
    network, record = _load(source, "AutoModel", "network", output_loading_info=True)
    changed = {entry[0] for entry in record["mismatched_keys"]}
    gaps = sorted(name for name in changed | set(record["missing_keys"]) if "pooler" not in name)
    if gaps:
        raise InputError(
            f"model={source.name!r} has no weights for {len(gaps)} part(s) of its network, the "
            f"first is {gaps[0]!r}: its features would be random. Its config.json and its weights "
            "do not belong together; give another copy."
        )
    return network.to(device=device, dtype=dtype).eval().requires_grad_(False)
