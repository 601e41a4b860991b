r"""An extension of griffe, which reads the docstrings for the API pages.

Docstrings are written so that they read well in a terminal. On a page their formulas become MathML,
which browsers draw without a script from elsewhere, and their references plain code:

>>> translate("The mean of :func:`~package.rmse` and :math:`x_i`.")[:27]
'The mean of `rmse` and <mat'
>>> print(translate("An area:\n\n.. math:: a^2\n\nin m².").splitlines()[-1])
in m².
"""

from __future__ import annotations

import re
import textwrap
from typing import Any

import griffe
from latex2mathml.converter import convert

__all__ = ["DocstringMarkup", "translate"]

_BLOCK = re.compile(r"^([ ]*)\.\. math::[ ]*(.*(?:\n(?:\1[ ]+\S.*|[ ]*(?=\n\1[ ]+\S)))*)", re.M)
_INLINE = re.compile(r":math:`([^`]+)`")
_REFERENCE = re.compile(r":(?:func|class|mod|meth|attr|data):`(?:~(?:\w+\.)*)?([\w.]+)`")


def translate(text: str) -> str:
    """Return a docstring with formulas as MathML and references as code."""
    text = _BLOCK.sub(_block, text)
    text = _INLINE.sub(lambda found: convert(found[1]), text)
    return _REFERENCE.sub(r"`\1`", text)


def _block(found: re.Match[str]) -> str:
    formula = textwrap.dedent(found[2]).strip()
    if "&" in formula and "\\begin" not in formula:
        formula = rf"\begin{{align}}{formula}\end{{align}}"
    return found[1] + convert(" ".join(formula.split()), display="block")


class DocstringMarkup(griffe.Extension):
    """Translates every docstring that griffe loads."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = translate(obj.docstring.value)
