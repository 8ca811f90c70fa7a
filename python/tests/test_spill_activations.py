"""Activations in a store: the same gradients, whatever is saved and however the graph is used."""

import threading
import weakref

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: no activations to spill")

import tensortier  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

KIB = 1 << 10


@pytest.fixture
def small_store(open_store):
    """A store with less memory than the activations of each model here."""
    return open_store("1MiB", chunk_size="64KiB")


class Attention(torch.nn.Module):
    """Queries, keys and values are parts of one tensor, with gaps between their rows."""

    def __init__(self):
        super().__init__()
        self.all, self.out = torch.nn.Linear(64, 192), torch.nn.Linear(64, 64)

    def forward(self, x):
        parts = [part.view(8, -1, 4, 16).transpose(1, 2) for part in self.all(x).chunk(3, -1)]
        mixed = functional.scaled_dot_product_attention(*parts, is_causal=True, dropout_p=0.1)
        return x + self.out(mixed.transpose(1, 2).reshape(x.shape))


class Expanded(torch.nn.Module):
    """Saves expanded tensors, and one column of a large one."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.rand(512, 1, 64))

    def forward(self, x):
        row = x.sin()[:, :1].expand(-1, 128, -1)
        column = (x.cos().repeat(1, 1, 16) * 1.0)[..., ::16]
        return (row * column * self.scale.exp().expand(-1, 128, -1)[:8]).tanh()


def mixed_precision():
    layers = [torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64)]
    return torch.nn.Sequential(*layers, torch.nn.LayerNorm(64)).to(torch.bfloat16)


def images():
    layers = [torch.nn.Unflatten(2, (8, 8)), torch.nn.Conv2d(128, 32, 3), torch.nn.BatchNorm2d(32)]
    model = torch.nn.Sequential(*layers, torch.nn.ReLU(inplace=True), torch.nn.MaxPool2d(2))
    return model.to(memory_format=torch.channels_last)


def dropping():
    block = [torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Dropout(0.2)]
    return torch.nn.Sequential(*block, torch.nn.Linear(256, 64), torch.nn.Softmax(-1))


def recurrent():
    class First(torch.nn.GRU):
        def forward(self, x):
            return super().forward(x)[0]

    return First(64, 96, batch_first=True)


MODELS = [Attention, Expanded, mixed_precision, images, dropping, recurrent]


def gradients(model, x, spill=None, forward=None, use=torch.autograd.backward):
    """Returns the gradients of one pass, by the same random numbers each time."""
    torch.manual_seed(5)
    x = x.clone().requires_grad_()
    model.zero_grad()
    # Of full size, so that there is something to save in each model.
    hidden = x * 1.5
    if spill is None:
        loss = (forward or model)(hidden).float().square().mean()
    else:
        with spill:
            loss = (forward or model)(hidden).float().square().mean()
    use(loss)
    return [x.grad, *(param.grad.clone() for param in model.parameters())]


def batch(dtype=torch.float32):
    return torch.randn(8, 128, 64, generator=torch.Generator().manual_seed(4)).to(dtype)


def same(ours, theirs):
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs):
        assert one.dtype == other.dtype and one.stride() == other.stride()
        assert torch.equal(one, other)


@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_gradients_have_the_bits_that_they_have_in_memory(make, small_store):
    torch.manual_seed(3)
    model = make()
    x = batch(next(model.parameters()).dtype)
    spill = tensortier.spill_activations(small_store, min_bytes="1KiB")
    theirs = gradients(model, x)
    ours = gradients(model, x, spill)
    same(ours, theirs)
    assert spill.objects > 2 and spill.reads >= spill.objects
    assert spill.live_bytes == 0 and small_store.list() == []


def test_activations_larger_than_the_memory_go_to_the_paths_and_come_back(small_store):
    torch.manual_seed(3)
    model = torch.nn.Sequential(*(dropping() for _ in range(6)))
    spill = tensortier.spill_activations(small_store)
    same(gradients(model, batch(), spill), gradients(model, batch()))
    assert spill.object_bytes > 10 << 20
    assert small_store.stats()["write_back_bytes"] > 8 << 20
    assert small_store.stats()["load_bytes"] > 8 << 20


class Save(torch.autograd.Function):
    """Saves a tensor and tells how it comes back."""

    @staticmethod
    def forward(ctx, x, saved, told):
        ctx.save_for_backward(saved)
        ctx.told = told
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        ctx.told.append(ctx.saved_tensors[0])
        return grad, None, None


def saved_and_back(tensor, spill):
    x, told = torch.zeros(1, requires_grad=True), []
    with spill:
        y = Save.apply(x, tensor, told)
    y.sum().backward()
    return told[0]


BASE = torch.arange(48 * KIB, dtype=torch.float32)
DTYPES = ["bfloat16", "float16", "float64", "int64", "bool", "complex64", "float8_e4m3fn", "uint8"]
LAYOUTS = {
    "whole": BASE.view(16, -1),
    "transposed": BASE.view(16, 32, -1).permute(2, 0, 1),
    "part": BASE[100 : 100 + 30 * KIB].view(30, KIB),
    "gaps": BASE.view(KIB, 48)[:, 3:35],
    "small part": BASE.view(48, KIB)[5:10],
    "every eighth": BASE.view(KIB, 48)[:, ::8].t(),
    "expanded": BASE.view(48, 1, KIB).expand(48, 7, KIB),
    "expanded part": BASE.view(6, 8, KIB)[1:2].transpose(0, 1).expand(8, 5, KIB),
    "overlapping": BASE.unfold(0, 64, 16),
    "channels last": BASE.view(4, 12, 32, 32).contiguous(memory_format=torch.channels_last),
    "scalar of a scalar type": torch.tensor(3.0).expand(1),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_tensor_comes_back_as_it_was_saved(layout, store):
    tensor = LAYOUTS[layout]
    spill = tensortier.spill_activations(store, min_bytes=1)
    back = saved_and_back(tensor, spill)
    assert spill.objects == 1 and spill.reads == 1
    assert back.dtype == tensor.dtype and back.shape == tensor.shape and torch.equal(back, tensor)
    if layout in ("small part", "every eighth", "expanded part"):
        # What is a small part of its storage has lost the gaps, but not the order of its dimensions.
        assert spill.object_bytes < tensor.untyped_storage().nbytes() // 4
        where = zip(tensor.stride(), back.stride())
        assert all((theirs == 0) == (ours == 0) for theirs, ours in where)
        assert torch.argsort(torch.tensor(back.stride())).tolist() == torch.argsort(
            torch.tensor(tensor.stride())
        ).tolist()
    else:
        assert back.stride() == tensor.stride()
        assert back.storage_offset() == tensor.storage_offset()


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type_of_element_comes_back(dtype, store):
    dtype = getattr(torch, dtype)
    tensor = BASE.remainder(200).to(dtype)
    spill = tensortier.spill_activations(store, min_bytes=1)
    back = saved_and_back(tensor, spill)
    assert spill.objects == 1 and back.dtype == dtype
    assert torch.equal(back.view(torch.uint8), tensor.view(torch.uint8))


def test_what_is_saved_twice_is_one_object(store):
    x = torch.randn(64, 1024, requires_grad=True) * 2
    layers = [torch.nn.Linear(1024, 8) for _ in range(3)]
    with tensortier.spill_activations(store) as spill:
        loss = sum(layer(x).sum() for layer in layers)
        # Another view of the same bytes is the same object too.
        loss = loss + (x.view(-1) * x.view(-1)).sum()
    assert (spill.objects, spill.shared) == (1, 4)
    before = spill.objects
    with torch.no_grad():
        x.add_(1)
    with spill:
        other = layers[0](x).sum()
    # Those are other values.
    assert spill.objects == before + 1
    loss.backward()
    assert spill.reads < 5
    del other
    assert spill.live_bytes == 0


def test_memory_that_is_used_anew_is_not_taken_for_what_was_there(store):
    weight = torch.ones(32 * KIB, requires_grad=True)
    expected = torch.zeros_like(weight)
    with tensortier.spill_activations(store) as spill:
        loss = torch.zeros(())
        for value in range(20):
            # Freed at the end of the turn: the next one likely gets the same address.
            factor = torch.full((32 * KIB,), float(value))
            loss = loss + (weight * factor).sum()
            expected += value
            del factor
    loss.backward()
    assert torch.equal(weight.grad, expected) and spill.objects == 20


def test_small_parts_of_one_tensor_are_objects_of_their_own(store):
    x = torch.randn(16, 16 * KIB, requires_grad=True) * 1.0
    told, one = [], torch.zeros(1, requires_grad=True)
    with tensortier.spill_activations(store) as spill:
        y = Save.apply(Save.apply(one, x[1], told), x[5], told)
    y.backward()
    assert spill.objects == 2 and torch.equal(told[0], x[5]) and torch.equal(told[1], x[1])


def test_a_small_result_that_its_own_node_has_saved_goes(store):
    with tensortier.spill_activations(store):
        result = torch.ones(4, requires_grad=True).exp()
    gone = weakref.ref(result)
    del result
    assert gone() is None


def test_parameters_leaves_and_small_tensors_are_saved_as_ever(store):
    layer = torch.nn.Linear(256, 256)
    frozen = torch.nn.Linear(256, 256).requires_grad_(False)
    x = torch.randn(2, 256, requires_grad=True)
    leaf = torch.randn(256, 256, requires_grad=True)
    with tensortier.spill_activations(store, min_bytes="4KiB") as spill:
        loss = (frozen(layer(x)) @ leaf.t()).square().sum()
    assert spill.objects == 0 and spill.kept > 3 and store.list() == []
    loss.backward()


@pytest.mark.parametrize("which", ["parameter", "small"])
def test_a_tensor_in_memory_that_is_changed_in_place_is_still_refused(which, store):
    weight = torch.nn.Parameter(torch.randn(256, 256))
    x = torch.randn(4, 256, requires_grad=True) * 1.0
    with tensortier.spill_activations(store, min_bytes="64KiB"):
        loss = ((x @ weight) * x).sum()
    with torch.no_grad():
        (weight if which == "parameter" else x).add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation.*version 1; expected version 0"):
        loss.backward()


def test_a_tensor_in_the_store_that_is_changed_in_place_has_the_values_that_were_saved(store):
    x = torch.randn(256, 256, requires_grad=True)

    def use(spill):
        x.grad = None
        hidden = x * 1.0
        with spill:
            loss = hidden.square().sum()
        with torch.no_grad():
            hidden.zero_()
        loss.backward()
        return x.grad

    assert torch.equal(use(tensortier.spill_activations(store)), 2 * x.detach())
    with pytest.raises(RuntimeError, match="inplace"):
        use(tensortier.spill_activations(store, min_bytes="1GiB"))


def test_a_graph_may_be_used_twice_and_differentiated_again(small_store):
    torch.manual_seed(3)
    model = dropping()

    def twice(loss):
        loss.backward(retain_graph=True)
        loss.backward()

    def again(loss):
        params = [*model.parameters()]
        first = torch.autograd.grad(loss, params, create_graph=True)
        sum(one.square().sum() for one in first).backward()

    for use in (twice, again):
        spill = tensortier.spill_activations(small_store)
        same(gradients(model, batch(), spill, use=use), gradients(model, batch(), use=use))
        assert spill.reads > spill.objects > 0 and small_store.list() == []


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_works_within(reentrant, small_store):
    torch.manual_seed(3)
    model = torch.nn.Sequential(*(dropping() for _ in range(4)))

    def forward(x):
        for part in model:
            x = checkpoint(part, x, use_reentrant=reentrant)
        return x

    spill = tensortier.spill_activations(small_store)
    same(gradients(model, batch(), spill, forward), gradients(model, batch(), None, forward))
    assert small_store.list() == []


def test_the_innermost_counts(open_store):
    outer, inner = open_store("4MiB"), open_store("4MiB")
    x = torch.randn(256, 256, requires_grad=True)
    with tensortier.spill_activations(outer) as first:
        y = (x * 1.0).square()
        with tensortier.spill_activations(inner) as second:
            y = y.exp()
        z = y.cos()
    assert (first.objects, second.objects) == (2, 1)
    z.sum().backward()
    assert outer.list() == inner.list() == []


def test_objects_go_with_the_graph(store):
    x = torch.randn(256, 256, requires_grad=True)
    with tensortier.spill_activations(store) as spill:
        loss = (x * 1.0).square().sum()
        assert len(store.list()) == 1 and spill.live_bytes == 256 * KIB
        del loss
        assert store.list() == [] and spill.live_bytes == 0
    result = None
    with spill:
        # Its result is saved in its own node.
        result = (x * 1.0).exp()
    assert len(store.list()) == 1
    del result
    assert store.list() == []


def test_an_error_in_the_middle_leaves_nothing(store):
    x = torch.randn(256, 256, requires_grad=True)
    spill = tensortier.spill_activations(store)
    with pytest.raises(ZeroDivisionError):
        with spill:
            hidden = (x * 1.0).square()
            1 / 0
    del hidden
    assert store.list() == []
    before = spill.objects, spill.kept
    (x * 1.0).square().sum().backward()
    assert (spill.objects, spill.kept) == before


def test_a_store_that_cannot_take_more_says_so_in_the_forward_pass(open_store, tmp_path):
    store = open_store("1MiB", chunk_size="64KiB", paths=tensortier.Path(tmp_path, quota="1MiB"))
    x = torch.randn(512, 512, requires_grad=True)
    with pytest.raises((OSError, MemoryError)):
        with tensortier.spill_activations(store):
            y = x * 1.0
            for _ in range(8):
                y = y.sin()
    del y
    assert store.list() == []


def test_a_store_that_was_closed_ends_the_backward_pass_with_an_error(open_store):
    store = open_store()
    x = torch.randn(256, 256, requires_grad=True)
    with tensortier.spill_activations(store):
        loss = (x * 1.0).square().sum()
    store.close()
    with pytest.raises(tensortier.ClosedError):
        loss.backward()


class Watched(tensortier.Store):
    """Notes what is asked for."""

    def __init__(self, *arguments, **settings):
        super().__init__(*arguments, **settings)
        self.put_keys, self.got, self.ahead = [], [], []

    def put(self, key, value, **more):
        self.put_keys.append(key)
        super().put(key, value, **more)

    def get(self, key, **more):
        self.got.append(key)
        return super().get(key, **more)

    def prefetch_many(self, keys):
        self.ahead.append(list(keys))
        super().prefetch_many(keys)


def test_what_was_saved_before_is_on_its_way(tmp_path):
    x = torch.randn(256, 256, requires_grad=True)
    with Watched("8MiB", tmp_path, chunk_size="1MiB") as store:
        with tensortier.spill_activations(store):
            y = x * 1.0
            for _ in range(40):
                y = y.sin()
        y.sum().backward()
        backwards = store.put_keys[::-1]
        assert store.got == backwards
        # A quarter of the memory, and each object but the first only once.
        assert store.ahead[0] == backwards[:9]
        assert store.ahead[1] == backwards[1:2] + backwards[9:10]
        assert store.ahead[-1] == backwards[-1:]


def test_the_order_of_what_is_left_stays_when_others_go(tmp_path):
    x = torch.randn(256, 256, requires_grad=True)
    with Watched("8MiB", tmp_path, chunk_size="1MiB") as store:
        with tensortier.spill_activations(store):
            hidden = [x * 1.0 for _ in range(8)]
            losses = [one.square().sum() for one in hidden]
            # Once more, so that it is wanted first.
            losses[2] = losses[2] + hidden[2].sin().sum()
        for gone in (0, 4, 5, 7):
            losses[gone] = None
        kept = [store.put_keys[at] for at in (2, 6, 3, 1)]
        sum(loss for loss in losses if loss is not None).backward()
        assert store.ahead[0] == kept
        assert set(store.got) == set(kept) and store.list() == []


def test_threads_have_their_own(open_store):
    store = open_store("2MiB", chunk_size="64KiB")
    torch.manual_seed(3)
    models = [dropping() for _ in range(3)]
    expected = [gradients(model.eval(), batch()) for model in models]
    found = [None] * 3

    def train(at):
        found[at] = gradients(models[at], batch(), tensortier.spill_activations(store))

    threads = [threading.Thread(target=train, args=(at,)) for at in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for ours, theirs in zip(found, expected):
        same(ours, theirs)
    assert store.list() == []


def test_bad_sizes_are_refused(store):
    with pytest.raises(ValueError, match="min_bytes"):
        tensortier.spill_activations(store, min_bytes=-1)
    with pytest.raises(ValueError):
        tensortier.spill_activations(store, min_bytes="many")
