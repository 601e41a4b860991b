"""Reading MedNLI from small files in its format."""

import json

import pytest

from experiments.mednli import CLASSES, load_mednli
from twostagegp.foundation.text import check_texts


def line(i, **changes):
    item = {"pairID": str(i), "sentence1": f"Premise {i}.", "sentence2": f"Hypothesis {i}."}
    return json.dumps(item | {"gold_label": CLASSES[i % 3]} | changes)


def write_mednli(folder, sizes=(6, 3, 4)):
    for part, size in zip(("train", "dev", "test"), sizes, strict=True):
        lines = "\n".join(line(i) for i in range(size))
        (folder / f"mli_{part}_v1.jsonl").write_text(lines + "\n", encoding="utf-8")


def test_the_three_files_are_read_as_the_encoder_expects(tmp_path):
    write_mednli(tmp_path)
    data = load_mednli(str(tmp_path))
    assert [len(part.pairs) for part in (data.train, data.dev, data.test)] == [6, 3, 4]
    assert data.dev.pairs[1] == ("Premise 1.", "Hypothesis 1.")
    assert data.train.labels.tolist() == [*CLASSES, *CLASSES]
    assert check_texts(data.test.pairs) == data.test.pairs


def test_unicode_separators_are_kept(tmp_path):
    write_mednli(tmp_path)
    sentence = "Fever\u2028since\x85Monday, 39 °C."
    row = json.loads(line(0)) | {"sentence1": sentence}
    path = tmp_path / "mli_dev_v1.jsonl"
    path.write_text(json.dumps(row, ensure_ascii=False) + "\n\n", encoding="utf-8")
    assert load_mednli(tmp_path).dev.pairs == [(sentence, "Hypothesis 0.")]


def test_a_missing_file_is_named(tmp_path):
    write_mednli(tmp_path)
    (tmp_path / "mli_dev_v1.jsonl").unlink()
    with pytest.raises(FileNotFoundError, match=r"mli_dev_v1.jsonl. MedNLI cannot be downloaded"):
        load_mednli(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (line(0) + "\n" + line(1)[:-9], "line 2 is not JSON .*: is the file complete"),
        (line(0) + "\n[1]", "line 2 is not a JSON object"),
        (line(0, gold_label=None), "line 1 lacks sentence1, sentence2 or gold_label as text"),
        ('{"sentence1": "a", "gold_label": "neutral"}', "line 1 lacks sentence1"),
        (line(0, gold_label="-"), "line 1 has the label '-'; expected one of contradiction"),
        ("\n\n", "is empty"),
    ],
)
def test_the_error_for_a_bad_file_does_not_quote_its_text(tmp_path, content, message):
    write_mednli(tmp_path)
    (tmp_path / "mli_test_v1.jsonl").write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=rf"mli_test_v1.jsonl.*{message}") as caught:
        load_mednli(tmp_path)
    assert "Premise" not in str(caught.value)


def test_another_encoding_is_an_error(tmp_path):
    write_mednli(tmp_path)
    (tmp_path / "mli_dev_v1.jsonl").write_bytes(b"\xe9" + line(0).encode())
    with pytest.raises(ValueError, match=r"mli_dev_v1.jsonl is not UTF-8 text"):
        load_mednli(tmp_path)
