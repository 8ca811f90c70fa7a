"""The package imports and works where there is neither torch nor numpy (T21)."""

BLOCKED = """
import sys
for name in ("torch", "numpy", "ml_dtypes"):
    sys.modules[name] = None  # importing it raises ImportError
"""


def test_all_verbs_work_without_torch_and_numpy(run_python):
    ended = run_python(
        BLOCKED
        + """
import array, tensortier

with tensortier.Store("8MiB", DIR, chunk_size="1MiB") as store:
    store.put("bytes", b"abc")
    store.put("floats", array.array("f", [1, 2, 3, 4]), shape=(2, 2))
    store.put("bf16", bytes(range(8)), dtype="bf16", shape=[2, 2])
    store.create("zeros", "float8_e5m2", (3,))
    assert store.get("bytes") == b"abc"
    assert store.get("bf16") == bytes(range(8))
    assert store.get("zeros") == bytes(3)
    assert store.stat("floats").shape == (2, 2)
    with store.pin("floats") as view:
        assert memoryview(view.memoryview()).cast("f").tolist() == [1, 2, 3, 4]
        # A view is a producer of DLPack, and the store takes those.
        store.put("again", view)
    assert store.stat("again").dtype == "float32" and store.stat("again").shape == (2, 2)
    store.evict_many(store.list())
    assert store.get_async("bytes").result(30) == b"abc"
    try:
        store.get("bytes", framework="numpy")
    except ImportError as error:
        assert "numpy" in str(error)
    else:
        raise AssertionError("numpy came from nowhere")
print("done")
"""
    )
    assert ended.code == 0 and ended.out == "done\n", ended


def test_an_import_loads_no_framework(run_python):
    ended = run_python(
        """
        import sys
        import tensortier
        loaded = {"torch", "numpy", "ml_dtypes"} & set(sys.modules)
        assert not loaded, loaded
        with tensortier.Store("4MiB", DIR) as store:
            store.put("a", b"abc")
            store.get("a")
        loaded = {"torch", "numpy", "ml_dtypes"} & set(sys.modules)
        assert not loaded, loaded
        """
    )
    assert ended.code == 0, ended


def test_everything_is_imported_that_can_be(run_python):
    ended = run_python(
        BLOCKED
        + """
from tensortier import *
import tensortier
assert Store is tensortier.Store and "AdamW" not in globals()
print("done")
"""
    )
    assert ended.code == 0 and ended.out == "done\n", ended


def test_the_library_needs_nothing_that_a_plain_system_lacks(run_python):
    ended = run_python(
        """
        import os
        def libraries():
            with open("/proc/self/maps") as maps:
                return {os.path.basename(line.split()[-1]) for line in maps if ".so" in line}
        before = libraries()
        import tensortier
        import sysconfig
        ours = {name for name in libraries() - before if not name.endswith(sysconfig.get_config_var("EXT_SUFFIX"))}
        print(*sorted(ours))
        """
    )
    assert ended.code == 0, ended
    # The interpreter's own modules bring their libraries, such as libffi for ctypes.
    allowed = ("_tensortier", "libgcc_s", "libc", "libm", "libpthread", "libdl", "libffi", "ld-")
    strange = [name for name in ended.out.split() if not name.startswith(allowed)]
    bad = [name for name in strange if name.startswith(("libaio", "liburing", "libcu", "libpython"))]
    assert any(name.startswith("_tensortier") for name in ended.out.split()), ended
    assert not bad, strange
