"""What a source is, and what a transform is: the protocol that users implement, and the bases of our own.

Both are JAX pytrees: fields made with `child()` are traced, all other attributes are static.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
from typing import Any, NamedTuple, Protocol, Self, TypeVar, dataclass_transform, overload, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap

from bushel._src.base import trees
from bushel._src.base.public import public
from bushel._src.jit.uint32 import to_key, to_seed, to_uint32

T = TypeVar("T")


def child(**options: Any) -> Any:
    """Declare a dataclass field that holds arrays, or objects that contain arrays.

    `options` are those of `dataclasses.field`.
    """
    return dataclasses.field(metadata={"child": True}, **options)


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field, child))
def pytree_dataclass(cls: type[T]) -> type[T]:
    """Turn a subclass of `Pytree` into a frozen dataclass that is compared by identity.

    A `__repr__` that the class or one of its bases defines is kept.
    """
    return dataclasses.dataclass(frozen=True, eq=False, repr=cls.__repr__ is object.__repr__)(cls)


class Pytree:
    """Base of the classes that JAX may take apart. Subclasses are registered with JAX when they are defined.

    So a user's subclass of a source is a pytree too. Its own attributes are static: JAX compiles again when they
    change.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        jax.tree_util.register_pytree_node(cls, _flatten, functools.partial(_unflatten, cls))


@functools.cache
def _list_children(cls: Any) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(cls) if field.metadata.get("child"))


def _flatten(value: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    children = _list_children(type(value))
    static = tuple((name, Static(entry)) for name, entry in vars(value).items() if name not in children)
    return tuple(getattr(value, name) for name in children), static


def _unflatten(cls: type[T], static: tuple[Any, ...], children: Any) -> T:
    # The constructor does not run: its checks need real arrays, and inside `jit` the children are tracers.
    names = _list_children(cls)
    return build(cls, **{name: entry.value for name, entry in static}, **dict(zip(names, children, strict=True)))


def build(cls: type[T], **attributes: Any) -> T:
    """Create an instance with these attributes without running its constructor."""
    value = object.__new__(cls)
    set_attributes(value, **attributes)
    return value


def set_attributes(value: Any, **attributes: Any) -> None:
    """Set attributes of a frozen dataclass, for use in its own constructor."""
    value.__dict__.update(attributes)


class Static:
    """A static value in the structure of a pytree.

    Two of them are equal if they hold the same object, or objects of one type that are hashable and equal. JAX
    compares structures to decide whether it must compile again, and values such as dicts cannot be hashed.
    """

    __slots__ = ("value",)

    def __init__(self, value: Any):
        self.value = value

    def __eq__(self, other: Any) -> bool:
        if not isinstance(other, Static):
            return False
        if self.value is other.value:
            return True
        if type(self.value) is not type(other.value) or not _is_hashable(self.value):
            return False
        return bool(self.value == other.value)

    def __hash__(self) -> int:
        return hash(self.value) if _is_hashable(self.value) else id(self.value)

    def __repr__(self) -> str:
        return repr(self.value)


def _is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def is_array(value: Any) -> bool:
    """Return whether JAX can take a leaf as an argument of a compiled program: an array, not a Python object."""
    return isinstance(value, (jax.Array, np.ndarray, np.generic))


Tree = Any


@public("bushel.jit")
@runtime_checkable
class Source(Protocol):
    """An object that gives one element after the other inside `jax.jit`. Implement it for a source of your own.

    `next` returns the element, a mask that is False where the element is padding, and the next state. The state is
    any pytree. If your source is not a pytree, it becomes a constant of the compiled program. Register it as a
    pytree if it holds large arrays.

    >>> class Countdown:
    ...     steps_per_epoch = 3
    ...     def init_state(self, key=None):
    ...         return jnp.int32(3)
    ...     def next(self, state):
    ...         return state, jnp.bool_(True), jnp.where(state == 1, 3, state - 1)
    ...     def element_spec(self):
    ...         return jax.ShapeDtypeStruct((), jnp.int32)
    >>> isinstance(Countdown(), Source)
    True
    """

    @property
    def steps_per_epoch(self) -> int:
        """The number of elements in an epoch."""
        ...

    def init_state(self, key: Any = None) -> Any:
        """Return the state before the first element."""
        ...

    def next(self, state: Any) -> tuple[Tree, jax.Array, Any]:
        """Return the next element, its mask, and the state after it."""
        ...

    def element_spec(self) -> Tree:
        """Return the shapes and dtypes of an element, as `jax.ShapeDtypeStruct`."""
        ...


class Address(NamedTuple):
    """The records that elements are made of. All arrays have one shape, that of the elements' records."""

    seed: jax.Array
    epoch: jax.Array
    position: jax.Array
    record: jax.Array
    valid: jax.Array

    def reshape(self, *shape: int) -> Address:
        """Return the address with all arrays in another shape."""
        return Address(*(part.reshape(shape) for part in self))


class PrecomputedEpochs(NamedTuple):
    """What a record order computed in advance for the epochs from `first` on. It is never part of a checkpoint."""

    first: Any
    tables: Any


@public("bushel.jit")
class IndexedState(NamedTuple):
    """The state of an indexed source: three 32-bit integers, however long the data are.

    For data below 2**12 elements, `tables` also holds the permutations of the epochs from the one of the next record
    on, because a lookup is cheaper there than computing it. The three integers determine them.

    The integers are one array, and the class is a named tuple: a call of a compiled program takes about a microsecond
    for each array that goes in or out, and JAX takes a named tuple apart without running Python.
    """

    numbers: jax.Array
    """(seed, epoch, position) as uint32."""
    tables: Any = None

    @property
    def seed(self) -> jax.Array:
        """The seed of the order."""
        return self.numbers[..., 0]

    @property
    def epoch(self) -> jax.Array:
        """The epoch of the next element."""
        return self.numbers[..., 1]

    @property
    def position(self) -> jax.Array:
        """The number of the next element within its epoch."""
        return self.numbers[..., 2]


class IndexedSource(Pytree, abc.ABC):
    """A source that computes any element from (seed, epoch, position), at the same cost for each.

    A position is the number of an element of this source within an epoch. `epoch` and `position` may be uint32 arrays
    of any shape; the arrays of the `Address` then begin with this shape.
    """

    @property
    @abc.abstractmethod
    def length(self) -> int:
        """The number of elements in an epoch."""

    @property
    @abc.abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The shape of the records in an element: () for one record, (n,) for a batch of n."""

    @property
    @abc.abstractmethod
    def shards(self) -> int:
        """The number of shards that contribute equally to each batch; 1 if the data are not sharded."""

    @property
    @abc.abstractmethod
    def depth(self) -> int:
        """The number of stages before this one. Each random stage mixes its depth into its keys."""

    @abc.abstractmethod
    def _get_specs(self) -> tuple[Tree, Any]:
        """Return the shapes and dtypes of one element and of its mask."""

    @abc.abstractmethod
    def _count_record_epochs(self, count: int) -> int:
        """Return how many epochs of the records `count` consecutive elements can touch."""

    @abc.abstractmethod
    def _find_record_epoch(self, epoch: Any, position: Any) -> Any:
        """Return the epoch of the records that the first record of an element belongs to."""

    @abc.abstractmethod
    def _compute_tables(self, seed: Any, epoch: Any, count: int) -> Any:
        """Compute what is worth computing once for `count` epochs of the records from `epoch` on, or return None."""

    @abc.abstractmethod
    def _locate(self, seed: Any, tables: PrecomputedEpochs, epoch: Any, position: Any) -> Address:
        """Compute which records the elements at these positions are made of. This reads no data."""

    @abc.abstractmethod
    def _read_element(self, address: Address) -> tuple[Tree, jax.Array]:
        """Return one element and its mask."""

    @abc.abstractmethod
    def _read_elements(self, address: Address) -> tuple[Tree, jax.Array]:
        """Return several elements, stacked, and their masks: `address` has one more axis in front."""

    @property
    def steps_per_epoch(self) -> int:
        """The number of elements in an epoch."""
        return self.length

    def element_spec(self) -> Tree:
        """Return the shapes and dtypes of one element."""
        return self._get_specs()[0]

    def init_state(self, key: Any = None) -> IndexedState:
        """Return the state before the first element.

        The int s and `jax.random.key(s)` both give the order of `.seed(s).shuffle()` on the host.
        """
        return self._make_state(to_seed(key), 0, 0)

    def _make_state(self, seed: Any, epoch: Any, position: Any) -> IndexedState:
        """Return the state before the element at `position` of `epoch`."""
        seed, epoch, position = to_uint32(seed), to_uint32(epoch), to_uint32(position)
        tables = self._prepare_tables(seed, self._find_record_epoch(epoch, position), 1)
        return IndexedState(jnp.stack([seed, epoch, position]), tables.tables)

    def _prepare_tables(self, seed: Any, first: Any, count: int) -> PrecomputedEpochs:
        """Compute the tables for `count` elements, the first of them in epoch `first` of the records."""
        return PrecomputedEpochs(first, self._compute_tables(seed, first, self._count_record_epochs(count)))

    def _advance(self, state: IndexedState) -> IndexedState:
        """Return the state one element later."""
        seed, epoch, position = state.seed, state.epoch, state.position
        last = position + 1 >= self.length
        next_epoch, next_position = epoch + last, jnp.where(last, to_uint32(0), position + 1)
        tables = state.tables
        if tables is not None:
            old, new = self._find_record_epoch(epoch, position), self._find_record_epoch(next_epoch, next_position)
            tables = _refresh_tables(self, tables, seed, old, new)
        return IndexedState(jnp.stack([seed, next_epoch, next_position]), tables)

    def _locate_next(self, state: IndexedState) -> Address:
        """Compute which records the next element is made of."""
        tables = PrecomputedEpochs(self._find_record_epoch(state.epoch, state.position), state.tables)
        return self._locate(state.seed, tables, state.epoch, state.position)

    def next(self, state: IndexedState) -> tuple[Tree, jax.Array, IndexedState]:
        """Return the next element, its mask, and the state after it."""
        value, mask = self._read_element(self._locate_next(state))
        return value, mask, self._advance(state)


def _refresh_tables(source: IndexedSource, tables: Any, seed: Any, old: Any, new: Any) -> Any:
    """Return the tables for the epochs from `new` on, given those from `old` on; compute them only if these differ.

    Under `vmap`, `lax.cond` on a batched condition computes both branches in every step. The rule for batches below
    therefore asks once whether any loader of the batch needs new tables.
    """

    def compute(_: Any, seed: Any, new: Any) -> Any:
        return source._compute_tables(seed, new, source._count_record_epochs(1))

    @custom_vmap
    def refresh(tables: Any, seed: Any, old: Any, new: Any) -> Any:
        return jax.lax.cond(old != new, compute, lambda kept, *_: kept, tables, seed, new)

    @refresh.def_vmap
    def _(size: int, batched: Any, *operands: Any) -> tuple[Any, Any]:
        tables, seeds, olds, news = jax.tree.map(
            lambda value, is_batched: value if is_batched else jnp.broadcast_to(value, (size, *value.shape)),
            operands,
            tuple(batched),
        )
        changed = (olds != news).any()
        result = jax.lax.cond(changed, jax.vmap(compute), lambda kept, *_: kept, tables, seeds, news)
        return result, jax.tree.map(lambda _: True, result)

    return refresh(tables, seed, old, new)


def make_sample_keys(address: Address, salt: int) -> jax.Array:
    """Make a random key for each record of `address`, from its seed, its epoch, its number and `salt`."""

    def make(seed: Any, epoch: Any, record: Any) -> jax.Array:
        key = jax.random.fold_in(jax.random.key(seed), salt)
        return jax.random.fold_in(jax.random.fold_in(key, epoch), record)

    for _ in address.record.shape:
        make = jax.vmap(make)
    return make(address.seed, address.epoch, address.record)


def stack_spec(spec: Tree, size: int) -> Tree:
    """Return the spec of `size` elements, stacked."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((size, *leaf.shape), leaf.dtype), spec)


def is_source(value: Any) -> bool:
    """Return whether a pipeline can begin with `value`."""
    return not isinstance(value, type) and isinstance(value, Source)


def find_specs(source: Source) -> tuple[Tree, Any]:
    """Return the shapes and dtypes of an element of any source, and of its mask.

    The sources of the library know them. Another one is asked for an element, without computing it.
    """
    get_specs = getattr(source, "_get_specs", None)
    if get_specs is not None:
        return get_specs()
    return jax.eval_shape(lambda: source.next(source.init_state(jax.random.key(0)))[:2])


class Transform(abc.ABC):
    """A stage of a pipeline. `SomeTransform(...)(source)` and `SomeTransform(source, ...)` both return a source."""

    @overload
    def __new__(cls, source: Source, /, *args: Any, **options: Any) -> Source: ...  # type: ignore[overload-overlap]
    @overload
    def __new__(cls, *args: Any, inner: Source, **options: Any) -> Source: ...
    @overload
    def __new__(cls, *args: Any, **options: Any) -> Self: ...
    def __new__(cls, *args: Any, **options: Any) -> Any:
        """Create a stage; or, if the first argument or `inner` is a source, apply the new stage to that source."""
        if args and is_source(args[0]):
            return cls(*args[1:], **options)(args[0])
        if "inner" in options:
            inner = options.pop("inner")
            return cls(*args, **options)(inner)
        return super().__new__(cls)

    @abc.abstractmethod
    def __call__(self, inner: Source) -> Source:
        """Return a source that gives the elements of `inner`, transformed."""


def check_callable(fn: Any, transform: Transform) -> None:
    """Raise an error if the user gave `transform` something else than a function."""
    if not callable(fn):
        raise TypeError(f"{type(transform).__name__} takes a function, got {fn!r}.")


class ElementTransform(Transform):
    """A transform of one element at a time: of records before a `BatchTransform`, of batches after it."""

    random: bool = False
    """Whether `apply` needs random keys."""

    @abc.abstractmethod
    def apply(self, value: Tree, mask: jax.Array, keys: jax.Array | None) -> tuple[Tree, jax.Array]:
        """Return the transformed element and its mask. If `random`, `keys` has one key for each entry of the mask."""

    @abc.abstractmethod
    def check(self, spec: Tree) -> None:
        """Raise an error if the transform cannot take elements of this spec."""

    def __call__(self, inner: Source) -> Source:
        self.check(inner.element_spec())
        source = TransformedSource(inner, self) if isinstance(inner, IndexedSource) else TransformedStream(inner, self)
        source.element_spec()  # an error of the user's function is raised here, and not in the first step
        return source


def check_spec(spec: Tree, override: Tree, name: str) -> Tree:
    """Return `spec`. Raise an error if the user gave an `element_spec_override` that differs from it."""
    if override is None:
        return spec
    same = jax.tree.structure(spec) == jax.tree.structure(override) and all(
        (a.shape, a.dtype) == (tuple(b.shape), b.dtype)
        for a, b in zip(jax.tree.leaves(spec), jax.tree.leaves(override), strict=True)
    )
    if not same:
        raise ValueError(
            f"{name} returns {trees.describe(spec)}, but element_spec_override says {trees.describe(override)}. "
            "Leave the override out: shapes and dtypes are inferred."
        )
    return spec


@pytree_dataclass
class TransformedSource(IndexedSource):
    """The elements of an indexed source, each transformed."""

    inner: IndexedSource = child()
    transform: ElementTransform = child()

    @property
    def length(self) -> int:
        return self.inner.length

    @property
    def shape(self) -> tuple[int, ...]:
        return self.inner.shape

    @property
    def shards(self) -> int:
        return self.inner.shards

    @property
    def depth(self) -> int:
        return 1 + self.inner.depth

    def _get_specs(self) -> tuple[Tree, Any]:
        value, mask = self.inner._get_specs()
        keys = (
            jax.eval_shape(lambda: jax.random.split(jax.random.key(0), self.shape)) if self.transform.random else None
        )
        return jax.eval_shape(self.transform.apply, value, mask, keys)

    def _count_record_epochs(self, count: int) -> int:
        return self.inner._count_record_epochs(count)

    def _find_record_epoch(self, epoch: Any, position: Any) -> Any:
        return self.inner._find_record_epoch(epoch, position)

    def _compute_tables(self, seed: Any, epoch: Any, count: int) -> Any:
        return self.inner._compute_tables(seed, epoch, count)

    def _locate(self, seed: Any, tables: PrecomputedEpochs, epoch: Any, position: Any) -> Address:
        return self.inner._locate(seed, tables, epoch, position)

    def _read_element(self, address: Address) -> tuple[Tree, jax.Array]:
        value, mask = self.inner._read_element(address)
        return self.transform.apply(value, mask, self._make_keys(address))

    def _read_elements(self, address: Address) -> tuple[Tree, jax.Array]:
        value, mask = self.inner._read_elements(address)
        return jax.vmap(self.transform.apply)(value, mask, self._make_keys(address))

    def _make_keys(self, address: Address) -> jax.Array | None:
        return make_sample_keys(address, self.depth) if self.transform.random else None


class StreamState(NamedTuple):
    """The state of a transformed stream: the state of its source, and a key if the transform is random."""

    inner_state: Any
    key: Any = None


@pytree_dataclass
class TransformedStream(Pytree):
    """The elements of a source that can only be read in order, each transformed."""

    inner: Any = child()
    transform: ElementTransform = child()

    @property
    def steps_per_epoch(self) -> int:
        return self.inner.steps_per_epoch

    def element_spec(self) -> Tree:
        return self._get_specs()[0]

    def _get_specs(self) -> tuple[Tree, Any]:
        value, mask = find_specs(self.inner)
        keys = (
            jax.eval_shape(lambda: jax.random.split(jax.random.key(0), mask.shape)) if self.transform.random else None
        )
        return jax.eval_shape(self.transform.apply, value, mask, keys)

    def init_state(self, key: Any = None) -> StreamState:
        own_key = jax.random.fold_in(to_key(key), 1) if self.transform.random else None
        return StreamState(self.inner.init_state(key), own_key)

    def next(self, state: StreamState) -> tuple[Tree, jax.Array, StreamState]:
        value, mask, inner_state = self.inner.next(state.inner_state)
        key, keys = state.key, None
        if self.transform.random:
            key, sample_key = jax.random.split(state.key)
            keys = jax.random.split(sample_key, mask.shape)
        value, mask = self.transform.apply(value, mask, keys)
        return value, mask, StreamState(inner_state, key)
