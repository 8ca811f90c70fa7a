"""What goes in comes out: any length, any place in memory, any kind of object."""

import array
import hashlib
import mmap
import random

import pytest

import tensortier

#: Around blocks, granules and chunks.
LENGTHS = [0, 1, 511, 512, 513, 4095, 4096, 4097, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 2_882_401]


def pattern(length):
    return random.Random(length).randbytes(length)


@pytest.mark.parametrize("length", LENGTHS)
def test_any_length(store, length):
    value = pattern(length)
    store.put("a", value)
    for evicted in (False, True):
        if evicted:
            store.evict("a")
        assert store.get("a") == value
        into = bytearray(length)
        store.get_into("a", into)
        assert into == value
        assert store.get_async("a").result(60) == value
        assert store.get_many(["a"])["a"] == value


@pytest.mark.parametrize("offset", [0, 1, 7, 8, 63])
def test_any_place_in_memory(store, offset):
    memory = bytearray(pattern(300_000))
    part = memoryview(memory)[offset : offset + 200_001]
    store.put("a", part)
    store.evict("a")
    into = memoryview(bytearray(300_000))[offset : offset + 200_001]
    store.get_into("a", into)
    assert into == part


def test_more_than_memory_holds(open_store):
    store = open_store("2MiB", chunk_size="256KiB")
    value = pattern(7_000_001)
    store.put("one", value)
    for number in range(20):
        store.put(str(number), value[number:][:700_000])
    assert hashlib.sha256(store.get("one")).digest() == hashlib.sha256(value).digest()
    for number in range(20):
        assert store.get(str(number)) == value[number:][:700_000]
    stats = store.stats()
    assert stats["loads"] > 0 and stats["host"]["in_use"] <= stats["host"]["budget"] == 2 << 20


def test_two_paths_and_each_setting(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    value = bytes(3_000_000) + pattern(1_000_000)
    for settings in (
        {"placement": "stripe"},
        {"engine": "threads", "checksums": False},
        {"compression": "lz4", "packing_memory": "512KiB"},
    ):
        paths = [tmp_path / "a", tensortier.Path(tmp_path / "b", kind="remote", quota="1GiB")]
        with tensortier.Store("2MiB", paths, chunk_size="256KiB", **settings) as store:
            for number in range(3):
                store.put(str(number), value)
            for number in range(3):
                assert store.get(str(number)) == value
            written = [path["written_bytes"] for path in store.stats()["paths"]]
            assert all(written), written


def test_objects_of_the_buffer_protocol(store, tmp_path):
    value = pattern(10_000)
    for given in (value, bytearray(value), memoryview(value), array.array("B", value)):
        store.put("a", given)
        assert store.get("a") == value
    with open(tmp_path / "file", "w+b") as file:
        file.write(value)
        file.flush()
        with mmap.mmap(file.fileno(), 0) as mapped:
            store.put("a", mapped)
            store.write("a", b"zz", offset=5)
            store.get_into("a", mapped)
            assert mapped[:9] == value[:5] + b"zz" + value[7:9]
    for code, dtype in {"h": "int16", "I": "uint32", "q": "int64", "f": "float32"}.items():
        numbers = array.array(code, range(6))
        store.put("a", numbers)
        assert store.stat("a").dtype == dtype and store.stat("a").shape == (6,)
        into = array.array(code, [0] * 6)
        store.get_into("a", into)
        assert into == numbers
    store.put("a", memoryview(bytes(24)).cast("f", (2, 3)))
    assert store.stat("a").shape == (2, 3)
    store.put("a", memoryview(b"abcdef")[::2])
    assert store.get("a") == b"ace"
    store.put("a", memoryview(b"abcdef")[::-1])
    assert store.get("a") == b"fedcba"
    store.put("a", memoryview(bytes(4)).cast("f", ()))
    assert store.stat("a").shape == ()


def test_what_cannot_be_read_is_refused_and_changes_nothing(store):
    store.put("a", b"old")
    for wrong in (5, "text", None, object(), [1, 2], {"a": 1}, bytes):
        with pytest.raises(TypeError, match="no tensor in memory"):
            store.put("a", wrong)
        with pytest.raises(TypeError):
            store.put_async("a", wrong)
    assert store.get("a") == b"old"


def test_what_cannot_be_filled_is_refused(store):
    store.put("a", b"abcd")
    for wrong in (bytes(4), memoryview(b"abcd"), memoryview(bytearray(8))[::2]):
        with pytest.raises(ValueError):
            store.get_into("a", wrong)
        with pytest.raises(ValueError):
            store.get_into_async("a", wrong)
    for length in (0, 3, 5):
        with pytest.raises(ValueError, match="do not fit"):
            store.get_into("a", bytearray(length))
        with pytest.raises(ValueError, match="do not fit"):
            store.get_into_async("a", bytearray(length)).result(30)


def test_types_and_shapes_given_with_bytes(store):
    store.put("a", bytes(24), dtype="float32")
    assert store.stat("a").shape == (6,)
    store.put("a", bytes(24), dtype="float32", shape=(2, 3))
    assert store.stat("a").shape == (2, 3)
    store.put("a", bytes(4), dtype="float32", shape=())
    assert store.stat("a").shape == ()
    store.put("a", b"", dtype="float64", shape=(0, 7))
    assert store.stat("a").shape == (0, 7)
    for shape in [(7,), (2, 3, 0), (), (-6,)]:
        with pytest.raises(ValueError):
            store.put("a", bytes(24), dtype="float32", shape=shape)
    with pytest.raises(ValueError):
        store.put("a", bytes(23), dtype="float32")


def test_parts_are_read_and_written(open_store):
    store = open_store("4MiB", chunk_size="64KiB", framework="bytes")
    value = bytearray(pattern(1_000_000))
    store.create("a", "uint8", (1_000_000,))
    assert store.get("a") == bytes(1_000_000)
    store.write("a", value)
    for offset, length in [(0, 1), (65_535, 2), (100_000, 300_001), (999_999, 1), (1_000_000, 0)]:
        into = bytearray(length)
        store.get_into("a", into, offset=offset)
        assert into == value[offset : offset + length]
        new = pattern(length + 1)[:length]
        store.write("a", new, offset=offset)
        value[offset : offset + length] = new
    assert store.get("a") == value
    for offset in (1_000_001, 1 << 63, 999_999):
        with pytest.raises(ValueError):
            store.get_into("a", bytearray(2), offset=offset)
    for offset in (-1, 1.5, True, "1"):
        with pytest.raises((ValueError, TypeError)):
            store.write("a", b"x", offset=offset)


def test_torch_tensors_however_they_lie(store):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    base = torch.arange(60, dtype=torch.float32).reshape(3, 4, 5)
    for tensor in (
        base,
        base.transpose(0, 2),
        base[::2, 1:, ::2],
        base[1, 2, 3],
        base[:0],
        base.expand(2, 3, 4, 5),
        torch.nn.Parameter(base),
        torch.view_as_complex(torch.zeros(3, 2)).conj().imag,
    ):
        store.put("a", tensor)
        store.evict("a")
        got = store.get("a")
        assert torch.equal(got, tensor) and got.is_contiguous() and not got.requires_grad
    for wrong in (base.to_sparse(), torch.empty(2, device="meta")):
        with pytest.raises(TypeError):
            store.put("a", wrong)
    with pytest.raises(ValueError, match="one piece"):
        store.get_into("a", base.transpose(0, 2))


def test_filling_a_torch_tensor_is_seen_by_autograd(store):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    weight = torch.ones(4, requires_grad=True)
    store.put("a", torch.full((4,), 3.0))
    loss = (weight * weight).sum()
    before = weight._version
    store.get_into("a", weight)
    store.get_into_async("a", weight).result(30)
    assert weight._version >= before + 2 and weight.tolist() == [3.0] * 4
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_numpy_arrays_however_they_lie(store):
    numpy = pytest.importorskip("numpy", reason="numpy is not installed")
    base = numpy.arange(60, dtype="float32").reshape(3, 4, 5)
    read_only = base.copy()
    read_only.flags.writeable = False
    for given in (
        base,
        base.T,
        base[::2, 1:, ::-1],
        base[1, 2, 3],
        base[:0],
        numpy.broadcast_to(base, (2, 3, 4, 5)),
        numpy.asfortranarray(base),
        read_only,
        numpy.float64(2.5),
        numpy.array(7),
    ):
        store.put("a", given)
        store.evict("a")
        got = store.get("a")
        assert got.shape == given.shape and got.dtype == given.dtype and (got == given).all()
        assert got.flags.writeable and got.flags.c_contiguous and got.flags.owndata
    store.put("a", base)
    for wrong in (read_only, numpy.empty((5, 4, 3), "float32").T, base[::-1]):
        with pytest.raises(ValueError):
            store.get_into("a", wrong)


class Producer:
    """An object that has nothing but DLPack, as that of some other library."""

    def __init__(self, of):
        self.of = of

    def __dlpack__(self, **settings):
        return self.of.__dlpack__(**settings)

    def __dlpack_device__(self):
        return self.of.__dlpack_device__()


class OldProducer(Producer):
    """One from before version 1."""

    def __dlpack__(self):
        return self.of.__dlpack__()


@pytest.mark.parametrize("producer", [Producer, OldProducer])
def test_producers_of_dlpack(store, producer):
    values = array.array("f", range(12))
    store.put("a", values, shape=(3, 4))
    with store.pin("a", framework="bytes") as view:
        store.put("b", producer(view))
        assert store.stat("b").shape == (3, 4) and store.stat("b").dtype == "float32"
        assert store.get("b", framework="bytes") == values.tobytes()
        if producer is Producer:
            with pytest.raises(ValueError, match="read-only"):
                store.get_into("b", producer(view))
    del view
    numpy = pytest.importorskip("numpy", reason="numpy is not installed")
    filled = numpy.zeros((3, 4), "float32")
    store.get_into("b", producer(filled))
    assert filled.tobytes() == values.tobytes()
    with pytest.raises(ValueError, match="one piece"):
        store.put("b", producer(filled.T))


class Interface:
    """An object that has nothing but the interface of arrays."""

    def __init__(self, of):
        self.of = of
        self.__array_interface__ = of.__array_interface__


def test_objects_with_the_array_interface(store):
    store.put("a", array.array("i", range(6)), shape=(2, 3))
    with store.pin("a", framework="bytes") as view:
        store.put("b", Interface(view))
        with pytest.raises(ValueError, match="read-only"):
            store.get_into("b", Interface(view))
    assert store.stat("b").shape == (2, 3) and store.stat("b").dtype == "int32"
    assert store.get("b", framework="bytes") == array.array("i", range(6)).tobytes()


def test_each_object_comes_back_as_what_was_put(open_store):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    numpy = pytest.importorskip("numpy", reason="numpy is not installed")
    store = open_store()
    values = {"t": torch.ones(3), "n": numpy.ones(3), "b": b"ones"}
    store.put_many(values)
    kinds = {"t": torch.Tensor, "n": numpy.ndarray, "b": bytearray}
    assert {key: type(value) for key, value in store.get_many(values).items()} == kinds
    store.rename("n", "m")
    assert isinstance(store.get("m"), numpy.ndarray)
    store.put("m", b"bytes now")
    assert isinstance(store.get("m"), bytearray)
    assert isinstance(store.get("t", framework="numpy"), numpy.ndarray)
    store.delete_many(["t", "m"])
    store.create("t", "float32", (3,))
    assert isinstance(store.get("t"), torch.Tensor)
    fixed = open_store(framework="numpy")
    fixed.create("z", "float32", (3,))
    assert isinstance(fixed.get("z"), numpy.ndarray)
    fixed.put("t", torch.ones(3))
    assert isinstance(fixed.get("t"), torch.Tensor)
    with pytest.raises(ValueError, match="torch, numpy, bytes"):
        fixed.get("t", framework="jax")
