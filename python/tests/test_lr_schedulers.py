"""Every learning rate scheduler of torch drives the optimizer as it drives torch's, to the last bit."""

import inspect
import math
import warnings

import pytest
from side_by_side import Twins, batches, torch

sched = torch.optim.lr_scheduler

STEPS = 50


def _sequence(opt):
    first = sched.LinearLR(opt, start_factor=0.1, total_iters=10)
    second = sched.CosineAnnealingLR(opt, T_max=30)
    return sched.SequentialLR(opt, [first, second], milestones=[10])


def _chain(opt):
    first = sched.ConstantLR(opt, factor=0.5, total_iters=20)
    return sched.ChainedScheduler([first, sched.ExponentialLR(opt, gamma=0.95)], optimizer=opt)


MAKERS = {
    "LambdaLR": lambda opt: sched.LambdaLR(opt, lambda epoch: 0.95**epoch),
    "MultiplicativeLR": lambda opt: sched.MultiplicativeLR(opt, lambda epoch: 0.97),
    "StepLR": lambda opt: sched.StepLR(opt, step_size=7, gamma=0.5),
    "MultiStepLR": lambda opt: sched.MultiStepLR(opt, milestones=[5, 20, 21], gamma=0.3),
    "ConstantLR": lambda opt: sched.ConstantLR(opt, factor=0.3, total_iters=12),
    "LinearLR": lambda opt: sched.LinearLR(opt, start_factor=0.2, total_iters=30),
    "ExponentialLR": lambda opt: sched.ExponentialLR(opt, gamma=0.9),
    "SequentialLR": _sequence,
    "ChainedScheduler": _chain,
    "CosineAnnealingLR": lambda opt: sched.CosineAnnealingLR(opt, T_max=20, eta_min=1e-5),
    "CosineAnnealingWarmRestarts": lambda opt: sched.CosineAnnealingWarmRestarts(opt, T_0=7),
    "PolynomialLR": lambda opt: sched.PolynomialLR(opt, total_iters=40, power=2.0),
    "ReduceLROnPlateau": lambda opt: sched.ReduceLROnPlateau(opt, patience=1, factor=0.5),
    "CyclicLR": lambda opt: sched.CyclicLR(
        opt, 1e-4, 1e-2, step_size_up=8, base_momentum=0.8, max_momentum=0.95
    ),
    "OneCycleLR": lambda opt: sched.OneCycleLR(opt, max_lr=1e-2, total_steps=STEPS + 1),
}

#: Classes that are no schedule of their own.
BASES = {"LRScheduler", "_LRScheduler"}


def _classes():
    known = vars(sched).items()
    of = (name for name, one in known if inspect.isclass(one) and hasattr(one, "_get_closed_form_lr"))
    derived = {
        name
        for name, one in known
        if inspect.isclass(one) and issubclass(one, sched.LRScheduler) and not name.startswith("_")
    }
    return derived | set(of)


def test_no_class_is_left_out():
    # SWALR averages weights outside of any step; it is tested by hand below.
    assert _classes() - BASES - {"SWALR", "EnforceOrder", "Counter"} == set(MAKERS)


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("algorithm", ["AdamW", "Adam"])
def test_fifty_steps_beside_torch(name, algorithm, tmp_path):
    twins = Twins(tmp_path, algorithm, lr=1e-2, weight_decay=1e-2, amsgrad=name == "StepLR")
    schedulers = [MAKERS[name](opt) for _, opt in twins.both()]
    rates = set()
    for step, batch in enumerate(batches(STEPS)):
        twins.step(batch)
        for scheduler in schedulers:
            # A loss that sometimes does not fall.
            given = (math.sin(step),) if name == "ReduceLROnPlateau" else ()
            scheduler.step(*given)
        rates.add(twins.opt.param_groups[0]["lr"])
    assert len(rates) > 1, "a schedule that changes nothing tests nothing"
    twins.compare()
    twins.opt.close()


def test_weights_averaged_with_their_own_rate(tmp_path):
    from torch.optim.swa_utils import SWALR, AveragedModel

    twins = Twins(tmp_path, lr=1e-2)
    schedulers = [SWALR(opt, swa_lr=1e-3, anneal_epochs=10) for _, opt in twins.both()]
    averages = [AveragedModel(model) for model, _ in twins.both()]
    for batch in batches(20):
        twins.step(batch)
        for scheduler, average, (model, _) in zip(schedulers, averages, twins.both()):
            average.update_parameters(model)
            scheduler.step()
    twins.compare()
    for ours, theirs in zip(averages[0].parameters(), averages[1].parameters()):
        assert torch.equal(ours, theirs)
    twins.opt.close()


def test_a_rate_that_is_a_tensor(tmp_path):
    twins = Twins(tmp_path, lr=torch.tensor(1e-2))
    schedulers = [sched.ExponentialLR(opt, gamma=0.9) for _, opt in twins.both()]
    for batch in batches(10):
        twins.step(batch)
        for scheduler in schedulers:
            scheduler.step()
    assert isinstance(twins.opt.param_groups[0]["lr"], torch.Tensor)
    twins.compare()
    twins.opt.close()


def test_a_scheduler_after_a_step_does_not_warn(tmp_path):
    twins = Twins(tmp_path)
    scheduler = sched.ExponentialLR(twins.opt, gamma=0.9)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        twins.step(batches(1)[0])
        scheduler.step()
    twins.opt.close()


def test_a_resumed_schedule_goes_on(tmp_path):
    twins = Twins(tmp_path, lr=1e-2)
    scheduler, other = (sched.StepLR(opt, 3, gamma=0.5) for _, opt in twins.both())
    for batch in batches(4):
        twins.step(batch)
        scheduler.step()
        other.step()
    saved, schedule = twins.opt.state_dict(), scheduler.state_dict()
    twins.opt.load_state_dict(saved)
    scheduler = sched.StepLR(twins.opt, 3, gamma=0.5)
    scheduler.load_state_dict(schedule)
    # torch's rule: a new scheduler sets the first rate, and the loaded state comes after it.
    twins.opt.load_state_dict(saved)
    for batch in batches(8)[4:]:
        twins.step(batch)
        scheduler.step()
        other.step()
    twins.compare()
    twins.opt.close()
