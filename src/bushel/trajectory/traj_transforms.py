"""Functions of whole trajectories: windows, masks, padding. `traj_transforms.py` says which frames a window has.

All functions return new trees and do not change their arguments. They take arrays of NumPy or JAX, also inside `jit`
and `vmap`, except `add_head_action_mask`, which needs texts.
"""

from bushel._src.trajectory.traj_transforms import (
    add_head_action_mask,
    add_pad_mask_dict,
    chunk_act_obs,
    pad_actions_and_proprio,
    subsample,
    zero_out_future_proprio,
)

__all__ = [
    "add_head_action_mask",
    "add_pad_mask_dict",
    "chunk_act_obs",
    "pad_actions_and_proprio",
    "subsample",
    "zero_out_future_proprio",
]
