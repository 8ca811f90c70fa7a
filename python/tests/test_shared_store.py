"""A store that an optimizer shares: which part of its memory the optimizer plans with."""

import pytest
import tensortier
from side_by_side import torch

#: Elements of a parameter whose state does not fit into a store of these tests.
ELEMENTS = 3_000_000


def weights(start):
    return torch.nn.Parameter(start.clone())


def test_two_optimizers_and_tensors_of_the_user_on_one_store(open_store):
    store = open_store("16MiB")
    torch.manual_seed(11)
    start = torch.randn(ELEMENTS)
    ours, theirs = [weights(start), weights(-start)], [weights(start), weights(-start)]
    opts = [tensortier.AdamW([ours[0]], store=store, host_memory="6MiB")]
    opts.append(tensortier.Adam([ours[1]], store=store, host_memory=4 << 20))
    refs = [torch.optim.AdamW([theirs[0]], fused=True), torch.optim.Adam([theirs[1]], fused=True)]
    mine = torch.arange(1 << 20, dtype=torch.int32)
    store.put("mine", mine)
    # It holds what the plans leave, and a plan that took all would have to wait for it.
    pins = [store.pin("mine", chunk=chunk) for chunk in range(4)]
    for _ in range(4):
        gradient = torch.randn(ELEMENTS)
        for one, other, opt, ref in zip(ours, theirs, opts, refs):
            one.grad, other.grad = gradient.clone(), gradient.clone()
            opt.step()
            ref.step()
    for one, other, opt, ref in zip(ours, theirs, opts, refs):
        assert torch.equal(one, other)
        for name in ("exp_avg", "exp_avg_sq"):
            assert torch.equal(opt.state[one][name], ref.state[other][name])
    assert [opt.explain()["host_memory"] for opt in opts] == [6 << 20, 4 << 20]
    del pins
    assert torch.equal(store.get("mine"), mine)
    for opt in opts:
        opt.close()
    assert store.list() == ["mine"], "an optimizer takes with it what is its own, and nothing else"


def test_what_stays_in_memory_fits_into_the_part(open_store):
    """Of the whole memory the state would not move at all."""
    moved = []
    for part in (None, "8MiB"):
        store = open_store("48MiB")
        param = weights(torch.zeros(ELEMENTS))
        opt = tensortier.AdamW([param], store=store, host_memory=part)
        for _ in range(3):
            param.grad = torch.ones(ELEMENTS)
            opt.step()
        moved.append(opt.last_step.reads_bytes)
        store.close()
    assert moved[0] == 0 and moved[1] > ELEMENTS * 8 // 2


@pytest.mark.parametrize(
    "arguments, error, text",
    [
        ({"paths": ["."]}, TypeError, "either store="),
        ({"paths": ["."], "host_memory": "4MiB"}, TypeError, "either store="),
        ({"host_memory": "17MiB"}, ValueError, "the store has 16777216"),
        ({"host_memory": "much"}, ValueError, "much"),
        ({"store": "16MiB"}, TypeError, "tensortier.Store"),
        ({"store": None, "host_memory": "much", "paths": ["."]}, ValueError, "much"),
    ],
)
def test_arguments_are_looked_at_at_once(arguments, error, text, store):
    with pytest.raises(error, match=text):
        tensortier.AdamW([weights(torch.zeros(8))], **{"store": store, **arguments})


def test_paths_may_come_from_an_iterator(tmp_path):
    param = weights(torch.zeros(8))
    param.grad = torch.ones(8)
    paths = (path for path in [tmp_path])
    with tensortier.AdamW([param], host_memory="8MiB", paths=paths) as opt:
        opt.step()
        assert list(tmp_path.iterdir())
    assert not list(tmp_path.iterdir())
