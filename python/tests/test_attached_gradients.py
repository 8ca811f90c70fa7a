"""Gradients that are taken during the backward pass: the same bits, and .grad is free."""

import pytest
import tensortier
from side_by_side import HOST_MEMORY, Twins, batches, loss_of, network, torch


@pytest.mark.parametrize("in_store", [False, True])
@pytest.mark.parametrize("micro_batches", [1, 3])
def test_the_bits_are_those_of_plain_steps(micro_batches, in_store, tmp_path):
    twins = Twins(tmp_path)
    twins.opt.attach(in_store=in_store)
    for batch in batches(6):
        for model, opt in twins.both():
            opt.zero_grad()
            for part in batch.chunk(micro_batches):
                loss_of(model, part).backward()
        assert all(param.grad is None for param in twins.ours.parameters())
        twins.opt.step()
        twins.ref.step()
        twins.compare()
    twins.opt.close()


@pytest.mark.parametrize("accumulate", ["same", "fp32"])
def test_sums_of_bf16_gradients(accumulate, tmp_path):
    torch.manual_seed(7)
    ours = torch.nn.Parameter(torch.randn(70_000).bfloat16())
    theirs = torch.nn.Parameter(ours.detach().float())
    opt = tensortier.AdamW([ours], host_memory=HOST_MEMORY, paths=[tmp_path])
    ref = torch.optim.AdamW([theirs], fused=True)
    opt.attach(accumulate=accumulate)
    for _ in range(3):
        total = torch.zeros(70_000, dtype=torch.bfloat16 if accumulate == "same" else torch.float32)
        for micro in range(4):
            factor = torch.randn(70_000).bfloat16()
            (ours * factor).sum().backward()
            total = factor.to(total.dtype) if micro == 0 else total + factor
        opt.step(max_norm=1e9)
        assert opt.last_step.norm == pytest.approx(total.float().norm().item(), rel=1e-5)
        theirs.grad = total.float()
        ref.step()
    # torch's own tail of numel mod 16 rounds otherwise; 70,000 has none.
    assert torch.equal(opt.state[ours]["master_param"], theirs)
    opt.close()


def test_zero_grad_forgets_what_came(tmp_path):
    twins = Twins(tmp_path)
    twins.opt.attach()
    loss_of(twins.ours, batches(1)[0]).backward()
    twins.step(batches(2)[1])
    twins.compare()
    twins.opt.close()


def test_frozen_parameters_and_groups_that_join(tmp_path):
    twins = Twins(tmp_path, groups=lambda model: model[0].parameters())
    twins.opt.attach()
    for _, opt in twins.both():
        opt.param_groups[0]["params"][1].requires_grad_(False)
    for step, batch in enumerate(batches(6)):
        if step == 2:
            for model, opt in twins.both():
                opt.add_param_group({"params": model[2].parameters()})
        if step == 4:
            for model, _ in twins.both():
                model[0].weight.requires_grad_(False)
        for model, opt in twins.both():
            if step < 2:
                model[2].zero_grad()
        twins.step(batch)
    twins.compare()
    twins.opt.close()


def test_detached_again_gradients_are_those_of_the_parameters(tmp_path):
    twins = Twins(tmp_path)
    twins.opt.attach()
    twins.step(batches(1)[0])
    twins.opt.detach()
    twins.step(batches(2)[1])
    assert all(param.grad is not None for param in twins.ours.parameters())
    with pytest.raises(RuntimeError, match="zero_grad"):
        twins.opt.attach()
    twins.compare()
    twins.opt.close()


def test_two_gradients_of_one_parameter_are_refused(tmp_path):
    twins = Twins(tmp_path)
    twins.opt.attach()
    twins.backward(batches(1)[0])
    twins.ours[0].bias.grad = torch.zeros(128)
    with pytest.raises(RuntimeError, match="gradient of 1"):
        twins.opt.step()
    twins.ours[0].bias.grad = None
    twins.opt.step()
    twins.ref.step()
    twins.compare()
    twins.opt.close()


def test_refused_where_hooks_see_gradients_before_they_are_reduced(tmp_path):
    distributed = torch.distributed
    if not distributed.is_available():
        pytest.skip("this torch has no torch.distributed")
    distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1
    )
    try:
        model = torch.nn.parallel.DistributedDataParallel(network())
        opt = tensortier.AdamW(model.parameters(), host_memory=HOST_MEMORY, paths=[tmp_path])
        with pytest.raises(RuntimeError, match="DistributedDataParallel or FSDP"):
            opt.attach()
        # Without it the reduced gradients are taken.
        loss_of(model, batches(1)[0]).backward()
        opt.step()
        opt.close()
    finally:
        distributed.destroy_process_group()


def test_refused_when_ranks_join_later(tmp_path):
    distributed = torch.distributed
    if not distributed.is_available():
        pytest.skip("this torch has no torch.distributed")
    model = network()
    opt = tensortier.AdamW(model.parameters(), host_memory=HOST_MEMORY, paths=[tmp_path])
    opt.attach()
    distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1
    )
    try:
        with pytest.raises(RuntimeError, match="DistributedDataParallel or FSDP"):
            loss_of(model, batches(1)[0]).backward()
    finally:
        distributed.destroy_process_group()
    opt.close()
