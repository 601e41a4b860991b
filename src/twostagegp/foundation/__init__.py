"""Frozen foundation models in front of a classifier.

An encoder turns texts or images into a table of numbers with a pretrained model whose weights stay
as they are; any estimator of this package can be fitted to that table. Nothing here loads
``transformers`` before an encoder is used.
"""

from twostagegp.foundation.image import ImageEncoder as ImageEncoder
from twostagegp.foundation.mc_dropout import MCDropoutClassifier as MCDropoutClassifier
from twostagegp.foundation.text import TextEncoder as TextEncoder
