"""Augmentation of tasks: delete the goal images or the instruction, rephrase the instruction.

Strategies are functions of a trajectory in this module. Each calls a core that takes its draws as arrays, for rows that
may come from different episodes; `samples.py` calls the same cores.
"""

from bushel._src.trajectory.task_augmentation import (
    Rephraser,
    delete_and_rephrase,
    delete_task_conditioning,
    rephrase_instruction,
)

__all__ = [
    "Rephraser",
    "delete_and_rephrase",
    "delete_task_conditioning",
    "rephrase_instruction",
]
