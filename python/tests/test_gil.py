"""Other threads run while a call waits, and no thread of the engine touches an object of Python (T24)."""

import gc
import os
import random
import threading
import time

import tensortier


def test_other_threads_run_while_a_call_waits(tmp_path):
    # 4 MB at 2 MB/s: the calls below wait for seconds, unless they are let go.
    path = tensortier.Path(tmp_path, write="2MB/s")
    with tensortier.Store("4MiB", path, chunk_size="1MiB") as store:
        for number in range(3):
            store.put(str(number), bytes(1 << 20))
        ended = threading.Event()

        def wait():
            store.flush()
            ended.set()

        thread = threading.Thread(target=wait)
        thread.start()
        turns = 0
        while not ended.is_set():
            turns += 1
            time.sleep(0.001)
        thread.join()
    # A call that held the interpreter would have let this loop turn once or twice.
    assert turns > 20, turns


def test_a_store_that_goes_lets_other_threads_run(tmp_path):
    path = tensortier.Path(tmp_path, write="2MB/s")
    store = tensortier.Store("4MiB", path, chunk_size="1MiB")
    for number in range(3):
        store.put(str(number), bytes(1 << 20))
    flushing = store.flush_async()
    ended = threading.Event()
    turns = 0

    def count():
        nonlocal turns
        while not ended.is_set():
            turns += 1
            time.sleep(0.001)

    thread = threading.Thread(target=count)
    thread.start()
    del store, flushing
    gc.collect()
    ended.set()
    thread.join()
    assert turns > 0


def test_threads_callbacks_and_the_collector_at_once(tmp_path):
    """Seeded; `TENSORTIER_GIL_SECONDS=60` has it run for a minute instead of 3 seconds."""
    seconds = float(os.environ.get("TENSORTIER_GIL_SECONDS", "3"))
    until = time.monotonic() + seconds
    wrong, told = [], []
    with tensortier.Store(
        "8MiB", tmp_path, chunk_size="256KiB", wait_for_leases=30
    ) as store:
        # Three times what fits in memory.
        sizes = [random.Random(n).randrange(1, 700_000) for n in range(72)]
        for number, size in enumerate(sizes):
            store.put(str(number), bytes([number]) * size)

        def check(number, got):
            if got != bytes([number]) * sizes[number]:
                wrong.append((number, "bytes"))

        def work(seed):
            order = random.Random(seed)
            try:
                while time.monotonic() < until:
                    number = order.randrange(len(sizes))
                    key = str(number)
                    verb = order.randrange(8)
                    if verb == 0:
                        store.put(key, bytearray([number]) * sizes[number])
                    elif verb == 1:
                        check(number, store.get(key))
                    elif verb == 2:
                        into = bytearray(sizes[number])
                        store.get_into(key, into)
                        check(number, into)
                    elif verb == 3:
                        future = store.get_async(key)
                        future.add_done_callback(lambda f, n=number: check(n, f.result()))
                        future.add_done_callback(lambda f: told.append(store.list("1")))
                    elif verb == 4:
                        with store.pin(key, chunk=0) as view:
                            first = view.memoryview()
                        check(number, bytes(first[:1]) * sizes[number])
                        cycle = [first]
                        cycle.append(cycle)
                    elif verb == 5:
                        future = store.put_async(key, bytes([number]) * sizes[number])
                        if order.randrange(2):
                            future.cancel()
                    elif verb == 6:
                        store.prefetch(key)
                        store.evict_async(key)
                    else:
                        gc.collect()
            except BaseException as error:
                wrong.append((seed, repr(error)))

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        store.flush_async().result(60)
        for number in range(len(sizes)):
            check(number, store.get_async(str(number)).result(60))
    assert not wrong, wrong[:5]
    assert told
