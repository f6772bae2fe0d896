"""Arguments that are a choice of words: a Literal for type checkers, and an error with the nearest word."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal, Union, get_args, get_origin

import numpy as np
import pytest
from helpers.signatures import public_functions, types_of

import bushel
from bushel import MapDataset, trajectory
from bushel._src.base import checks
from bushel.trajectory.oxe import crossformer, octo, openvla, xgym

jax = pytest.importorskip("jax")
pytest.importorskip("ray")

ds = MapDataset.range(4).map(float)
ROWS = {"x": np.arange(4)}
MASK = {"action_pad_mask": np.ones((3, 1, 2), bool)}
EPISODE = {"action": np.zeros((3, 2)), "observation": {"proprio": np.zeros((3, 2))}}
STATISTICS = {name: [0.0, 0.0] for name in ("mean", "std", "p01", "p99")}
STEP = {"observation": {"image_primary": np.zeros((3, 8, 8, 3), np.uint8)}, "task": {}, "action": np.zeros((3, 1, 2))}
TASK = {"language_instruction": np.array([b"pick"] * 3), "pad_mask_dict": {"language_instruction": np.ones(3, bool)}}


def table() -> trajectory.TrajectoryDataset:
    return trajectory.TrajectoryDataset.from_trajectories([EPISODE])


Call = Callable[..., Any]
jit: Any = bushel.jit
# How to call each public function that takes a word, by patterns of names; the first one that fits counts.
CALLS: dict[str, Call] = {
    "bushel.*.to_device": lambda **word: ds.to_device(**word),
    "bushel.device_put": lambda **word: bushel.device_put(ds, **word),
    "bushel.device.for_pmap": lambda **word: bushel.device.for_pmap(ds.batch(2), **word),
    "bushel.*.save": lambda **word: ds.save("never", **word),
    "bushel.DatasetOptions.__init__": lambda **word: bushel.DatasetOptions(**word),
    "bushel.ElasticIterator.__init__": lambda **word: bushel.ElasticIterator(ds, 2, bushel.NoSharding(), **word),
    "bushel.MapDataset.pack": lambda **word: ds.pack([1, 2, 3, 1], 4, **word),
    "bushel.MapDataset.mix": lambda **word: MapDataset.mix([ds, ds], exact=True, **word),
    "bushel.sources.convert": lambda **word: bushel.sources.convert("a.jsonl", "out.bag", **word),
    "bushel.sources.decode_audio": lambda **word: bushel.sources.decode_audio(b"RIFF", **word),
    "bushel.sources.decode_image": lambda **word: bushel.sources.decode_image(b"\x89PNG", **word),
    "bushel.jit.ArraySource.__init__": lambda **word: jit.ArraySource(ROWS, **word),
    "bushel.jit.BatchTransform.__init__": lambda **word: jit.BatchTransform(2, **word),
    "bushel.jit.BufferTransform.__init__": lambda **word: jit.BufferTransform(4, 2, **word),
    "bushel.jit.DiskSource.__init__": lambda **word: jit.DiskSource(4, lambda index: ROWS, **word),
    "bushel.jit.RandomCropTransform.__init__": lambda **word: jit.RandomCropTransform(**word),
    "bushel.jit.ReplayBuffer.__init__": lambda **word: jit.ReplayBuffer(4, **word),
    "bushel.jit.ShardedSource.__init__": lambda **word: jit.ShardedSource(
        ROWS, jax.sharding.Mesh(np.array(jax.devices()[:1]), ("data",)), **word
    ),
    "bushel.jit.TimeSeriesBatchTransform.__init__": lambda **word: jit.TimeSeriesBatchTransform(**word),
    "bushel.jit.WindowSource.__init__": lambda **word: jit.WindowSource(ROWS, 2, **word),
    "bushel.jit.cereal.MNISTDiskSource.__init__": lambda **word: jit.cereal.MNISTDiskSource(**word),
    "bushel.jit.datasets.CelebADataset.__init__": lambda **word: jit.datasets.CelebADataset(**word),
    "bushel.jit.datasets.CelebADataset.make_disk_source": lambda **word: jit.datasets.CelebADataset.make_disk_source(
        **word
    ),
    "bushel.jit.datasets.CIFAR100Dataset.__init__": lambda **word: jit.datasets.CIFAR100Dataset(**word),
    "bushel.jit.datasets.CIFAR100Dataset.*": lambda **word: jit.datasets.CIFAR100Dataset.make_disk_source(**word),
    "bushel.jit.datasets.EMNISTDataset.__init__": lambda **word: jit.datasets.EMNISTDataset(**word),
    "bushel.jit.datasets.EMNISTDataset.*": lambda **word: jit.datasets.EMNISTDataset.make_disk_source(**word),
    "bushel.jit.datasets.*.make_disk_source": lambda **word: jit.datasets.SunspotsDataset.make_disk_source(**word),
    "bushel.jit.datasets.*TemperaturesDataset.__init__": lambda **word: jit.datasets.DailyMinTemperaturesDataset(
        **word
    ),
    "bushel.jit.datasets.SunspotsDataset.__init__": lambda **word: jit.datasets.SunspotsDataset(**word),
    "bushel.jit.datasets.time_utils.make_sequence_disk_source": lambda **word: (
        jit.datasets.time_utils.make_sequence_disk_source(contexts=np.zeros((4, 2)), targets=np.zeros((4, 1)), **word)
    ),
    "bushel.jit.datasets.time_utils.prepare_seq_to_seq_windows": lambda **word: (
        jit.datasets.time_utils.prepare_seq_to_seq_windows(
            np.arange(9), np.arange(9), input_window_len=2, target_window_len=1, **word
        )
    ),
    "bushel.jit.datasets.time_utils.prepare_time_series_windows": lambda **word: (
        jit.datasets.time_utils.prepare_time_series_windows(
            np.arange(9), context_length=2, prediction_length=1, train_fraction=0.5, **word
        )
    ),
    "bushel.jit.datasets.time_utils.select_split": lambda **word: jit.datasets.time_utils.select_split(
        np.arange(9), train_fraction=0.5, context_length=2, **word
    ),
    "bushel.trajectory.DatasetConfig.__init__": lambda **word: trajectory.DatasetConfig(name="a", data_dir="b", **word),
    "bushel.trajectory.LeRobotSource.__init__": lambda **word: trajectory.LeRobotSource("never", **word),
    "bushel.trajectory.MixtureConfig.__init__": lambda **word: trajectory.MixtureConfig(
        datasets=[trajectory.DatasetConfig(name="a", data_dir="b")], **word
    ),
    "bushel.trajectory.Windows.__init__": lambda **word: trajectory.Windows(**word),
    "bushel.trajectory.apply_frame_transforms": lambda **word: trajectory.apply_frame_transforms(
        table().flatten(), train=True, **word
    ),
    "bushel.trajectory.apply_trajectory_transforms": lambda **word: trajectory.apply_trajectory_transforms(
        table(), train=True, **word
    ),
    "bushel.trajectory.augment_image": lambda **word: trajectory.augment_image(
        np.zeros((8, 8, 3)), [], rng=np.random.default_rng(0), **word
    ),
    "bushel.trajectory.augment_images": lambda **word: trajectory.augment_images(
        np.zeros((1, 8, 8, 3), np.uint8), np.zeros((1, 2), np.uint32), [], **word
    ),
    "bushel.trajectory.convert_episodes": lambda **word: trajectory.convert_episodes(
        "never", "out", **({"format": "lerobot", "fps": 10} | word)
    ),
    "bushel.trajectory.get_dataloader": lambda **word: trajectory.get_dataloader(
        {"name": "a", "data_dir": "never"}, batch_size=2, **word
    ),
    "bushel.trajectory.get_dataset_statistics": lambda **word: trajectory.get_dataset_statistics(
        table(), [], [], **word
    ),
    "bushel.trajectory.make_dataset_from_lerobot": lambda **word: trajectory.make_dataset_from_lerobot(
        "a", "never", train=True, **word
    ),
    "bushel.trajectory.make_dataset_from_rlds": lambda **word: trajectory.make_dataset_from_rlds(
        "a", "never", train=True, **word
    ),
    "bushel.trajectory.make_interleaved_dataset": lambda **word: trajectory.make_interleaved_dataset(
        [{"name": "a", "data_dir": "never"}], train=True, **word
    ),
    "bushel.trajectory.oxe.*_kwargs": lambda **word: trajectory.oxe.octo.make_oxe_dataset_kwargs(
        "bridge_dataset", "never", **word
    ),
    "bushel.trajectory.oxe.*_weights": lambda **word: trajectory.oxe.openvla.get_oxe_dataset_kwargs_and_weights(
        "never", [("bridge_orig", 1.0)], **word
    ),
    "bushel.trajectory.make_oxe_dataset_kwargs": lambda **word: trajectory.make_oxe_dataset_kwargs(
        "bridge_dataset", "never", **word
    ),
    "bushel.trajectory.make_oxe_dataset_kwargs_and_weights": lambda **word: (
        trajectory.make_oxe_dataset_kwargs_and_weights([("bridge_dataset", 1.0)], "never", **word)
    ),
    "bushel.trajectory.*normalize": lambda **word: trajectory.normalize(np.zeros(2), STATISTICS, **word),
    "bushel.trajectory.*normalize_action_and_proprio": lambda **word: trajectory.normalize_action_and_proprio(
        EPISODE, {"action": STATISTICS}, **word
    ),
    "bushel.trajectory.open_episodes": lambda **word: trajectory.open_episodes("a", "never", **word),
    "bushel.trajectory.reencode_videos": lambda **word: trajectory.reencode_videos("never", "out", **word),
    "bushel.trajectory.write_rlds": lambda **word: trajectory.write_rlds(
        {"train": []}, name="arm", data_dir="never", **word
    ),
    "bushel.trajectory.traj_transforms.chunk_act_obs": lambda **word: trajectory.traj_transforms.chunk_act_obs(
        {**EPISODE, **MASK}, **word
    ),
    "bushel.trajectory.traj_transforms.pad_actions_and_proprio": lambda **word: (
        trajectory.traj_transforms.pad_actions_and_proprio(EPISODE, 4, None, **word)
    ),
    "bushel.trajectory.traj_transforms.zero_out_future_proprio": lambda **word: (
        trajectory.traj_transforms.zero_out_future_proprio(EPISODE, **word)
    ),
    "bushel.trajectory.obs_transforms.augment": lambda **word: trajectory.obs_transforms.augment(
        STEP["observation"], 0, {"augment_order": []}, **word
    ),
    "bushel.trajectory.obs_transforms.decode_and_resize": lambda **word: trajectory.obs_transforms.decode_and_resize(
        STEP["observation"], (8, 8), (8, 8), **word
    ),
    "bushel.trajectory.obs_transforms.image_dropout": lambda **word: trajectory.obs_transforms.image_dropout(
        STEP["observation"], 0, 0.5, **word
    ),
    "bushel.trajectory.task_augmentation.Rephraser.__init__": lambda **word: trajectory.task_augmentation.Rephraser(
        {"pick": "take"}, **word
    ),
    "bushel.trajectory.task_augmentation.delete_task_conditioning": lambda **word: (
        trajectory.task_augmentation.delete_task_conditioning({**EPISODE, "task": TASK}, 0.5, **word)
    ),
    "bushel.trajectory.task_augmentation.delete_and_rephrase": lambda **word: (
        trajectory.task_augmentation.delete_and_rephrase({**EPISODE, "task": TASK}, {"pick": "take"}, 0.5, 0.5, **word)
    ),
    "bushel.trajectory.task_augmentation.rephrase_instruction": lambda **word: (
        trajectory.task_augmentation.rephrase_instruction({**EPISODE, "task": TASK}, {"pick": "take"}, 0.5, **word)
    ),
    "bushel.trajectory.data_utils.allocate_threads": lambda **word: trajectory.data_utils.allocate_threads(
        4, [1.0], **word
    ),
    "bushel.trajectory.data_utils.combine_dataset_statistics": lambda **word: (
        trajectory.data_utils.combine_dataset_statistics([{"num_trajectories": 1, "num_transitions": 3}], **word)
    ),
    "bushel.trajectory.data_utils.rel_open_or_closed": lambda **word: trajectory.data_utils.rel_open_or_closed(
        np.zeros(3), **word
    ),
    "bushel.trajectory.data_utils.sample_match_keys_uniform": lambda **word: (
        trajectory.data_utils.sample_match_keys_uniform({"a": 1}, "a", rng=np.random.default_rng(0), **word)
    ),
}
for project, known in ((crossformer, "bc_z"), (octo, "bc_z"), (xgym, "xgym_single")):
    CALLS[f"{project.__name__}.make_oxe_dataset_kwargs"] = functools.partial(
        project.make_oxe_dataset_kwargs, known, "never"
    )
    CALLS[f"{project.__name__}.make_oxe_dataset_kwargs_and_weights"] = functools.partial(
        project.make_oxe_dataset_kwargs_and_weights, [(known, 1.0)], "never"
    )
CALLS[f"{openvla.__name__}.make_oxe_dataset_kwargs"] = functools.partial(
    openvla.make_oxe_dataset_kwargs, "bc_z", "never"
)
CALLS[f"{openvla.__name__}.get_oxe_dataset_kwargs_and_weights"] = functools.partial(
    openvla.get_oxe_dataset_kwargs_and_weights, "never", [("bc_z", 1.0)]
)
# The constructors of these are not for users: a function or a method of theirs takes the word.
INSIDE = {"bushel.trajectory.TrajectoryDataset.__init__", "bushel.trajectory.RLDSBuilder.episodes"}
# Arguments of a text that is no choice, by the kind of text.
FREE = {
    "a name that the user's data, mesh or program has": "*_key key_template *split group axis *name *_name_* data_mix",
    "a path or an address": "*path* source sources target *_dir *folder *filename *_url url *_repo",
    "a text for people": "message task robot_type version",
    "a function by its name": "*_fn *_filter *_functions *_transforms callable_or_full_name",
    "texts that are data": "strings",
    "settings of others": "impl host shuffle_bins_group_by_feature",
    "statistics or a file of them": "dataset_statistics",
    "an array or a dtype of NumPy, whose types have texts": "mask values times lengths weights at_rest dtype",
}


def words_of(kind: Any) -> set[str]:
    """The words of each Literal in a type."""
    if get_origin(kind) is Literal:
        return {word for word in get_args(kind) if isinstance(word, str)}
    return {word for part in get_args(kind) for word in words_of(part)}


def choices() -> dict[tuple[str, str], list[str]]:
    """The words of each argument that has a Literal, by function and argument."""
    found = {
        (name, argument): sorted(words_of(kind))
        for name, function in [*public_functions().items(), ("bushel.MapDataset.mix", type(MapDataset).mix)]
        for argument, kind in types_of(function).items()
        if argument != "return" and words_of(kind) and name not in INSIDE
    }
    return found


CHOICES = choices()


def find_call(name: str) -> Call:
    return next(call for pattern, call in CALLS.items() if fnmatchcase(name, pattern))


def misspell(word: str) -> str:
    return word[:-2] + word[-1] + word[-2] if len(set(word[-2:])) == 2 else word[:-1]


@pytest.mark.parametrize(("name", "argument"), CHOICES, ids=str)
def test_a_misspelt_word_is_an_error_with_all_words_and_the_nearest(name, argument, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = CHOICES[name, argument]
    word = max(words, key=lambda word: (len(word), word))
    with pytest.raises((ValueError, TypeError)) as caught:
        find_call(name)(**{argument: misspell(word)})
    message = str(caught.value)
    assert isinstance(caught.value, ValueError) and repr(misspell(word)) in message, message
    assert all(other in message for other in words), message
    assert f'Did you mean "{word}"?' in message, message
    assert not any(tmp_path.iterdir())


def test_these_are_many():
    assert len(CHOICES) > 80 and len({argument for _, argument in CHOICES}) > 20
    patterns = [pattern for pattern in CALLS if not any(fnmatchcase(name, pattern) for name, _ in CHOICES)]
    assert not patterns, "No function has such a name any more: " + ", ".join(patterns)


def is_text(kind: Any) -> bool:
    """Whether a text fits a type, beside other values."""
    return kind is str or (get_origin(kind) in (Union, types.UnionType) and any(map(is_text, get_args(kind))))


def test_no_choice_is_a_plain_text():
    """An argument that takes any text is one of the kinds above; each other argument of words is a Literal."""
    patterns = [pattern for kinds in FREE.values() for pattern in kinds.split()]
    found = [
        f"{name}({argument}=)"
        for name, function in public_functions().items()
        for argument, kind in types_of(function).items()
        if argument != "return" and is_text(kind) and not any(fnmatchcase(argument, pattern) for pattern in patterns)
    ]
    assert not found, "A choice of words needs a Literal, other texts a line in FREE:\n" + "\n".join(found)


def test_words_are_read_from_types():
    def call(a: Literal["x", "y"] | None, b: Sequence[Literal["z"]], c: str | int, d: dict[str, int]): ...

    kinds = types_of(call)
    assert [words_of(kinds[name]) for name in "abcd"] == [{"x", "y"}, {"z"}, set(), set()]
    assert [is_text(kinds[name]) for name in "abcd"] == [False, False, True, False]


@pytest.mark.parametrize("word", ["", "KEEP", "kepe", 3, None, b"keep", ["keep"]])
def test_what_is_none_of_the_words_is_a_value_error(word):
    with pytest.raises(ValueError, match=r'^mode must be "keep" or "drop", got .*\.'):
        checks.choice(word, ("keep", "drop"), "mode")
