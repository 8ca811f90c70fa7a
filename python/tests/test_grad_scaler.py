"""torch's GradScaler in front of the optimizer: scaled, unscaled, clipped and skipped steps."""

import pytest
import tensortier
from side_by_side import HOST_MEMORY, Twins, batches, loss_of, torch


def scaled_backward(twins, scalers, batch, infinite=False):
    for (model, opt), scaler in zip(twins.both(), scalers):
        opt.zero_grad()
        scaler.scale(loss_of(model, batch)).backward()
        if infinite:
            model[2].bias.grad[-1] = float("inf")


@pytest.mark.parametrize("unscale", [False, True])
def test_fifteen_steps_with_skips_beside_torch(unscale, tmp_path):
    twins = Twins(tmp_path, lr=1e-2)
    scalers = [torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3) for _ in range(2)]
    scales = set()
    for step, batch in enumerate(batches(15)):
        scaled_backward(twins, scalers, batch, infinite=step in (4, 5, 14))
        for (model, opt), scaler in zip(twins.both(), scalers):
            if unscale:
                scaler.unscale_(opt)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(opt)
            scaler.update()
        assert scalers[0].get_scale() == scalers[1].get_scale()
        scales.add(scalers[0].get_scale())
    assert len(scales) > 2, "the scale has to grow and to shrink"
    assert twins.opt.state_dict()["state"][0]["step"] == 12
    twins.compare()
    assert not hasattr(twins.opt, "grad_scale") and not hasattr(twins.opt, "found_inf")
    twins.opt.close()


def test_fp16_gradients_stay_scaled(tmp_path):
    torch.manual_seed(4)
    start = torch.randn(4096).half()
    ours, theirs = torch.nn.Parameter(start.clone()), torch.nn.Parameter(start.float())
    opt = tensortier.AdamW([ours], host_memory=HOST_MEMORY, paths=[tmp_path])
    ref = torch.optim.AdamW([theirs], fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    for step in range(6):
        factor = torch.randn(4096).half()
        opt.zero_grad()
        scaler.scale((ours * factor).sum() / 1024).backward()
        if step == 3:
            ours.grad[7] = float("nan")
        theirs.grad = ours.grad.float() / scaler.get_scale()
        with pytest.raises(ValueError, match="FP16"):
            scaler.unscale_(opt)
        # What unscale_ left behind when it refused.
        scaler._per_optimizer_states.clear()
        scaler.step(opt)
        scaler.update()
        if step != 3:
            ref.step()
    assert torch.equal(opt.state[ours]["master_param"], theirs)
    opt.close()


def test_a_clipped_step_of_scaled_gradients(tmp_path):
    twins = Twins(tmp_path, lr=1e-2)
    scalers = [torch.amp.GradScaler("cpu", init_scale=512.0) for _ in range(2)]
    norms = []
    for batch in batches(5):
        scaled_backward(twins, scalers, batch)
        scalers[0].step(twins.opt, max_norm=0.05)
        scalers[1].unscale_(twins.ref)
        norms.append(torch.nn.utils.clip_grad_norm_(twins.theirs.parameters(), 0.05).item())
        scalers[1].step(twins.ref)
        for scaler in scalers:
            scaler.update()
        report = twins.opt.last_step
        assert report.norm / 512.0 == pytest.approx(norms[-1], rel=1e-6)
        assert report.finite and report.gradient_factor < 1 / 512
    assert min(norms) > 0.05, "every step has to be clipped"
    # The norm is summed otherwise, so the last bits of the factor may differ.
    for one, other in zip(twins.ours.parameters(), twins.theirs.parameters()):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    twins.opt.close()


def test_gradients_that_are_not_finite_without_a_scaler(tmp_path):
    for policy in ("skip", "raise", "apply"):
        twins = Twins(tmp_path, ours={"non_finite": policy})
        twins.step(batches(1)[0])
        twins.backward(batches(2)[1])
        twins.ours[2].bias.grad[5] = float("nan")
        if policy == "raise":
            with pytest.raises(FloatingPointError, match="3"):
                twins.opt.step()
        else:
            twins.opt.step()
            assert twins.opt.last_step.applied == (policy == "apply")
        if policy == "apply":
            assert twins.ours[2].bias.isnan().sum() == 1
        else:
            twins.compare()
        if policy == "skip":
            assert twins.opt.last_step.non_finite_param == "3"
        twins.opt.close()


@pytest.mark.parametrize("unscale", [False, True])
def test_attached_it_says_what_to_do(unscale, tmp_path):
    """The scaler sees no gradient, and would end in an assertion of its own."""
    twins = Twins(tmp_path, lr=1e-2)
    twins.opt.attach()
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    batch = batches(1)[0]
    scaler.scale(loss_of(twins.ours, batch)).backward()
    if unscale:
        scaler.unscale_(twins.opt)
    with pytest.raises(RuntimeError, match=r"GradScaler cannot.*detach\(\) and zero_grad\(\)"):
        scaler.step(twins.opt)
    twins.opt.detach()
    with pytest.raises(RuntimeError, match="GradScaler cannot"):
        scaler.step(twins.opt)
    scalers = [torch.amp.GradScaler("cpu", init_scale=64.0) for _ in range(2)]
    scaled_backward(twins, scalers, batch)
    for (_, opt), scaler in zip(twins.both(), scalers):
        scaler.step(opt)
        scaler.update()
    twins.compare()
    twins.opt.close()


def test_a_step_that_fails_leaves_no_scale_behind(tmp_path):
    """torch would multiply the next scale with the one that was left."""
    twins = Twins(tmp_path, lr=1e-2)
    scalers = [torch.amp.GradScaler("cpu", init_scale=1024.0) for _ in range(2)]
    scaled_backward(twins, scalers, batches(1)[0])
    twins.opt.param_groups[0]["lr"] = -1.0
    with pytest.raises(ValueError, match="lr"):
        scalers[0].step(twins.opt)
    twins.opt.param_groups[0]["lr"] = 1e-2
    for (_, opt), scaler in zip(twins.both(), scalers):
        scaler.step(opt)
        scaler.update()
    twins.compare()
    twins.opt.close()
