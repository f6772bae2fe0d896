"""Open X-Embodiment: the tables give what the originals gave, to the last bit where nothing is computed."""

import importlib

import numpy as np
import pytest
from helpers import oxe_data

from bushel._src.trajectory.config_values import ModuleSpec
from bushel._src.trajectory.data_utils import flatten_tree, nest_leaves
from bushel._src.trajectory.oxe.projects import PROJECTS
from bushel._src.trajectory.oxe.special_transforms import follow_hand, zero_action_filter
from bushel._src.trajectory.standardization_steps import Statements
from bushel.trajectory.oxe import make_oxe_dataset_kwargs_and_weights

PAIRS = [
    (data_set, project)
    for data_set, entry in oxe_data.text("MANIFEST")["datasets"].items()
    for project in entry["outputs"]
]


def computes_angles(function):
    """Whether a standardisation has sines, which are those of another library here."""
    return function is follow_hand or (isinstance(function, Statements) and "euler" in repr(function))


@pytest.mark.parametrize(("data_set", "project"), PAIRS)
def test_trajectories_are_those_of_the_original(data_set, project):
    function = PROJECTS[project].transforms[data_set]
    computed = computes_angles(function)
    for case, given, expected in oxe_data.outputs(data_set, project):
        before = {path: leaf.copy() for path, leaf in given.items()}
        if expected is None:
            if data_set != "robo_net":  # fails always in the original, since an axis is missing; here it works
                with pytest.raises(ValueError, match=f"{function.name} fails at .*No step is left"):
                    function(nest_leaves(given))
            continue
        ours = flatten_tree(function(nest_leaves(given)))
        assert set(ours) == set(expected), case
        swapped = ("observation", "exterior_image_1_left"), ("observation", "exterior_image_2_left")
        if project == "openvla" and data_set == "droid" and (ours[swapped[0]] != expected[swapped[0]]).any():
            expected[swapped[0]], expected[swapped[1]] = expected[swapped[1]], expected[swapped[0]]
        for path, leaf in expected.items():
            where = f"{case} {path}"
            assert (ours[path].dtype, ours[path].shape) == (leaf.dtype, leaf.shape), where
            if computed and leaf.dtype.kind == "f":
                np.testing.assert_allclose(ours[path], leaf, rtol=0, atol=1e-6, err_msg=where)
            else:
                np.testing.assert_array_equal(ours[path], leaf, err_msg=where)
        for path, leaf in given.items():  # the input stays as it was
            np.testing.assert_array_equal(leaf, before[path])


def test_robo_net_is_what_was_meant():
    for _, given, expected in oxe_data.outputs("robo_net", "openvla"):
        assert expected is not None
        ours = PROJECTS["octo"].transforms["robo_net"](nest_leaves(given))
        state = [expected["observation", name] for name in ("eef_state", "gripper_state")]
        np.testing.assert_array_equal(ours["observation"]["proprio"], np.concatenate(state, axis=-1))
        np.testing.assert_array_equal(ours["action"], expected["action",])


def test_frames_without_motion_are_those_of_the_original():
    golden = oxe_data.arrays("zero_action_filter")
    cases = sorted({key.partition("|")[0] for key in golden})
    assert len(cases) == 6
    for case in cases:
        kept = zero_action_filter({"action": golden[f"{case}|in|action"][None]})
        assert kept.tolist() == [golden[f"{case}|openvla|keep"]]


def plain(value):
    """Arguments as the golden file has them: functions by name, enums by value."""
    if isinstance(value, ModuleSpec):
        assert ModuleSpec.instantiate(value).func is getattr(importlib.import_module(value["module"]), value["name"])
        return value["name"]
    if isinstance(value, dict):
        return {key: plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    return value.__name__ if callable(value) else getattr(value, "value", value)


@pytest.mark.parametrize("data_set", oxe_data.text("kwargs")["datasets"])
def test_arguments_of_a_data_set_are_those_of_the_original(data_set):
    for project, calls in oxe_data.text("kwargs")["datasets"][data_set].items():
        make = importlib.import_module(f"bushel.trajectory.oxe.{project}").make_oxe_dataset_kwargs
        for call in calls:
            if "raises" in call:
                with pytest.raises({"KeyError": KeyError, "ValueError": ValueError}[call["raises"]]):
                    make(data_set, "data", **call["kwargs"])
            else:
                kwargs = plain(make(data_set, "data", **call["kwargs"]))
                assert kwargs == call["returns"]
                assert list(kwargs)[:2] == ["name", "data_dir"]


@pytest.mark.filterwarnings("ignore:The mixture")
@pytest.mark.parametrize("number", range(len(oxe_data.text("kwargs")["mixtures"])))
def test_mixtures_are_those_of_the_original(number):
    call = oxe_data.text("kwargs")["mixtures"][number]
    arguments = (call["mix"], "data", call["load_camera_views"])
    if "raises" in call:
        with pytest.raises(KeyError):
            make_oxe_dataset_kwargs_and_weights(*arguments, source=call["source"])
        return
    kwargs, weights = make_oxe_dataset_kwargs_and_weights(*arguments, source=call["source"])
    assert [one["name"] for one in kwargs] == call["names"]
    assert weights == call["weights"]


def test_every_entry_of_the_tables_is_there():
    assert {name: (len(t.configs), len(t.transforms), len(t.mixes)) for name, t in PROJECTS.items()} == {
        "octo": (58, 58, 5),
        "crossformer": (72, 72, 1),
        "openvla": (70, 73, 18),
        "xgym": (10, 10, 49),
    }
    names = {name for t in PROJECTS.values() for name in (*t.configs, *t.transforms)}
    assert len(names) == 102
