"""A fixed schedule of an optimiser, used instead of the ladder of candidates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from twostagegp.errors import InputError

__all__ = ["Training"]


@dataclass(frozen=True)
class Training:
    """How hyperparameters are optimised.

    Parameters
    ----------
    optimizer : {"lbfgs", "adam", "adamw"}
    steps : int
        Iterations on the subsample (or on all rows if there is no subsample).
    lr : float
        Learning rate of Adam and AdamW.
    schedule : {"none", "cosine"}
        ``"cosine"``: cosine annealing with warm restarts every ``restart_every`` steps.
    subsample : int or None
        Rows of the warm start; None uses all rows from the beginning.
    refine_steps : int
        Iterations on all rows after the warm start.
    refine_lr : float
    restart_every : int
    weight_decay : float
        Used by AdamW only.

    Examples
    --------
    >>> Training(optimizer="adamw", steps=100, lr=0.1).steps
    100
    """

    optimizer: Literal["lbfgs", "adam", "adamw"] = "lbfgs"
    steps: int = 100
    lr: float = 0.1
    schedule: Literal["none", "cosine"] = "none"
    subsample: int | None = None
    refine_steps: int = 10
    refine_lr: float = 0.1
    restart_every: int = 10
    weight_decay: float = 0.01

    def __post_init__(self) -> None:
        if self.optimizer not in ("lbfgs", "adam", "adamw"):
            raise InputError(
                f"Training(optimizer={self.optimizer!r}): choose 'lbfgs', 'adam' or 'adamw'."
            )
        if self.schedule not in ("none", "cosine"):
            raise InputError(f"Training(schedule={self.schedule!r}): choose 'none' or 'cosine'.")
        for name in ("steps", "refine_steps"):
            if getattr(self, name) < 0:
                raise InputError(f"Training({name}={getattr(self, name)}) must not be negative.")
        for name in ("lr", "refine_lr", "restart_every"):
            if not getattr(self, name) > 0:
                raise InputError(f"Training({name}={getattr(self, name)}) must be positive.")
        if self.weight_decay < 0:
            raise InputError(f"Training(weight_decay={self.weight_decay}) must not be negative.")
        if self.subsample is not None and self.subsample < 2:
            raise InputError(f"Training(subsample={self.subsample}) must be at least 2 or None.")
