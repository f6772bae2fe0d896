"""Instructions as tokens: a small tokenizer, trained here, with transformers beside where it is installed."""

import json
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

from bushel.testing import same
from bushel.trajectory.text_processing import (
    CLIPTextProcessor,
    HFTokenizer,
    MuseEmbedding,
    UniversalSentenceEncoder,
    process_text,
)

WORDS = ["pick", "up", "the", "red", "block", "and", "put", "it", "in", "a", "drawer"]
END, PAD, UNKNOWN = "</s>", "[PAD]", "[UNK]"
SETTINGS = {"max_length": 8, "padding": "max_length", "truncation": True, "return_tensors": "np"}
TEXTS = st.lists(st.lists(st.sampled_from([*WORDS, "zebra"]), max_size=12).map(" ".join), min_size=1, max_size=5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tokenizer as the hub stores one, that ends each text with a token of its own."""
    tokenizer = Tokenizer(models.WordLevel(unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator([" ".join(WORDS)], trainers.WordLevelTrainer(special_tokens=[UNKNOWN, PAD, END]))
    end = tokenizer.token_to_id(END)
    tokenizer.post_processor = processors.TemplateProcessing(single=f"$A {END}", special_tokens=[(END, end)])
    found = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save(str(found / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": PAD, "unk_token": UNKNOWN, "eos_token": END}
    (found / "tokenizer_config.json").write_text(json.dumps(config))
    return found


@settings(deadline=None, max_examples=50)
@given(texts=TEXTS, length=st.integers(2, 16))
def test_texts_become_tokens_of_the_vocabulary(folder, texts, length):
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    found = HFTokenizer(str(folder), SETTINGS | {"max_length": length}).encode(texts)
    assert found.keys() == {"input_ids", "attention_mask"}
    assert all(part.dtype == np.int64 and part.shape == (len(texts), length) for part in found.values())
    for text, ids, mask in zip(texts, found["input_ids"], found["attention_mask"]):
        wanted = [vocabulary.get(word, vocabulary[UNKNOWN]) for word in text.split()][: length - 1]
        wanted.append(vocabulary[END])
        assert ids.tolist() == wanted + [vocabulary[PAD]] * (length - len(wanted))
        assert mask.tolist() == [1] * len(wanted) + [0] * (length - len(wanted))


@settings(deadline=None, max_examples=30)
@given(
    texts=TEXTS,
    length=st.integers(2, 16),
    padding=st.sampled_from(["max_length", "longest", True]),
    special=st.booleans(),
)
def test_tokens_are_those_of_transformers(folder, texts, length, padding, special):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(str(folder))
    given = SETTINGS | {"max_length": length, "padding": padding, "add_special_tokens": special}
    wanted, found = theirs(texts, **given), HFTokenizer(str(folder), given).encode(texts)
    # Where there is no token at all, transformers gives floats.
    assert all(same(found[name], wanted[name].astype(np.int64)) for name in found)


def test_texts_are_padded_as_the_options_say(folder):
    texts = ["pick", "pick up the red block"]
    longest = HFTokenizer(str(folder), {"padding": "longest"}).encode(texts)
    assert longest["attention_mask"].sum(axis=1).tolist() == [2, 6] and longest["input_ids"].shape == (2, 6)
    none = HFTokenizer(str(folder), {"padding": False})
    assert none.encode(["pick up"])["input_ids"].shape == (1, 3)
    with pytest.raises(ValueError, match=r"Texts of 2 to 6 tokens cannot be one array. Pass padding='longest'"):
        none.encode(texts)
    assert HFTokenizer(str(folder)).encode([])["input_ids"].shape == (0, 64)
    left = json.loads((folder / "tokenizer_config.json").read_text()) | {"padding_side": "left"}
    copy = folder / "left"
    copy.mkdir()
    (copy / "tokenizer.json").write_text((folder / "tokenizer.json").read_text())
    (copy / "tokenizer_config.json").write_text(json.dumps(left))
    assert HFTokenizer(str(copy), SETTINGS).encode(["pick"])["attention_mask"].tolist() == [[0] * 6 + [1] * 2]


def test_a_tokenizer_is_a_file_and_can_be_sent(folder):
    tokenizer = HFTokenizer(str(folder / "tokenizer.json"), SETTINGS)
    assert same(
        pickle.loads(pickle.dumps(tokenizer)).encode(["put it"]), HFTokenizer(str(folder), SETTINGS).encode(["put it"])
    )


def test_clip_has_positions(folder):
    found = CLIPTextProcessor(SETTINGS, str(folder)).encode(["pick", "put it in"])
    assert found["position_ids"].tolist() == [list(range(8))] * 2
    assert found["position_ids"].dtype == np.int64 and found.keys() == {"input_ids", "attention_mask", "position_ids"}


def test_a_single_text_is_a_batch_of_one(folder):
    for processor in (HFTokenizer(str(folder), SETTINGS), CLIPTextProcessor(SETTINGS, str(folder))):
        for text in ("", "put it in"):
            assert same(processor.encode(text), processor.encode([text]))


def test_only_the_instructions_of_a_batch_become_tokens(folder):
    texts = np.array([b"pick", "à".encode(), b""], object)
    batch = {"task": {"language_instruction": texts, "image": np.ones(3)}, "action": np.ones(3), "dataset_name": texts}
    tokenizer = HFTokenizer(str(folder), SETTINGS)
    found = process_text(batch, tokenizer)
    assert found.keys() == batch.keys() and found["dataset_name"] is texts  # which train.py deletes itself
    assert found["task"]["image"] is batch["task"]["image"]
    assert same(found["task"]["language_instruction"], tokenizer.encode(["pick", "à", ""]))
    assert process_text(batch, None)["task"].keys() == {"image"}
    assert batch["task"]["language_instruction"] is texts and "dataset_name" in batch  # as it was
    with pytest.raises(KeyError, match=r"no task/language_instruction to encode; its task has image"):
        process_text({"task": {"image": 1}}, tokenizer)


@pytest.mark.parametrize(
    ("arguments", "error", "sentence"),
    [
        ({"stride": 3}, TypeError, "tokenizer_kwargs may have .*; got stride"),
        ({"padding": "left"}, ValueError, "padding must be one of 'max_length', 'longest'.*, got 'left'"),
        ({"truncation": "only_second"}, ValueError, "truncation must be one of"),
        ({"return_tensors": "tf"}, ValueError, "return_tensors must be one of 'np', None, got 'tf'"),
        ({"padding": "max_length"}, ValueError, "need a max_length"),
    ],
)
def test_settings_that_are_refused(folder, arguments, error, sentence):
    with pytest.raises(error, match=sentence):
        HFTokenizer(str(folder), arguments)


def test_what_a_tokenizer_lacks_is_named_with_a_way_out(folder, tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"cannot be loaded: .*Pass a tokenizer.json, a folder that holds one"):
        HFTokenizer(str(tmp_path))
    Tokenizer(models.WordLevel({"a": 0, "u": 1}, unk_token="u")).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ValueError, match=r"has no token to pad with. Pass padding=False"):
        HFTokenizer(str(tmp_path))
    assert HFTokenizer(str(tmp_path), {}).encode(["a"])["input_ids"].tolist() == [[0]]
    for kind in (MuseEmbedding, UniversalSentenceEncoder):
        ways = "Any object with a method encode.*sentence-transformers.*HFTokenizer.*With TensorFlow installed"
        for arguments in ({}, {"model": "large"}):
            with pytest.raises(ImportError, match=f"{kind.__name__} is a TensorFlow Hub model.*{ways}"):
                kind(**arguments)


def test_tokens_are_embedded_by_models_of_flax(folder):
    try:
        from transformers import FlaxAutoModel  # pyright: ignore[reportMissingImports]
    except ImportError:
        with pytest.raises(ImportError, match=r"pip install 'transformers<5' flax. Or embed the tokens"):
            HFTokenizer(str(folder), encode_with_model=True)
        return
    from transformers import BertConfig, FlaxBertModel  # pyright: ignore[reportMissingImports]

    FlaxBertModel(
        BertConfig(vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    ).save_pretrained(folder)
    model = FlaxAutoModel.from_pretrained(str(folder))
    tokens = HFTokenizer(str(folder), SETTINGS).encode(["pick"])
    found = HFTokenizer(str(folder), SETTINGS, encode_with_model=True).encode(["pick"])
    assert np.allclose(found, model(**tokens).last_hidden_state) and found.shape == (1, 8, 8)
