"""Small functions for trajectories: trees, padding, names, gripper actions, shares of threads."""

from bushel._src.trajectory.data_utils import (
    allocate_threads,
    binarize_gripper_actions,
    combine_dataset_statistics,
    filter_eval_datasets,
    filter_success_droid,
    invert_gripper_actions,
    moving,
    not_empty,
    pprint_data_mixture,
    rel2abs_gripper_actions,
    rel_open_or_closed,
    relabel_actions,
    sample_match_keys_uniform,
    to_padding,
    tree_map,
    tree_merge,
)

__all__ = [
    "allocate_threads",
    "binarize_gripper_actions",
    "combine_dataset_statistics",
    "filter_eval_datasets",
    "filter_success_droid",
    "invert_gripper_actions",
    "moving",
    "not_empty",
    "pprint_data_mixture",
    "rel2abs_gripper_actions",
    "rel_open_or_closed",
    "relabel_actions",
    "sample_match_keys_uniform",
    "to_padding",
    "tree_map",
    "tree_merge",
]
