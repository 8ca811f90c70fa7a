"""The store: named tensors that live in memory and on any number of storage paths."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, SupportsIndex, TypeVar, Union

from tensortier import _frameworks, _memory, _settings, _tensortier, futures, process_end
from tensortier._memory import Memory
from tensortier._settings import Path, Size
from tensortier.errors import settle
from tensortier.futures import Call, Future
from tensortier.pin import Pin
from tensortier.told import Explanation, Stat
from tensortier.view import View

S = TypeVar("S", bound="Store")
T = TypeVar("T")

OnePath = Union[str, "os.PathLike[str]", Path]
Paths = Union[OnePath, Iterable[OnePath]]
Shape = Iterable[SupportsIndex]
Outcomes = list[Union[Exception, None]]
"""What went wrong with each item of a batch, or None."""


class Store:
    """A tensor store of one process, in host memory and on storage paths.

    All methods may be called from any thread and let others run while they wait. What the store
    keeps on its paths is removed when it is closed.

    Args:
        host_memory: The strict budget of host memory: bytes, or text such as "2GiB".
        paths: Directories, or `Path` for more about one. At least one, but for a cache.
        chunk_size: The largest chunk: the unit that moves, leaves memory, and is pinned.
        engine: "auto", "uring" or "threads": what moves bytes between memory and files.
        placement: "whole" puts each chunk on one path, "stripe" cuts it over all.
        checksums: Whether each block has a checksum that is compared when it is read.
        compression: "off", or "lz4" for chunks where it pays.
        packing_memory: How much of the budget is set aside for compressing.
        cache: Whether new objects are reproducible: dropped rather than written.
        wait_for_leases: How many seconds a call waits for memory that only pins and calls of
            others hold, before it raises MemoryError.
        framework: What `get` and `pin` return of objects that were not put as tensors of one:
            "torch", "numpy" or "bytes"; by default the one that is imported.

    Raises:
        ValueError: The settings do not fit together.
        OSError: A path cannot be used (with errno and filename), or the system refused memory.
    """

    def __init__(
        self,
        host_memory: Size = "1GiB",
        paths: Paths = (),
        *,
        chunk_size: Size = "16MiB",
        engine: str = "auto",
        placement: str = "whole",
        checksums: bool = True,
        compression: str = "off",
        packing_memory: Size = 0,
        cache: bool = False,
        wait_for_leases: float = 1.0,
        framework: str | None = None,
    ) -> None:
        settings = _settings.Settings(
            host_memory=_settings.size(host_memory, "host_memory"),
            chunk_size=_settings.size(chunk_size, "chunk_size"),
            paths=_settings.paths(paths),
            engine=engine,
            placement=placement,
            checksums=bool(checksums),
            compression=compression,
            packing_memory=_settings.size(packing_memory, "packing_memory"),
            cache=bool(cache),
            wait_for_leases=float(wait_for_leases),
        )
        self._framework = _frameworks.checked(framework)
        self._native = _tensortier.Store(settings)
        # Whose tensors were put, where the store would not return the same by itself.
        self._put_by: dict[str, str] = {}
        process_end.opened(self)

    # One object

    def create(
        self,
        key: str,
        dtype: object,
        shape: Shape,
        *,
        chunk_size: Size | None = None,
        reproducible: bool | None = None,
    ) -> None:
        """Makes an object of zeros; it takes neither memory nor space until it is written.

        Args:
            key: Any text of up to 64 KiB.
            dtype: The type of its elements: a name, or as torch or numpy has it.
            shape: Its extents in elements; empty for a scalar.
            chunk_size: The largest chunk, if not the store's.
            reproducible: Whether it is dropped rather than written, if not as the store says.

        Raises:
            ValueError: There is an object of this key, or the key or the shape is too large.
            TypeError: The store does not know the type.
        """
        chunk = None if chunk_size is None else _settings.size(chunk_size, "chunk_size")
        extents = _settings.shape(shape)
        self._native.create(key, _memory.dtype_name(dtype), extents, chunk, reproducible)

    def put(
        self,
        key: str,
        value: object,
        *,
        dtype: object = None,
        shape: Shape | None = None,
        reproducible: bool | None = None,
    ) -> None:
        """Stores a copy of a tensor, in place of what had the key before.

        Args:
            value: A torch or numpy tensor in host memory, or any object of the buffer protocol,
                DLPack or `__array_interface__`.
            dtype: What the elements are, where `value` are bytes that do not say it.
            shape: Their extents, if not as in `value`.

        Raises:
            TypeError: The value has no bytes in host memory, or elements that are not known.
            ValueError: `dtype` and `shape` do not fit its length.
            MemoryError: Pins and other calls hold the memory that it needs.
            OSError: No path takes what has to leave memory for it. The old object stays.
        """
        memory = _memory.readable(value, dtype, shape)
        self._native.put(key, memory, reproducible)
        self._remember(key, memory)

    def put_async(
        self,
        key: str,
        value: object,
        *,
        dtype: object = None,
        shape: Shape | None = None,
        reproducible: bool | None = None,
    ) -> Future[None]:
        """As `put`, without waiting. The value must not be changed until the future is done."""
        memory = _memory.readable(value, dtype, shape)
        return self._later(
            lambda: Call(
                memory,
                lambda later: later.put(key, memory, reproducible),
                lambda _: self._remember(key, memory),
            )
        )

    def get(self, key: str, *, framework: str | None = None) -> Any:
        """Returns a copy of a tensor that is the caller's own.

        Args:
            framework: "torch", "numpy", or "bytes" for a bytearray; if not said, that of what was
                put. numpy has bfloat16 and float8 by ml_dtypes, else as unsigned integers.

        Raises:
            KeyError: There is no such object, or its bytes were dropped.
            OSError: It could not be read; `CorruptError` if its bytes are not those written.
            MemoryError: Pins and other calls hold the memory that it needs.
            TimeoutError: Its path does not answer.
        """

        def read(found: _tensortier.Object) -> Any:
            tensor, into = self._empty(key, found, framework)
            self._native.get_into(found, into, None)
            return tensor

        return self._read(key, read)

    def get_async(self, key: str, *, framework: str | None = None) -> Future[Any]:
        """As `get`, without waiting."""

        def prepare() -> Call[Any]:
            found = self._native.find(key)
            tensor, into = self._empty(key, found, framework)
            return Call(
                into, lambda later: later.get_into(found, into, None), lambda _: tensor
            )

        return self._later(prepare)

    def get_into(self, key: str, into: object, *, offset: SupportsIndex | None = None) -> None:
        """Copies a tensor's bytes into memory of the caller.

        Args:
            into: A contiguous tensor or buffer that can be written, as long as the object, or,
                with `offset`, as the part to be read.
            offset: The byte at which to begin.

        Raises:
            ValueError: `into` is read-only, in pieces, or of another length.
        """
        memory, start = _memory.writable(into), _offset(offset)
        self._read(key, lambda found: self._native.get_into(found, memory, start))
        _frameworks.written(into)

    def get_into_async(
        self, key: str, into: object, *, offset: SupportsIndex | None = None
    ) -> Future[None]:
        """As `get_into`, without waiting. `into` must not be used until the future is done."""
        memory, start = _memory.writable(into), _offset(offset)

        def prepare() -> Call[None]:
            found = self._native.find(key)
            return Call(
                memory,
                lambda later: later.get_into(found, memory, start),
                lambda _: _frameworks.written(into),
            )

        return self._later(prepare)

    def write(self, key: str, value: object, *, offset: SupportsIndex = 0) -> None:
        """Writes over a part of an object, or over all of it.

        Args:
            value: A tensor or buffer, as for `put`; its bytes are written as they are.
            offset: The byte at which to begin.

        Raises:
            KeyError: There is no such object.
            ValueError: The value does not fit there.
        """
        memory, start = _memory.readable(value), _offset(offset) or 0
        self._read(key, lambda found: self._native.write(found, memory, start))

    def write_async(
        self, key: str, value: object, *, offset: SupportsIndex = 0
    ) -> Future[None]:
        """As `write`, without waiting. The value must not be changed until the future is done."""
        memory, start = _memory.readable(value), _offset(offset) or 0

        def prepare() -> Call[None]:
            found = self._native.find(key)
            return Call(memory, lambda later: later.write(found, memory, start), _nothing)

        return self._later(prepare)

    def pin(
        self, key: str, *, chunk: SupportsIndex | None = None, framework: str | None = None
    ) -> Pin:
        """Keeps an object in memory and gives a view of it without a copy, which must not be
        written: `with store.pin(key) as view`.

        The memory stays valid and unchanged as long as anyone holds the view or something made
        from it, also after the `with` block and when the store is closed. A forked child cannot
        read it.

        Args:
            chunk: Which chunk, for an object of several; the view of one is flat.
            framework: "torch", "numpy", or "bytes" for a `View`; if not said, that of what was put.

        Raises:
            KeyError: There is no such object.
            ValueError: It has several chunks, and none was named.
            MemoryError: Other pins hold the memory that it needs.
        """

        def read(found: _tensortier.Object) -> Pin:
            index, finish = self._pinning(key, found, chunk, framework)
            return finish(self._native.pin(found, index))

        return self._read(key, read)

    def pin_async(
        self, key: str, *, chunk: SupportsIndex | None = None, framework: str | None = None
    ) -> Future[Pin]:
        """As `pin`, without waiting."""

        def prepare() -> Call[Pin]:
            found = self._native.find(key)
            index, finish = self._pinning(key, found, chunk, framework)
            return Call(None, lambda later: later.pin(found, index), finish)

        return self._later(prepare)

    def rename(self, key: str, to: str) -> None:
        """Gives an object another key.

        Raises:
            KeyError: There is no such object.
            ValueError: There is one of the new key.
        """
        self._native.rename(key, to)
        framework = self._put_by.pop(key, None)
        if framework is not None:
            self._put_by[to] = framework

    def stat(self, key: str) -> Stat:
        """Returns what is known of an object.

        Raises:
            KeyError: There is no such object.
        """
        return Stat(**self._native.find(key).stat())

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self._native.contains(key)

    def list(self, prefix: str = "") -> list[str]:
        """Returns the keys that begin with `prefix`, in order."""
        return self._native.list(prefix)

    def __iter__(self) -> Iterator[str]:
        return iter(self.list())

    def __len__(self) -> int:
        return len(self.list())

    # Where bytes are

    def prefetch(self, key: str) -> None:
        """Says that an object will be wanted: it is loaded as memory allows. Does not wait.

        Raises:
            KeyError: There is no such object.
        """
        _one(self._native.prefetch([key]))

    def evict(self, key: str) -> None:
        """Moves an object out of memory to its paths, and waits for it; what is pinned stays.

        Raises:
            KeyError: There is no such object.
            OSError: No path takes it; it stays in memory.
        """
        _one(self._native.evict([key]))

    def evict_async(self, key: str) -> Future[None]:
        """As `evict`, without waiting; goes on when it is cancelled."""
        return self._later(lambda: Call(None, lambda later: later.evict([key]), _one))

    def delete(self, key: str) -> None:
        """Removes an object. Views keep its bytes.

        Raises:
            KeyError: There is no such object.
        """
        _one(self._native.delete([key]))
        self._put_by.pop(key, None)

    def flush(self) -> None:
        """Waits until all that was written is on a path; it stays in memory.

        Raises:
            OSError: No path takes it; it stays in memory.
        """
        self._native.flush()

    def flush_async(self) -> Future[None]:
        """As `flush`, without waiting; goes on when it is cancelled."""
        return self._later(lambda: Call(None, lambda later: later.flush(), _nothing))

    def adopt(
        self, file: str | os.PathLike[str], prefix: str = "", *, mapped: bool = False
    ) -> None:
        """Makes the tensors of a safetensors file objects of the store, read when they are used.

        The file must not be changed while the store is open.

        Args:
            prefix: What their keys begin with, before the names in the file.
            mapped: Whether to read by a memory map: a process that truncates the file then ends
                this one.

        Raises:
            ValueError: The file cannot be used, or there is an object of one of the keys.
        """
        self._native.adopt(os.fspath(file), prefix, mapped)

    # Batches: each item has its own outcome, and one that fails stops no other

    def put_many(
        self, values: Mapping[str, object], *, reproducible: bool | None = None
    ) -> None:
        """As `put` of each.

        Raises:
            BatchError: Some failed.
        """
        tensors = {key: _memory.readable(value) for key, value in values.items()}
        outcomes = self._native.put_many([*tensors.items()], reproducible)
        self._remember_many(tensors, outcomes)

    def put_many_async(
        self, values: Mapping[str, object], *, reproducible: bool | None = None
    ) -> Future[None]:
        """As `put_many`, without waiting. The values must not be changed until it is done."""
        tensors = {key: _memory.readable(value) for key, value in values.items()}
        return self._later(
            lambda: Call(
                tensors,
                lambda later: later.put_many([*tensors.items()], reproducible),
                lambda outcomes: self._remember_many(tensors, outcomes),
            )
        )

    def get_many(self, keys: Iterable[str], *, framework: str | None = None) -> dict[str, Any]:
        """As `get` of each, read ahead as one; returns them by key.

        Raises:
            BatchError: Some failed; it has the others.
        """
        batch = _Batch(self, keys, framework)
        return batch.settle(self._native.get_into_many(batch.pairs))

    def get_many_async(
        self, keys: Iterable[str], *, framework: str | None = None
    ) -> Future[dict[str, Any]]:
        """As `get_many`, without waiting."""
        batch = _Batch(self, keys, framework)
        return self._later(
            lambda: Call(batch, lambda later: later.get_into_many(batch.pairs), batch.settle)
        )

    def get_into_many(self, into: Mapping[str, object]) -> None:
        """As `get_into` of each pair, read ahead as one.

        Raises:
            BatchError: Some failed.
        """
        pairs = [(key, _memory.writable(value)) for key, value in into.items()]
        self._filled(into, self._native.get_into_many(pairs))

    def get_into_many_async(self, into: Mapping[str, object]) -> Future[None]:
        """As `get_into_many`, without waiting. Nothing of `into` may be used until it is done."""
        into = dict(into)
        pairs = [(key, _memory.writable(value)) for key, value in into.items()]
        return self._later(
            lambda: Call(
                pairs,
                lambda later: later.get_into_many(pairs),
                lambda outcomes: self._filled(into, outcomes),
            )
        )

    def prefetch_many(self, keys: Iterable[str]) -> None:
        """As `prefetch` of each, in this order.

        Raises:
            BatchError: Some failed.
        """
        keys = _keys(keys)
        _settle("prefetch", keys, self._native.prefetch(keys))

    def evict_many(self, keys: Iterable[str]) -> None:
        """As `evict` of all at once.

        Raises:
            BatchError: Some failed.
        """
        keys = _keys(keys)
        _settle("evict", keys, self._native.evict(keys))

    def evict_many_async(self, keys: Iterable[str]) -> Future[None]:
        """As `evict_many`, without waiting; goes on when it is cancelled."""
        keys = _keys(keys)
        return self._later(
            lambda: Call(
                None,
                lambda later: later.evict(keys),
                lambda outcomes: _settle("evict", keys, outcomes),
            )
        )

    def delete_many(self, keys: Iterable[str]) -> None:
        """As `delete` of each.

        Raises:
            BatchError: Some failed.
        """
        keys = _keys(keys)
        outcomes = self._native.delete(keys)
        for key, outcome in zip(keys, outcomes):
            if outcome is None:
                self._put_by.pop(key, None)
        _settle("delete", keys, outcomes)

    # The store itself

    def explain(self) -> Explanation:
        """Returns what was chosen for the store and each of its paths, and why."""
        return Explanation(*self._native.explain())

    def stats(self) -> dict[str, Any]:
        """Returns counters: of the store, of its memory under "host", of each path under "paths"."""
        return self._native.stats()

    def close(self, timeout: float = 10.0) -> None:
        """Ends the store and removes what it made on its paths. Views stay valid; a second call does
        nothing.

        Raises:
            TimeoutError: A path did not answer in time; the text says what stays behind.
        """
        self._native.close(float(timeout))
        process_end.closed(self)

    def __enter__(self: S) -> S:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError(
            "a store belongs to its process: it is neither copied nor pickled; pass its settings, "
            "and open a store in the other process"
        )

    def _remember(self, key: str, memory: Memory) -> None:
        if memory.framework is None or memory.framework == self._framework:
            self._put_by.pop(key, None)
        else:
            self._put_by[key] = memory.framework

    def _remember_many(self, put: dict[str, Memory], outcomes: Outcomes) -> None:
        for (key, memory), outcome in zip(put.items(), outcomes):
            if outcome is None:
                self._remember(key, memory)
        _settle("put", [*put], outcomes)

    def _returned(self, key: str, framework: str | None) -> str:
        """Returns the framework of what is returned for a key."""
        asked = _frameworks.checked(framework)
        return asked or self._put_by.get(key) or self._framework or _frameworks.loaded()

    def _later(self, prepare: Callable[[], Call[T]]) -> Future[T]:
        return futures.begin(self._native, prepare)

    def _read(self, key: str, read: Callable[[_tensortier.Object], T]) -> T:
        """Finds an object and reads it, or the one that replaced it before it was read."""
        while True:
            found = self._native.find(key)
            try:
                return read(found)
            except KeyError as error:
                if not futures.replaced(error):
                    raise

    def _empty(
        self, key: str, found: _tensortier.Object, framework: str | None
    ) -> tuple[Any, Memory]:
        stat = found.stat()
        returned = self._returned(key, framework)
        return _frameworks.empty(returned, stat["dtype"], stat["shape"], stat["nbytes"])

    def _pinning(
        self,
        key: str,
        found: _tensortier.Object,
        chunk: SupportsIndex | None,
        framework: str | None,
    ) -> tuple[int, Callable[[_tensortier.Pinned], Pin]]:
        """Returns which chunk is pinned, and what makes a pin of it."""
        stat = Stat(**found.stat())
        index = 0 if chunk is None else _settings.whole(chunk, "chunk")
        if chunk is None and stat.chunks > 1:
            raise ValueError(
                f"{key} has {stat.chunks} chunks of {stat.chunk_size} bytes, which do not lie in one "
                f"piece: pin one with chunk=0 to chunk={stat.chunks - 1}, get a copy with get(), or "
                "open the store with a larger chunk_size"
            )
        if not 0 <= index < max(stat.chunks, 1):
            raise ValueError(f"{key} has no chunk {index}; it has {stat.chunks}")
        returned = self._returned(key, framework)

        def finish(pinned: _tensortier.Pinned) -> Pin:
            dtype, shape = stat.dtype, stat.shape
            if stat.chunks > 1:
                _, width = _tensortier.dtype_named(dtype)
                if pinned.nbytes % width or stat.chunk_size % width:
                    dtype, width = "uint8", 1
                shape = (pinned.nbytes // width,)
            return Pin(View(pinned, dtype, shape), returned)

        return index, finish

    def _filled(self, into: Mapping[str, object], outcomes: Outcomes) -> None:
        """Ends a batch of `get_into`; reads once more what was replaced meanwhile."""
        for at, (key, value) in enumerate(into.items()):
            _once_more(outcomes, at, lambda: self.get_into(key, value))
            _frameworks.written(value)
        _settle("get", [*into], outcomes)


class _Batch:
    """Tensors to be filled, and the keys that had none."""

    def __init__(self, store: Store, keys: Iterable[str], framework: str | None) -> None:
        self._store, self._framework = store, framework
        self.keys: list[str] = []
        self.values: list[Any] = []
        self.pairs: list[tuple[_tensortier.Object, Memory]] = []
        self.missing: dict[str, Exception] = {}
        for key in dict.fromkeys(_keys(keys)):
            try:
                found = store._native.find(key)
            except KeyError as error:
                self.missing[key] = error
                continue
            tensor, memory = store._empty(key, found, framework)
            self.keys.append(key)
            self.values.append(tensor)
            self.pairs.append((found, memory))

    def settle(self, outcomes: Outcomes) -> dict[str, Any]:
        for at, key in enumerate(self.keys):
            read = _once_more(outcomes, at, lambda: self._store.get(key, framework=self._framework))
            self.values[at] = self.values[at] if read is None else read
        missing = [*self.missing]
        keys, values = self.keys + missing, self.values + [None] * len(missing)
        return settle("get", keys, outcomes + [*self.missing.values()], values)


def _once_more(outcomes: Outcomes, at: int, read: Callable[[], T]) -> T | None:
    """Reads an item of a batch again if its object was replaced before it was read."""
    if not futures.replaced(outcomes[at]):
        return None
    try:
        value = read()
    except Exception as error:
        outcomes[at] = error
        return None
    outcomes[at] = None
    return value


def _keys(given: Iterable[str]) -> list[str]:
    if isinstance(given, str):
        raise TypeError(f"the keys are {given!r}; give several, as in [{given!r}]")
    return [*given]


def _nothing(_: object) -> None:
    """Makes no result of what a call returned."""


def _offset(given: SupportsIndex | None) -> int | None:
    if given is None:
        return None
    offset = _settings.whole(given, "offset")
    if offset < 0:
        raise ValueError(f"offset is {offset}; it must be 0 or more")
    return offset


def _one(outcomes: Outcomes) -> None:
    if outcomes[0] is not None:
        raise outcomes[0]


def _settle(verb: str, keys: list[str], outcomes: Outcomes) -> None:
    settle(verb, keys, outcomes, [None] * len(keys))
