"""Mixtures with exact shares. Weights may change by a schedule, follow the lengths of the parts, or be zero."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from bushel._src.base import checks
from bushel._src.base.state_names import in_states
from bushel._src.graph.node import MapNode
from bushel._src.graph.reindex import Mix, Select
from bushel._src.index.mix import Quotas, Stage, Stretches, ToTheLast, exact_mixture, integer_weights, whole_numbers

Weights = Sequence[float] | Sequence[tuple[int, Sequence[float]]] | str
"""A number for each part; or a schedule of such by position; or "size"."""


@in_states("mix_exact")
@dataclasses.dataclass(frozen=True, eq=False)
class ExactMix(Select):
    """Parts in shares that are exact in every prefix, to within one element."""

    stages: tuple[Stage, ...]
    restarts: bool

    @functools.cached_property
    def _quotas(self) -> Quotas | Stretches:
        return exact_mixture(self.stages)

    def find_length(self) -> int:
        return checks.INFINITE if self.restarts else self._quotas.length(self.lengths)

    def choose(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self._quotas.mixed(indices)

    def call(self) -> str:
        stages = [(start, _format_weights(weights)) for start, weights in self.stages]
        weights = stages[0][1] if len(stages) == 1 else stages
        ending = ", when_exhausted='restart'" if self.restarts else ""
        return f"mix(weights={weights}, exact=True{ending})"


@in_states("mix_to_the_last")
@dataclasses.dataclass(frozen=True, eq=False)
class MixToTheLast(Select):
    """Parts in exact shares. When one has run out, the others go on without it, again in exact shares."""

    weights: tuple[int, ...]

    @functools.cached_property
    def _table(self) -> ToTheLast:
        return ToTheLast(self.weights, self.lengths)

    def find_length(self) -> int:
        return self._table.length

    def choose(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self._table.mixed(indices)

    @property
    def whole_epochs(self) -> bool:
        return all(self.weights)

    def call(self) -> str:
        return f"mix(weights={_format_weights(self.weights)}, exact=True, when_exhausted='continue')"


def _format_weights(weights: tuple[int, ...]) -> list[float]:
    """Return weights as they are shown: whole numbers if they are short, else shares."""
    return list(weights) if max(weights) < 10**6 else [float(f"{weight / sum(weights):.4g}") for weight in weights]


def is_special(weights: Any) -> bool:
    """Return whether weights are a schedule or a word instead of one number for each part."""
    return isinstance(weights, str) or (weights is not None and any(_is_stage(entry) for entry in weights))


def _is_stage(entry: Any) -> bool:
    return isinstance(entry, (tuple, list)) and len(entry) == 2


def check_ending(when_exhausted: str) -> None:
    """Raise if the word for the end of a mixture is not one of the three."""
    checks.choice(when_exhausted, ("stop", "restart", "continue"), "when_exhausted")


def mix(
    parts: tuple[MapNode, ...],
    weights: Weights | None,
    exact: bool,
    temperature: float | None,
    when_exhausted: str,
) -> MapNode:
    """Return a mixture of parts, by Grain's rule or with exact shares. Check the arguments; see `MapDataset.mix`."""
    if exact or temperature is not None or is_special(weights):
        return mix_exactly(parts, weights, temperature, when_exhausted)
    check_ending(when_exhausted)
    if when_exhausted != "stop":
        raise ValueError(
            f'when_exhausted="{when_exhausted}" needs exact=True. Exact shares give another order than plain '
            "weights, which follow Grain's rule."
        )
    for number, part in enumerate(parts):
        if part.length == 0:
            raise ValueError(
                f"All datasets must have positive length for mixing, but the dataset at index {number} "
                f"({part.call()}) has length 0."
            )
    checked = checks.weights(weights, len(parts))  # type: ignore[arg-type]
    return Mix(parts, (1,) * len(parts) if checked is None else integer_weights(checked))


def mix_exactly(
    parts: tuple[MapNode, ...], weights: Weights | None, temperature: float | None, when_exhausted: str
) -> MapNode:
    """Check the arguments of an exact mixture and builds it."""
    check_ending(when_exhausted)
    stages = _read_stages(parts, weights, temperature)
    for number, part in enumerate(parts):
        if part.length == 0 and any(numbers[number] for _, numbers in stages):
            raise ValueError(
                f"Datasets with a weight must have elements, but the one at index {number} ({part.call()}) has none."
            )
    if when_exhausted == "continue":
        (_, numbers), *later = stages
        if later:
            raise ValueError('when_exhausted="continue" goes with one set of weights, not with a schedule.')
        return MixToTheLast(parts, numbers)
    return ExactMix(parts, stages, when_exhausted == "restart")


def _read_stages(parts: tuple[MapNode, ...], weights: Weights | None, temperature: float | None) -> tuple[Stage, ...]:
    count = len(parts)
    if weights == "size":
        return ((0, _weigh_by_size([part.length for part in parts], temperature)),)
    if temperature is not None:
        raise ValueError(f'temperature goes with weights="size"; got temperature={temperature!r}, weights={weights!r}.')
    if isinstance(weights, str):
        raise ValueError(f'weights must be numbers, a schedule or "size", got {weights!r}.')
    if not is_special(weights):
        return ((0, _check_weights([1] * count if weights is None else weights, count)),)
    stages: list[Stage] = []
    for entry in weights or ():
        if not _is_stage(entry):
            raise TypeError(f"A schedule is a list of (position, weights); got {entry!r} in it.")
        start, numbers = entry  # type: ignore[misc]
        start = checks.integer(start, "A position in a schedule")
        if start != 0 if not stages else start <= stages[-1][0]:
            raise ValueError(
                f"Positions of a schedule must begin with 0 and grow, got {[entry[0] for entry in weights or ()]}."  # type: ignore[index]
            )
        stages.append((start, _check_weights(numbers, count)))
    return tuple(stages)


def _check_weights(weights: Any, count: int) -> tuple[int, ...]:
    checked = checks.weights(weights, count, zero_allowed=True)
    assert checked is not None
    whole = [int(number) if float(number).is_integer() else number for number in checked]
    return whole_numbers(whole)


def _weigh_by_size(lengths: list[int], temperature: float | None) -> tuple[int, ...]:
    heat = 1.0 if temperature is None else float(temperature)
    if not 0 < heat < float("inf"):
        raise ValueError(f"temperature must be above zero and finite, got {temperature!r}.")
    endless = [number for number, length in enumerate(lengths) if length >= checks.INFINITE]
    if endless:
        raise ValueError(f'weights="size" needs lengths, but the dataset at index {endless[0]} has no end.')
    if not any(lengths):
        raise ValueError('weights="size" needs at least one dataset with elements.')
    if heat == 1:
        return whole_numbers(lengths)
    largest = max(lengths)
    return whole_numbers([(length / largest) ** (1 / heat) if length else 0 for length in lengths])
