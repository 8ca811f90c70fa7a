"""Weights and gradients that cannot be trained from host memory are refused by name, before any change."""

import pytest
import tensortier
from side_by_side import HOST_MEMORY, Twins, batches, torch


def make(params, path, **arguments):
    own = {"host_memory": HOST_MEMORY, "paths": [path]}
    return tensortier.AdamW(params, **{**own, **arguments})


def parameter(tensor):
    return torch.nn.Parameter(tensor, requires_grad=tensor.is_floating_point())


@pytest.mark.parametrize(
    "tensor, text",
    [
        (torch.zeros(3, dtype=torch.float64), "float64"),
        (torch.zeros(3, dtype=torch.complex64), "complex64"),
        (torch.zeros(3, dtype=torch.float8_e4m3fn), "float8"),
        (torch.zeros(3, dtype=torch.int32), "int32"),
        (torch.zeros(3, device="meta"), "is on meta"),
        (torch.zeros(3).to_sparse(), "sparse"),
    ],
)
def test_kinds_of_weights(tensor, text, tmp_path):
    good = parameter(torch.zeros(8))
    with pytest.raises(ValueError, match=f"parameter bad.*{text}"):
        make([("good", good), ("bad", parameter(tensor))], tmp_path)


class Wrapper(torch.Tensor):
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def test_tensors_that_are_not_their_own(tmp_path):
    wrapped = torch.Tensor._make_subclass(Wrapper, torch.zeros(3), True)
    with pytest.raises(ValueError, match="Wrapper"):
        make([wrapped], tmp_path)


def test_sharded_weights(tmp_path):
    distributed = torch.distributed
    if not distributed.is_available():
        pytest.skip("this torch has no torch.distributed")
    from torch.distributed.tensor import distribute_tensor, init_device_mesh

    distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1
    )
    try:
        sharded = distribute_tensor(torch.zeros(8), init_device_mesh("cpu", (1,)))
        with pytest.raises(ValueError, match="DTensor"):
            make([parameter(sharded)], tmp_path)
    finally:
        distributed.destroy_process_group()


def test_kinds_of_gradients(tmp_path):
    twins = Twins(tmp_path)
    twins.step(batches(1)[0])
    twins.backward(batches(2)[1])
    weight = twins.ours[0].weight
    good = weight.grad
    weight.grad = good.to_sparse()
    with pytest.raises(RuntimeError, match="gradient of 0.*sparse"):
        twins.opt.step()
    weight.grad = None
    weight.grad = good
    twins.opt.step()
    twins.ref.step()
    twins.compare()
    twins.opt.close()


def test_weights_and_gradient_in_one_memory(tmp_path):
    param = parameter(torch.ones(64))
    param.grad = param.detach()
    opt = make([param], tmp_path)
    with pytest.raises(ValueError, match="memory of its weights"):
        opt.step()
    assert torch.equal(param, torch.ones(64))
    opt.close()


def test_weights_with_places_in_common(tmp_path):
    param = parameter(torch.ones(1).expand(64))
    param.grad = torch.ones(64)
    opt = make([param], tmp_path)
    with pytest.raises(ValueError, match="share places"):
        opt.step()
    opt.close()


@pytest.mark.parametrize(
    "arguments, error, text",
    [
        ({"lr": -1.0}, ValueError, "learning rate"),
        ({"lr": torch.tensor([1.0, 2.0])}, ValueError, "1-element"),
        ({"betas": (1.0, 0.9)}, ValueError, "beta parameter at index 0"),
        ({"betas": (0.9, 1.0)}, ValueError, "beta parameter at index 1"),
        ({"eps": -1.0}, ValueError, "epsilon"),
        ({"weight_decay": -1.0}, ValueError, "weight_decay"),
        ({"differentiable": True}, ValueError, "differentiable"),
        ({"state": "fp64"}, ValueError, "fp64"),
        ({"non_finite": "ignore"}, ValueError, "ignore"),
        ({"paths": None}, TypeError, "store="),
        ({"host_memory": None, "paths": None}, TypeError, "store="),
        ({"decoupled_weight_decay": True}, TypeError, "decoupled"),
        ({"momentum": 0.9}, TypeError, "momentum"),
    ],
)
def test_arguments(arguments, error, text, tmp_path):
    with pytest.raises(error, match=text):
        make([parameter(torch.zeros(8))], tmp_path, **arguments)


def test_a_budget_that_is_too_small_says_what_would_do(tmp_path):
    param = parameter(torch.zeros(10_000_000))
    param.grad = torch.zeros_like(param)
    opt = make([param], tmp_path, host_memory=1 << 20)
    with pytest.raises(MemoryError) as refused:
        opt.step()
    assert refused.value.budget < refused.value.needed
    assert str(refused.value.needed) in str(refused.value)
    opt.close()


def test_a_save_that_fails_says_what_the_system_said(tmp_path):
    twins = Twins(tmp_path)
    twins.step(batches(1)[0])
    with pytest.raises(OSError) as refused:
        twins.opt.save(tmp_path / "absent" / "file")
    assert refused.value.errno == 2
    twins.compare()
    twins.opt.close()
