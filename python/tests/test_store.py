"""What a store tells of itself and of its objects, and how it opens and ends."""

import json
import struct

import pytest

import tensortier


def test_it_opens_closes_and_leaves_nothing(tmp_path):
    with tensortier.Store("8MiB", tmp_path) as store:
        assert list(tmp_path.iterdir())
        store.put("a", b"abc")
    assert not list(tmp_path.iterdir())
    store = tensortier.Store(8 << 20, [str(tmp_path)])
    del store
    assert not list(tmp_path.iterdir())


def test_it_lists_and_stats(store):
    store.put_many({"b/1": b"1", "a": bytes(8), "b/2": b"22"})
    assert store.list() == ["a", "b/1", "b/2"] == [*store] and len(store) == 3
    assert store.list("b/") == ["b/1", "b/2"]
    store.rename("a", "c")
    assert "a" not in store and "c" in store
    stat = store.stat("c")
    assert (stat.key, stat.dtype, stat.shape, stat.nbytes) == ("c", "uint8", (8,), 8)
    assert (stat.chunks, stat.host_bytes, stat.stored_bytes) == (1, 8, 0)
    store.flush()
    assert store.stat("c").stored_bytes == 8
    store.evict("c")
    assert store.stat("c").host_bytes == 0
    store.prefetch("c")
    assert store.get("c") == bytes(8)
    store.delete("c")
    assert store.list() == ["b/1", "b/2"]


def test_it_explains_itself_to_people_and_programs(tmp_path):
    path = tensortier.Path(
        tmp_path, read="500MB/s", write=2e8, quota="1GiB", deadline=5, max_processes=2
    )
    with tensortier.Store("8MiB", path, engine="threads", placement="stripe") as store:
        explained = store.explain()
    text = str(explained)
    assert str(tmp_path) in text and "threads" in text and "striped" in text
    known = json.loads(json.dumps(explained, default=str))
    assert known["host_memory"] == 8 << 20 and known["checksums"] is True
    (of_path,) = known["paths"]
    assert of_path["dir"] == str(tmp_path) and of_path["engine_why"] and of_path["direct_why"]
    assert of_path["condition"] == "good" and 0 < of_path["share"] <= 1
    assert of_path["max_processes"] == 2 and of_path["max_processes_why"]


def test_its_counters_add_up(store):
    for number in range(40):
        store.put(str(number), bytes([number]) * (1 << 20))
    store.flush()
    for number in range(40):
        store.get(str(number))
    stats = store.stats()
    assert stats["written_bytes"] == 40 << 20
    assert stats["load_bytes"] == stats["loads"] << 20 and stats["loads"] >= 24
    (path,) = stats["paths"]
    assert path["read_bytes"] == stats["load_bytes"]
    assert path["written_bytes"] == stats["stored_bytes"]
    assert path["waited_for_processes"] >= 0.0
    assert all(isinstance(value, (int, dict, list)) for value in stats.values())


def test_reproducible_objects_are_dropped_rather_than_written(store):
    store.put("made", b"m", reproducible=True)
    store.put("kept", b"k")
    store.create("zeros", "u8", (4,), reproducible=True)
    assert store.stat("made").reproducible and not store.stat("kept").reproducible
    store.evict_many(["made", "kept"])
    assert "made" not in store and store.get("kept") == b"k"
    store.put_async("made", b"m", reproducible=True).result(30)
    assert store.get("made") == b"m"


def test_tensor_files_are_adopted(store, tmp_path):
    header = {
        "w": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]},
        "b": {"dtype": "BF16", "shape": [3], "data_offsets": [16, 22]},
    }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file = tmp_path / "model.safetensors"
    file.write_bytes(struct.pack("<Q", len(text)) + text + bytes(range(22)))
    for prefix, mapped in (("direct/", False), ("mapped/", True)):
        store.adopt(file, prefix, mapped=mapped)
        assert store.list(prefix) == [prefix + "b", prefix + "w"]
        assert store.stat(prefix + "w").shape == (2, 2)
        assert store.get(prefix + "w", framework="bytes") == bytes(range(16))
        assert store.get(prefix + "b", framework="bytes") == bytes(range(16, 22))
    with pytest.raises(ValueError):
        store.adopt(file, "direct/")
    file.write_bytes(b"nonsense")
    with pytest.raises(ValueError, match="model.safetensors"):
        store.adopt(file, "again/")


def test_sizes_are_numbers_or_text(tmp_path):
    path = tensortier.Path(tmp_path, quota="1.5GB", read="1.5GB/s", write=1e9)
    assert (path.quota, path.read, path.write) == (1_500_000_000, 1.5e9, 1e9)
    assert tensortier.Path(tmp_path) == tensortier.Path(str(tmp_path))
    assert tensortier.Path(tmp_path).kind == "nvme"
