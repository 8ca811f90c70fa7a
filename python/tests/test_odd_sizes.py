"""Beside torch's other kernels, and for sizes whose ends they round otherwise: moments are equal to the
bit, and so are weights wherever torch takes a correctly rounded square root; elsewhere they are within 4
units in the last place of one step."""

import pytest
import tensortier
from side_by_side import HOST_MEMORY, torch

SIZES = [1, 17, 63, 1000, 70_001]


@pytest.mark.parametrize("foreach", [False, True])
def test_each_step_from_torchs_state(foreach, tmp_path):
    numpy = pytest.importorskip("numpy", reason="numpy is not installed")
    torch.manual_seed(8)
    theirs = [torch.nn.Parameter(torch.randn(size)) for size in SIZES]
    ours = [torch.nn.Parameter(param.detach().clone()) for param in theirs]
    ref = torch.optim.AdamW(theirs, lr=1e-2, foreach=foreach)
    opt = tensortier.AdamW(ours, lr=1e-2, host_memory=HOST_MEMORY, paths=[tmp_path])
    for _ in range(50):
        before = [param.detach().clone() for param in theirs]
        for one, other in zip(ours, theirs):
            other.grad = torch.randn_like(other)
            one.grad = other.grad.clone()
        opt.step()
        ref.step()
        for one, other, old in zip(ours, theirs, before):
            for name in ("step", "exp_avg", "exp_avg_sq"):
                assert torch.equal(opt.state[one][name], ref.state[other][name])
            # Torch's square root is not always correctly rounded, and where depends on the processor.
            squares = ref.state[other]["exp_avg_sq"]
            exact = squares.sqrt() == torch.from_numpy(numpy.sqrt(squares.numpy()))
            assert torch.equal(one[exact], other[exact])
            # An update is rounded too, and may be larger than the weight that it leaves.
            largest = torch.maximum(torch.maximum(old.abs(), other.abs()), (other - old).abs())
            ulp = torch.nextafter(largest, torch.tensor(torch.inf)) - largest
            assert ((one - other).abs() <= 4 * ulp).all()
            one.data.copy_(other)
    opt.close()
