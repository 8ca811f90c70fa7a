"""A store does not survive a fork, and says so; its parent does not notice (T22)."""

import os

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


def test_a_forked_child_gets_clear_errors_and_its_parent_none(run_python):
    ended = run_python(
        """
        import os, sys, tensortier
        store = tensortier.Store("8MiB", DIR, chunk_size="1MiB")
        store.put("kept", b"k" * 3_000_000)
        pinned = store.pin("kept", chunk=0)
        # Writes are under way while the process forks, several times.
        futures = [store.put_async(f"k{i}", bytes([i]) * 1_500_000) for i in range(40)]
        for fork in range(5):
            child = os.fork()
            if child == 0:
                failed = 1
                try:
                    calls = [
                        lambda: store.get("kept"), lambda: store.put("x", b"x"), lambda: store.list(),
                        lambda: "kept" in store, lambda: store.evict("kept"), lambda: store.flush(),
                        lambda: store.get_async("kept"), lambda: store.stats(), lambda: store.close(),
                        lambda: futures[-1].result(), lambda: pinned.view.memoryview(),
                        lambda: store.pin("kept", chunk=0),
                    ]
                    for number, call in enumerate(calls):
                        try:
                            call()
                        except RuntimeError as error:
                            assert "spawn" in str(error), error
                        else:
                            # What had ended before the fork has its result.
                            assert number == 9, number
                    # Neither drops nor the collector touch what is the parent's.
                    del store, pinned, futures, calls, call
                    import gc
                    gc.collect()
                    failed = 0
                finally:
                    sys.stdout.flush()
                    if fork % 2:
                        os._exit(failed)
                    sys.exit(failed)
            _, status = os.waitpid(child, 0)
            assert status == 0, status
            # The parent goes on, its directory is still there.
            assert os.listdir(DIR)
            assert store.get("kept") == b"k" * 3_000_000
        for future in futures:
            future.result(60)
        for i in range(40):
            assert store.get(f"k{i}") == bytes([i]) * 1_500_000, i
        store.close()
        assert not os.listdir(DIR)
        print("done")
        """
    )
    assert ended.code == 0 and ended.out == "done\n", ended


def test_a_forked_child_may_open_a_store_of_its_own(run_python):
    ended = run_python(
        """
        import os, tensortier
        store = tensortier.Store("8MiB", DIR)
        store.put_async("a", b"parent").result(30)
        child = os.fork()
        if child == 0:
            with tensortier.Store("8MiB", DIR) as own:
                own.put("a", b"child")
                own.evict("a")
                assert own.get_async("a").result(30) == b"child"
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert store.get_async("a").result(30) == b"parent"
        store.close()
        assert not os.listdir(DIR)
        """
    )
    assert ended.code == 0, ended


def test_spawned_processes_have_stores_of_their_own(run_python, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        """
import multiprocessing, sys, tensortier

def work(directory, number):
    with tensortier.Store("8MiB", directory) as store:
        store.put("a", bytes([number]) * 100_000)
        store.evict("a")
        return store.get("a") == bytes([number]) * 100_000

if __name__ == "__main__":
    directory = sys.argv[1]
    with tensortier.Store("8MiB", directory) as store:
        store.put("a", b"parent")
        with multiprocessing.get_context("spawn").Pool(2) as pool:
            assert pool.starmap(work, [(directory, n) for n in range(4)]) == [True] * 4
        assert store.get("a") == b"parent"
    print("done")
"""
    )
    ended = run_python(
        f"""
        import os, subprocess, sys
        os.mkdir(DIR + "/stores")
        subprocess.run([sys.executable, {str(program)!r}, DIR + "/stores"], check=True, timeout=50)
        assert not os.listdir(DIR + "/stores")
        """
    )
    assert ended.code == 0 and ended.out == "done\n", ended
