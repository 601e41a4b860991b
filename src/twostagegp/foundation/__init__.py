"""Features of texts and images from frozen pretrained models.

An encoder turns texts or images into a table of numbers with a pretrained model whose weights do
not change; any estimator of this package can be fitted to that table. ``transformers`` is imported
when an encoder is used for the first time.
"""

from twostagegp.foundation.image import ImageEncoder as ImageEncoder
from twostagegp.foundation.text import TextEncoder as TextEncoder
