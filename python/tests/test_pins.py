"""Memory that is seen through a view stays valid and unchanged as long as anybody sees it."""

import gc

import pytest

import tensortier

VALUE = bytes(range(256)) * 1000


def in_use(store):
    gc.collect()
    return store.stats()["host"]["in_use"]


def memory(view):
    return view.memoryview()


def numpy_array(view):
    numpy = pytest.importorskip("numpy", reason="numpy is not installed")
    return numpy.asarray(view)


def numpy_from_dlpack(view):
    numpy = pytest.importorskip("numpy", reason="numpy is not installed")
    return numpy.from_dlpack(view)


def torch_tensor(view):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    return torch.from_dlpack(view)


def part_of_a_torch_tensor(view):
    return torch_tensor(view)[1000:].view(8, -1).t()


def part_of_a_memoryview(view):
    return view.memoryview()[1000:][::2]


def part_of_an_array(view):
    return numpy_array(view)[1000:].view("uint16").reshape(4, -1)


MADE = [
    lambda view: view,
    memory,
    numpy_array,
    numpy_from_dlpack,
    torch_tensor,
    part_of_a_memoryview,
    part_of_an_array,
    part_of_a_torch_tensor,
]


def bytes_of(made):
    return made.numpy().tobytes() if hasattr(made, "numpy") else bytes(made)


@pytest.mark.parametrize("make", MADE)
def test_what_is_made_from_a_view_keeps_its_memory(open_store, make):
    store = open_store()
    store.put("a", VALUE)
    with store.pin("a", framework="bytes") as view:
        made = make(view)
    before = bytes_of(made)
    assert before in VALUE or len(before) < len(VALUE)
    del view
    assert in_use(store) >= len(VALUE)
    # Nothing that happens to the object, to others, or to the store reaches it.
    store.put("a", bytes(len(VALUE)))
    store.delete("a")
    for number in range(40):
        store.put(str(number), bytes([255 - number]) * (1 << 20))
    assert bytes_of(made) == before
    store.close()
    del store
    gc.collect()
    assert bytes_of(made) == before


@pytest.mark.parametrize("make", MADE)
def test_the_memory_is_free_when_nobody_sees_it(store, make):
    store.put("a", VALUE)
    store.evict("a")
    assert in_use(store) == 0
    with store.pin("a", framework="bytes") as view:
        made = make(view)
    del view
    store.evict("a")
    assert in_use(store) > 0
    del made
    gc.collect()
    store.evict("a")
    assert in_use(store) == 0


def test_views_of_a_framework_are_without_a_copy(store):
    store.put("a", VALUE)
    with store.pin("a", framework="bytes") as view:
        address = view.__array_interface__["data"][0]
    for framework in ("numpy", "torch"):
        pytest.importorskip(framework, reason=f"{framework} is not installed")
        with store.pin("a", framework=framework) as seen:
            at = seen.data_ptr() if framework == "torch" else seen.__array_interface__["data"][0]
            assert at == address and bytes_of(seen) == VALUE


def test_views_are_read_only_where_that_can_be_said(store):
    store.put("a", VALUE)
    with store.pin("a", framework="bytes") as view:
        assert view.memoryview().readonly
        with pytest.raises(TypeError):
            view.memoryview()[0] = 1
        with pytest.raises(ValueError, match="read-only"):
            store.get_into("a", view)
        numpy = pytest.importorskip("numpy", reason="numpy is not installed")
        for array in (numpy.asarray(view), numpy.from_dlpack(view)):
            assert not array.flags.writeable
    with store.pin("a", framework="numpy") as array:
        assert not array.flags.writeable


def test_an_object_of_several_chunks_is_pinned_chunk_by_chunk(open_store):
    store = open_store(chunk_size="64KiB")
    store.put("a", VALUE, dtype="float32")
    with pytest.raises(ValueError, match="chunk=0 to chunk=3"):
        store.pin("a")
    with pytest.raises(ValueError, match="no chunk 4"):
        store.pin("a", chunk=4)
    with pytest.raises(ValueError):
        store.pin("a", chunk=-1)
    seen = b""
    for chunk in range(store.stat("a").chunks):
        with store.pin("a", chunk=chunk, framework="bytes") as view:
            assert view.dtype == "float32" and view.shape == (view.nbytes // 4,)
            seen += bytes(view)
    assert seen == VALUE
    # Elements that lie across the border of chunks are seen as bytes.
    store.create("b", "float32", (100,), chunk_size=101)
    with store.pin("b", chunk=0, framework="bytes") as view:
        assert (view.dtype, view.shape) == ("uint8", (101,))


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (2, 3)])
def test_any_shape(store, shape):
    count = 1
    for extent in shape:
        count *= extent
    store.put("a", VALUE[: 4 * count], dtype="float32", shape=shape)
    store.evict("a")
    with store.pin("a", framework="bytes") as view:
        assert view.shape == shape and bytes(view) == VALUE[: 4 * count]
        store.put("b", view)
    assert store.stat("b").shape == shape
    for framework in ("numpy", "torch"):
        if framework_is_there(framework):
            with store.pin("a", framework=framework) as seen:
                assert tuple(seen.shape) == shape and str(seen.dtype).endswith("float32")


def framework_is_there(name):
    try:
        __import__(name)
    except ImportError:
        return False
    return True


def test_a_pin_that_was_released_has_no_view(store):
    store.put("a", VALUE)
    pin = store.pin("a")
    with pin as view:
        assert pin.view is view
    with pytest.raises(ValueError, match="released"):
        _ = pin.view
    pin.release()


def test_a_capsule_that_nobody_consumes_gives_its_memory_back(store):
    store.put("a", VALUE)
    for version in (None, (1, 0)):
        with store.pin("a", framework="bytes") as view:
            capsule = view.__dlpack__(max_version=version)
        del view
        store.evict("a")
        assert in_use(store) > 0
        del capsule
        store.evict("a")
        assert in_use(store) == 0


def test_a_view_refuses_what_it_cannot_give(store):
    store.put("a", bytes(2), dtype="bfloat16")
    with store.pin("a", framework="bytes") as view:
        with pytest.raises(BufferError):
            view.__dlpack__(copy=True)
        with pytest.raises(BufferError):
            view.__dlpack__(dl_device=(2, 0))
        with pytest.raises(AttributeError, match="bfloat16"):
            _ = view.__array_interface__
        assert view.__dlpack_device__() == (1, 0) and len(view) == 1
