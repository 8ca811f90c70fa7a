"""state_dict in torch's layout: into torch's optimizer and back, and what is refused unchanged."""

import copy
import gc
import pickle

import pytest
import tensortier
from side_by_side import HOST_MEMORY, Twins, batches, network, same_state, torch


def trained(path, steps=4, **arguments):
    twins = Twins(path, lr=1e-2, **arguments)
    for batch in batches(steps):
        twins.step(batch)
    return twins


def through_a_file(saved, path):
    torch.save(saved, path / "saved.pt")
    return torch.load(path / "saved.pt", weights_only=True)


@pytest.mark.parametrize("algorithm", ["Adam", "AdamW"])
@pytest.mark.parametrize("amsgrad", [False, True])
def test_ours_goes_into_torch_and_torchs_into_ours(algorithm, amsgrad, tmp_path):
    twins = trained(tmp_path, algorithm=algorithm, amsgrad=amsgrad)
    ours = through_a_file(twins.opt.state_dict(), tmp_path)
    theirs = through_a_file(twins.ref.state_dict(), tmp_path)
    ours["param_groups"][0]["fused"] = True
    twins.ref.load_state_dict(ours)
    twins.opt.load_state_dict(theirs)
    for batch in batches(8)[4:]:
        twins.step(batch)
    twins.compare()
    twins.opt.close()


@pytest.mark.parametrize("lazy", [False, True])
def test_one_that_was_never_stepped_takes_a_state(lazy, tmp_path):
    twins = trained(tmp_path, amsgrad=True)
    model = copy.deepcopy(twins.ours)
    own = {"host_memory": HOST_MEMORY, "paths": [tmp_path]}
    fresh = tensortier.AdamW(model.parameters(), **own)
    fresh.load_state_dict(twins.opt.state_dict(lazy=lazy))
    same_state(fresh.state_dict(), twins.ref.state_dict())
    twins.opt.close()
    fresh.close()


def test_a_lazy_state_reads_on_access(tmp_path):
    twins = trained(tmp_path)
    lazy = twins.opt.state_dict(lazy=True)
    one = lazy["state"][0]
    assert list(one) == ["step", "exp_avg", "exp_avg_sq"] and len(one) == 3
    assert torch.equal(one["exp_avg"], twins.ref.state_dict()["state"][0]["exp_avg"])
    with pytest.raises(KeyError):
        one["master_param"]
    assert "in the store" in repr(one)
    twins.step(batches(5)[4])
    assert torch.equal(one["exp_avg"], twins.ref.state_dict()["state"][0]["exp_avg"])
    # It may come back to where it is from.
    twins.opt.load_state_dict(twins.opt.state_dict(lazy=True))
    twins.compare()
    twins.opt.close()


def test_state_is_a_mapping_of_parameters(tmp_path):
    twins = trained(tmp_path)
    weight = twins.ours[0].weight
    assert weight in twins.opt.state and len(twins.opt.state) == 4
    assert torch.equal(twins.opt.state[weight]["exp_avg"], twins.ref.state[twins.theirs[0].weight]["exp_avg"])
    with pytest.raises(KeyError):
        twins.opt.state[twins.theirs[0].weight]
    with pytest.raises(TypeError):
        twins.opt.state[weight]["exp_avg"] = torch.zeros(3)
    extra = torch.nn.Parameter(torch.zeros(8))
    twins.opt.add_param_group({"params": [extra]})
    assert extra not in twins.opt.state and twins.opt.state[extra] == {}
    twins.opt.close()


def spoil(saved, kind):
    state = saved["state"]
    if kind == "no exp_avg":
        del state[1]["exp_avg"]
    elif kind == "no step":
        del state[1]["step"]
    elif kind == "no maxima":
        saved["param_groups"][0]["amsgrad"] = True
    elif kind == "no lr":
        del saved["param_groups"][0]["lr"]
    elif kind == "no groups":
        del saved["param_groups"]
    elif kind == "extra key":
        state[1]["momentum_buffer"] = state[1]["exp_avg"]
    elif kind == "extra parameter":
        state[17] = state[1]
    elif kind == "extra group":
        saved["param_groups"].append(copy.deepcopy(saved["param_groups"][0]))
    elif kind == "fewer parameters":
        saved["param_groups"][0]["params"].pop()
    elif kind == "wrong shape":
        state[0]["exp_avg"] = state[0]["exp_avg"].t()
    elif kind == "half a step":
        state[0]["step"] = torch.tensor(1.5)
    elif kind == "integers":
        state[0]["exp_avg"] = state[0]["exp_avg"].int()
    elif kind == "negative square":
        state[2]["exp_avg_sq"][3, 4] = -1e-12
    elif kind == "negative rate":
        saved["param_groups"][0]["lr"] = -1.0
    return saved


@pytest.mark.parametrize(
    "kind, error",
    [
        ("no exp_avg", KeyError),
        ("no step", KeyError),
        ("no maxima", KeyError),
        ("no lr", KeyError),
        ("no groups", KeyError),
        ("extra key", ValueError),
        ("extra parameter", ValueError),
        ("extra group", ValueError),
        ("fewer parameters", ValueError),
        ("wrong shape", ValueError),
        ("half a step", ValueError),
        ("integers", ValueError),
        ("negative square", ValueError),
        ("negative rate", ValueError),
    ],
)
def test_what_does_not_fit_is_refused_and_changes_nothing(kind, error, tmp_path):
    twins = trained(tmp_path)
    other = trained(tmp_path, steps=2)
    groups = copy.deepcopy(twins.opt.state_dict()["param_groups"])
    with pytest.raises(error):
        twins.opt.load_state_dict(spoil(other.opt.state_dict(), kind))
    assert twins.opt.state_dict()["param_groups"] == groups
    twins.compare()
    twins.step(batches(5)[4])
    twins.compare()
    twins.opt.close()
    other.opt.close()


def test_hooks_see_and_replace_the_state(tmp_path):
    twins = trained(tmp_path)
    seen = []
    for opt in (twins.opt, twins.ref):
        opt.register_state_dict_pre_hook(lambda opt: seen.append("before"))
        opt.register_state_dict_post_hook(lambda opt, saved: {**saved, "more": 1})
        opt.register_load_state_dict_pre_hook(
            lambda opt, saved: {key: saved[key] for key in ("state", "param_groups")}
        )
        opt.register_load_state_dict_post_hook(lambda opt: seen.append("after"))
        saved = opt.state_dict()
        assert saved["more"] == 1
        opt.load_state_dict(saved)
    assert seen == ["before", "after"] * 2
    twins.opt.close()


def test_names_travel_with_the_groups(tmp_path):
    twins = Twins(tmp_path, groups=lambda model: model.named_parameters())
    twins.step(batches(1)[0])
    saved = twins.opt.state_dict()
    assert saved["param_groups"][0]["param_names"] == [n for n, _ in twins.ours.named_parameters()]
    saved["param_groups"][0]["param_names"] = ["a", "b", "c", "d"]
    twins.opt.load_state_dict(saved)
    twins.opt.refresh_masters(["a"])
    twins.opt.close()


def test_copies_and_pickles_are_refused(tmp_path):
    twins = trained(tmp_path, steps=1)
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="save"):
            copied(twins.opt)
    twins.opt.close()


def test_a_file_goes_on_with_the_same_bits(tmp_path):
    twins = trained(tmp_path, amsgrad=True)
    twins.opt.save(tmp_path / "after-4.safetensors")
    model = network()
    own = {"host_memory": HOST_MEMORY, "paths": [tmp_path]}
    fresh = tensortier.AdamW(model.parameters(), lr=5e-4, amsgrad=True, **own)
    fresh.load(tmp_path / "after-4.safetensors")
    assert fresh.param_groups[0]["lr"] == 1e-2
    twins.opt.close()
    twins.ours, twins.opt = model, fresh
    for batch in batches(8)[4:]:
        twins.step(batch)
    twins.compare()
    with pytest.raises(OSError) as missing:
        fresh.load(tmp_path / "absent")
    assert missing.value.errno == 2
    bytes_of = (tmp_path / "after-4.safetensors").read_bytes()
    (tmp_path / "damaged").write_bytes(bytes_of[:-1] + bytes([bytes_of[-1] ^ 1]))
    with pytest.raises(ValueError, match="nothing was changed"):
        fresh.load(tmp_path / "damaged")
    twins.compare()
    fresh.close()


def test_after_close_nothing_is_done(tmp_path):
    twins = trained(tmp_path)
    twins.opt.close()
    twins.opt.close()
    assert not list(tmp_path.iterdir()), "its own store went with it"
    with pytest.raises(ValueError, match="closed"):
        twins.opt.step()
    with pytest.raises(ValueError, match="closed"):
        twins.opt.load_state_dict(twins.ref.state_dict())
    # A checkpoint without state would be written, and nobody would know.
    for use in (twins.opt.state_dict, lambda: [*twins.opt.state], lambda: len(twins.opt.state)):
        with pytest.raises(ValueError, match="closed"):
            use()
    assert "closed" in repr(twins.opt.state)


def test_the_store_goes_with_the_last_reference_to_the_optimizer(tmp_path):
    twins = trained(tmp_path)
    twins.opt.zero_grad()
    twins.opt.attach()
    twins.step(batches(1)[0])
    assert list(tmp_path.iterdir())
    gc.disable()
    try:
        twins.opt = None
        assert not list(tmp_path.iterdir())
    finally:
        gc.enable()


def test_state_is_changed_by_loading_only(tmp_path):
    twins = trained(tmp_path)
    weight = twins.ours[0].weight
    with pytest.raises(AttributeError, match="load_state_dict"):
        twins.opt.state = {}
    with pytest.raises(TypeError, match="load_state_dict"):
        twins.opt.state[weight] = {}
    lazy = twins.opt.state_dict(lazy=True)
    for copied in (copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="without lazy"):
            copied(lazy)
    twins.compare()
    twins.opt.close()


def test_a_load_that_stops_on_its_way_can_be_made_again(tmp_path, monkeypatch):
    from tensortier.optim.loading import Reader

    twins = trained(tmp_path)
    good = twins.opt.state_dict()
    read, left = Reader.__call__, 0

    def failing(self, *asked):
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(5, "a test")
        return read(self, *asked)

    monkeypatch.setattr(Reader, "__call__", failing)
    # What is read first is only looked at.
    with pytest.raises(ValueError, match="nothing was changed") as refused:
        twins.opt.load_state_dict(good)
    assert refused.value.__cause__.errno == 5
    twins.compare()
    left = 6
    with pytest.raises(tensortier.HalfLoaded, match="a test"):
        twins.opt.load_state_dict(good)
    for call in (twins.opt.state_dict, lambda: twins.step(batches(1)[0])):
        with pytest.raises(tensortier.HalfLoaded):
            call()
    monkeypatch.undo()
    twins.opt.load_state_dict(good)
    twins.compare()
    twins.opt.close()
