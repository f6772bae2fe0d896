"""Open X-Embodiment in use: the training scripts of Octo and CrossFormer, data sets of users, errors."""

import json
import re
from typing import Any, cast

import numpy as np
import pytest
import yaml
from helpers import oxe_data
from ml_collections import ConfigDict

from bushel._src.trajectory.oxe.projects import PROJECTS
from bushel._src.trajectory.rlds.reader import RLDSBuilder
from bushel._src.trajectory.standardization_steps import load_standardization
from bushel.trajectory import (
    DatasetConfig,
    MixtureConfig,
    create_validation_dataset,
    get_dataloader,
    make_dataset_from_rlds,
    make_interleaved_dataset,
    make_oxe_dataset_kwargs,
    make_oxe_dataset_kwargs_and_weights,
    make_single_dataset,
    oxe,
    write_rlds,
)
from bushel.trajectory.data_utils import filter_eval_datasets, tree_map
from bushel.trajectory.oxe import crossformer, octo, openvla, xgym

SMALL = {"frame_transform_kwargs": {"resize_size": (8, 8)}}
CROSSFORMER_VIEWS = ("primary", "high", "nav", "left_wrist", "right_wrist")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A folder with all data sets of Octo's mixture "rtx", and some of CrossFormer's mixture."""
    folder = tmp_path_factory.mktemp("oxe")
    golden = oxe_data.text("MANIFEST")["datasets"]
    wanted = [name for name, _ in octo.OXE_NAMED_MIXES["rtx"]]
    wanted += ["aloha_new_sushi_dataset", "omnimimic_gnm_dataset", "droid"]
    for name in wanted:
        if name in golden:
            oxe_data.write(folder, name)
    oxe_data.write(folder, "a1", "go1")
    oxe_data.write(folder, "nyu_door_opening_surprising_effectiveness", "fractal20220817_data")
    rng = np.random.default_rng(0)
    steps = {
        "observation": {
            "agentview_rgb": rng.integers(0, 256, (6, 8, 8, 3), np.uint8),
            "eye_in_hand_rgb": rng.integers(0, 256, (6, 8, 8, 3), np.uint8),
            "joint_states": np.ones((6, 7), np.float32),
            "gripper_states": np.ones((6, 1), np.float32),
            "natural_language_instruction": np.array([b"sort the blocks"] * 6, object),
        },
        "action": {
            "world_vector": rng.normal(size=(6, 3)).astype(np.float32),
            "rotation_delta": rng.normal(size=(6, 3)).astype(np.float32),
            "gripper_closedness_action": np.linspace(-1, 1, 6, dtype=np.float32),
        },
    }
    write_rlds({"train": [{"steps": steps}] * 3, "val": [{"steps": steps}]}, name="viola", data_dir=folder)
    return str(folder)


# Training scripts.


def test_octos_script_with_a_named_mixture(data, tmp_path):
    """What `scripts/train.py` of Octo does with its config, from the config to batches, with other imports."""
    config = ConfigDict(
        {
            "seed": 42,
            "eval_datasets": ("bridge_dataset",),
            "dataset_kwargs": {
                "oxe_kwargs": {
                    "data_mix": "rtx",
                    "data_dir": data,
                    "load_camera_views": ("primary", "wrist"),
                    "load_depth": False,
                    "force_recompute_dataset_statistics": False,
                },
                "traj_transform_kwargs": {
                    "window_size": 2,
                    "action_horizon": 4,
                    "max_action_dim": 7,
                    "goal_relabeling_strategy": "uniform",
                    "task_augment_strategy": "delete_task_conditioning",
                    "task_augment_kwargs": {"keep_image_prob": 0.5},
                    "subsample_length": 100,
                },
                "frame_transform_kwargs": {"resize_size": {"primary": (16, 16), "wrist": (8, 8)}},
                "batch_size": 64,
                "shuffle_buffer_size": 1000,
                "balance_weights": False,
                "cache_dir": str(tmp_path),
            },
        }
    )
    loader = get_dataloader(config)  # the config as it is

    given = cast(dict[str, Any], config.dataset_kwargs)
    given["dataset_kwargs_list"], given["sample_weights"] = make_oxe_dataset_kwargs_and_weights(**given["oxe_kwargs"])
    del given["oxe_kwargs"]
    train_data = make_interleaved_dataset(**given, train=True, seed=42)
    batch = next(train_data.iterator(prefetch=0))

    weights = dict(octo.OXE_NAMED_MIXES["rtx"])
    assert len(weights) == 11
    np.testing.assert_allclose(train_data.sample_weights, np.array(list(weights.values())) / sum(weights.values()))
    assert list(train_data.dataset_statistics) == list(weights)
    assert batch["observation"]["image_primary"].shape == (64, 2, 16, 16, 3)
    assert batch["observation"]["image_wrist"].shape == (64, 2, 8, 8, 3)
    assert batch["action"].shape == (64, 2, 4, 7)
    names, counts = np.unique(batch["dataset_name"], return_counts=True)
    shares = {name.decode(): int(count) for name, count in zip(names, counts)}
    for name, weight in weights.items():
        assert abs(shares.get(name, 0) - 64 * weight / sum(weights.values())) <= 1, name
    wrist = batch["observation"]["pad_mask_dict"]["image_wrist"].any(axis=1)
    assert wrist[batch["dataset_name"] == b"jaco_play"].all()
    assert not wrist[batch["dataset_name"] == b"kuka"].any()  # a robot without such a camera

    with iter(loader) as batches:
        assert (next(batches)["action"] == batch["action"]).all()
        state = batches.get_state()
        expected = next(batches)
    with iter(loader) as again:
        again.set_state(state)
        assert (next(again)["action"] == expected["action"]).all()

    validated, _ = filter_eval_datasets(given["dataset_kwargs_list"], given["sample_weights"], config.eval_datasets)
    assert [one["name"] for one in validated] == ["bridge_dataset"]
    held_out = create_validation_dataset(
        {**validated[0], "cache_dir": str(tmp_path)}, given["traj_transform_kwargs"], given["frame_transform_kwargs"]
    )
    assert len(held_out) == 1
    assert held_out[0]["action"].shape[1:] == (2, 4, 7)


def test_crossformers_script_with_robots_that_differ(data, tmp_path):
    """Arms, two arms, navigation and quadrupeds of `cross_embodiment`, with the heads of CrossFormer's config."""
    there = ("bridge_dataset", "a1", "aloha_new_sushi_dataset", "omnimimic_gnm_dataset", "kuka", "droid")
    mix = [(name, weight) for name, weight in crossformer.OXE_NAMED_MIXES["cross_embodiment"] if name in there]
    assert len(mix) == 6
    kwargs, weights = make_oxe_dataset_kwargs_and_weights(
        mix, data, CROSSFORMER_VIEWS, load_proprio=True, source="crossformer"
    )
    heads = {
        "bimanual": ["aloha_new_sushi_dataset"],
        "nav": ["omnimimic_gnm_dataset"],
        "single_arm": ["bridge_dataset", "kuka", "droid"],
        "quadruped": ["a1"],
    }
    mixture = make_interleaved_dataset(
        kwargs,
        weights,
        train=True,
        traj_transform_kwargs={
            "window_size": 5,
            "action_horizon": 100,
            "max_action_dim": 14,
            "head_to_dataset": heads,
            "goal_relabeling_strategy": "uniform",
            "task_augment_strategy": "delete_task_conditioning",
            "task_augment_kwargs": {"keep_image_prob": 0.5},
        },
        frame_transform_kwargs={"resize_size": dict.fromkeys(CROSSFORMER_VIEWS, (8, 8))},
        batch_size=48,
        cache_dir=str(tmp_path),
    )
    batch = mixture[0]
    robots = batch["dataset_name"]
    assert batch["action"].shape == (48, 5, 100, 14)
    assert batch["observation"]["proprio_quadruped"].shape == (48, 5, 46)
    widths = {b"bridge_dataset": 7, b"a1": 12, b"aloha_new_sushi_dataset": 14, b"omnimimic_gnm_dataset": 2}
    for name, width in widths.items():
        mask = batch["action_pad_mask"][robots == name]
        assert mask.any(axis=(0, 1, 2)).tolist() == [True] * width + [False] * (14 - width), name
    for head, names in heads.items():
        assert (batch["action_head_masks"][head] == np.isin(robots, [name.encode() for name in names])).all()
    # What a1 overrides (always language, never a goal image) holds for a1 only: the original carries it to the next.
    own = next(one for one in kwargs if one["name"] == "a1")
    assert own["override_traj_transform_kwargs"] == {"task_augment_kwargs": {"keep_image_prob": 0.0}}
    aloha = batch["task"]["pad_mask_dict"]["image_high"][robots == b"aloha_new_sushi_dataset"]
    assert aloha.any() and not aloha.all()
    assert len(RLDSBuilder("droid", data).episodes("all")) == 5
    assert mixture.dataset_statistics["droid"]["num_trajectories"] < 5  # those whose file is not in `success` are gone


def test_openvlas_arguments(data, tmp_path):
    kwargs, weights = openvla.get_oxe_dataset_kwargs_and_weights(
        data, [("bridge_dataset", 1.0), ("droid", 2.0), ("kuka", 1.0)], action_proprio_normalization_type="bounds"
    )
    mixture = make_interleaved_dataset(
        kwargs[:1], weights[:1], train=True, cache_dir=str(tmp_path), batch_size=4, **SMALL
    )
    assert mixture[0]["observation"]["proprio"].shape == (4, 1, 8)  # six numbers of the pose, a zero, the gripper
    assert (mixture[0]["observation"]["proprio"][..., 6] == -1).all()  # zeros, normalised as the original does it
    frames = make_single_dataset({**kwargs[1], "cache_dir": str(tmp_path)}, train=True).flatten()
    config = DatasetConfig.from_dict(kwargs[1])
    assert config.frame_filter is openvla.zero_action_filter
    assert len(frames) > 0
    both = make_interleaved_dataset([kwargs[0], kwargs[2]], train=True, cache_dir=str(tmp_path), batch_size=4, **SMALL)
    assert both[0]["action"].shape == (4, 1, 1, 7)


def compare_through_files(name, project, folder):
    """Writes golden trajectories as RLDS, reads them as a training script does, and compares with the originals."""
    oxe_data.write(folder, name)
    kwargs = make_oxe_dataset_kwargs(name, folder, load_proprio=True, source=project)
    kwargs |= {"proprio_obs_keys": {"it": "proprio"}, "proprio_obs_key": None, "image_obs_keys": {}}
    ds, _ = make_dataset_from_rlds(
        **kwargs, train=True, shuffle=False, skip_norm=True, train_split="all", cache_dir=str(folder)
    )
    cases = [out for case, _, out in oxe_data.outputs(name, project) if case not in ("c2", "c5")]
    assert len(ds) == len(cases)
    for number, expected in enumerate(cases):
        ours = ds[number]
        assert expected is not None
        np.testing.assert_allclose(ours["action"], expected["action",], rtol=2e-6, atol=1e-6)
        np.testing.assert_allclose(
            ours["observation"]["proprio_it"], expected["observation", "proprio"], rtol=1e-6, atol=1e-6
        )
        language = expected.get(("language_instruction",))
        assert ours["task"]["language_instruction"].tolist() == language.tolist()


QUICK = ["kuka", "language_table", "berkeley_autolab_ur5", "bridge_dataset", "fmb_dataset"]


@pytest.mark.parametrize("name", QUICK)
def test_trajectories_read_from_files_are_those_of_the_original(name, tmp_path):
    compare_through_files(name, "octo", tmp_path)


@pytest.mark.slow
def test_all_trajectories_read_from_files_are_those_of_the_original(tmp_path):
    left_out = {"robo_net", "mujoco_manip", "utokyo_xarm_pick_and_place_converted_externally_to_rlds", "gnm_dataset"}
    for name, entry in oxe_data.text("MANIFEST")["datasets"].items():
        if "octo" in entry["outputs"] and name not in left_out:  # these have no proprio, or lose trajectories
            compare_through_files(name, "octo", tmp_path)


# Data sets of users.

OWN = [
    ["set", "action", ["concat", "command|hand", ["invert", ["clip01", "command|gripper"]]]],
    ["set", "language_instruction", ["blank", "words"]],
]


def write_own(folder, name="drawer"):
    steps = {
        "observation": {"cam": np.zeros((5, 8, 8, 3), np.uint8)},
        "command": {"hand": np.ones((5, 6), np.float32), "gripper": np.full((5, 1), 1.5, np.float32)},
        "words": np.array([b"open"] * 5, object),
    }
    write_rlds({"train": [{"steps": steps}] * 3, "val": [{"steps": steps}]}, name=name, data_dir=folder)


def test_a_yaml_file_adds_a_data_set_to_a_mixture(data, tmp_path):
    write_own(tmp_path)
    content = {
        "oxe_kwargs": {"data_mix": "bridge", "data_dir": data, "load_camera_views": ["primary"]},
        "datasets": [
            {
                "name": "drawer",
                "data_dir": str(tmp_path),
                "weight": 3.0,
                "image_obs_keys": {"primary": "cam"},
                "language_key": "language_instruction",
                "standardize_fn": OWN,
                "skip_norm": True,
            },
            {"oxe_kwargs": {"name": "kuka", "data_dir": data}, "weight": 0.5, "train_split": "train[:2]"},
        ],
        "batch_size": 9,
        "cache_dir": str(tmp_path),
    }
    path = tmp_path / "mixture.yaml"
    path.write_text(yaml.safe_dump(content))
    config = MixtureConfig.from_file(path)
    assert [(one.name, one.weight) for one in config.datasets] == [
        ("bridge_dataset", 1.0),
        ("drawer", 3.0),
        ("kuka", 0.5),
    ]
    with iter(get_dataloader(config, frame_transform_kwargs={"resize_size": (8, 8)})) as batches:
        batch = next(batches)
    names, counts = np.unique(batch["dataset_name"], return_counts=True)
    assert dict(zip(names, counts)) == {b"bridge_dataset": 2, b"drawer": 6, b"kuka": 1}
    assert batch["action"][batch["dataset_name"] == b"drawer"].reshape(6, 7).tolist() == [[1.0] * 6 + [0.0]] * 6

    config.save(tmp_path / "saved.json")  # the functions of the tables are saved by name, statements as they are
    assert MixtureConfig.from_file(tmp_path / "saved.json") == config
    assert json.loads((tmp_path / "saved.json").read_text())["datasets"][1]["standardize_fn"] == OWN


def test_python_adds_a_data_set_and_a_mixture_to_the_tables(data, tmp_path, monkeypatch):
    write_own(tmp_path)
    monkeypatch.setitem(
        octo.OXE_DATASET_CONFIGS,
        "drawer",
        {"image_obs_keys": {"primary": "cam"}, "action_encoding": octo.ActionEncoding.EEF_POS},
    )
    monkeypatch.setitem(octo.OXE_STANDARDIZATION_TRANSFORMS, "drawer", OWN)
    monkeypatch.setitem(octo.OXE_NAMED_MIXES, "mine", [("drawer", 2.0), ("bridge_dataset", 1.0)])
    kwargs, weights = make_oxe_dataset_kwargs_and_weights("mine", str(tmp_path))
    assert weights == [2.0, 1.0] and [one["name"] for one in kwargs] == ["drawer", "bridge_dataset"]
    ds, _ = make_dataset_from_rlds(**kwargs[0], train=True, skip_norm=True, cache_dir=str(tmp_path))
    assert ds[0]["action"].shape == (5, 7)
    config = octo.OXE_DATASET_CONFIGS["drawer"]
    assert kwargs[0]["action_normalization_mask"] == [True] * 6 + [False]
    kwargs[0]["image_obs_keys"]["primary"] = "another"  # a copy
    assert config["image_obs_keys"] == {"primary": "cam"}


def test_statements_are_part_of_the_identity_of_a_table(tmp_path):
    write_own(tmp_path)
    own = {"name": "drawer", "data_dir": tmp_path, "cache_dir": tmp_path, "train": True, "skip_norm": True}
    first, _ = make_dataset_from_rlds(**own, standardize_fn=OWN)
    second, _ = make_dataset_from_rlds(**own, standardize_fn=[["set", "action", "command|hand"]])
    assert (first[0]["action"].shape, second[0]["action"].shape) == ((5, 7), (5, 6))


def test_a_function_of_the_tables_is_imported_by_its_name():
    assert octo.bridge_dataset_transform.name == "bridge_dataset_transform"
    assert crossformer.bridge_dataset_transform == octo.bridge_dataset_transform
    with pytest.raises(AttributeError, match="has no attribute 'bridge_transform'"):
        _ = octo.bridge_transform
    assert oxe.make_oxe_dataset_kwargs is make_oxe_dataset_kwargs
    assert xgym.ActionEncoding.JOINT is xgym.ActionEncoding.JOINT_POS
    assert octo.OXE_DATASET_CONFIGS["kuka"]["action_encoding"] is octo.ActionEncoding.EEF_POS


def test_the_tables_of_the_page_are_those_of_the_registry():
    page = oxe_data.PAGE.read_text(encoding="utf-8")
    assert page == oxe_data.replace_tables(page), "Run `python -m helpers.oxe_data` in the folder tests."


# Names, and which table they are looked up in.


def test_the_first_project_that_has_a_mixture_is_used():
    assert make_oxe_dataset_kwargs_and_weights("rtx", "data")[0][2]["name"] == "bridge_dataset"
    assert make_oxe_dataset_kwargs_and_weights("rtx", "data", source="openvla")[0][2]["name"] == "bridge_orig"
    kwargs, _ = make_oxe_dataset_kwargs_and_weights("cross_embodiment", "data", CROSSFORMER_VIEWS)
    assert len(kwargs) == 31
    assert make_oxe_dataset_kwargs("libero_10_no_noops", "data")["name"] == "libero_10_no_noops"
    assert make_oxe_dataset_kwargs("xgym_lift_single", "data", load_proprio=True)["proprio_obs_keys"] == {
        "single": "proprio",
        "mano": None,
        "bimanual": None,
        "quadruped": None,
    }


def raises(kind, words, call):
    with pytest.raises(kind, match=re.escape(words)):
        call()


def test_errors_name_what_is_near():
    raises(KeyError, "no mixture 'oxe_magic_soop'. Did you mean 'oxe_magic_soup' or", lambda: named("oxe_magic_soop"))
    raises(KeyError, "OXE_NAMED_MIXES has no 'rtx2'. Did you mean 'rtx'", lambda: named("rtx2", source="octo"))
    raises(KeyError, "no data set 'bridge_datasets'. Did you mean 'bridge_dataset'", lambda: one("bridge_datasets"))
    raises(KeyError, "OXE_DATASET_CONFIGS has no 'a1'", lambda: one("a1", source="octo"))
    raises(
        ValueError,
        'source must be "octo", "crossformer", "openvla" or "xgym", got \'rtx\'',
        lambda: one("kuka", source="rtx"),
    )
    raises(
        KeyError,
        "No project has all data sets of this mixture in its table: gnm_dataset in octo; a1 in crossformer",
        lambda: named([("gnm_dataset", 1.0), ("a1", 1.0)]),
    )
    raises(
        ValueError,
        "bridge_dataset has no camera view 'high' in the table of octo, but primary, secondary, wrist.",
        lambda: one("bridge_dataset", ("high",)),
    )
    raises(
        TypeError, "a list of pairs (name, weight), but has the entry 'kuka'", lambda: named(["kuka"], source="octo")
    )
    for weight in (-1, float("nan"), "2", True):
        raises(
            ValueError,
            "The weight of kuka in a mixture must be a number, 0 or above",
            lambda w=weight: named([("kuka", w)]),
        )
    raises(ValueError, "oxe_kwargs has no argument 'data_mixture'. Did you mean 'data_mix'?", misspelt)
    raises(KeyError, "OXE_STANDARDIZATION_TRANSFORMS has no 'sweep_mano'", lambda: one("sweep_mano"))
    raises(
        ValueError,
        "got 'bounded'. Did you mean",
        lambda: named("rtx", action_proprio_normalization_type="bounded"),
    )


def named(mix, **more):
    return make_oxe_dataset_kwargs_and_weights(mix, "data", **more)


def one(name, views=("primary",), **more):
    return make_oxe_dataset_kwargs(name, "data", views, **more)


def misspelt():
    return MixtureConfig.from_dict({"oxe_kwargs": {"data_mixture": "rtx", "data_dir": "data"}})


def test_a_wrong_entry_of_a_user_is_an_error_also_in_a_mixture(monkeypatch):
    """A mixture leaves out data sets that do not fit, but not those whose entry is wrong."""
    wrong = [
        ({"action_encoding": "EEF"}, [], "drawer has the action encoding 'EEF', but octo has EEF_POS, JOINT_POS"),
        ({}, [], "The entry of drawer in OXE_DATASET_CONFIGS has no 'action_encoding'"),
        ({"action_encoding": 1}, [["sett", "a", "b"]], "The standardisation of drawer has no statement 'sett'"),
        ({"action_encoding": 1}, 3, "The standardisation of drawer must be a list of statements, got 3"),
    ]
    for config, transform, words in wrong:
        monkeypatch.setitem(octo.OXE_DATASET_CONFIGS, "drawer", {"image_obs_keys": {"primary": "cam"}, **config})
        monkeypatch.setitem(octo.OXE_STANDARDIZATION_TRANSFORMS, "drawer", transform)
        raises(ValueError, words, lambda: named([("drawer", 1.0)]))


def test_what_a_mixture_leaves_out_is_told():
    with pytest.warns(UserWarning, match="without bridge_dataset: bridge_dataset has no camera view 'nav'"):
        assert named("bridge", load_camera_views=("nav",), source="octo") == ([], [])
    with pytest.warns(UserWarning, match="has kuka more than once; its weight is 2"):
        assert named([("kuka", 2.0), ("kuka", 3.0)])[1] == [2.0]
    with (
        pytest.warns(UserWarning, match="JOINT_POS, and openvla trains only on data sets with EEF_POS or EEF_R6"),
        pytest.raises(ValueError, match="No data set of the mixture that oxe_kwargs names is left"),
    ):
        mvp = [("berkeley_mvp_converted_externally_to_rlds", 1.0)]
        MixtureConfig.from_dict({"oxe_kwargs": {"data_mix": mvp, "data_dir": "data", "source": "openvla"}})


def test_weights_of_zero(data, tmp_path):
    kwargs, weights = named([("bridge_dataset", 0), ("kuka", 1)])
    kwargs = [{**own, "data_dir": data} for own in kwargs]
    mixture = make_interleaved_dataset(kwargs, weights, train=True, batch_size=16, cache_dir=str(tmp_path), **SMALL)
    assert set(mixture[0]["dataset_name"].tolist()) == {b"kuka"}
    for wrong, words in {(0, 0): "At least one weight", (1, -1): "must be positive", (1, np.nan): "finite"}.items():
        with pytest.raises(ValueError, match=words):
            make_interleaved_dataset(kwargs, wrong, train=True, cache_dir=str(tmp_path))


# Data that do not fit.


def read(folder, data_set="bridge_dataset", **more):
    own = {"train_split": "train", "cache_dir": str(folder), **more}
    return make_dataset_from_rlds(**{**make_oxe_dataset_kwargs(data_set, folder), **own}, train=True)


def write_bridge(folder, length=5, **changes):
    steps = {
        "observation": {
            "image_0": np.zeros((length, 8, 8, 3), np.uint8),
            "state": np.zeros((length, 7), np.float32),
        },
        "action": np.zeros((length, 7), np.float32),
        "language_instruction": np.array([b"go"] * length, object),
    }
    for key, value in changes.items():
        *above, last = key.split("__")
        inner = steps[above[0]] if above else steps
        if value is None:
            del inner[last]
        else:
            inner[last] = value
    return write_rlds({"train": [{"steps": steps}] * 2}, name="bridge_dataset", data_dir=folder).path


def test_a_missing_entry_is_named_with_the_data_set(tmp_path):
    write_bridge(tmp_path / "a", observation__state=None)
    words = 'Data set \'bridge_dataset\': bridge_dataset_transform fails at ["set", "action", ["concat", ["diff", '
    raises(ValueError, words, lambda: read(tmp_path / "a"))
    raises(ValueError, "There is no 'observation|state': 'observation' has image_0.", lambda: read(tmp_path / "a"))
    raises(ValueError, "made of record 0 of RLDSEpisodes(bridge_dataset", lambda: read_and_show(tmp_path / "a"))
    write_bridge(tmp_path / "b", observation__image_0=None)
    raises(ValueError, "The observations of bridge_dataset have no 'image_0'", lambda: read(tmp_path / "b"))
    write_bridge(tmp_path / "c", language_instruction=None)
    raises(ValueError, "of bridge_dataset matches language_key='language_instruction'", lambda: read(tmp_path / "c"))
    write_bridge(tmp_path / "d", language_instruction=np.arange(5))
    raises(ValueError, "bridge_dataset/language_instruction, but it must be strings", lambda: read(tmp_path / "d"))


def test_entries_that_differ_in_length_are_named(tmp_path):
    write_bridge(tmp_path)
    fails = [
        (
            [["set", "action", ["diff", "action"]]],
            "bridge_dataset differ in length: action 4, image_primary 5, language",
        ),
        (
            [["set", "action", ["col", "action", 0]]],
            "Actions of bridge_dataset must have the shape [T, A], these have [5]",
        ),
    ]
    for statements, words in fails:
        raises(ValueError, words, lambda own=statements: read(tmp_path, standardize_fn=own))
    words = "): Trajectory 0, action: Some numbers are infinite or NaN"
    endless = np.full((5, 7), np.inf, np.float32)
    write_bridge(tmp_path / "inf", observation__state=endless)
    raises(ValueError, words, lambda: read(tmp_path / "inf", standardize_fn=[["set", "action", "observation|state"]]))
    raises(TypeError, "state_obs_keys of bridge_dataset must be a list", lambda: read(tmp_path, state_obs_keys="state"))


def read_and_show(folder):
    """Reads a folder. An error has its notes in the text."""
    try:
        read(folder)
    except ValueError as error:
        raise ValueError(" ".join([str(error), *getattr(error, "__notes__", [])])) from error


def test_empty_instructions_are_masked(tmp_path):
    write_bridge(tmp_path, language_instruction=np.array([b""] * 5, object))
    kwargs = {**make_oxe_dataset_kwargs("bridge_dataset", tmp_path), "train_split": "train"}
    mixture = make_interleaved_dataset([kwargs], train=True, batch_size=2, cache_dir=str(tmp_path), **SMALL)
    assert not mixture[0]["task"]["pad_mask_dict"]["language_instruction"].any()


@pytest.mark.parametrize(("length", "left"), [(2, 1), (3, 2)])
def test_bridge_episodes_lose_their_last_step(length, left, tmp_path):
    write_bridge(tmp_path, length)
    assert len(read(tmp_path)[0].flatten()) == 2 * left  # the last step has no successor


def test_an_episode_without_steps_is_left_out(tmp_path):
    write_bridge(tmp_path / "whole", 4)
    episodes = [dict(episode) for episode in RLDSBuilder("bridge_dataset", tmp_path / "whole").episodes("all")]
    steps = {key: value for key, value in episodes[0].items() if key[0] != "_" and key != "traj_metadata"}
    empty = tree_map(lambda leaf: leaf[:0], steps)
    write_rlds(
        {"train": [{"steps": steps}, {"steps": empty}, {"steps": steps}]}, name="bridge_dataset", data_dir=tmp_path
    )
    assert len(read(tmp_path)[0]) == 2


def test_every_data_set_can_be_saved_in_a_config(tmp_path):
    """And read again by somebody who trusts no modules."""
    configs = []
    for project, tables in PROJECTS.items():
        for name in set(tables.configs) & set(tables.transforms):
            views = tuple(tables.configs[name]["image_obs_keys"])
            try:
                kwargs = make_oxe_dataset_kwargs(name, "data", views, True, True, source=project)
            except ValueError as error:
                assert "openvla trains only on" in str(error)
            else:
                configs.append(DatasetConfig.from_dict({**kwargs, "name": f"{name} {project}"}))
    config = MixtureConfig(datasets=configs)
    assert len(configs) > 200
    config.save(tmp_path / "all.json")
    again = MixtureConfig.from_file(tmp_path / "all.json")
    assert again.to_dict() == config.to_dict()
    assert [load_standardization(one.standardize_fn) for one in again.datasets if one.standardize_fn]
    with pytest.raises(ValueError, match=r"names the function bushel\.trajectory\.oxe\.octo:load_project"):
        (tmp_path / "bad.json").write_text(
            '{"datasets": [{"standardize_fn": "bushel.trajectory.oxe.octo:load_project"}]}'
        )
        MixtureConfig.from_file(tmp_path / "bad.json")


def test_worker_processes_standardise_as_this_process_does(data, tmp_path):
    (kwargs,), (weight,) = make_oxe_dataset_kwargs_and_weights([("kuka", np.float32(2))], data)
    assert weight == 2
    actions = []
    for calls in (None, 2):
        own = {**kwargs, "num_parallel_calls": calls, "cache_dir": str(tmp_path / str(calls)), "shuffle": False}
        actions.append(make_dataset_from_rlds(**own, train=True)[0][0]["action"])
    assert (actions[0] == actions[1]).all()


def test_an_episode_of_one_step_leaves_nothing_and_is_told(tmp_path):
    write_bridge(tmp_path, 1)
    raises(ValueError, "None of the 2 trajectories of bridge_dataset is left: all are empty", lambda: read(tmp_path))


def test_a_wrong_version_is_told(tmp_path):
    write_bridge(tmp_path)
    assert len(read(tmp_path, name="bridge_dataset:1.0.0")[0]) == 2
    words = "There is no prepared data set 'bridge_dataset:2.0.0'"
    raises(FileNotFoundError, words, lambda: read(tmp_path, name="bridge_dataset:2.0.0"))
    raises(FileNotFoundError, "There is no prepared data set 'kuka'", lambda: read(tmp_path, "kuka"))
