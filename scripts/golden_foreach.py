#!/usr/bin/env python3
"""Writes the golden vectors of torch's foreach AdamW and Adam, whose square root on a CPU is not correctly
rounded: the moments as hashes, and weights where one step differs from the fused one.

    VENV/bin/python scripts/golden_foreach.py > optimizer/tests/golden/foreach.txt

The inputs are those of golden_adam.py. A line `case NAME key=value ...`, then for each recorded step a
line `at STEP m=HASH v=HASH x=HASH`, and a line `STEP INDEX BEFORE AFTER` (weights as bits) for each
element whose weight after the step is not the one that the fused step gives from the same state, and for
a few others. Weight decay is decoupled or none, so that the moments follow from the gradients alone.
"""

import numpy as np
import torch

from golden_adam import BASE, bits, fnv, gradient, rate, start

STEPS = 200
RECORDED = (1, 2, 10, 100, 200)
SAMPLED = 8
CASES = {
    "adamw": {},
    "adamw_changing_lr": dict(schedule="sawtooth", lr=1e-2),
    "adamw_amsgrad": dict(amsgrad=1),
    "adamw_maximize_f32": dict(maximize=1, grad="f32"),
    "adam_beta_0.95": dict(algorithm="adam", weight_decay=0.0, beta1=0.95, beta2=0.95),
}


def make(case, weights, **kind):
    parameter = torch.nn.Parameter(torch.from_numpy(weights))
    optimizer = torch.optim.AdamW if case["algorithm"] == "adamw" else torch.optim.Adam
    return parameter, optimizer(
        [parameter], lr=case["lr"], betas=(case["beta1"], case["beta2"]), eps=case["eps"],
        weight_decay=case["weight_decay"], amsgrad=bool(case["amsgrad"]),
        maximize=bool(case["maximize"]), **kind,
    )


def run(case):
    parameter, optimizer = make(case, start().copy(), foreach=True)
    fused_parameter, fused = make(case, start().copy(), fused=True)
    for step in range(1, STEPS + 1):
        before = bits(parameter).copy()
        g = gradient(case["grad"], step)
        for p, o in ((parameter, optimizer), (fused_parameter, fused)):
            p.grad = torch.from_numpy(g.copy())
            o.param_groups[0]["lr"] = rate(case, step)
        # One fused step from the same state.
        with torch.no_grad():
            fused_parameter.copy_(parameter)
        if step > 1:
            for name, value in optimizer.state[parameter].items():
                fused.state[fused_parameter][name] = value.clone()
        optimizer.step()
        fused.step()
        after = bits(parameter)
        if step in RECORDED:
            state = optimizer.state[parameter]
            maximum = state["max_exp_avg_sq"] if case["amsgrad"] else torch.empty(0)
            named = dict(m=state["exp_avg"], v=state["exp_avg_sq"], x=maximum)
            print(f"at {step}", *(f"{name}={fnv(bits(t)):016x}" for name, t in named.items()))
        wanted = set(np.flatnonzero(after != bits(fused_parameter)).tolist())
        wanted |= set(range(SAMPLED)) if step in RECORDED else set()
        for index in sorted(wanted):
            print(step, index, f"{before[index]:08x} {after[index]:08x}")


def main():
    torch.set_num_threads(1)
    print(f"# Written by scripts/golden_foreach.py with torch {torch.__version__.split('+')[0]}.")
    for name, change in CASES.items():
        case = BASE | change
        print(f"case {name}", *(f"{key}={value}" for key, value in case.items()))
        run(case)


if __name__ == "__main__":
    main()
