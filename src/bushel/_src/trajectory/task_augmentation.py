"""Augmentation of tasks: delete the goal images or the instruction, rephrase the instruction.

It finds the local file of paraphrases that Octo names by a repository of the Hugging Face hub, and downloads nothing.
"""

from __future__ import annotations

import functools
import json
import operator
import os
import pickle
from collections.abc import Mapping
from typing import Any

import numpy as np

from bushel._src.base import redact
from bushel._src.base.late_imports import import_package
from bushel._src.base.public import public
from bushel._src.base.state_names import in_states
from bushel._src.sources import file_access
from bushel._src.sources.paths import expand_path, is_url
from bushel._src.trajectory.data_utils import (
    Compat,
    Rng,
    Tree,
    draw_uniform,
    get_entry,
    get_namespace,
    is_text,
    is_traced,
    make_generator,
    not_empty,
    reproduces_faults,
    to_padding,
    tree_map,
)

__all__ = [
    "Rephraser",
    "delete_and_rephrase",
    "delete_conditioning",
    "delete_task_conditioning",
    "rephrase",
    "rephrase_instruction",
]


def find_paraphrases(paraphrases_repo: Any, paraphrases_filename: Any) -> str:
    """Return the local path of a file of paraphrases, in a folder or in the cache of the Hugging Face hub.

    Args:
      paraphrases_repo: a local folder, or the name of a data set on the hub that was downloaded before.
      paraphrases_filename: the name of the file in it.
    """
    for name, value in (("paraphrases_repo", paraphrases_repo), ("paraphrases_filename", paraphrases_filename)):
        if not isinstance(value, str | os.PathLike):
            raise TypeError(
                f"{name} must be a text, got {value!r}. paraphrases_repo and paraphrases_filename go together; "
                "for a file of your own pass its path as pickle_file_path."
            )
    repo, filename = os.fspath(paraphrases_repo), os.fspath(paraphrases_filename)
    if os.path.isdir(repo):
        path = os.path.join(repo, filename)
        if not os.path.isfile(path):
            raise FileNotFoundError(f"The folder {repo} (paraphrases_repo) has no file {filename!r}.")
        return path
    hub: Any = import_package("huggingface_hub", "robots", "Paraphrases by the name of a repository")
    try:
        cached = hub.try_to_load_from_cache(repo, filename, repo_type="dataset")
    except ValueError as error:  # a name that the hub does not allow
        raise FileNotFoundError(
            f"paraphrases_repo={repo!r} is neither a folder nor a name on the hub. The hub says: {error}"
        ) from error
    if not isinstance(cached, str):
        raise FileNotFoundError(
            f"{filename} of {repo} is not on this machine, and Bushel does not download files that can run code. "
            f"Fetch it once with `hf download {repo} {filename} --repo-type dataset`, or pass the path of a file of "
            "your own as pickle_file_path."
        )
    return cached


def delete_conditioning(
    task: Mapping[str, Any],
    draws: np.ndarray,
    lengths: np.ndarray | int,
    keep_image_prob: float,
    *,
    has_image: np.ndarray | None = None,
) -> Tree:
    """Return a task of N rows. In each row the goal images or the instruction become padding, by a draw from [0, 1).

    `lengths` are the lengths of the rows' episodes: a row that loses its goal images has its last frame as the goal.
    `has_image` says which rows may keep goal images; None means the rows that have one. Instructions may be encoded: an
    array, or a dict of arrays.

    >>> task = {"language_instruction": np.array([b"go"], object), "image_0": np.array([b"jpeg"], object)}
    >>> task["pad_mask_dict"] = {name: np.array([True]) for name in task}
    >>> delete_conditioning(task, np.array([0.7]), 9, keep_image_prob=0.5)["image_0"]
    array([b''], dtype=object)
    """
    if not 0 <= keep_image_prob <= 1:
        raise ValueError(f"keep_image_prob must be between 0 and 1, got {keep_image_prob}.")
    images = [name for name in task if name.startswith(("image_", "depth_"))]
    if "language_instruction" not in task or not images:
        return dict(task)
    hint = "add_pad_mask_dict makes it."
    masks = dict(get_entry(task, "pad_mask_dict", of="A task", hint=hint))
    for name in [*images, "language_instruction"]:
        get_entry(masks, name, of="The task's pad_mask_dict", hint=hint)
    if has_image is None:
        has_image = functools.reduce(operator.or_, [masks[name] for name in images])
    keep_images = ((draws < keep_image_prob) | ~masks["language_instruction"]) & has_image
    changed: Tree = dict(task)
    for name in [*images, "language_instruction"]:
        keep = keep_images if name in images else ~keep_images
        changed |= tree_map(functools.partial(_replace_by_padding, keep=keep, name=name), {name: task[name]})
        masks[name] = masks[name] & keep
    changed["pad_mask_dict"] = masks
    if "timestep" in task:
        timestep, xp = task["timestep"], get_namespace(keep_images, task["timestep"])
        changed["timestep"] = xp.where(keep_images, timestep, np.asarray(lengths) - 1).astype(timestep.dtype)
    return changed


def _replace_by_padding(leaf: Any, keep: Any, name: str) -> Any:
    """Return a leaf with padding in the rows where `keep` is false."""
    if is_text(leaf):
        if is_traced(keep):
            raise ValueError(
                f"task/{name} holds texts or encoded images, which JAX does not support. Inside jit use numbers: "
                "instructions encoded by process_text, and decoded images."
            )
        keep = np.asarray(keep)
    xp = get_namespace(leaf, keep)
    return xp.where(keep.reshape(keep.shape + (1,) * (leaf.ndim - 1)), leaf, to_padding(leaf))


@public("bushel.trajectory.task_augmentation")
def delete_task_conditioning(
    traj: Mapping[str, Any], keep_image_prob: float, *, rng: Rng = None, compat: Compat | None = None
) -> Tree:
    """Return a step with goal images and an instruction keeps the images with this probability, else the instruction.

    A step without an instruction keeps its images, and a step without goal images its instruction. With
    `compat="crossformer"` a step without goal images may lose its instruction, if any other step has an image. With a
    `jax.random` key as `rng` it runs inside `jit` and `vmap`. There instructions must be encoded and images decoded,
    since JAX has no texts.

    >>> task = {"language_instruction": np.array([b"go"], object), "image_0": np.array([b"jpeg"], object)}
    >>> traj = {"task": task | {"pad_mask_dict": {name: np.array([True]) for name in task}}, "action": np.zeros((1, 7))}
    >>> delete_task_conditioning(traj, keep_image_prob=1)["task"]["language_instruction"]
    array([b''], dtype=object)
    """
    task, length = get_entry(traj, "task"), len(get_entry(traj, "action"))
    has_image = None
    if reproduces_faults(compat):
        masks = task.get("pad_mask_dict", {})
        present = [masks[name].any() for name in masks if name.startswith(("image_", "depth_"))]
        has_image = functools.reduce(operator.or_, present, np.zeros(length, bool))
    numbers = draw_uniform(rng, length)
    return {**traj, "task": delete_conditioning(task, numbers, length, keep_image_prob, has_image=has_image)}


@public("bushel.trajectory.task_augmentation")
@in_states("Rephraser", {"_table": "Rephraser.table", "_whole": "Rephraser.whole"})
class Rephraser:
    """Paraphrases of instructions, from a JSON file or a dict: sentence -> other sentences, separated by full stops.

    A pickle is read only with `allow_pickle=True`, since reading a pickle can run any code. A configuration cannot
    allow
    it: pass a `Rephraser` of your own code as `pickle_file_path`, or convert the file to JSON once.

    By default an instruction is one of its own forms, and empty sentences are left out. With `compat="crossformer"`
    instructions too are split at full stops, and the empty text after the last full stop is one of the forms.

    >>> Rephraser({"lift it": "raise it.pick it up"}).forms(b"lift it")
    [b'lift it', b'raise it', b'pick it up']
    """

    def __init__(
        self,
        pickle_file_path: str | os.PathLike[str] | Mapping[str, str],
        compat: Compat | None = None,
        *,
        allow_pickle: bool = False,
    ):
        table = (
            pickle_file_path if isinstance(pickle_file_path, Mapping) else _read_table(pickle_file_path, allow_pickle)
        )
        self._table = {_encode(sentence): _encode(others) for sentence, others in table.items()}
        self._whole = not reproduces_faults(compat)

    def __bool__(self) -> bool:
        return bool(self._table)

    def forms(self, instruction: bytes) -> list[bytes]:
        """Return an instruction and its paraphrases."""
        others = self._table.get(instruction, b"")
        if self._whole:
            return [instruction, *filter(None, others.split(b"."))]
        return (instruction + b"." + others if others else instruction).split(b".")


def _read_table(path: str | os.PathLike[str], allow_pickle: bool) -> Mapping[str, str]:
    name, is_json = redact.show(path), redact.remove_query(os.fspath(path)).endswith(".json")
    if not is_json and allow_pickle is not True:
        raise ValueError(
            f"{name} is read as a pickle, which can run any code, so that it is not read. If you trust it, convert it "
            f"to JSON once: import json, pickle; json.dump(pickle.load(open({name!r}, 'rb')), "
            f"open({name.rpartition('.')[0] + '.json'!r}, 'w')). Or pass Rephraser(path, allow_pickle=True) from "
            "your own code as pickle_file_path."
        )
    with file_access.open_stream(path) as file:
        try:
            table = json.load(file) if is_json else pickle.load(file)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{name} cannot be read as JSON: {error}.") from error
    if not isinstance(table, Mapping):
        raise ValueError(f"{name} must hold a dict from sentences to paraphrases, it holds a {type(table).__name__}.")
    return table


def _encode(text: Any) -> bytes:
    if isinstance(text, str):
        return text.encode()
    if isinstance(text, bytes):
        return text
    raise TypeError(f"Instructions and their paraphrases (joined by full stops) must be strings, got {text!r}.")


@functools.lru_cache(maxsize=16)
def _load_cached(path: str, compat: Compat | None, allow_pickle: bool, version: tuple[int, int]) -> Rephraser:
    return Rephraser(path, compat, allow_pickle=allow_pickle)


def _load_rephraser(
    given: str | os.PathLike[str] | Mapping[str, str] | Rephraser, compat: Compat | None, allow_pickle: bool
) -> Rephraser:
    if isinstance(given, Rephraser):
        return given
    if isinstance(given, Mapping):
        return Rephraser(given, compat)
    path = expand_path(given)
    version = (0, 0)
    if not is_url(path):
        facts = os.stat(path)
        version = (facts.st_mtime_ns, facts.st_size)
    return _load_cached(path, compat, allow_pickle, version)


def rephrase(
    language: np.ndarray,
    draws_per_trajectory: np.ndarray,
    draws_per_step: np.ndarray,
    rephraser: Rephraser,
    rephrase_prob: float,
    *,
    firsts: np.ndarray | None = None,
    labelled: np.ndarray | None = None,
) -> np.ndarray:
    """Return the instructions of N rows, object[N], some replaced by paraphrases; draws are from [0, 1).

    Rows of one episode have the same `draws_per_trajectory`, and the paraphrases of the episode's first instruction,
    `firsts` (None: of the row's own instruction). `labelled` says which rows are of episodes with an instruction at
    every step (None: which rows have an instruction).

    >>> table = Rephraser({"lift": "raise"})
    >>> rephrase(np.array([b"lift"], object), np.array([0.2]), np.array([0.9]), table, 0.5)
    array([b'raise'], dtype=object)
    """
    if not 0 <= rephrase_prob <= 1:
        raise ValueError(f"rephrase_prob must be between 0 and 1, got {rephrase_prob}.")
    changed = np.array(language, object)
    firsts = changed if firsts is None else firsts
    change = (not_empty(changed) if labelled is None else labelled) & (np.asarray(draws_per_trajectory) < rephrase_prob)
    forms: dict[bytes, list[bytes]] = {}
    for row in np.flatnonzero(change).tolist() if rephraser else ():
        first = _encode(firsts[row])
        if first not in forms:
            forms[first] = rephraser.forms(first)
        changed[row] = forms[first][int(draws_per_step[row] * len(forms[first]))]
    return changed


Paraphrases = str | os.PathLike[str] | Mapping[str, str] | Rephraser


def choose_paraphrases(given: Paraphrases | None, repo: Any, filename: Any) -> Paraphrases:
    """Return the paraphrases from CrossFormer's argument, or the file that Octo's two arguments name."""
    if given is not None and repo is None and filename is None:
        return given
    if given is not None or (repo is None and filename is None):
        raise TypeError("Give either pickle_file_path, or paraphrases_repo and paraphrases_filename.")
    return find_paraphrases(repo, filename)


@public("bushel.trajectory.task_augmentation")
def rephrase_instruction(
    traj: Mapping[str, Any],
    pickle_file_path: Paraphrases | None = None,
    rephrase_prob: float | None = None,
    *,
    paraphrases_repo: str | os.PathLike[str] | None = None,
    paraphrases_filename: str | None = None,
    rng: Rng = None,
    compat: Compat | None = None,
    allow_pickle: bool = False,
) -> Tree:
    """Return a trajectory whose instruction is rephrased with this probability, by a paraphrase drawn for each step.

    A paraphrase is drawn from the first step's instruction and its paraphrases. Nothing changes if a step has no
    instruction. Instructions are returned as bytes. `Rephraser` explains the paraphrases, `compat` and `allow_pickle`.
    Octo names the file by `paraphrases_repo` and `paraphrases_filename`: a local folder and a file in it, or a data set
    on the Hugging Face hub whose file was downloaded before.

    >>> traj = {"task": {"language_instruction": np.array([b"lift"] * 2, object)}}
    >>> set(rephrase_instruction(traj, {"lift": "raise"}, 1.0)["task"]["language_instruction"]) <= {b"lift", b"raise"}
    True
    """
    if rephrase_prob is None:
        raise TypeError("rephrase_instruction needs rephrase_prob, the probability of a paraphrase.")
    given = choose_paraphrases(pickle_file_path, paraphrases_repo, paraphrases_filename)
    reproduces_faults(compat)  # a misspelt word is an error also if the paraphrases do not need it
    rephraser = _load_rephraser(given, compat, allow_pickle)
    task = get_entry(traj, "task")
    if "language_instruction" not in task:
        return dict(traj)
    language = np.array([_encode(text) for text in task["language_instruction"].tolist()], object)
    source = make_generator(rng)
    once, each = np.full(len(language), source.random()), source.random(len(language))
    labelled = np.full(len(language), not_empty(language).all())
    firsts = np.full(len(language), language[0] if len(language) else b"", object)
    changed = rephrase(language, once, each, rephraser, rephrase_prob, firsts=firsts, labelled=labelled)
    return {**traj, "task": {**task, "language_instruction": changed}}


@public("bushel.trajectory.task_augmentation")
def delete_and_rephrase(
    traj: Mapping[str, Any],
    pickle_file_path: Paraphrases | None = None,
    rephrase_prob: float | None = None,
    keep_image_prob: float | None = None,
    *,
    paraphrases_repo: str | os.PathLike[str] | None = None,
    paraphrases_filename: str | None = None,
    rng: Rng = None,
    compat: Compat | None = None,
    allow_pickle: bool = False,
) -> Tree:
    """`rephrase_instruction`, then `delete_task_conditioning`.

    >>> traj = {"task": {"language_instruction": np.array([b"lift"], object)}, "action": np.zeros((1, 7))}
    >>> delete_and_rephrase(traj, {"lift": "raise"}, 0.0, 1.0)["task"]["language_instruction"]
    array([b'lift'], dtype=object)
    """
    if rephrase_prob is None or keep_image_prob is None:
        raise TypeError("delete_and_rephrase needs rephrase_prob and keep_image_prob.")
    source = make_generator(rng)
    given = choose_paraphrases(pickle_file_path, paraphrases_repo, paraphrases_filename)
    traj = rephrase_instruction(traj, given, rephrase_prob, rng=source, compat=compat, allow_pickle=allow_pickle)
    return delete_task_conditioning(traj, keep_image_prob, rng=source, compat=compat)
