"""Saving and loading state that is many times the budget stays within the budget."""

import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("torch", reason="torch is not installed: its optimizer is not tested")

#: 50 million bf16 weights have 600 MB of state.
COMMON = """
    import os, re, sys
    import torch, tensortier
    path, file = sys.argv[1:]
    torch.set_num_threads(2)
    budget = 64 << 20
    param = torch.nn.Parameter(torch.zeros(50_000_000, dtype=torch.bfloat16))
    store = tensortier.Store(host_memory=budget, paths=[path])
    opt = tensortier.AdamW([param], lr=1e-2, store=store)

    def status(name):
        return int(re.search(name + r":\\s+(\\d+)", open("/proc/self/status").read())[1]) << 10

    def peak_of(call):
        # The peak begins anew.
        open("/proc/self/clear_refs", "w").write("5")
        before = status("VmRSS")
        call()
        return status("VmHWM") - before
"""

SAVE = """
    param.grad = torch.full_like(param, 0.5)
    opt.step()
    param.grad = None
    print(peak_of(lambda: opt.save(file)))
"""

LOAD = """
    opt.load(file)
    print(peak_of(lambda: opt.load(file)))
    assert param[-1] != 0 and param[0] == param[-1]
    other = tensortier.AdamW([param], store=store)
    print(peak_of(lambda: other.load_state_dict(opt.state_dict(lazy=True))))
    opt.close()
    print(peak_of(lambda: other.state_dict(lazy=True)))
    moments = other.state_dict(lazy=True)["state"][0].read("exp_avg", 49_999_000, 50_000_000)
    assert torch.equal(moments, torch.full((1000,), moments[0].item())) and moments[0] > 0
"""


def run(script, *arguments):
    text = textwrap.dedent(COMMON) + textwrap.dedent(script)
    command = [sys.executable, "-c", text, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return [int(line) for line in done.stdout.split()]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_state_of_ten_budgets_is_saved_and_loaded_within_the_budget(tmp_path):
    # The store's memory may not be all in use before; beside it a file takes some MiB.
    limit = (64 + 48) << 20
    file = tmp_path / "state.safetensors"
    peaks = run(SAVE, tmp_path, file)
    assert file.stat().st_size > 700_000_000
    peaks += run(LOAD, tmp_path, file)
    file.unlink()
    assert all(peak < limit for peak in peaks), [peak >> 20 for peak in peaks]
