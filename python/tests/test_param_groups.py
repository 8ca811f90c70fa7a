"""Groups with numbers of their own, groups and gradients that come and go, and torch's extra keys."""

import pytest
import tensortier
from side_by_side import HOST_MEMORY, Twins, batches, loss_of, network, torch


def groups(model):
    return [
        {"params": [model[0].weight], "lr": 3e-2, "betas": (0.8, 0.99)},
        {"params": [model[0].bias, model[2].bias], "weight_decay": 0.0, "eps": 1e-6},
        {"params": [model[2].weight], "amsgrad": True, "maximize": True},
    ]


@pytest.mark.parametrize("algorithm", ["Adam", "AdamW"])
def test_each_group_has_its_own_numbers(algorithm, tmp_path):
    twins = Twins(tmp_path, algorithm, groups, weight_decay=0.1)
    for step, batch in enumerate(batches(20)):
        for _, opt in twins.both():
            opt.param_groups[step % 3]["lr"] = 1e-3 * (1 + step)
            opt.param_groups[1]["weight_decay"] = 0.05 * step
            opt.param_groups[0]["betas"] = (0.8 + 0.005 * step, 0.99)
            opt.param_groups[2]["eps"] = 1e-8 * (1 + step)
        twins.step(batch)
    twins.compare()
    twins.opt.close()


def test_the_groups_are_one_list_of_stable_dicts(tmp_path):
    twins = Twins(tmp_path, groups=groups)
    listed, first = twins.opt.param_groups, twins.opt.param_groups[0]
    twins.step(batches(1)[0])
    twins.opt.load_state_dict(twins.opt.state_dict())
    twins.opt.save(tmp_path / "saved")
    twins.opt.load(tmp_path / "saved")
    assert twins.opt.param_groups is listed and twins.opt.param_groups[0] is first
    assert first["params"][0] is twins.ours[0].weight
    assert isinstance(twins.opt, torch.optim.Optimizer)
    assert set(first) == set(twins.ref.param_groups[0])
    twins.opt.close()


def test_extra_keys_of_torch_and_of_users_stay(tmp_path):
    make = {"foreach": False, "capturable": False, "maximize": True}
    twins = Twins(tmp_path, ours={"fused": True}, **make)
    for _, opt in twins.both():
        opt.param_groups[0]["name"] = "all"
    for batch in batches(3):
        twins.step(batch)
    saved = twins.opt.state_dict()["param_groups"][0]
    assert saved["name"] == "all" and saved["fused"] is True and saved["foreach"] is False
    twins.compare()
    twins.opt.close()


@pytest.mark.parametrize("before", [0, 1, 4])
def test_a_group_may_join_at_any_time(before, tmp_path):
    twins = Twins(tmp_path, groups=lambda model: model[0].parameters())
    for step, batch in enumerate(batches(8)):
        if step == before:
            for model, opt in twins.both():
                opt.add_param_group({"params": model[2].parameters(), "lr": 1e-2})
        twins.step(batch)
        twins.compare()
    assert len(twins.opt.param_groups) == 2
    twins.opt.close()


def test_a_group_that_is_refused_changes_nothing(tmp_path):
    twins = Twins(tmp_path)
    twins.step(batches(1)[0])
    def some(dtype=torch.float32):
        return torch.nn.Parameter(torch.zeros(8, dtype=dtype))

    one = some()
    for group, error, text in [
        ({"params": [some(torch.float64)]}, ValueError, "float64"),
        ({"params": [one, one]}, ValueError, "more than once"),
        ({"params": [some()], "lr": -1.0}, ValueError, "learning rate"),
        ({"params": [some()], "differentiable": True}, ValueError, "differentiable"),
        ({"params": [twins.ours[0].weight]}, ValueError, "more than one parameter group"),
    ]:
        with pytest.warns() if group["params"][0] is one else no_warning():
            with pytest.raises(error, match=text):
                twins.opt.add_param_group(group)
        assert len(twins.opt.param_groups) == 1
    twins.step(batches(2)[1])
    twins.compare()
    twins.opt.close()


def no_warning():
    import contextlib

    return contextlib.nullcontext()


def test_frozen_and_absent_gradients_are_skipped(tmp_path):
    twins = Twins(tmp_path)
    for step, batch in enumerate(batches(9)):
        for model, _ in twins.both():
            model[0].weight.requires_grad_(step % 3 != 1)
        twins.backward(batch)
        if step % 4 == 2:
            for model, _ in twins.both():
                model[2].bias.grad = None
        twins.opt.step()
        twins.ref.step()
    counts = [int(state["step"]) for state in twins.opt.state_dict()["state"].values()]
    assert counts == [6, 9, 9, 7]
    twins.compare()
    twins.opt.close()


def test_a_step_without_any_gradient_does_nothing(tmp_path):
    twins = Twins(tmp_path)
    twins.opt.step()
    assert not list(tmp_path.iterdir()), "nothing was needed yet"
    assert len(twins.opt.state) == 0 and twins.opt.state_dict()["state"] == {}
    twins.step(batches(1)[0])
    twins.opt.zero_grad()
    twins.opt.step()
    twins.compare()
    twins.opt.close()


def test_a_parameter_that_the_model_uses_twice_is_one(tmp_path):
    model = torch.nn.ModuleList([torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)])
    model[1].weight = model[0].weight
    opt = tensortier.AdamW(model.parameters(), host_memory=HOST_MEMORY, paths=[tmp_path])
    assert len(opt.param_groups[0]["params"]) == 3
    model[1](model[0](batches(1)[0])).sum().backward()
    opt.step()
    opt.close()


def test_two_parameters_in_one_memory_are_refused(tmp_path):
    weight = torch.zeros(128)
    params = [torch.nn.Parameter(weight), torch.nn.Parameter(weight[64:])]
    opt = tensortier.AdamW(params, host_memory=HOST_MEMORY, paths=[tmp_path])
    for param in params:
        param.grad = torch.ones_like(param)
    with pytest.raises(ValueError, match="share memory"):
        opt.step()
    assert torch.equal(weight, torch.zeros(128))
    opt.close()


def test_names_are_those_of_the_model(tmp_path):
    twins = Twins(tmp_path, groups=lambda model: model.named_parameters())
    twins.step(batches(1)[0])
    twins.compare()
    with torch.no_grad():
        twins.ours[0].weight.zero_()
    twins.opt.refresh_masters(["0.weight"])
    with pytest.raises(KeyError, match="1.weight"):
        twins.opt.refresh_masters(["1.weight"])
    twins.opt.close()


def test_one_store_serves_several_optimizers(tmp_path):
    store = tensortier.Store(host_memory=4 * HOST_MEMORY, paths=[tmp_path])
    twins = [Twins(tmp_path, ours={"store": store, "host_memory": None, "paths": None})] * 2
    twins[1] = Twins(tmp_path, "Adam", ours={"store": store, "host_memory": None, "paths": None})
    for batch in batches(5):
        for pair in twins:
            pair.step(batch)
    for pair in twins:
        pair.compare()
        pair.opt.close()
    store.close()


def test_weights_may_be_replaced_between_steps(tmp_path):
    twins = Twins(tmp_path)
    for batch in batches(4):
        twins.step(batch)
        for param in twins.ours.parameters():
            param.data = param.data.clone()
    twins.compare()
    # New values are new weights: fp32 weights are their own master.
    for model, _ in twins.both():
        model[0].weight.data = torch.full_like(model[0].weight, 0.25)
    twins.step(batches(5)[4])
    twins.compare()
    with pytest.raises(ValueError, match="parameter 0.*bfloat16"):
        twins.ours[0].weight.data = twins.ours[0].weight.data.bfloat16()
        twins.ours[0].weight.grad = torch.zeros_like(twins.ours[0].weight)
        twins.opt.step()
    twins.opt.close()


def test_strided_weights_and_gradients(tmp_path):
    torch.manual_seed(3)
    shape = (16, 8, 4, 4)
    start = torch.randn(shape)
    layouts = [
        lambda tensor: tensor.clone(memory_format=torch.channels_last),
        lambda tensor: tensor.transpose(0, 1).contiguous().transpose(0, 1),
        lambda tensor: torch.stack([tensor, tensor], -1)[..., 0],
    ]
    ours = [torch.nn.Parameter(layout(start)) for layout in layouts]
    theirs = [torch.nn.Parameter(start.clone()) for _ in layouts]
    opt = tensortier.AdamW(ours, host_memory=HOST_MEMORY, paths=[tmp_path])
    ref = torch.optim.AdamW(theirs, fused=True)
    for step in range(6):
        for index, (one, other) in enumerate(zip(ours, theirs)):
            other.grad = torch.randn(shape)
            one.grad = layouts[(index + step) % 3](other.grad)
            if step == 5:
                other.grad = torch.ones(()).expand(shape).clone()
                one.grad = torch.ones(()).expand(shape)
        opt.step()
        ref.step()
    for one, other in zip(ours, theirs):
        assert torch.equal(one, other)
        assert torch.equal(opt.state[one]["exp_avg_sq"], ref.state[other]["exp_avg_sq"])
    # As torch has it, moments are laid out like their weights.
    assert opt.state[ours[0]]["exp_avg"].is_contiguous(memory_format=torch.channels_last)
    opt.close()


def test_scalars_and_empty_tensors(tmp_path):
    def params():
        return [torch.nn.Parameter(torch.full(shape, 0.5)) for shape in [(), (0, 3), (64,)]]

    ours, theirs = params(), params()
    opt = tensortier.AdamW(ours, host_memory=HOST_MEMORY, paths=[tmp_path])
    ref = torch.optim.AdamW(theirs, foreach=False)
    for _ in range(3):
        for param in ours + theirs:
            param.grad = torch.full_like(param, 0.25)
        opt.step()
        ref.step()
    for one, other in zip(ours, theirs):
        torch.testing.assert_close(one, other, rtol=3e-7, atol=0)
        assert opt.state[one]["exp_avg"].shape == other.shape
        assert opt.state[one]["step"] == 3
    opt.close()


def test_a_stale_graph_is_noticed(tmp_path):
    model = network()
    opt = tensortier.AdamW(model.parameters(), host_memory=HOST_MEMORY, paths=[tmp_path])
    loss = loss_of(model, batches(1)[0])
    loss.backward(retain_graph=True)
    opt.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    opt.close()
