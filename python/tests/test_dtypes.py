"""Every element type round-trips, as raw bytes and in each framework that knows it (T53)."""

import sys

import pytest

WIDTHS = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "uint16": 2,
    "int16": 2,
    "float16": 2,
    "bfloat16": 2,
    "uint32": 4,
    "int32": 4,
    "float32": 4,
    "uint64": 8,
    "int64": 8,
    "float64": 8,
}

#: Every bit pattern of two bytes, cut to whole elements of any width; bools are 0 or 1.
PATTERNS = b"".join(number.to_bytes(2, "little") for number in range(1 << 16))


def raw(dtype):
    return bytes(byte & 1 for byte in PATTERNS) if dtype == "bool" else PATTERNS


def torch_of(dtype):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if not hasattr(torch, dtype):
        pytest.skip(f"this torch has no {dtype}")
    return torch, getattr(torch, dtype)


def numpy_of(dtype):
    numpy = pytest.importorskip("numpy", reason="numpy is not installed")
    if dtype == "bfloat16" or dtype.startswith("float8"):
        ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
        return numpy, numpy.dtype(getattr(ml_dtypes, dtype))
    return numpy, numpy.dtype(dtype)


@pytest.mark.parametrize("dtype", WIDTHS)
def test_raw_bytes_round_trip(store, dtype):
    shape = (len(PATTERNS) // WIDTHS[dtype] // 16, 16)
    store.put("a", raw(dtype), dtype=dtype, shape=shape)
    assert (store.stat("a").dtype, store.stat("a").shape) == (dtype, shape)
    store.evict("a")
    assert store.get("a", framework="bytes") == raw(dtype)
    with store.pin("a", framework="bytes") as view:
        assert (view.dtype, view.shape) == (dtype, shape)
        assert view.memoryview() == raw(dtype)


@pytest.mark.parametrize("dtype", WIDTHS)
def test_torch_tensors_round_trip(store, dtype):
    torch, wanted = torch_of(dtype)
    tensor = torch.frombuffer(bytearray(raw(dtype)), dtype=wanted).reshape(-1, 8)
    store.put("a", tensor)
    store.evict("a")
    got = store.get("a")
    assert got.dtype == wanted and got.shape == tensor.shape
    assert torch.equal(got.view(torch.uint8), tensor.view(torch.uint8))
    into = torch.empty_like(tensor)
    store.get_into("a", into)
    assert torch.equal(into.view(torch.uint8), tensor.view(torch.uint8))
    with store.pin("a") as view:
        assert view.dtype == wanted and view.shape == tensor.shape
        assert torch.equal(view.view(torch.uint8), tensor.view(torch.uint8))
    assert store.get("a", framework="bytes") == raw(dtype)
    # Made by torch's own name for the type, too.
    store.create("b", wanted, (2, 3))
    assert store.get("b", framework="torch").dtype == wanted


@pytest.mark.parametrize("dtype", WIDTHS)
def test_numpy_arrays_round_trip(store, dtype):
    numpy, wanted = numpy_of(dtype)
    array = numpy.frombuffer(raw(dtype), dtype=wanted).reshape(-1, 8)
    store.put("a", array)
    store.evict("a")
    got = store.get("a")
    assert got.dtype == wanted and got.shape == array.shape and got.tobytes() == raw(dtype)
    into = numpy.empty_like(array)
    store.get_into("a", into)
    assert into.tobytes() == raw(dtype)
    with store.pin("a") as view:
        assert view.dtype == wanted and view.shape == array.shape and view.tobytes() == raw(dtype)
    store.create("b", wanted, (2, 3))
    assert store.get("b", framework="numpy").dtype == wanted


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_numpy_without_ml_dtypes_gets_the_bits(store, dtype, monkeypatch):
    numpy = pytest.importorskip("numpy", reason="numpy is not installed")
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    store.put("a", raw(dtype), dtype=dtype)
    got = store.get("a", framework="numpy")
    assert got.dtype == numpy.dtype(f"uint{8 * WIDTHS[dtype]}") and got.tobytes() == raw(dtype)


@pytest.mark.parametrize(
    "alias, dtype",
    [("BF16", "bfloat16"), ("f32", "float32"), ("F8_E4M3", "float8_e4m3fn"), ("half", "float16")],
)
def test_types_have_the_names_that_people_use(store, alias, dtype):
    store.create("a", alias, (1,))
    assert store.stat("a").dtype == dtype


@pytest.mark.parametrize("dtype", ["complex64", "", "float31", "F32 ", "object"])
def test_a_type_that_is_not_known_is_refused_by_name(store, dtype):
    with pytest.raises(TypeError, match="no element type"):
        store.create("a", dtype, (1,))
    assert "a" not in store


def test_tensors_of_other_types_are_refused(store):
    numpy = pytest.importorskip("numpy", reason="numpy is not installed")
    for array in (
        numpy.zeros(2, "complex64"),
        numpy.array(["a"]),
        numpy.array([object()]),
        numpy.zeros(2, "f4,i4"),
        numpy.zeros(2, "datetime64[s]"),
    ):
        with pytest.raises(TypeError):
            store.put("a", array)
    assert not store.list()


def test_tensors_without_bytes_of_their_own_say_what_to_do(store):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    numpy = pytest.importorskip("numpy", reason="numpy is not installed")
    for value, text in (
        (torch.zeros(3, device="meta"), "materialize"),
        (torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "nested"),
        (torch.zeros(3).to_sparse(), "sparse"),
        (numpy.ma.array([1.0, 2.0], mask=[False, True]), "masked"),
    ):
        for use in (store.put, store.get_into):
            with pytest.raises(TypeError, match=text):
                use("a", value)
    assert not store.list()


def test_no_type_is_none(store):
    pytest.importorskip("numpy", reason="numpy is not installed")
    with pytest.raises(TypeError, match="None is no element type"):
        store.create("a", None, (3,))
    with pytest.raises(ValueError, match="3 bytes are no whole number of float32"):
        store.put("a", b"abc", dtype="float32")


def test_elements_of_the_other_byte_order_arrive_in_ours(store):
    numpy = pytest.importorskip("numpy", reason="numpy is not installed")
    array = numpy.arange(10, dtype=">i4")
    store.put("a", array)
    assert store.get("a").dtype == numpy.dtype("int32")
    assert store.get("a").tolist() == list(range(10))
    with pytest.raises(ValueError):
        store.get_into("a", array)
