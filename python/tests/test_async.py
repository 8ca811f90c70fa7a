"""Futures: waited for, awaited, cancelled, called back; what they borrow stays until they end."""

import asyncio
import concurrent.futures
import gc
import threading
import time
import weakref

import pytest

import tensortier


@pytest.fixture
def slow(tmp_path):
    """A store whose path takes half a second for a chunk."""
    path = tensortier.Path(tmp_path, write="2MB/s", read="2MB/s")
    with tensortier.Store("4MiB", path, chunk_size="1MiB") as store:
        yield store


def fill(store, count=12):
    """Puts more than memory holds, so that the next put has to wait."""
    return [store.put_async(f"k{n}", bytes([n]) * (1 << 20)) for n in range(count)]


def test_each_verb_has_a_twin_that_answers_later(store):
    assert store.put_async("a", b"abc").result(30) is None
    assert store.get_async("a").result(30) == b"abc"
    into = bytearray(3)
    store.get_into_async("a", into).result(30)
    assert into == b"abc"
    store.write_async("a", b"z", offset=1).result(30)
    store.evict_async("a").result(30)
    assert store.stat("a").host_bytes == 0
    with store.pin_async("a").result(30) as view:
        assert bytes(view) == b"azc"
    del view
    store.put_many_async({"b": b"b", "c": b""}).result(30)
    assert store.get_many_async(["b", "c"]).result(30) == {"b": b"b", "c": b""}
    into = {"a": bytearray(3), "b": bytearray(1)}
    store.get_into_many_async(into).result(30)
    assert into == {"a": b"azc", "b": b"b"}
    store.flush_async().result(30)
    store.evict_many_async([*"abc"]).result(30)
    assert store.stats()["host"]["in_use"] == 0


def test_futures_have_the_habits_of_concurrent_futures(store):
    futures = [store.put_async(str(n), bytes(n)) for n in range(50)]
    assert all(isinstance(future, concurrent.futures.Future) for future in futures)
    assert set(concurrent.futures.as_completed(futures, 30)) == set(futures)
    done, not_done = concurrent.futures.wait([store.get_async(str(n)) for n in range(50)], 30)
    assert len(done) == 50 and not not_done
    assert sorted(len(future.result()) for future in done) == list(range(50))
    missing = store.pin_async("49", chunk=0)
    assert missing.exception(30) is None


def test_results_are_awaited_in_any_loop(store):
    async def work(number):
        await store.put_async(str(number), bytes([number]) * 1000)
        return await store.get_async(str(number))

    async def main():
        got = await asyncio.gather(*(work(number) for number in range(100)))
        assert got == [bytes([number]) * 1000 for number in range(100)]
        with pytest.raises(ValueError, match="do not fit"):
            await store.get_into_async("7", bytearray(3))
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 0.01)

    asyncio.run(main())
    asyncio.run(main())


def test_an_awaited_call_is_cancelled_with_its_task(slow):
    async def main():
        fill(slow, 8)
        task = asyncio.ensure_future(asyncio.wait_for(slow.put_async("late", bytes(1 << 20)), 0.05))
        with pytest.raises(asyncio.TimeoutError):
            await task

    asyncio.run(main())
    time.sleep(0.1)
    assert "late" not in slow


def test_many_calls_in_little_memory_wait_their_turn(open_store):
    store = open_store("1MiB", chunk_size="256KiB", wait_for_leases=0)
    for future in [store.put_async(str(n), bytes([n]) * 300_000) for n in range(100)]:
        future.result(60)
    for _ in range(2):
        futures = [store.get_async(str(n)) for n in range(100)]
        for number, future in enumerate(futures):
            assert future.result(60) == bytes([number]) * 300_000


def test_a_cancelled_put_leaves_what_was_there(slow):
    slow.put("a", b"old")
    first = fill(slow, 8)
    late = slow.put_async("a", bytes(1 << 20))
    assert late.cancel() and late.cancelled() and late.done()
    with pytest.raises(concurrent.futures.CancelledError):
        late.result()
    concurrent.futures.wait(first, 60)
    assert concurrent.futures.wait([late], 30).done == {late}
    assert slow.get("a") == b"old"
    assert not first[0].cancel()


def test_what_a_call_borrows_lives_until_the_engine_lets_go(slow):
    class Owned(bytearray):
        pass

    fill(slow, 8)
    value = Owned(b"v" * (1 << 20))
    gone = weakref.ref(value)
    late = slow.put_async("late", value)
    del value
    gc.collect()
    assert gone() is not None
    late.cancel()
    for _ in range(300):
        gc.collect()
        if gone() is None:
            break
        time.sleep(0.01)
    assert gone() is None
    value = Owned(b"w" * 1000)
    gone = weakref.ref(value)
    slow.put_async("kept", value).result(60)
    with pytest.raises(BufferError):
        # While a call has it, it cannot be moved either.
        held = Owned(1 << 20)
        fill(slow, 8)
        slow.put_async("held", held)
        held.extend(b"more")


def test_callbacks_run_on_one_thread_and_may_call_the_store(store):
    store.put("a", b"abc")
    seen, ended = [], threading.Event()

    def called(future):
        seen.append((threading.current_thread().name, future.result(), store.get("a")))
        store.put_async("b", b"b").add_done_callback(lambda _: ended.set())

    store.get_async("a").add_done_callback(called)
    assert ended.wait(30)
    name, first, second = seen[0]
    assert first == second == b"abc"
    assert name in ("tensortier-completions", threading.current_thread().name)


def test_a_callback_that_waits_for_its_own_thread_is_told_so(slow):
    told, ended = [], threading.Event()

    def called(_):
        try:
            late.result(30)
        except RuntimeError as error:
            told.append(str(error))
        ended.set()

    first = fill(slow, 8)
    late = slow.put_async("late", bytes(1 << 20))
    first[-1].add_done_callback(called)
    assert ended.wait(60)
    assert "own thread" in told[0]


def test_a_callback_that_fails_stops_no_other(store):
    store.put("a", b"abc")
    for wrong in (ZeroDivisionError, SystemExit):
        future = store.get_async("a")

        def called(_, wrong=wrong):
            raise wrong("on purpose")

        try:
            future.add_done_callback(called)
        except SystemExit:
            pass  # It was done already, and this thread called.
    assert store.get_async("a").result(30) == b"abc"


def test_calls_under_way_end_with_an_error_when_the_store_is_closed(slow):
    futures = fill(slow, 20)
    slow.close()
    for future in futures:
        error = future.exception(30)
        assert error is None or isinstance(error, tensortier.ClosedError), error
    assert any(future.exception() for future in futures)


def test_a_wait_has_a_limit(slow):
    fill(slow, 8)
    late = slow.put_async("late", bytes(1 << 20))
    with pytest.raises((TimeoutError, concurrent.futures.TimeoutError)):
        late.result(0.01)
    assert late.result(60) is None


def test_reading_what_is_replaced_all_the_time_finds_one_or_the_other(open_store):
    store = open_store("4MiB", chunk_size="256KiB", wait_for_leases=30)
    store.put("a", b"a" * 600_000)
    ended = threading.Event()

    def replace():
        while not ended.is_set():
            store.put("a", b"b" * 500_000)
            store.put("a", b"a" * 600_000)

    thread = threading.Thread(target=replace)
    thread.start()
    try:
        for _ in range(100):
            for got in (
                store.get("a"),
                store.get_async("a").result(60),
                store.get_many(["a"])["a"],
            ):
                assert len(got) in (500_000, 600_000) and len(set(got)) == 1
            with store.pin("a", chunk=1) as view:
                assert len(set(bytes(view))) == 1
    finally:
        ended.set()
        thread.join()
