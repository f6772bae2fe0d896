"""Standardisation of the data sets that statements cannot describe, and OpenVLA's filter of frames.

The functions have the numbers of the originals, faults included, as far as `docs/oxe.md` lists them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from bushel._src.base.public import public
from bushel._src.base.state_names import in_states
from bushel._src.trajectory.data_utils import Tree, moving, tree_map
from bushel._src.trajectory.standardization_steps import convert_matrices, get_path

METRIC_WAYPOINT_SPACING = {
    "cory_hall": 0.06,
    "go_stanford": 0.12,
    "recon": 0.25,
    "sacson": 0.255,
    "scand": 0.38,
    "seattle": 0.35,
    "tartan_drive": 0.72,
}
"""Metres between waypoints, by a part of the file path: CrossFormer's navigation data sets."""

_KEPT = 3  # Octo keeps every third step of its navigation data
_AHEAD = 100  # waypoints that CrossFormer computes for each step
_FINGER_TIPS = [4, 8, 12, 16, 20]  # among the 21 joints of a hand

_LOW = (-0.7776297926902771, -0.5803514122962952, -0.5795090794563293)
_LOW += (-0.6464047729969025, -0.7041108310222626, -0.8895104378461838)
_HIGH = (0.7597932070493698, 0.5726242214441299, 0.7351000607013702)
_HIGH += (0.6705610305070877, 0.6464948207139969, 0.8897542208433151)


def follow_positions(trajectory: Mapping[str, Any]) -> Tree:
    """Octo's `gnm_dataset`: actions are the way to the next position, seen from the robot.

    Every third step is kept. The lengths are scaled by the first action. If the first two positions are the same, the
    actions are inf or nan, as in the original.
    """
    actions, positions = get_path(trajectory, "action"), get_path(trajectory, "observation|position")
    if len(actions) < 2:
        empty = tree_map(lambda leaf: leaf[:0], trajectory)
        return {**empty, "observation": {**empty["observation"], "proprio": get_path(empty, "observation|state")}}
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = np.linalg.norm(actions[0]) / np.linalg.norm(positions[1] - positions[0])
        kept = tree_map(lambda leaf: leaf[::_KEPT], trajectory)
        observation = kept["observation"]
        yaw = np.ravel(observation["yaw"])[:-1]
        dx, dy = np.moveaxis(np.diff(observation["position"], axis=0), -1, 0)
        ahead = dx * np.cos(yaw) + dy * np.sin(yaw)
        left = dy * np.cos(yaw) - dx * np.sin(yaw)
        action = np.stack([ahead, left], axis=-1) * scale
    shorter = tree_map(lambda leaf: leaf[:-1], kept)
    observation = {**shorter["observation"], "proprio": shorter["observation"]["state"]}
    return {**shorter, "observation": observation, "action": action.astype(actions.dtype)}


@in_states("follow_waypoints")
def follow_waypoints(trajectory: Mapping[str, Any]) -> Tree:
    """CrossFormer's `omnimimic_gnm_dataset`: 100 steps from waypoint to waypoint for each step, seen from the robot.

    `observation/state` and `observation/proprio` get 100 rows more than the action, as in the original.
    """
    state = get_path(trajectory, "observation|state")
    rotation = get_path(trajectory, "observation|yaw_rotmat")[:, :2, :2]
    longer = np.concatenate([state, np.repeat(state[-1:], _AHEAD, axis=0)])
    steps = np.diff(longer[:, :2], axis=0)
    rows = np.arange(len(state))[:, None] + np.arange(_AHEAD)
    action = np.einsum("thi,tij->thj", steps[rows], rotation) / _find_spacing(trajectory)
    observation = {**trajectory["observation"], "state": longer, "proprio": longer}
    return {**trajectory, "observation": observation, "action": action}


def _find_spacing(trajectory: Mapping[str, Any]) -> float:
    """Return the spacing of the last name in the table that occurs in the file path; 1 if none does."""
    path = get_path(trajectory, "traj_metadata|episode_metadata|file_path")
    first = path[0] if len(path) else b""
    text = first if isinstance(first, bytes) else str(first).encode()
    matches = [spacing for name, spacing in METRIC_WAYPOINT_SPACING.items() if name.encode() in text]
    return float(np.float32(matches[-1] if matches else 1.0))


def follow_hand(trajectory: Mapping[str, Any]) -> Tree:
    """`xgym_*_mano`: a hand as a gripper. Position and rotation of the palm, and how far apart the finger tips are."""
    joints = get_path(trajectory, "observation|keypoints_3d")
    rotation = convert_matrices(get_path(trajectory, "observation|mano.global_orient")[:, 0].astype(np.float32))
    tips = joints[:, _FINGER_TIPS]
    first, second = np.triu_indices(len(_FINGER_TIPS), 1)
    grip = np.linalg.norm(tips[:, first] - tips[:, second], axis=-1).mean(axis=-1, keepdims=True)
    state = np.concatenate([joints[:, 0], rotation, grip], axis=-1)
    focal = np.reshape(get_path(trajectory, "observation|scaled_focal_length"), (len(state), 1))
    proprio = np.concatenate([state, focal], axis=-1)
    observation = {"image": get_path(trajectory, "observation|img"), "proprio": proprio}
    return {**trajectory, "observation": observation, "action": _move_to_next(state)}


def follow_finger_tips(trajectory: Mapping[str, Any]) -> Tree:
    """`rlds_oakink`: motions of the wrist and the finger tips.

    A row of the action has numbers of one joint at several steps, not of all joints at one step. This is the
    original's fault.
    """
    joints = get_path(trajectory, "observation|joints_3d")
    parts = [joints, get_path(trajectory, "observation|mano_pose"), get_path(trajectory, "observation|cam_intr")]
    proprio = np.concatenate([part.reshape(len(part), -1) for part in parts], axis=-1)
    mixed = np.moveaxis(joints[:, [0, *_FINGER_TIPS]], 1, 0).reshape(len(joints), -1)
    observation = {"image": get_path(trajectory, "observation|image"), "proprio": proprio}
    return {**trajectory, "observation": observation, "action": _move_to_next(mixed)}


def _move_to_next(values: np.ndarray) -> np.ndarray:
    """Return the difference of each step to the next one; zeros for the last."""
    return np.concatenate([values[1:] - values[:-1], np.zeros_like(values[:1])])


@public("bushel.trajectory.oxe.openvla")
@in_states("zero_action_filter")
def zero_action_filter(trajectory: Mapping[str, Any]) -> np.ndarray:
    """OpenVLA's filter for DROID: which frames have an action that moves the robot. For a `frame_filter`.

    The actions [T, A] or [T, H, A] must be normalised by the bounds of OpenVLA's statistics.

    >>> still = [2 * (0 - low) / (high - low) - 1 for low, high in zip(_LOW, _HIGH)]
    >>> zero_action_filter({"action": np.array([still, [0.5] * 6], np.float32)}).tolist()
    [False, True]
    """
    low, high = np.array(_LOW, np.float32), np.array(_HIGH, np.float32)
    at_rest = 2 * (0 - low) / (high - low + np.float32(1e-8)) - 1
    return moving(trajectory["action"][..., : len(_LOW)], at_rest=at_rest, dims=len(_LOW), tolerance=1e-5)
