"""Activations in a store: what torch saves for the backward pass, from then until it is used."""

from __future__ import annotations

import contextlib
import itertools
import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar, Union

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.weak import TensorWeakRef

from tensortier import _settings
from tensortier.errors import BatchError
from tensortier.store import Store

S = TypeVar("S", bound="spill_activations")

#: A view is kept with all of its storage if that is at most this many times as large: views that
#: are parts of one tensor then are one object, and come back with the strides that they had.
_WHOLE = 4
#: The part of a store's memory that is read ahead.
_AHEAD = 4
#: Tells apart the objects of one process.
_numbers = itertools.count()


class spill_activations:
    """Moves what autograd saves for the backward pass into a store, and back when it is used.

    ::

        with tensortier.spill_activations(store):
            loss = model(batch)
        loss.backward()

    A tensor is copied into the store's memory when it is saved, and waits only if that is full; it goes to
    the paths from there. When one is used, those that were saved before it are already on their way.
    Gradients have the same bits as without. It may be nested (the innermost counts), left before the
    backward pass, and used with ``retain_graph``, double backward and ``torch.utils.checkpoint``. The
    store has to stay open as long as the graph is used.

    Parameters, other leaves that require gradients and views of them, small tensors and tensors of other
    layouts or classes are saved as ever. So is what torch does if one of these is changed in place before
    it is used: it refuses the backward pass. A tensor in the store is a copy: the backward pass has the
    values that were saved, and no reason to refuse.

    Args:
        store: Where to keep them. Less memory than the activations take is enough.
        min_bytes: Tensors below this are left alone: bytes, or text such as "256KiB".

    Attributes:
        objects: How many objects were put into the store.
        object_bytes: The bytes of these.
        shared: How many tensors were saved as part of an object that was there already.
        kept: How many tensors were saved as ever.
        reads: How many times an object was read back.
        live_bytes: The bytes of the objects that are in the store now, in memory or on its paths.
    """

    def __init__(self, store: Store, *, min_bytes: int | str = "64KiB") -> None:
        self._store = store
        self._min_bytes = max(1, _settings.size(min_bytes, "min_bytes"))
        self._ahead = store.explain()["host_memory"] // _AHEAD
        self._known: weakref.WeakValueDictionary[Any, _Object] = weakref.WeakValueDictionary()
        self._last: Callable[[], _Object | None] = _nobody
        self._hooks: list[Any] = []
        self.objects = self.object_bytes = self.shared = self.kept = self.reads = self.live_bytes = 0

    def __enter__(self: S) -> S:
        hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, _unpack)
        hooks.__enter__()
        self._hooks.append(hooks)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._hooks.pop().__exit__(kind, error, trace)

    def stats(self) -> dict[str, int]:
        """Returns all counters by name."""
        names = ("objects", "object_bytes", "shared", "kept", "reads", "live_bytes")
        return {name: getattr(self, name) for name in names}

    def __repr__(self) -> str:
        return f"<spill_activations: {', '.join(f'{k}={v}' for k, v in self.stats().items())}>"

    def _pack(self, tensor: Tensor) -> _Saved:
        """Takes what autograd saves; what it gets is held by the graph until that is gone."""
        if not _movable(tensor) or _nbytes(tensor) < self._min_bytes:
            self.kept += 1
            # Not the tensor itself: a node whose result is saved in it would never go.
            return _Kept(tensor.detach(), tensor._version)
        # All views of one tensor count its changes together. Other tensors may share its memory, such as
        # those of unsafe_chunk, and count on their own: what is alike in them is not known.
        owner = tensor if tensor._base is None else tensor._base
        storage = tensor.untyped_storage()
        wide = 1 if owner is tensor else _WHOLE
        if storage.nbytes() <= wide * _nbytes(tensor):
            whole = (id(owner), tensor._version, storage.data_ptr(), storage.nbytes())
            found = self._object(whole, owner, lambda: _flat(storage, tensor.device))
            return _Spilled(found, _Layout.of(tensor))
        part = (id(owner), tensor._version, _Layout.of(tensor))
        dense, layout = _closed(tensor)
        found = self._object(part, owner, dense)
        return _Spilled(found, layout)

    def _object(self, identity: Any, owner: Tensor, contents: Callable[[], Tensor]) -> _Object:
        """Returns the object of a tensor's bytes, which is last in order from now on."""
        found = self._known.get(identity)
        if found is not None and found.owner() is owner:
            self.shared += 1
            self._take_out(found)
        else:
            found = _Object(self, owner, contents())
            self._known[identity] = found
        last = self._last()
        found.before, found.after = _reference(last), _nobody
        self._last = weakref.ref(found)
        if last is not None:
            last.after = self._last
        return found

    def _take_out(self, one: _Object) -> None:
        """Takes an object out of the order. If another thread does the same beside it, something may not
        be read ahead."""
        before, after = one.before(), one.after()
        if before is not None:
            before.after = _reference(after)
        if after is not None:
            after.before = _reference(before)
        elif self._last() in (one, None):
            self._last = _reference(before)

    def _next(self, last: _Object) -> list[str]:
        """Returns the keys of what is wanted after an object, as much as is to be read ahead."""
        keys, room = [], self._ahead
        one = last.before()
        while one is not None and one.nbytes <= room:
            room -= one.nbytes
            if not one.wanted:
                one.wanted = True
                keys.append(one.key)
            one = one.before()
        return keys


class _Object:
    """Bytes in the store, as long as a graph needs them."""

    def __init__(self, spill: spill_activations, owner: Tensor, contents: Tensor) -> None:
        self.key = f"activation-{os.getpid()}-{next(_numbers)}"
        self.nbytes = contents.numel()
        #: What was saved last before this, and first after it, of what is still there.
        self.before: Callable[[], _Object | None] = _nobody
        self.after: Callable[[], _Object | None] = _nobody
        self._stored = False
        #: Whether it was read ahead already.
        self.wanted = False
        self._spill, self._device = spill, contents.device
        #: Whose bytes they are. Once that is gone, another tensor may have its identity.
        self.owner = TensorWeakRef(owner)
        self._restored: StorageWeakRef | None = None
        # Waits for memory, not for the paths; and the tensor may be changed as soon as it is back.
        spill._store.put(self.key, contents.cpu())
        self._stored = True
        spill.objects += 1
        spill.object_bytes += self.nbytes
        spill.live_bytes += self.nbytes

    def storage(self) -> Any:
        """Returns the bytes: those of the last call if they are still in use."""
        if self._restored is not None:
            alive = torch.UntypedStorage._new_with_weak_ptr(self._restored.cdata)
            if alive is not None:
                return alive
        spill = self._spill
        # What is refused here says so when it is read itself.
        with contextlib.suppress(BatchError):
            spill._store.prefetch_many([self.key, *spill._next(self)])
        flat = spill._store.get(self.key, framework="torch").to(self._device)
        spill.reads += 1
        self.wanted = False
        self._restored = StorageWeakRef(flat.untyped_storage())  # type: ignore[no-untyped-call]
        return flat.untyped_storage()

    def __del__(self) -> None:
        if not self._stored:
            return
        self._spill.live_bytes -= self.nbytes
        self._spill._take_out(self)
        # Nobody is here to be told; closing the store removes it in any case.
        with contextlib.suppress(Exception):
            self._spill._store.delete(self.key)


@dataclass(frozen=True)
class _Layout:
    """How a tensor lies in its storage, in elements."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @staticmethod
    def of(tensor: Tensor) -> _Layout:
        return _Layout(
            tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset())
        )


@dataclass(frozen=True)
class _Kept:
    """A tensor that is saved as ever."""

    tensor: Tensor
    version: int

    def unpack(self) -> Tensor:
        if self.tensor._version != self.version:
            # Where there are hooks, torch leaves this to them.
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace "
                f"operation: a tensor of type {self.tensor.dtype} and shape {tuple(self.tensor.shape)} "
                f"is at version {self.tensor._version}; expected version {self.version} instead"
            )
        return self.tensor


@dataclass(frozen=True)
class _Spilled:
    """A tensor whose bytes are in the store."""

    found: _Object
    layout: _Layout

    def unpack(self) -> Tensor:
        storage, layout = self.found.storage(), self.layout
        empty = torch.empty(0, dtype=layout.dtype, device=self.found._device)
        return empty.set_(storage, layout.offset, layout.shape, layout.stride)


_Saved = Union[_Kept, _Spilled]


def _nobody() -> _Object | None:
    """Stands for a reference to no object."""
    return None


def _reference(one: _Object | None) -> Callable[[], _Object | None]:
    return _nobody if one is None else weakref.ref(one)


def _unpack(saved: _Saved) -> Tensor:
    with torch.no_grad():
        return saved.unpack()


def _movable(tensor: Tensor) -> bool:
    """Returns whether a tensor is plain bytes of its own that nobody else keeps anyway."""
    if type(tensor) is not Tensor or tensor.layout is not torch.strided or tensor.device.type == "meta":
        return False
    if tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
        return False
    owner = tensor if tensor._base is None else tensor._base
    return not isinstance(owner, torch.nn.Parameter) and not (owner.is_leaf and owner.requires_grad)


def _nbytes(tensor: Tensor) -> int:
    """Returns the bytes of a tensor's elements, counting once what is expanded."""
    count = tensor.element_size()
    for extent, stride in zip(tensor.shape, tensor.stride()):
        count *= extent if stride else min(extent, 1)
    return count


def _flat(storage: Any, device: torch.device) -> Tensor:
    """Returns all bytes of a storage as a vector."""
    return torch.empty(0, dtype=torch.uint8, device=device).set_(storage)


def _closed(tensor: Tensor) -> tuple[Callable[[], Tensor], _Layout]:
    """Returns what makes a copy of a tensor without its gaps, and the layout of that: dimensions follow
    each other in memory as they did, and what was expanded is again."""
    strides = tensor.stride()
    order = sorted(range(tensor.dim()), key=lambda axis: strides[axis], reverse=True)
    closed, inner = [0] * tensor.dim(), 1
    for axis in reversed(order):
        if strides[axis]:
            closed[axis] = inner
            inner *= tensor.shape[axis]
    layout = _Layout(tensor.dtype, tuple(tensor.shape), tuple(closed), 0)

    def dense() -> Tensor:
        once = tensor[tuple(slice(None) if stride else slice(0, 1) for stride in strides)]
        copy = once.permute(order).clone(memory_format=torch.contiguous_format)
        return _flat(copy.untyped_storage(), tensor.device)

    return dense, layout
