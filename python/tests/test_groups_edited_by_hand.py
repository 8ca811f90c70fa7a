"""Parameters and numbers that are changed behind the optimizer: no state ever goes to another parameter."""

import pytest
import tensortier
from side_by_side import HOST_MEMORY, Twins, batches, torch


def trained(path, **arguments):
    twins = Twins(path, **arguments)
    for batch in batches(2):
        twins.step(batch)
    twins.backward(batches(3)[2])
    return twins


def test_parameters_that_change_places(tmp_path):
    """They have as many elements, so that the state of one would do for the other."""
    twins = trained(tmp_path)
    params = twins.opt.param_groups[0]["params"]
    assert params[0].numel() == params[2].numel()
    params[0], params[2] = params[2], params[0]
    for use in (twins.opt.step, lambda: twins.opt.save(tmp_path / "file")):
        with pytest.raises(RuntimeError, match="parameter 0 is another tensor.*in another place"):
            use()
    params[0], params[2] = params[2], params[0]
    twins.opt.step()
    twins.ref.step()
    twins.compare()
    twins.opt.close()


def test_a_parameter_in_place_of_another(tmp_path):
    twins = trained(tmp_path)
    saved = twins.opt.state_dict()
    old = twins.opt.param_groups[0]["params"][2]
    new = torch.nn.Parameter(torch.zeros_like(old))
    new.grad = torch.ones_like(new)
    twins.opt.param_groups[0]["params"][2] = new
    before = old.detach().clone()
    with pytest.raises(RuntimeError, match="load_state_dict"):
        twins.opt.step()
    with pytest.raises(KeyError):
        twins.opt.state[old]
    # What the error says to do, once with the state of the other and once with none.
    twins.opt.load_state_dict(saved)
    twins.opt.step()
    assert twins.opt.state[new]["step"] == 3 and torch.equal(old, before)
    twins.opt.load_state_dict({**saved, "state": {}})
    twins.opt.step()
    assert twins.opt.state[new]["step"] == 1
    twins.opt.close()


def test_a_parameter_that_changes_places_while_attached(tmp_path):
    params = [torch.nn.Parameter(torch.ones(64)) for _ in range(2)]
    opt = tensortier.AdamW(params, host_memory=HOST_MEMORY, paths=[tmp_path])
    opt.attach()
    opt.param_groups[0]["params"].reverse()
    with pytest.raises(RuntimeError, match="in another place"):
        (params[0] * 2).sum().backward()
    opt.close()


@pytest.mark.parametrize("shape", [(3, 3), (64, 128)])
def test_weights_of_another_shape(shape, tmp_path):
    twins = trained(tmp_path)
    weight = twins.ours[0].weight
    weight.grad = None
    weight.data = torch.zeros(shape)
    weight.grad = torch.zeros(shape)
    with pytest.raises(ValueError, match=r"parameter 0 has the shape .*state is for \(128, 64\)"):
        twins.opt.step()
    twins.opt.close()


@pytest.mark.parametrize(
    "key, value, error, text",
    [
        ("lr", "1e-3", TypeError, "lr has '1e-3'"),
        ("lr", None, TypeError, "lr has None"),
        ("eps", None, TypeError, "eps has None"),
        ("betas", 0.9, ValueError, "betas is 0.9; it must be two"),
        ("betas", (0.9,), ValueError, "it must be two"),
        ("betas", (0.9, 0.99, 0.999), ValueError, "it must be two"),
        ("betas", (0.9, "0.99"), TypeError, "betas has '0.99'"),
        ("weight_decay", [0.1], TypeError, "weight_decay has"),
    ],
)
def test_numbers_that_are_none(key, value, error, text, tmp_path):
    with pytest.raises(error, match=text):
        Twins(tmp_path, **{key: value})
    twins = trained(tmp_path)
    known = twins.opt.param_groups[0][key]
    twins.opt.param_groups[0][key] = value
    with pytest.raises(error, match=text):
        twins.opt.step()
    twins.opt.param_groups[0][key] = known
    twins.opt.step()
    twins.ref.step()
    twins.compare()
    twins.opt.close()
