"""Instructions as tokens. It works on whole batches, on the host, with the package `tokenizers`.

Embedding texts is up to the training program, except with the Flax models that CrossFormer could load.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from bushel._src.base import checks
from bushel._src.base.late_imports import import_package
from bushel._src.base.public import public

_KWARGS: Mapping[str, Any] = MappingProxyType(
    {"max_length": 64, "padding": "max_length", "truncation": True, "return_tensors": "np"}
)
_PADDING = ("max_length", "longest", True, False, "do_not_pad")
_TRUNCATION = (True, False, "longest_first", "do_not_truncate")
_KNOWN = {*_KWARGS, "add_special_tokens"}


@public("bushel.trajectory")
class TextProcessor(Protocol):
    """Anything that turns texts into arrays, or dicts of arrays, with a leading axis of texts."""

    def encode(self, strings: Sequence[str]) -> Any:
        """Return the arrays for these texts."""
        ...


@public("bushel.trajectory")
class HFTokenizer:
    """A Hugging Face tokenizer: from texts to `input_ids` and `attention_mask`, int64, equal to those of transformers.

    Args:
      tokenizer_name: a `tokenizer.json`, a folder that holds one, or a name on the Hugging Face hub.
      tokenizer_kwargs: `max_length`, `padding` ("max_length", "longest" or False), `truncation`,
        `add_special_tokens`, as in transformers. Arrays are NumPy's.
      encode_with_model: returns the last hidden state of the Flax model of that name instead. Needs transformers
        before version 5, which has removed Flax.
    """

    def __init__(
        self,
        tokenizer_name: str,
        tokenizer_kwargs: Mapping[str, Any] | None = _KWARGS,
        encode_with_model: bool = False,
    ):
        self._kwargs = _check_kwargs(tokenizer_kwargs or {})
        self._tokenizer = _load_tokenizer(tokenizer_name)
        padding, length = self._kwargs.get("padding", False), self._kwargs.get("max_length")
        config = _load_config(tokenizer_name)
        if padding in (False, "do_not_pad"):
            self._tokenizer.no_padding()
        else:
            token = _find_pad_token(tokenizer_name, self._tokenizer, config)
            self._tokenizer.enable_padding(
                direction=config.get("padding_side", "right"),
                pad_id=self._tokenizer.token_to_id(token),
                pad_token=token,
                length=length if padding == "max_length" else None,
            )
        self._tokenizer.no_truncation()
        if self._kwargs.get("truncation", False) not in (False, "do_not_truncate"):
            self._tokenizer.enable_truncation(length, direction=config.get("truncation_side", "right"))
        self._model = _load_flax_model(tokenizer_name) if encode_with_model else None

    def encode(self, strings: Sequence[str] | str) -> Any:
        """Return token ids and masks of texts, or the output of the model. A single text is a batch of one."""
        special = self._kwargs.get("add_special_tokens", True)
        texts = [strings] if isinstance(strings, str) else list(strings)
        encodings = self._tokenizer.encode_batch(texts, add_special_tokens=special)
        lengths = {len(encoding.ids) for encoding in encodings}
        if len(lengths) > 1:
            raise ValueError(
                f"Texts of {min(lengths)} to {max(lengths)} tokens cannot be one array. Pass padding='longest', or "
                "padding='max_length' with truncation=True."
            )
        width = lengths.pop() if lengths else self._kwargs.get("max_length") or 0
        tokens = {
            "input_ids": np.array([encoding.ids for encoding in encodings], np.int64).reshape(len(encodings), width),
            "attention_mask": np.array([encoding.attention_mask for encoding in encodings], np.int64).reshape(
                len(encodings), width
            ),
        }
        return tokens if self._model is None else np.array(self._model(**tokens).last_hidden_state)


@public("bushel.trajectory")
class CLIPTextProcessor:
    """CLIP's tokenizer, with `position_ids` beside the tokens.

    Args:
      tokenizer_kwargs: as for `HFTokenizer`.
      tokenizer_name: CLIP's on the hub, or a local copy.
    """

    def __init__(
        self,
        tokenizer_kwargs: Mapping[str, Any] | None = _KWARGS,
        tokenizer_name: str = "openai/clip-vit-base-patch32",
    ):
        self._tokenizer = HFTokenizer(tokenizer_name, tokenizer_kwargs)

    def encode(self, strings: Sequence[str] | str) -> dict[str, np.ndarray]:
        """Return token ids, masks and positions of texts. A single text is a batch of one."""
        tokens = self._tokenizer.encode(strings)
        shape = tokens["input_ids"].shape
        return {**tokens, "position_ids": np.repeat(np.arange(shape[1])[None], shape[0], axis=0)}


class _NeedsTensorFlow:
    """A text model that exists only for TensorFlow."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise ImportError(
            f"{type(self).__name__} is a TensorFlow Hub model, and Bushel does not use TensorFlow. Any object with a "
            "method encode(strings) can replace it. Without TensorFlow: a model of sentence-transformers "
            "('distiluse-base-multilingual-cased-v2' was trained to give the multilingual encoder's 512 numbers; "
            "other numbers than those that a policy was trained with need a new training), or HFTokenizer for tokens. "
            "With TensorFlow installed: a class of your own whose encode calls the hub's model and returns .numpy()."
        )


@public("bushel.trajectory.text_processing")
class MuseEmbedding(_NeedsTensorFlow):
    """The multilingual sentence encoder of TensorFlow Hub. It raises ImportError, which names alternatives."""


@public("bushel.trajectory.text_processing")
class UniversalSentenceEncoder(_NeedsTensorFlow):
    """The universal sentence encoder of TensorFlow Hub. It raises ImportError, which names alternatives."""


@public("bushel.trajectory")
def process_text(batch: Mapping[str, Any], text_processor: TextProcessor | None) -> dict[str, Any]:
    """Return a batch with encoded instructions.

    It encodes `task/language_instruction` (bytes or strings), or removes it if `text_processor` is None. The given
    batch does not change. `dataset_name`, the other text of a batch, is left to the caller, as in the original.

    >>> batch = {"task": {"language_instruction": np.array([b"pick", b""], object)}, "dataset_name": ["a", "a"]}
    >>> process_text(batch, None)
    {'task': {}, 'dataset_name': ['a', 'a']}
    """
    task = dict(batch.get("task", {}))
    texts = task.pop("language_instruction", None)
    if text_processor is not None:
        if texts is None:
            raise KeyError(
                f"The batch has no task/language_instruction to encode; its task has {', '.join(task) or 'nothing'}. "
                "Set the language_key of the data set, or pass text_processor=None."
            )
        strings = [text.decode("utf-8") if isinstance(text, bytes) else str(text) for text in texts]
        task["language_instruction"] = text_processor.encode(strings)
    return {**batch, "task": task}


def _check_kwargs(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    unknown = kwargs.keys() - _KNOWN
    if unknown:
        raise TypeError(f"tokenizer_kwargs may have {', '.join(sorted(_KNOWN))}; got {', '.join(sorted(unknown))}.")
    for name, choices in (("padding", _PADDING), ("truncation", _TRUNCATION), ("return_tensors", ("np", None))):
        if kwargs.get(name, choices[-1]) not in choices:
            near = checks.suggest(kwargs[name], [word for word in choices if isinstance(word, str)])
            raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {kwargs[name]!r}.{near}")
    length = kwargs.get("max_length")
    if length is None and (
        kwargs.get("padding") == "max_length" or kwargs.get("truncation") in (True, "longest_first")
    ):
        raise ValueError("padding='max_length' and truncation need a max_length.")
    return dict(kwargs)


def _load_tokenizer(name: str) -> Any:
    tokenizers = import_package("tokenizers", "robots", "Tokenizers")
    path = _find_local(name, "tokenizer.json")
    try:
        return tokenizers.Tokenizer.from_pretrained(name) if path is None else tokenizers.Tokenizer.from_file(path)
    except Exception as error:  # the package raises Exception itself
        raise ValueError(
            f"The tokenizer {name!r} cannot be loaded: {error}. Pass a tokenizer.json, a folder that holds one, or a "
            "name on the Hugging Face hub."
        ) from error


def _find_local(name: str, file: str) -> str | None:
    """Return the path of a file of a local tokenizer; None for a name on the hub."""
    if os.path.isfile(name):
        return name if file == "tokenizer.json" else os.path.join(os.path.dirname(name), file)
    if os.path.isdir(name):
        return os.path.join(name, file)
    return None


def _find_pad_token(name: str, tokenizer: Any, config: Mapping[str, Any]) -> str:
    """Return the padding token: from the tokenizer's own files, or one of the usual names."""
    stated = config.get("pad_token")
    stated = stated.get("content") if isinstance(stated, dict) else stated
    padding = None if tokenizer.padding is None else tokenizer.padding["pad_token"]
    for token in (stated, padding, "<pad>", "[PAD]"):
        if token is not None and tokenizer.token_to_id(token) is not None:
            return token
    raise ValueError(f"The tokenizer {name!r} has no token to pad with. Pass padding=False, or give it a pad_token.")


def _load_config(name: str) -> dict[str, Any]:
    """Return the content of transformers' `tokenizer_config.json`; an empty dict if there is no such file."""
    path = _find_local(name, "tokenizer_config.json")
    try:
        if path is None:
            path = import_package("huggingface_hub", "robots", "Names on the hub").hf_hub_download(
                name, "tokenizer_config.json"
            )
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError):
        return {}


def _load_flax_model(name: str) -> Any:
    try:
        from transformers import FlaxAutoModel  # pyright: ignore
    except ImportError as error:
        raise ImportError(
            "encode_with_model=True needs Flax models: pip install 'transformers<5' flax. Or embed the tokens in the "
            "training step, with a model of your own."
        ) from error
    return FlaxAutoModel.from_pretrained(name)
