"""Errors are the exceptions that people catch, with the whole text and what is known as attributes."""

import copy
import errno
import os
import pickle

import pytest

import tensortier


def files_of(directory):
    found = [os.path.join(at, name) for at, _, names in os.walk(directory) for name in names]
    return [file for file in found if os.path.getsize(file) > 1 << 16]


def test_a_key_that_nobody_has_is_a_key_error(store):
    calls = [
        lambda: store.get("no"),
        lambda: store.get_into("no", bytearray(1)),
        lambda: store.write("no", b"x"),
        lambda: store.pin("no"),
        lambda: store.evict("no"),
        lambda: store.prefetch("no"),
        lambda: store.delete("no"),
        lambda: store.rename("no", "yes"),
        lambda: store.stat("no"),
        lambda: store.get_async("no").result(30),
        lambda: store.get_into_async("no", bytearray(1)).result(30),
        lambda: store.evict_async("no").result(30),
        lambda: store.pin_async("no").result(30),
    ]
    for call in calls:
        with pytest.raises(KeyError, match="no object named no") as caught:
            call()
        assert caught.value.key == "no"
    assert "no" not in store and 5 not in store


def test_what_was_dropped_is_a_key_error_that_says_so(tmp_path):
    with tensortier.Store("4MiB", cache=True, chunk_size="1MiB") as store:
        store.put("a", bytes(2 << 20))
        store.put("kept", bytes(1 << 20))
        assert "a" in store
        store.evict("a")
        assert "a" not in store and store.stat("a").dropped_bytes == 2 << 20
        with pytest.raises(KeyError, match="was dropped from memory") as caught:
            store.get("a")
        assert caught.value.key == "a" and caught.value.chunk == 0
        with pytest.raises(tensortier.BatchError) as caught:
            store.get_many(["a", "kept"])
        assert set(caught.value.errors) == {"a"} and set(caught.value.results) == {"kept"}


def test_memory_that_is_held_is_a_memory_error_with_the_numbers(open_store):
    store = open_store("4MiB", wait_for_leases=0)
    pins = []
    for number in range(4):
        store.put(f"held{number}", bytes(1 << 20))
        pins.append(store.pin(f"held{number}"))
    with pytest.raises(MemoryError, match="held by") as caught:
        store.put("more", bytes(1 << 20))
    error = caught.value
    assert (error.budget, error.needed, error.free) == (4 << 20, 1 << 20, 0)
    assert any("held0" in holder for holder in error.holders)
    pins.clear()
    store.put("more", bytes(1 << 20))
    small = open_store("64KiB", chunk_size="1MiB")
    with pytest.raises(MemoryError, match="cannot hold one chunk") as caught:
        small.put("a", bytes(1 << 20))
    assert (caught.value.budget, caught.value.needed) == (1 << 16, 1 << 20)


def test_no_space_is_an_os_error_and_loses_nothing(tmp_path, open_store):
    store = open_store("2MiB", paths=tensortier.Path(tmp_path, quota="1MiB"), chunk_size="256KiB")
    with pytest.raises(OSError, match="no path can take") as caught:
        for number in range(20):
            store.put(str(number), bytes([number]) * (256 << 10))
    assert caught.value.errno == errno.ENOSPC and caught.value.key
    in_memory = [key for key in store.list() if store.stat(key).host_bytes]
    for key in in_memory:
        assert store.get(key) == bytes([int(key)]) * (256 << 10)
    # Memory and space are full: what lies on the path can be read once there is room again.
    store.delete_many(in_memory[:2])
    for key in store.list():
        assert store.get(key) == bytes([int(key)]) * (256 << 10)


def test_a_path_that_cannot_be_used_is_an_os_error_of_its_kind(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        tensortier.Store("4MiB", tmp_path / "nowhere")
    assert caught.value.errno == errno.ENOENT
    assert caught.value.filename == str(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError):
        tensortier.Store("4MiB", tmp_path / "file")


def test_bytes_that_changed_on_disk_are_never_returned(tmp_path, open_store):
    store = open_store()
    store.put("a", os.urandom(3 << 20))
    store.evict("a")
    for file in files_of(tmp_path):
        with open(file, "r+b", buffering=0) as opened:
            size = os.path.getsize(file)
            opened.seek(0)
            content = bytearray(opened.read(size))
            for position in range(0, size, 4096):
                content[position] ^= 0xFF
            opened.seek(0)
            opened.write(content)
            os.fsync(opened.fileno())
    for call in (lambda: store.get("a"), lambda: store.get_async("a").result(30)):
        with pytest.raises(tensortier.CorruptError, match="its bytes were not returned") as caught:
            call()
        error = caught.value
        assert isinstance(error, OSError) and error.errno == errno.EIO
        assert error.filename == str(tmp_path) and error.key == "a"
        assert error.expected != error.actual and error.block >= 0 and error.chunk >= 0


def test_what_cannot_be_read_is_an_os_error_that_says_where(tmp_path, open_store):
    store = open_store()
    store.put("a", os.urandom(3 << 20))
    store.evict("a")
    for file in files_of(tmp_path):
        os.truncate(file, 0)
    with pytest.raises(OSError, match="reading a") as caught:
        store.get("a")
    error = caught.value
    assert error.errno and error.filename == str(tmp_path)
    assert (error.key, error.chunk) == ("a", 0) and error.offset >= 0


def test_a_store_that_cannot_end_in_time_is_a_timeout(tmp_path):
    path = tensortier.Path(tmp_path, write="100kB/s")
    store = tensortier.Store("4MiB", path, chunk_size="1MiB")
    store.put("a", bytes(1 << 20))
    flushing = store.flush_async()
    try:
        store.close(0)
    except TimeoutError as error:
        assert "closing the store" in str(error)
    assert flushing.exception(30) is None or flushing.exception().args


def test_a_store_that_is_closed_says_so(open_store):
    store = open_store()
    store.put("a", b"abc")
    store.close()
    store.close()
    calls = [
        lambda: store.get("a"),
        lambda: store.put("a", b"x"),
        lambda: store.create("b", "u8", (1,)),
        lambda: store.pin("a"),
        lambda: store.flush(),
        lambda: store.delete("a"),
        lambda: store.put_async("a", b"x").result(30),
        lambda: store.flush_async().result(30),
    ]
    for call in calls:
        with pytest.raises(tensortier.ClosedError, match="the store is closed"):
            call()
    assert isinstance(tensortier.ClosedError(), ValueError)
    assert "a" not in store and store.list() == []


def test_keys_are_any_text_of_at_most_64_kib(store):
    for key in ("", "a/b\0c", "\N{SNOWMAN}" * 100, "k" * 65_536):
        store.put(key, b"x")
        assert store.get(key) == b"x" and key in store.list()
    with pytest.raises(ValueError, match="at most 64 KiB"):
        store.put("k" * 65_537, b"x")
    with pytest.raises(UnicodeEncodeError):
        store.put("\udc80", b"x")
    for wrong in (5, None, b"bytes"):
        with pytest.raises(TypeError):
            store.put(wrong, b"x")


def test_bad_arguments_are_value_errors_or_type_errors(store):
    store.put("a", b"abc")
    for call in (
        lambda: store.create("a", "u8", (1,)),
        lambda: store.create("b", "u8", (-1,)),
        lambda: store.create("b", "u8", (1 << 62, 1 << 62)),
        lambda: store.create("b", "u8", (1,), chunk_size=0),
        lambda: store.pin("a", chunk=1),
        lambda: store.get("a", framework="pandas"),
        lambda: store.close(-1),
        lambda: store.close(float("nan")),
    ):
        with pytest.raises(ValueError):
            call()
    for call in (
        lambda: store.create("b", "u8", 5),
        lambda: store.create("b", "u8", (1.5,)),
        lambda: store.pin("a", chunk="0"),
    ):
        with pytest.raises(TypeError):
            call()
    # Each letter would be a key.
    for batch in (store.get_many, store.evict_many, store.delete_many, store.prefetch_many):
        with pytest.raises(TypeError, match=r"give several, as in \['a'\]"):
            batch("a")
    store.put("b", b"x")
    with pytest.raises(ValueError, match="exists already"):
        store.rename("a", "b")
    assert store.get("a", framework="bytes") == b"abc"


@pytest.mark.parametrize(
    "settings, error",
    [
        ({"host_memory": "lots"}, ValueError),
        ({"host_memory": -1}, ValueError),
        ({"host_memory": 1.5}, TypeError),
        ({"host_memory": 1 << 70}, ValueError),
        ({"host_memory": 100}, ValueError),
        ({"chunk_size": 0}, ValueError),
        ({"engine": "rocket"}, ValueError),
        ({"placement": "anywhere"}, ValueError),
        ({"compression": "zip"}, ValueError),
        ({"wait_for_leases": -1}, ValueError),
        ({"packing_memory": "8MiB", "compression": "lz4"}, ValueError),
        ({"framework": "jax"}, ValueError),
        ({"paths": []}, ValueError),
        ({"paths": 5}, TypeError),
        ({"threads": 5}, TypeError),
    ],
)
def test_settings_are_checked_together(tmp_path, settings, error):
    with pytest.raises(error):
        tensortier.Store(**{"host_memory": "4MiB", "paths": tmp_path, **settings})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "settings",
    [
        {"kind": "tape"},
        {"read": "fast"},
        {"write": "1GB"},
        {"write": 0},
        {"quota": "some"},
        {"quota": -1},
        {"max_processes": 0},
        {"max_processes": 1 << 32},
        {"max_processes": "some"},
    ],
)
def test_paths_are_checked_when_they_are_made(tmp_path, settings):
    with pytest.raises(ValueError):
        tensortier.Path(tmp_path, **settings)


def test_one_directory_is_one_path(tmp_path):
    with pytest.raises(ValueError, match="given twice"):
        tensortier.Store("4MiB", [tmp_path, str(tmp_path)])


def test_a_store_is_neither_copied_nor_pickled(store):
    store.put("a", b"abc")
    for call in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="belongs to its process"):
            call(store)
    with store.pin("a", framework="bytes") as view:
        with pytest.raises(TypeError, match="memory of this process"):
            pickle.dumps(view)


def test_a_batch_has_an_outcome_for_each(store):
    store.put_many({"a": b"a", "b": b"b"})
    with pytest.raises(tensortier.BatchError, match="1 of 3 failed: .*no object named no") as caught:
        store.get_many(["a", "no", "b"])
    assert caught.value.results == {"a": b"a", "b": b"b"}
    assert isinstance(caught.value.errors["no"], KeyError)
    assert isinstance(caught.value.__cause__, KeyError)
    with pytest.raises(tensortier.BatchError) as caught:
        store.put_many({"c": b"c", "k" * 70_000: b"x"})
    assert store.get("c") == b"c" and len(caught.value.errors) == 1
    into = {"a": bytearray(1), "b": bytearray(2), "no": bytearray(1)}
    with pytest.raises(tensortier.BatchError) as caught:
        store.get_into_many(into)
    assert into["a"] == b"a" and set(caught.value.errors) == {"b", "no"}
    with pytest.raises(tensortier.BatchError):
        store.get_into_many_async(into).result(30)
    for verb in (store.prefetch_many, store.evict_many, store.delete_many):
        with pytest.raises(tensortier.BatchError) as caught:
            verb(["a", "no", "b"])
        assert set(caught.value.errors) == {"no"}, verb
    assert store.list() == ["c"]
    assert store.get_many([]) == {} and store.put_many({}) is None
