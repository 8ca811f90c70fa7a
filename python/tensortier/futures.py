"""Results that come later, and the one thread of Python that tells them."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import os
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tensortier import _tensortier

T = TypeVar("T")

_log = logging.getLogger("tensortier")


class Future(concurrent.futures.Future[T]):
    """A result that comes later: a `concurrent.futures.Future` that can also be awaited.

    Works with `concurrent.futures.wait` and `as_completed`, with `add_done_callback` (called on the
    one thread that tells results), and with `await` in any loop of asyncio.

    `cancel()` gives the call up: a put that is not complete leaves what was there before. What the
    call has borrowed, it keeps until the engine has let go of it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._process = os.getpid()
        self._number: int | None = None
        self._convert: Callable[[Any], T] | None = None
        self._begin: Callable[[], None] | None = None

    def __await__(self) -> Generator[Any, None, T]:
        return asyncio.wrap_future(self).__await__()

    def cancel(self) -> bool:
        cancelled = super().cancel()
        if cancelled and self._number is not None and self._process == os.getpid():
            _current().native.cancel(self._number)
        return cancelled

    def result(self, timeout: float | None = None) -> T:
        self._refuse_endless_wait()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._refuse_endless_wait()
        return super().exception(timeout)

    def _refuse_endless_wait(self) -> None:
        if self._process != os.getpid():
            raise RuntimeError(
                f"this process was forked from process {self._process}, which has the call: nothing "
                'will come here; use the "spawn" start method, or open a store in the child'
            )
        if not self.done() and threading.current_thread() is _current().thread:
            raise RuntimeError(
                "a callback waits for a result that only its own thread can tell; add another "
                "callback to that future instead"
            )

    def _tell(self, succeeded: bool, value: Any) -> None:
        begin, convert = self._begin, self._convert
        if begin is not None and not succeeded and replaced(value) and not self.cancelled():
            try:
                begin()
                return
            except Exception as error:
                value = error
        self._begin = self._convert = None
        if not self.set_running_or_notify_cancel():
            return
        if not succeeded:
            self.set_exception(value)
            return
        try:
            result = value if convert is None else convert(value)
        except BaseException as error:
            self.set_exception(error)
        else:
            self.set_result(result)


class _Teller:
    """The calls of this process, and the thread that tells how they ended."""

    def __init__(self) -> None:
        self.native = _tensortier.Completions()
        self.thread = threading.Thread(
            target=self._run, name="tensortier-completions", daemon=True
        )
        self.thread.start()

    def _run(self) -> None:
        while (told := self.native.wait()) is not None:
            _tell(told)
            # Whatever hangs on the last results goes before the next wait.
            told.clear()

    def stop(self, timeout: float) -> None:
        self.native.stop()
        self.thread.join(timeout)


def _tell(told: list[tuple[Future[Any], bool, Any]]) -> None:
    for future, succeeded, value in told:
        try:
            future._tell(succeeded, value)
        except BaseException:
            # A callback that wants to exit must not keep others from their results.
            _log.exception("a callback of %r failed", future)


_lock = threading.Lock()
_teller: _Teller | None = None
_of_parents: list[_Teller | None] = []


def _current() -> _Teller:
    global _teller
    with _lock:
        if _teller is None:
            _teller = _Teller()
        return _teller


def _forget_parent() -> None:
    """A forked child has the parent's calls but no thread to end them: it leaves them alone."""
    global _lock, _teller
    _lock = threading.Lock()
    _of_parents.append(_teller)
    _teller = None


os.register_at_fork(after_in_child=_forget_parent)


def stop(timeout: float) -> None:
    """Ends the thread that tells results; what has not ended by now is not told any more."""
    global _teller
    with _lock:
        teller, _teller = _teller, None
    if teller is not None:
        teller.stop(timeout)


def replaced(error: object) -> bool:
    """Returns whether an object was gone when it was read, though it was found before. If it was
    replaced by another of its key meanwhile, that is the one to be read."""
    return isinstance(error, KeyError) and not hasattr(error, "chunk")


@dataclass
class Call(Generic[T]):
    """What is to be done: the memory that it needs until it has ended, how it begins, and what
    makes its result of what it returned, on the thread that tells it."""

    owner: object
    begin: Callable[[_tensortier.Later], int]
    convert: Callable[[Any], T]


def begin(store: _tensortier.Store, prepare: Callable[[], Call[T]]) -> Future[T]:
    """Begins a call and returns its future. What it reads by a key, it prepares once more if that
    is replaced before it was read."""
    future: Future[T] = Future()

    def start() -> None:
        call = prepare()
        future._convert = call.convert
        later = _tensortier.Later(store, _current().native, future, call.owner)
        future._number = call.begin(later)

    future._begin = start
    start()
    return future
