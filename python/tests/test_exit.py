"""A process that ends with work under way neither hangs nor crashes, and leaves nothing behind (T23)."""

import os

import pytest

#: No way to end may take longer.
LIMIT = 5

SLOW = """
import atexit, os, sys, threading, time
import tensortier
# So slow that most of it is still under way at the end.
slow = tensortier.Path(DIR, write="2MB/s", read="2MB/s")
store = tensortier.Store("8MiB", slow, chunk_size="1MiB")
store.put("first", bytes(4_000_000))
futures = [store.put_async(f"k{i}", bytes(1_000_000)) for i in range(50)]
"""

ENDINGS = {
    "the end of the program": "",
    "sys.exit": "sys.exit(0)",
    "an exception": "raise LookupError('on purpose')",
    "an exit from a callback": "futures[-1].add_done_callback(lambda _: sys.exit(3))",
    "a handler of its own": "atexit.register(lambda: store.close(1))",
    "a store that nobody holds": "del store",
    "a pin": "pinned = store.pin('first', chunk=0); view = pinned.view",
    "a reading thread": """
def read():
    while True:
        try:
            store.get("first")
        except Exception:
            time.sleep(0.01)
for _ in range(4):
    threading.Thread(target=read, daemon=True).start()
time.sleep(0.2)
""",
    "a waiting thread": """
threading.Thread(target=lambda: futures[-1].result(), daemon=True).start()
time.sleep(0.1)
""",
    "a callback that sleeps": """
store.create("zero", "u8", (1,))
store.get_async("zero").add_done_callback(lambda _: time.sleep(60))
time.sleep(0.1)
""",
    "a collector at work": """
import gc
cycle = [store, futures]
cycle.append(cycle)
del store, futures, cycle
gc.collect()
""",
}


@pytest.mark.parametrize("way", ENDINGS)
def test_the_process_ends_in_time(run_python, tmp_path, way):
    ended = run_python(SLOW + ENDINGS[way], limit=LIMIT + 3, environment={"PYTHONDEVMODE": "1"})
    assert ended.code == (1 if way == "an exception" else 0), ended
    assert ("LookupError: on purpose" in ended.err) == (way == "an exception"), ended
    for sign in ("Fatal", "panicked", "Segmentation", "terminate called"):
        assert sign not in ended.err, ended
    left = os.listdir(tmp_path)
    assert not left, left


def test_a_process_that_ends_at_once_leaves_nothing(run_python, tmp_path):
    ended = run_python(
        "import tensortier\nstore = tensortier.Store('8MiB', DIR)\nstore.put('a', b'abc')",
        limit=LIMIT + 3,
    )
    assert ended.code == 0 and not os.listdir(tmp_path), ended


def test_an_import_alone_starts_no_thread(run_python):
    ended = run_python(
        """
        import threading, os
        import tensortier
        assert threading.active_count() == 1
        assert len(os.listdir("/proc/self/task")) == 1
        """,
        limit=LIMIT + 3,
    )
    assert ended.code == 0, ended
