"""Choose the device, CPU or GPU, on which a computation runs."""

from __future__ import annotations

import torch

from twostagegp.errors import InputError

__all__ = ["resolve_device"]

#: Number of rows from which "auto" uses a GPU; measured by benchmarks.device_threshold.
_GPU_ROWS = 1500


def resolve_device(device: str, n: int, batched: bool = False) -> torch.device:
    """Return the device that ``device`` names; ``"auto"`` uses a GPU where it is faster.

    Parameters
    ----------
    device : str
        ``"auto"``, or a name that torch knows, such as ``"cpu"`` or ``"cuda:0"``.
    n : int
        Number of rows.
    batched : bool
        Whether the work is a batch of small problems, for which a GPU is faster at any size.

    Examples
    --------
    >>> resolve_device("cpu", 100)
    device(type='cpu')
    """
    if device == "auto":
        gpu = torch.cuda.is_available() and (batched or n >= _GPU_ROWS)
        return torch.device("cuda" if gpu else "cpu")
    try:
        resolved = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise InputError(f"device={device!r}: use 'auto', 'cpu' or 'cuda'.") from error
    if resolved.type == "cuda" and (resolved.index or 0) >= torch.cuda.device_count():
        raise InputError(
            f"device={device!r}, but torch sees {torch.cuda.device_count()} CUDA device(s); "
            "use device='cpu'."
        )
    return resolved
