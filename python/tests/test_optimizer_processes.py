"""An optimizer in processes that fork, that end with one open, and in handlers of signals."""

import pytest

pytest.importorskip("torch", reason="torch is not installed: its optimizer is not tested")

OPEN = """
import os, signal, sys, threading
import torch, tensortier
param = torch.nn.Parameter(torch.zeros(1000))
opt = tensortier.AdamW([param], host_memory="8MiB", paths=[DIR])
param.grad = torch.ones(1000)
opt.step()
"""


def test_a_forked_child_is_told_and_harms_nothing(run_python):
    ended = run_python(
        OPEN
        + """
child = os.fork()
if child == 0:
    try:
        opt.step()
    except RuntimeError as error:
        assert "spawn" in str(error), error
        del opt
        sys.exit(0)
    os._exit(7)
assert os.waitpid(child, 0)[1] == 0
before = param.detach().clone()
opt.step()
assert not torch.equal(param, before)
opt.close()
assert not os.listdir(DIR)
"""
    )
    assert ended.code == 0, ended


@pytest.mark.parametrize("how", ["sys.exit(3)", "raise SystemExit(3)", "signal.raise_signal(15)"])
def test_a_process_may_end_with_one_open(how, run_python, tmp_path):
    ended = run_python(OPEN + "opt.zero_grad()\nopt.attach()\n" + how)
    assert ended.code == (-15 if "signal" in how else 3), ended
    if "signal" not in how:
        assert not list(tmp_path.iterdir()), "its own store went with the process"


def test_a_handler_that_comes_back_is_told(run_python):
    ended = run_python(
        OPEN
        + """
told = []
def handler(*_):
    try:
        told.append(opt.explain())
    except RuntimeError as error:
        told.append(str(error))
signal.signal(signal.SIGALRM, handler)
param = torch.nn.Parameter(torch.zeros(20_000_000, dtype=torch.bfloat16))
param.grad = torch.ones_like(param)
opt.add_param_group({"params": [param]})
signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
for _ in range(3):
    opt.step()
signal.setitimer(signal.ITIMER_REAL, 0)
assert any("in a call of the same optimizer" in str(one) for one in told), told[:3]
assert opt.state[param]["step"] == 3
"""
    )
    assert ended.code == 0, ended
