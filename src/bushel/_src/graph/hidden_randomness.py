"""Notices functions that draw from random generators of their own, in the first elements, and warns of each once.

`source_nodes.py` notices sources that do so.

Which numbers such a function gets depends on the worker or thread that computes an element, and on restarts. So its
values differ from run to run. A `random_map` passes a generator that belongs to the element.

Each function is watched for its first `CALLS` calls, and costs nothing after them. Before and after a call, the
positions of the global generators are compared, and those of the generators that the function reaches: in its closure,
defaults, attributes, and the globals that it names. A function that seeds its generator anew in each call is not meant:
the state after the call must follow from the state before it by drawing.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import random
import threading
import types
import warnings
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from bushel._src.base.errors import BushelWarning

CALLS = 16
"""How many calls of each function are watched."""
_SHARED_CALL = 0.25  # a call beside calls of other functions in other threads tells nothing, and counts for less

_TWISTS = 4000  # of a Mersenne Twister: this many times 624 numbers of 32 bits in one call are recognised
_FARTHEST = 1 << 40  # how many numbers of a PCG in one call are recognised
_DEEPEST = 8  # a function, a composition of augmentations, its list, a choice of augmentations, its list, one of them
_NAMING = 4  # how many functions lead from the function to the code that names a module
_MOST_OBJECTS = 300
_PLAIN = (type, types.ModuleType, types.NoneType, str, bytes, bool, int, float, complex, np.ndarray, np.generic)
_MASK = (1 << 128) - 1
_MULTIPLIERS = {"PCG64": 0x2360ED051FC65DA44385DF649FCCF645, "PCG64DXSM": 0xDA942042E4DD58B5}
_GENERATORS = (np.random.Generator, np.random.RandomState, random.Random)
_METHODS = ("__call__", "map", "filter", "map_with_index", "random_map", "__getitem__", "__getitems__")
_MODULES = {"np.random": np.random, "random": random}

_lock = threading.Lock()
_calls = 0
"""How many watched calls have begun, in all threads."""
_running: list[Watch] = []
"""The watches whose calls run now."""
_last_calls: weakref.WeakKeyDictionary[Watch, int] = weakref.WeakKeyDictionary()
"""The number of the last call of each watch."""
_told: set[str] = set()
_collected: list[str] | None = None


_WAY_OUT = (
    "Which numbers it gets depends on the worker that computes an element and on what was computed before, so its "
    "values differ from run to run. Use random_map: it passes a generator that belongs to the element, "
    "ds.random_map(lambda element, rng: ..., seed=0)."
)


class Watch:
    """A user's function, watched while it is called for the first times. Call it as the function.

    Args:
      function: the user's function.
      describe: how it reads in a message.
    """

    def __init__(self, function: Callable[..., Any], describe: Callable[[], str]):
        self._function, self._describe = function, describe
        self.left: float = CALLS
        self.told = False
        """Whether it has warned."""
        self._seeded: set[str] = set()
        """The generators that the function seeds in each call."""

    def __call__(self, *arguments: Any) -> Any:
        return self.call(self._function, *arguments)

    def call(self, function: Callable[..., Any], *arguments: Any, way_out: str = _WAY_OUT) -> Any:
        """Return the result of `function`, which may be a method of the object that is watched."""
        if self.left <= 0:
            return function(*arguments)
        # The generators are looked for before each call: a function may make its generator in the first one.
        found = {**_find_global(), **find_held_generators(self._function)}
        generators = {name: found[name] for name in found.keys() - self._seeded}
        before = {name: _read_position(generator) for name, generator in generators.items()}
        number = _enter(self)
        try:
            result = function(*arguments)
        finally:
            others = _leave(self, number)
            alone = others is not _Others.OF_ANOTHER_FUNCTION
            self.left -= 1 if alone else _SHARED_CALL
        if alone:
            self._compare(generators, before, way_out, others is _Others.NONE)
        return result

    def _compare(self, generators: dict[str, Any], before: dict[str, Any], way_out: str, alone: bool) -> None:
        """Look at the generators after a call. `alone`: whether no other call of the function ran at the same time."""
        for name, was in before.items():
            now = _read_position(generators[name])
            if was is None or now is None or was == now:
                continue
            if not _follows(was, now):
                if alone:  # otherwise the calls of other threads may have drawn more numbers than are recognised
                    self._seeded.add(name)
            elif name not in _MODULES or self._is_sure(name):
                self.left, self.told = 0, True
                tell(
                    f"{self._describe()} draws from {name if name in _MODULES else f'a generator of its own, {name}'}. "
                    + way_out
                )
                return

    def _is_sure(self, name: str) -> bool:
        """Return whether the function itself has drawn from a global generator, and not another thread meanwhile."""
        here = threading.current_thread()
        others = [one for one in threading.enumerate() if one is not here and not one.name.startswith("bushel")]
        return not others or _mentions(self._function, _MODULES[name], _NAMING)


class _Others(enum.Enum):
    """Which other calls ran during a call."""

    NONE = enum.auto()
    OF_THIS_FUNCTION = enum.auto()
    OF_ANOTHER_FUNCTION = enum.auto()


def collect_for_consumer() -> None:
    """In a worker: keep warnings until `take_collected`, instead of raising them here."""
    global _collected
    _collected = []


def take_collected() -> list[str]:
    """In a worker: the warnings since the last call, for the consumer."""
    global _collected
    found = _collected or []
    if found:
        _collected = []
    return found


def warn_once(texts: Iterable[str]) -> None:
    """In the consumer: warns, but not twice with one text in this process."""
    for text in texts:
        with _lock:
            is_new = text not in _told
            _told.add(text)
        if is_new:
            warnings.warn(text, BushelWarning, stacklevel=2)


def tell(text: str) -> None:
    """Warn of `text` once. In a worker it keeps the text for the consumer."""
    if _collected is None:
        warn_once([text])
    else:
        _collected.append(text)


def _enter(watch: Watch) -> int:
    """Return note that a watched call begins.

    Return its number; 0 if a call of another function runs in another thread.
    """
    global _calls
    with _lock:
        _calls += 1
        alone = all(other is watch for other in _running)
        _running.append(watch)
        _last_calls[watch] = _calls
        return _calls if alone else 0


def _leave(watch: Watch, number: int) -> _Others:
    """Return note that a watched call has ended. Return which other calls ran at the same time."""
    with _lock:
        if watch in _running:
            _running.remove(watch)
        if number == 0 or any(last > number for other, last in _last_calls.items() if other is not watch):
            return _Others.OF_ANOTHER_FUNCTION
        overlapped = watch in _running or _last_calls[watch] > number
        return _Others.OF_THIS_FUNCTION if overlapped else _Others.NONE


def _find_global() -> dict[str, Any]:
    return {"np.random": getattr(np.random.mtrand, "_rand", None), "random": getattr(random, "_inst", None)}


def find_held_generators(function: Any) -> dict[str, Any]:
    """Return the generators that a function reaches, by what leads to them."""
    found: dict[str, Any] = {}
    seen: set[int] = {id(generator) for generator in _find_global().values()}
    left = [(function, "", 0)]
    for value, name, depth in left:  # the list grows while it is read
        if id(value) in seen:
            continue
        seen.add(id(value))
        if issubclass(type(value), _GENERATORS):
            alike = sum(one.startswith(repr(name)) for one in found)
            found[f"{name!r} ({alike + 1})" if alike else repr(name)] = value
        elif depth < _DEEPEST and len(left) < _MOST_OBJECTS:
            # Plain values are left out first: a vocabulary of many texts must not hide the generator beside it.
            with contextlib.suppress(Exception):  # an object whose attributes cannot be read
                parts = (
                    (label, inner) for label, inner in _list_held(value, name) if not issubclass(type(inner), _PLAIN)
                )
                left += [(inner, label, depth + 1) for label, inner in parts]
    return found


def _list_held(value: Any, name: str) -> Iterable[tuple[str, Any]]:
    """Yield what an object holds, with a name for each part."""
    if isinstance(value, types.FunctionType):
        for label, cell in zip(value.__code__.co_freevars, value.__closure__ or ()):
            try:
                yield label, cell.cell_contents
            except ValueError:  # not yet filled
                continue
        yield from (("a default", one) for one in [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()])
        known = value.__globals__
        yield from ((label, known[label]) for label in _list_names(value.__code__) if label in known)
        yield from value.__dict__.items()
    elif isinstance(value, types.MethodType):
        yield name, value.__func__
        yield name, value.__self__
    elif isinstance(value, functools.partial):
        yield from ((name, one) for one in (value.func, *value.args, *value.keywords.values()))
    elif isinstance(value, (list, tuple)):
        yield from ((name, one) for one in value[:_MOST_OBJECTS])
    elif isinstance(value, dict):
        yield from ((f"{name}[{key!r}]", one) for key, one in list(value.items())[:_MOST_OBJECTS])
    elif not isinstance(value, _PLAIN):
        yield from ((f"{name}.{key}" if name else key, one) for key, one in getattr(value, "__dict__", {}).items())
        for method in _METHODS:
            code = getattr(type(value), method, None)
            if isinstance(code, types.FunctionType):
                yield name, code


def _list_names(code: types.CodeType) -> Iterable[str]:
    """Yield the global names and attributes in a function's code, also in the functions inside it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _list_names(constant)


def _mentions(function: Any, module: Any, depth: int) -> bool:
    """Return whether the code of a function, or of functions that it names, names a module or a part of it."""
    if isinstance(function, types.FunctionType):
        names, known = set(_list_names(function.__code__)), function.__globals__
        for name in names:
            value = known.get(name)
            if value is module or (module is np.random and value is np and "random" in names):
                return True
            if getattr(value, "__module__", None) == module.__name__ or getattr(value, "__self__", None) in (
                one for one in _find_global().values() if one is not None
            ):
                return True
    return depth > 0 and any(
        _mentions(part, module, depth - 1)
        for _, part in _list_held(function, "")
        if isinstance(part, (types.FunctionType, types.MethodType, functools.partial))
    )


def _read_position(generator: Any) -> Any:
    """Return where a generator stands, as a tuple that begins with its kind; None if that cannot be known."""
    if type(generator) is random.Random:
        _, state, _ = generator.getstate()
        return "MT19937", np.array(state[:-1], np.uint32).tobytes(), state[-1]
    bits = getattr(generator, "bit_generator", None) or getattr(generator, "_bit_generator", None)
    state = getattr(bits, "state", None)
    if not isinstance(state, dict) or not isinstance(inner := state.get("state"), dict):
        return None
    kind = state["bit_generator"]
    if kind == "MT19937":
        return kind, inner["key"].tobytes(), int(inner["pos"])
    if kind in _MULTIPLIERS:
        return kind, inner["inc"], inner["state"]
    if kind == "Philox":
        count = sum(int(word) << (64 * place) for place, word in enumerate(inner["counter"]))
        return kind, inner["key"].tobytes(), (count, int(state["buffer_pos"]))
    return None


def _follows(was: Any, now: Any) -> bool:
    """Return whether drawing leads from one position of a generator to another one."""
    kind = was[0]
    if kind != now[0]:
        return False
    if was[1] == now[1]:
        return _measure_distance(kind, was, now) < _FARTHEST if kind in _MULTIPLIERS else now[2] > was[2]
    if kind != "MT19937":
        return False
    bits = np.random.MT19937(0)
    key = np.frombuffer(was[1], np.uint32)
    bits.state = {"bit_generator": kind, "state": {"key": key, "pos": was[2]}}
    for _ in range(_TWISTS):
        bits.random_raw(len(key), output=False)
        if bits.state["state"]["key"].tobytes() == now[1]:
            return True
    return False


def _measure_distance(kind: str, was: Any, now: Any) -> int:
    """Return how many numbers a PCG has drawn between two positions, found bit by bit."""
    at, target, plus, multiplier = was[2], now[2], was[1], _MULTIPLIERS[kind]
    distance, bit = 0, 1
    while at != target:
        if (at ^ target) & bit:
            at, distance = (at * multiplier + plus) & _MASK, distance | bit
        bit, plus, multiplier = bit << 1, (multiplier + 1) * plus & _MASK, multiplier * multiplier & _MASK
    return distance
