"""step(), as torch's users call it: closures, hooks, clipping, torch.compile, and what interrupts it."""

import gc
import signal
import weakref

import pytest
import tensortier
from side_by_side import HOST_MEMORY, Twins, batches, loss_of, network, torch


def test_a_closure_is_evaluated_with_gradients(tmp_path):
    twins = Twins(tmp_path)
    for batch in batches(5):
        losses = []
        for model, opt in twins.both():

            def closure(model=model, opt=opt, batch=batch):
                opt.zero_grad()
                loss = loss_of(model, batch)
                loss.backward()
                return loss

            with torch.no_grad():
                losses.append(opt.step(closure))
        assert losses[0].requires_grad and torch.equal(*losses)
    twins.compare()
    twins.opt.close()


def test_hooks_run_around_a_step_and_may_change_it(tmp_path):
    twins = Twins(tmp_path)
    seen = []

    def halve(opt, args, kwargs):
        seen.append("before")
        for group in opt.param_groups:
            for param in group["params"]:
                param.grad.mul_(0.5)

    for _, opt in twins.both():
        opt.register_step_pre_hook(halve)
        opt.register_step_post_hook(lambda opt, args, kwargs: seen.append("after"))
    for batch in batches(3):
        twins.step(batch)
    assert seen == ["before", "after"] * 6
    twins.compare()
    twins.opt.close()


def test_zero_grad_as_torch(tmp_path):
    twins = Twins(tmp_path)
    twins.step(batches(1)[0])
    twins.opt.zero_grad(set_to_none=False)
    assert all((param.grad == 0).all() for param in twins.ours.parameters())
    twins.opt.zero_grad()
    assert all(param.grad is None for param in twins.ours.parameters())
    twins.opt.close()


def test_gradients_are_clipped_by_torch_or_in_the_step(tmp_path):
    twins = Twins(tmp_path, lr=1e-2)
    fused = Twins(tmp_path, lr=1e-2)
    for batch in batches(6):
        for pair in (twins, fused):
            pair.backward(batch)
        for model, opt in twins.both():
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
            opt.step()
        before = [param.grad.clone() for param in fused.ours.parameters()]
        fused.opt.step(max_norm=0.05)
        assert fused.opt.last_step.norm == pytest.approx(norm.item(), rel=1e-6)
        assert fused.opt.last_step.norm > 0.05
        assert all(map(torch.equal, before, (param.grad for param in fused.ours.parameters())))
    twins.compare()
    for one, other in zip(fused.ours.parameters(), twins.ours.parameters()):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    for pair in (twins, fused):
        pair.opt.close()


def test_a_compiled_function_may_step(tmp_path):
    twins = Twins(tmp_path)

    def train(model, opt, batch):
        opt.zero_grad()
        loss_of(model, batch).backward()
        opt.step()

    compiled = torch.compile(train, backend="eager")
    for batch in batches(4):
        compiled(twins.ours, twins.opt, batch)
        train(twins.theirs, twins.ref, batch)
    twins.compare()
    twins.opt.close()


def test_the_report_counts_what_moved(tmp_path):
    params = [torch.nn.Parameter(torch.zeros(1 << 20)) for _ in range(4)]
    opt = tensortier.AdamW(params, host_memory=HOST_MEMORY, paths=[tmp_path])
    reports = []
    for _ in range(3):
        for param in params:
            param.grad = torch.ones_like(param)
        opt.step()
        reports.append(opt.last_step)
    explained = opt.explain()
    assert explained["elements"] == 4 << 20 and explained["state_bytes"] == 32 << 20
    assert explained["host_memory"] == HOST_MEMORY
    assert [report.step for report in reports] == [1, 2, 3]
    last = reports[-1]
    assert last.updated == explained["subgroups"] and last.updated_bytes == 32 << 20
    assert last.reads + last.hits == last.updated and last.reads > 0 and last.hits > 0
    assert sum(read for read, _ in last.paths) >= last.reads_bytes
    assert sum(written for _, written in last.paths) > 0
    opt.close()


def test_an_optimizer_that_is_dropped_leaves_nothing(tmp_path):
    twins = Twins(tmp_path)
    twins.opt.attach()
    loss_of(twins.ours, batches(1)[0]).backward()
    twins.opt.step()
    gone = weakref.ref(twins.opt)
    del twins.opt
    gc.collect()
    assert gone() is None and not list(tmp_path.iterdir())


def finish(opt, param, step):
    """Steps until so many steps are done, however often that is interrupted."""
    while True:
        try:
            opt._native.refuse_unfinished()
            if len(opt.state) > 0 and opt.state[param]["step"] >= step:
                return
        except RuntimeError:
            pass
        try:
            opt.step()
        except (tensortier.StepInterrupted, KeyboardInterrupt):
            pass


@pytest.mark.parametrize("state", ["auto", "split"])
def test_an_interrupted_step_goes_on_with_the_same_bits(state, tmp_path):
    torch.manual_seed(6)
    start = torch.randn(20_000_000).bfloat16()
    gradients = [torch.randn_like(start) for _ in range(3)]
    store = tensortier.Store(host_memory=32 << 20, paths=[tmp_path])
    params = [torch.nn.Parameter(start.clone()) for _ in range(2)]
    opts = [tensortier.AdamW([param], store=store, state=state) for param in params]
    armed = False

    def ring(*_):
        if armed:
            raise KeyboardInterrupt("a test")

    class Armed:
        """The native side, interrupted while it makes a step and not before or after."""

        def __init__(self, native):
            self._native = native
            self.arms = True

        def __getattr__(self, name):
            return getattr(self._native, name)

        def step(self, *given, **options):
            nonlocal armed
            # The first of each, so that the rest gets done.
            armed = self.arms
            self.arms = not self.arms
            try:
                return self._native.step(*given, **options)
            finally:
                armed = False

    opts[0]._native = Armed(opts[0]._open())
    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
    stopped = 0
    try:
        for step, gradient in enumerate(gradients, 1):
            for param, opt in zip(params, opts):
                param.grad = gradient.clone()
                version = param._version
                try:
                    opt.step()
                except tensortier.StepInterrupted as error:
                    stopped += 1
                    assert isinstance(error.__cause__, KeyboardInterrupt)
                    assert 0 < error.done < error.of
                    assert param._version > version, "some weights were changed"
                    with pytest.raises(RuntimeError, match="unfinished"):
                        opt.state_dict()
                    finish(opt, param, step)
                except KeyboardInterrupt:
                    # It came just before the step began, or after all of it.
                    finish(opt, param, step)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert stopped > 0, "no step was slow enough to be interrupted"
    assert torch.equal(*params)
    states = [opt.state_dict()["state"][0] for opt in opts]
    for name in states[0]:
        assert torch.equal(states[0][name], states[1][name])
    for opt in opts:
        opt.close()
    store.close()
