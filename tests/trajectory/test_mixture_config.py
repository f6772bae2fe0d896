"""Configurations: what is written comes back, every layout means the same, what is misspelt is told."""

import dataclasses
import functools
import inspect
import json
import re

import numpy as np
import pytest
import yaml
from helpers import robots
from hypothesis import given, settings
from hypothesis import strategies as st
from ml_collections import ConfigDict

from bushel._src.trajectory.config_values import ModuleSpec
from bushel._src.trajectory.make_dataset import make_dataset_from_rlds
from bushel._src.trajectory.mixture_config import DatasetConfig, MixtureConfig
from bushel._src.trajectory.normalization import NormalizationType
from bushel._src.trajectory.trajectory_loader import get_dataloader, get_dataset, make_interleaved_dataset

# What a config is.


def defaults(function):
    return {
        name: entry.default
        for name, entry in inspect.signature(function).parameters.items()
        if entry.kind is not inspect.Parameter.VAR_KEYWORD
    }


def fields(kind):
    return {
        field.name: None if field.default_factory is not dataclasses.MISSING else field.default
        for field in dataclasses.fields(kind)
    }


def test_the_fields_are_the_arguments_of_the_functions_with_their_defaults():
    arguments = {name: value for name, value in defaults(make_dataset_from_rlds).items() if name not in ONE_OF_MANY}
    own = {name: value for name, value in fields(DatasetConfig).items() if name not in OF_THE_CONFIG}
    assert {n: v for n, v in own.items() if n not in ("name", "data_dir")} == {
        n: v for n, v in arguments.items() if n not in ("name", "data_dir")
    }
    arguments = {
        n: v for n, v in defaults(make_interleaved_dataset).items() if n not in ("dataset_kwargs_list", "train")
    }
    own = {n: v for n, v in fields(MixtureConfig).items() if n not in ("datasets", "train", "data_backend")}
    assert own == arguments


ONE_OF_MANY = ("train", "seed", "compat")  # which the mixture says
OF_THE_CONFIG = ("weight", "frame_filter", "override_traj_transform_kwargs")


# What is written comes back.

texts = st.text("abcé_:/ [%]", min_size=1, max_size=6)
texts = texts.filter(lambda text: not re.fullmatch(r"\w+:\w+", text))  # a file that has one seems to name a function
functions = st.one_of(
    st.sampled_from(["helpers.robots:narrow", "math:floor"]),
    st.builds(lambda n: ModuleSpec.create("helpers.robots:narrow", width=n), st.integers(1, 7)),
)
statements = st.lists(
    st.sampled_from([["move", "a|b", "action"], ["set", "action", ["concat", ["cols", "x", None, 6], ["invert", "y"]]]])
)
keys = st.dictionaries(texts, st.none() | texts, max_size=2)
figures = st.lists(st.floats(allow_nan=False, width=32), min_size=1, max_size=3)
statistics = st.fixed_dictionaries(
    {
        "action": st.fixed_dictionaries({"mean": figures.map(np.float32), "std": figures}),
        "num_transitions": st.integers(),
    }
)
datasets = st.fixed_dictionaries(
    {"data_dir": texts},
    optional={
        "weight": st.floats(0.1, 1e6),
        "train_split": st.none() | texts,
        "standardize_fn": st.none() | functions | statements,
        "state_obs_keys": st.lists(st.none() | texts, max_size=2),
        "image_obs_keys": keys,
        "proprio_obs_keys": keys,
        "proprio_obs_dims": st.dictionaries(texts, st.integers(1, 9), max_size=2),
        "action_proprio_normalization_type": st.sampled_from([*NormalizationType, "normal", "bounds"]),
        "dataset_statistics": st.none() | texts | statistics,
        "action_normalization_mask": st.none() | st.lists(st.booleans()) | st.just(np.array([True, False])),
        "filter_functions": st.lists(functions, max_size=2),
        "frame_filter": st.none() | functions,
        "skip_norm_keys": st.lists(texts, max_size=2),
        "override_traj_transform_kwargs": st.just({"window_size": 1, "task_augment_kwargs": {"keep_image_prob": 0.0}}),
        "num_parallel_calls": st.none() | st.integers(1, 9),
    },
)
mixtures = st.fixed_dictionaries(
    {"datasets": st.lists(datasets, min_size=1, max_size=3)},
    optional={
        "balance_weights": st.booleans(),
        "train": st.booleans(),
        "batch_size": st.none() | st.integers(1, 999),
        "traj_transform_kwargs": st.just({"window_size": 2, "post_chunk_transforms": ("helpers.robots:narrow",)}),
        "frame_transform_kwargs": st.just({"resize_size": {"primary": (4, 4)}}) | st.just({"resize_size": [4, 4]}),
        "shuffle_buffer_size": st.none() | st.integers(1),
        "seed": st.integers(0, 2**32 - 1),
        "compat": st.sampled_from([None, "crossformer"]),
        "cache_dir": st.none() | texts,
        "data_backend": st.sampled_from(["bushel", "grain"]),
    },
)


def named(fields):
    numbered = [{**one, "name": f"robot {number}"} for number, one in enumerate(fields["datasets"])]
    return {**fields, "datasets": numbered}


@settings(deadline=None, max_examples=100)
@given(mixtures)
def test_what_is_written_comes_back(tmp_path_factory, fields):
    config = MixtureConfig.from_dict(named(fields))
    assert MixtureConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert MixtureConfig.from_dict(yaml.safe_load(yaml.safe_dump(config.to_dict()))) == config
    file = tmp_path_factory.getbasetemp() / "mixture.json"
    config.save(file)
    assert (
        MixtureConfig.from_file(file, modules=["helpers.robots", "builtins", "math"])
        == config
        == MixtureConfig.of(config)
    )
    for name in fields:  # and nothing was lost before it was written
        if name != "datasets":
            assert json.dumps(getattr(config, name)) == json.dumps(fields[name])


def test_functions_are_saved_by_name(tmp_path):
    config = robots.mixture("cache").changed(
        datasets=[
            robots.robot(
                "arm",
                "cache",
                standardize_fn=functools.partial(robots.narrow, width=2),
                filter_functions=[robots.long_enough],
                frame_filter=robots.even_frames,
            )
        ]
    )
    config.save(tmp_path / "mixture.json")
    (found,) = MixtureConfig.from_file(tmp_path / "mixture.json", modules=["helpers.robots"]).datasets
    assert found.standardize_fn == ModuleSpec(module="helpers.robots", name="narrow", args=(), kwargs={"width": 2})
    assert ModuleSpec.instantiate(found.filter_functions[0]).func is robots.long_enough
    assert ModuleSpec.instantiate(found.frame_filter).func is robots.even_frames


class Standard:
    def method(self, trajectory):
        return trajectory


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (
            lambda trajectory: trajectory,
            "standardize_fn cannot be written to a file: .*lambda.* cannot be imported by a name",
        ),
        (Standard().method, "Standard.method is the name of another object than .*. Define it at the top of a module"),
        (Standard(), r"of type Standard, which cannot be written to a file"),
    ],
)
def test_what_has_no_name_cannot_be_saved(function, sentence):
    with pytest.raises(ValueError, match=sentence):
        DatasetConfig(name="a", data_dir="b", standardize_fn=function).to_dict()


# Layouts.


def test_every_layout_means_the_same(tmp_path):
    one, two = robots.robot("arm", "cache"), robots.robot("gripper", "cache")
    traj, frame = {"window_size": 2}, {"resize_size": (8, 8)}
    expected = MixtureConfig(
        datasets=[{**one, "weight": 3.0}, {**two, "weight": 1.0}],
        traj_transform_kwargs=traj,
        frame_transform_kwargs=frame,
        batch_size=4,
    )
    kwargs = {"traj_transform_kwargs": traj, "frame_transform_kwargs": frame, "batch_size": 4}
    original = {"dataset_kwargs_list": [one, two], "sample_weights": [3.0, 1.0], **kwargs}
    training = {"optimizer": {"lr": 1e-3}, "num_steps": 5, "dataset_kwargs": original}
    for found in (MixtureConfig.from_dict(original), MixtureConfig.from_dict(training)):
        assert found.weights == expected.weights == [3.0, 1.0]
        assert found.changed(sample_weights=None, datasets=expected.datasets) == expected
        assert [dataclasses.replace(entry, weight=1.0) for entry in expected.datasets] == list(found.datasets)
    table = {name: {k: v for k, v in entry.items() if k not in ("name", "data_dir")} for name, entry in BOTH.items()}
    assert MixtureConfig.from_mix([("arm", 3.0), ("gripper", 1.0)], table, data_dir="cache/data", **kwargs) == expected
    (tmp_path / "mixture.yml").write_text(yaml.safe_dump(expected.to_dict()))
    assert MixtureConfig.from_file(tmp_path / "mixture.yml") == expected


RUNS = {"module": "os", "name": "system", "args": ["touch /tmp/ran"], "kwargs": {}}


@pytest.mark.parametrize(
    "function",
    [
        "os:system",
        RUNS,
        "bushel._src.trajectory.config_values:importlib.import_module",
        "bushel.trajectory.obs_transforms:np.load",
        "bushel.trajectory.obs_transforms:np",
        "bushel.trajectory.task_augmentation:Rephraser",
        "bushel:_importlib.import_module",
        "helpers.robots_of_others:narrow",
    ],
)
@pytest.mark.parametrize("ending", ["json", "yaml"])
def test_a_file_cannot_name_functions_that_nobody_trusts(tmp_path, function, ending):
    content = {"datasets": [{"name": "arm", "standardize_fn": function}], "traj_transform_kwargs": {"x": [function]}}
    file = tmp_path / f"mixture.{ending}"
    file.write_text(json.dumps(content) if ending == "json" else yaml.safe_dump(content))
    named = function if isinstance(function, str) else "os:system"
    for read in (MixtureConfig.from_file, MixtureConfig.of, get_dataset, get_dataloader):
        with pytest.raises(ValueError, match=f"names the function {re.escape(named)}, which would be imported"):
            read(file)
    with pytest.raises(ValueError, match="names the function"):
        MixtureConfig.from_file(file, modules=["helpers.robots"])  # no other package of a longer name


def test_a_file_may_name_our_own_transforms(tmp_path):
    function = "bushel.trajectory.traj_transforms:add_pad_mask_dict"
    file = tmp_path / "mixture.json"
    file.write_text(json.dumps({"datasets": [{"name": "arm", "data_dir": "here", "standardize_fn": function}]}))
    assert MixtureConfig.from_file(file).datasets[0].standardize_fn == function


BOTH = {name: robots.robot(name, "cache") for name in ("arm", "gripper")}


def test_a_single_data_set_is_a_mixture_of_one():
    fields = robots.robot("arm", "cache")
    expected = MixtureConfig(datasets=[DatasetConfig.from_dict(fields)])
    finetuning = {"dataset_kwargs": fields, "batch_size": 256, "traj_transform_kwargs": {"window_size": 5}, "seed": 42}
    assert MixtureConfig.of(fields) == MixtureConfig.of(DatasetConfig(**fields)) == expected
    assert MixtureConfig.of(finetuning) == expected.changed(
        batch_size=256, traj_transform_kwargs={"window_size": 5}, seed=42
    )


# What is refused.


def refused(error, match, **fields):
    with pytest.raises(error, match=match):
        robots.mixture("cache", **fields)


def test_a_name_that_is_not_known_is_told_with_the_nearest_one():
    refused(
        ValueError, r"MixtureConfig has no field 'sampleweights'. Did you mean 'sample_weights'\?", sampleweights=[1]
    )
    refused(
        ValueError,
        "DatasetConfig has no field 'image_keys'. Did you mean 'image_obs_keys'",
        datasets=[{"image_keys": 0}],
    )
    traj = {"windowsize": 2}
    refused(
        ValueError, "traj_transform_kwargs has no argument .* Did you mean 'window_size'", traj_transform_kwargs=traj
    )
    refused(ValueError, "Did you mean 'resize_size'", frame_transform_kwargs={"resize": (1, 1)})
    one = robots.robot("arm", "cache", override_traj_transform_kwargs=traj)
    refused(ValueError, "Data set 'arm': override_traj_transform_kwargs has no", datasets=[one])
    with pytest.raises(ValueError, match="Did you mean 'batch_size'"):
        robots.mixture("cache").changed(batchsize=1)
    with pytest.raises(ValueError, match=r"table of data sets has no entry 'bridgedata'. Did you mean 'bridge'"):
        MixtureConfig.from_mix([("bridgedata", 1.0)], {"bridge": {}}, data_dir="data")
    refused(ValueError, r"no field 'xyz'. There are: datasets, sample_weights, ", xyz=1)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"sample_weights": [1.0]}, "A mixture of 2 datasets needs 2 weights, got 1"),
        ({"sample_weights": [1.0, -1.0]}, "must be positive"),
        ({"sample_weights": [1.0, float("nan")]}, "must be finite"),
        ({"sample_weights": [0.0, 0.0]}, "At least one weight"),
        ({"datasets": []}, "needs at least one data set"),
        ({"datasets": [BOTH["arm"], BOTH["arm"]]}, r"must differ.*\['arm'\] occur more than once"),
        ({"datasets": [{"name": "arm"}]}, "The DatasetConfig of 'arm' lacks data_dir; it has"),
        ({"datasets": [{**BOTH["arm"], "weight": -1}]}, "'arm': weight must be a number, 0 or above; got -1"),
        ({"datasets": [{**BOTH["arm"], "weight": "much"}]}, "got 'much'"),
        (
            {"datasets": [{**BOTH["arm"], "format": "lerobo"}]},
            'format must be "rlds", .*got \'lerobo\'. Did you mean "lerobot"',
        ),
        (
            {"datasets": [{**BOTH["arm"], "action_proprio_normalization_type": "max"}]},
            'normalization must be "normal" or "bounds", got .max',
        ),
        ({"compat": "octo"}, "compat must be None .*got 'octo'"),
        ({"data_backend": "torch"}, 'data_backend must be "bushel" or "grain", got \'torch\''),
        ({"batch_size": 0}, "batch_size must be positive"),
        ({"seed": -1}, "Seed must be"),
    ],
)
def test_values_that_cannot_be_are_refused(fields, sentence):
    refused(ValueError, sentence, **fields)


@pytest.mark.parametrize("place", ["beside", "inside", "flat"])
def test_the_switch_for_grain_is_a_name_of_the_back_end(place):
    arm = {"name": "arm", "data_dir": "data"}
    inner = {"dataset_kwargs_list": [arm]}

    def config(**fields):
        if place == "flat":
            return {"datasets": [arm], **fields}
        return {"dataset_kwargs": inner, **fields} if place == "beside" else {"dataset_kwargs": {**inner, **fields}}

    for switch, name in ((True, "grain"), (False, "bushel"), (None, "bushel")):
        found = MixtureConfig.of(config(use_grain=switch))
        assert found.data_backend == name and found == MixtureConfig.of(config(data_backend=name))
        assert found.changed(use_grain=True).data_backend == "grain"
    with pytest.raises(ValueError, match="data_backend='bushel' and use_grain=True contradict each other"):
        MixtureConfig.of(config(use_grain=True, data_backend="bushel"))
    with pytest.raises(TypeError, match="use_grain must be True or False, got 'no'"):
        MixtureConfig.of(config(use_grain="no"))


def test_config_dicts_are_dicts():
    arm = {"name": "arm", "data_dir": "data", "proprio_obs_keys": {"arm": "state"}}
    expected = MixtureConfig.of({"datasets": [arm], "traj_transform_kwargs": {"window_size": 2}})
    inner = ConfigDict({**arm, "proprio_obs_keys": ConfigDict({"arm": "state"})})
    outer = {"datasets": [inner], "traj_transform_kwargs": ConfigDict({"window_size": 2})}
    for config in (ConfigDict(outer), outer, {"dataset_kwargs": ConfigDict(outer)}):
        assert MixtureConfig.of(config) == expected
    assert MixtureConfig.of(inner).datasets == expected.datasets


def test_what_is_no_dict_is_refused_with_the_way_out():
    with pytest.raises(TypeError, match="A config must be a dict, got object"):
        MixtureConfig.of(object())
    refused(TypeError, "must be a dict, got str", datasets=["arm"])
    refused(TypeError, "traj_transform_kwargs must be a dict, got int", traj_transform_kwargs=3)
    with pytest.raises(ValueError, match=r"oxe_kwargs lacks data_dir; it has \['data_mix'\]"):
        MixtureConfig.of({"dataset_kwargs": {"oxe_kwargs": {"data_mix": "oxe_magic_soup"}}})
    with pytest.raises(ValueError, match="A MixtureConfig lacks datasets; it has"):
        MixtureConfig.of({"batch_size": 3})


def test_files_that_cannot_be_read_are_told_by_name(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere\.json"):
        MixtureConfig.of(tmp_path / "nowhere.json")
    for name, text, sentence in (
        ("broken.json", "{", "broken.json cannot be read as JSON: Expecting"),
        ("broken.yaml", "a: [", "broken.yaml cannot be read as YAML"),
        ("list.json", "[1]", r"must hold the fields of a config by name, but holds \[1\]"),
        ("empty.yaml", "", "but holds None"),
        ("config.toml", "", r"A config must be a .json, .yaml or .yml file; got .*config\.toml"),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(ValueError, match=sentence):
            MixtureConfig.of(tmp_path / name)
    with pytest.raises(ValueError, match=r"saved only to a .json file"):
        robots.mixture("cache").save(tmp_path / "mixture.yaml")
    with pytest.raises(ValueError, match="keys in a file must be texts"):
        robots.mixture("cache", traj_transform_kwargs={"head_to_dataset": {1: ["arm"]}}).to_dict()
