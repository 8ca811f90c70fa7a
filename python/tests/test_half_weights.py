"""16-bit weights: their masters are the bits of torch's fp32 run with the same gradients."""

import pytest
import tensortier
from side_by_side import HOST_MEMORY, torch

SHAPES = [(64, 128), (4096,), (32, 2, 2, 2), (300, 256)]


class HalfTwins:
    """16-bit weights of ours, and fp32 ones of torch's that get the same gradients."""

    def __init__(self, path, dtype, state, **arguments):
        torch.manual_seed(5)
        start = [torch.randn(shape).to(dtype) for shape in SHAPES]
        start[2] = start[2].clone(memory_format=torch.channels_last)
        self.ours = [torch.nn.Parameter(one.clone()) for one in start]
        self.theirs = [torch.nn.Parameter(one.float().contiguous()) for one in start]
        own = {"host_memory": HOST_MEMORY, "paths": [path], "state": state}
        self.opt = tensortier.AdamW(self.ours, lr=1e-2, **arguments, **own)
        self.ref = torch.optim.AdamW(self.theirs, lr=1e-2, fused=True, **arguments)

    def step(self, **arguments):
        for one, other in zip(self.ours, self.theirs):
            one.grad = torch.randn(one.shape).to(one.dtype)
            other.grad = one.grad.float().contiguous()
        self.opt.step(**arguments)
        self.ref.step()

    def compare(self):
        for one, other in zip(self.ours, self.theirs):
            assert torch.equal(one, other.to(one.dtype))
            ours, theirs = self.opt.state[one], self.ref.state[other]
            assert torch.equal(ours["master_param"], other)
            for name, value in theirs.items():
                assert torch.equal(ours[name], value), name


KINDS = [
    (torch.bfloat16, "auto"),
    (torch.bfloat16, "split"),
    (torch.float16, "fp32"),
]


@pytest.mark.parametrize("dtype, state", KINDS)
@pytest.mark.parametrize("amsgrad", [False, True])
def test_masters_are_torchs_fp32_weights(dtype, state, amsgrad, tmp_path):
    twins = HalfTwins(tmp_path, dtype, state, amsgrad=amsgrad)
    for _ in range(20):
        twins.step()
    twins.compare()
    saved = twins.opt.state_dict()["state"][1]
    planes = ["exp_avg", "exp_avg_sq"] + ["max_exp_avg_sq"] * amsgrad + ["master_param"]
    assert list(saved) == ["step", *planes]
    assert all(saved[name].dtype == torch.float32 for name in saved)
    twins.opt.close()


@pytest.mark.parametrize("dtype, state", KINDS)
def test_loading_never_rounds_the_state(dtype, state, tmp_path):
    twins = HalfTwins(tmp_path, dtype, state)
    for _ in range(5):
        twins.step()
    saved = twins.opt.state_dict()
    other = HalfTwins(tmp_path, dtype, "fp32" if state == "split" else state)
    other.step()
    other.opt.load_state_dict(saved)
    other.ref.load_state_dict(twins.ref.state_dict())
    with torch.no_grad():
        for one, two in zip(other.theirs, twins.theirs):
            one.copy_(two)
    # The weights come with their masters.
    other.compare()
    for _ in range(5):
        other.step()
    other.compare()
    twins.opt.close()
    other.opt.close()


def test_fp32_gradients_of_bf16_weights(tmp_path):
    param = torch.nn.Parameter(torch.randn(4096).bfloat16())
    if not hasattr(param, "grad_dtype"):
        pytest.skip("this torch ties the gradient's type to that of the weights")
    param.grad_dtype = torch.float32
    other = torch.nn.Parameter(param.detach().float())
    opt = tensortier.AdamW([param], host_memory=HOST_MEMORY, paths=[tmp_path])
    ref = torch.optim.AdamW([other], fused=True)
    for _ in range(5):
        param.grad = torch.randn(4096)
        other.grad = param.grad.clone()
        opt.step()
        ref.step()
    assert torch.equal(opt.state[param]["master_param"], other)
    opt.close()


def test_weights_that_were_changed_outside_of_a_step(tmp_path):
    twins = HalfTwins(tmp_path, torch.bfloat16, "split")
    twins.step()
    before = [param.detach().clone() for param in twins.ours]
    with torch.no_grad():
        twins.ours[0].mul_(2)
    for call in (lambda: twins.opt.state_dict(), twins.step, lambda: twins.opt.save(tmp_path / "x")):
        with pytest.raises(ValueError, match="weights of 0 were changed"):
            call()
    assert torch.equal(twins.ours[1], before[1])
    twins.opt.refresh_masters([twins.ours[0]])
    assert torch.equal(twins.opt.state[twins.ours[0]]["master_param"], twins.ours[0].float())
    twins.opt.step()
    twins.opt.close()


def test_refreshed_masters_are_the_weights(tmp_path):
    twins = HalfTwins(tmp_path, torch.bfloat16, "fp32")
    twins.step()
    with torch.no_grad():
        for one, other in zip(twins.ours, twins.theirs):
            one.mul_(2)
            other.copy_(one)
    twins.opt.refresh_masters()
    twins.step()
    twins.compare()
    twins.opt.close()


def test_split_is_for_bf16(tmp_path):
    with pytest.raises(ValueError, match="F16"):
        twins = HalfTwins(tmp_path, torch.float16, "split")
        twins.step()
