"""Locating, identifying and loading pretrained models.

A model is a folder as ``save_pretrained`` writes it, or a repository of the Hugging Face hub. The
hub is asked only for a model that is named by its repository; its files are copied to the hub's
cache on this computer. Models are loaded from files, and code in repositories is never executed.
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

__all__ = ["Source", "brief", "hub_copy", "load_network", "load_processor", "locate"]

_REPOSITORY = re.compile(r"[\w.-]+(/[\w.-]+)?", re.ASCII)
#: Configuration and vocabularies in a repository. Weights are large and in several formats.
_SMALL_FILES = ["*.json", "*.txt", "*.model", "*.bpe", "*.codes", "*.tiktoken"]


@dataclass(frozen=True)
class Source:
    """A model on this computer.

    Parameters
    ----------
    name : str
        The name that the user has given.
    folder : path
    commit : str or None
        Commit of the repository; None for a folder of the user.
    """

    name: str
    folder: Path
    commit: str | None = None

    @property
    def identity(self) -> str:
        """A text that is unique to this model: its commit, or a hash of its files."""
        if self.commit is not None:
            return f"{self.name}@{self.commit}"
        parts = [(os.path.basename(state[0]).encode(), _checksum(*state)) for state in self.state]
        return digest(part for pair in parts for part in pair)

    @property
    def state(self) -> list[tuple[str, int, int]]:
        """Path, size and time of modification of each file."""
        files = sorted(path for path in self.folder.iterdir() if _counts(path))
        states = [(path, path.stat()) for path in files]
        return [(str(path), state.st_size, state.st_mtime_ns) for path, state in states]


def _counts(path: Path) -> bool:
    return path.is_file() and not path.name.startswith(".") and path.suffix.lower() != ".md"


@lru_cache(maxsize=4096)
def _checksum(path: str, size: int, changed: int) -> bytes:
    """Return the hash of a file; cached, because a search makes many clones of an encoder."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "blake2b").digest()


def brief(error: Exception) -> str:
    """Return the type and the beginning of the message of an error of another library."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text if len(text) <= 300 else text[:297] + '...'}"


def locate(model: str | os.PathLike[str], revision: str | None = None) -> Source:
    """Locate a model: a folder if one of that name exists, otherwise on the hub."""
    name = os.fspath(model)
    folder = Path(name).expanduser()
    if folder.is_dir():
        return Source(name, folder)
    if not isinstance(model, str) or not _REPOSITORY.fullmatch(name) or name.startswith("."):
        raise InputError(
            f"model={name!r}: there is no such folder. Use one that save_pretrained wrote, or the "
            "name of a repository of the Hugging Face hub, such as 'medicalai/ClinicalBERT'."
        )
    copy = hub_copy(name, revision)
    return Source(name, copy, copy.name)


# Once per process, so that all clones of an encoder use the same commit.
@lru_cache(maxsize=256)
def hub_copy(name: str, revision: str | None) -> Path:
    """Download a repository of the hub, unless it was downloaded before; return its folder."""
    hub = require("huggingface_hub", "foundation")

    def fetch(patterns: list[str]) -> Path:
        # Subfolders of repositories contain the same weights in other formats.
        options = {"revision": revision, "allow_patterns": patterns, "ignore_patterns": ["*/*"]}
        try:
            return Path(hub.snapshot_download(name, **options))
        except Exception as error:
            try:  # without a connection, use an earlier download
                return Path(hub.snapshot_download(name, **options, local_files_only=True))
            except Exception:
                raise error from None

    try:
        folder = fetch([*_SMALL_FILES, "*.safetensors"])
        if not any(folder.glob("*.safetensors")):
            folder = fetch([*_SMALL_FILES, "*.bin"])
    except Exception as error:  # errors of the hub, the network or the disk
        raise InputError(
            f"model={name!r} is not a folder, and could not be downloaded from the Hugging Face "
            f"hub ({brief(error)}). Check the name, the revision and the connection. Without a "
            f"connection, run 'hf download {name} --local-dir FOLDER' on another computer, copy "
            "the folder and use model='FOLDER'."
        ) from error
    return folder


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress progress bars and messages of transformers; problems are raised as errors."""
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
    # Missing weights are drawn at random, which must not change the caller's generator.
    with _quiet(), torch.random.fork_rng(devices=[]):
        try:
            return auto.from_pretrained(str(source.folder), local_files_only=True, **options)
        except Exception as error:  # the classes of transformers raise many types
            raise InputError(
                f"the {what} of model={source.name!r} could not be loaded from "
                f"{str(source.folder)!r} ({brief(error)}). Use a folder that save_pretrained "
                f"wrote and that transformers.{loader} can load."
            ) from error


def load_processor(source: Source, loader: str, what: str, **options: Any) -> Any:
    """Load the tokenizer or image processor that turns rows into inputs of a network."""
    return _load(source, loader, what, **options)


def load_network(source: Source, device: torch.device, dtype: torch.dtype) -> Any:
    """Load a network in evaluation mode, with frozen weights.

    Checkpoints of networks for a task lack the weights of the pooler. Features are taken before the
    pooler, so this does not matter; other missing weights are an error.
    """
    network, record = _load(source, "AutoModel", "network", output_loading_info=True)
    changed = {entry[0] for entry in record["mismatched_keys"]}
    gaps = sorted(name for name in changed | set(record["missing_keys"]) if "pooler" not in name)
    if gaps:
        raise InputError(
            f"model={source.name!r} has no weights for {len(gaps)} part(s) of its network, the "
            f"first is {gaps[0]!r}: its features would be random. Its config.json and its weights "
            "do not match; use another copy."
        )
    return network.to(device=device, dtype=dtype).eval().requires_grad_(False)
