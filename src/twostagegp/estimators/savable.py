"""The ``save`` method of every front door."""

from __future__ import annotations

from os import PathLike

from twostagegp.errors import ModelFileError

__all__ = ["Savable"]


class Savable:
    """Gives an estimator ``save``; :func:`twostagegp.load` is the way back."""

    def save(self, path: str | PathLike[str], *, include_factors: bool = False) -> None:
        """Write the fitted model into a folder, whole or not at all.

        Needs ``pip install 'twostagegp[files]'``. What is inside, and what is refused:
        docs/files.md.

        Parameters
        ----------
        path : path of the folder
            Made where it is not there; a model that is there is replaced once the new one is whole.
        include_factors : bool
            Store factorised matrices of n × n numbers too, instead of computing them again in
            :func:`twostagegp.load`.
        """
        if getattr(self, "_shards", None) is not None:
            raise ModelFileError(
                "the training rows of this model are on the workers of a Dask cluster; a model "
                "that was fitted to a pandas or numpy table can be saved."
            )
        from twostagegp.storage.model import save_model

        save_model(self, path, include_factors)
