#!/usr/bin/env python3
"""Writes the golden vectors of the update kernels: hashes of what torch's fused CPU Adam computes.

    python3 -m venv VENV && VENV/bin/pip install torch numpy
    VENV/bin/python scripts/golden_adam.py > optimizer/tests/golden/adam.txt

The inputs come from an integer generator that optimizer/tests/golden.rs repeats, so only hashes are
stored. The file is plain text: a line `case NAME key=value ...`, then one line
`at STEP p=HASH m=HASH v=HASH x=HASH bf16=HASH f16=HASH` for each recorded step (x: the maximum of v,
the hash of nothing without amsgrad; bf16, f16: the weights narrowed to these types).

torch runs on one thread with a multiple of 64 elements: a thread's slice that does not fill its last
vector takes another path in torch, which rounds differently.
"""

import sys

import numpy as np
import torch

COUNT = 4096
RECORDED = (1, 2, 10, 100, 1000)
MASK = (1 << 64) - 1


def words(seed, count):
    """`count` outputs of SplitMix64 from `seed`, as uint64."""
    with np.errstate(over="ignore"):
        index = np.arange(1, count + 1, dtype=np.uint64)
        z = np.uint64(seed & MASK) + index * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def start():
    """The first weights: f32 of either sign with magnitudes in [2^-8, 2)."""
    w = words(1, COUNT)
    sign = (w >> np.uint64(63)) << np.uint64(31)
    exponent = (np.uint64(119) + (w >> np.uint64(40)) % np.uint64(9)) << np.uint64(23)
    return (sign | exponent | (w & np.uint64(0x7FFFFF))).astype(np.uint32).view(np.float32)


def gradient(kind, step):
    """The gradient of a step, widened to f32: magnitudes in [2^-14, 4), one in 16 is zero."""
    w = words(1_000_003 * step, COUNT)
    sign, scale, zero = w >> np.uint64(63), (w >> np.uint64(40)) % np.uint64(15), (w >> np.uint64(56)) & np.uint64(15)
    if kind == "f16":
        bits = (sign << np.uint64(15)) | ((np.uint64(1) + scale) << np.uint64(10)) | (w & np.uint64(0x3FF))
        bits = np.where(zero == 0, 0, bits).astype(np.uint16)
        return bits.view(np.float16).astype(np.float32)
    fraction = w & np.uint64(0x7F0000 if kind == "bf16" else 0x7FFFFF)
    bits = (sign << np.uint64(31)) | ((np.uint64(113) + scale) << np.uint64(23)) | fraction
    return np.where(zero == 0, 0, bits).astype(np.uint32).view(np.float32)


def fnv(tensor):
    """FNV-1a over whole elements (as unsigned integers), 64 bits."""
    h = 0xCBF29CE484222325
    for element in tensor.tolist():
        h = ((h ^ element) * 0x100000001B3) & MASK
    return h


def bits(tensor):
    array = tensor.detach().contiguous()
    if array.dtype in (torch.bfloat16, torch.float16):
        return array.view(torch.int16).numpy().view(np.uint16)
    return array.numpy().view(np.uint32)


# Every key that golden.rs reads; a case names what differs.
BASE = dict(
    algorithm="adamw", lr=1e-3, schedule="constant", beta1=0.9, beta2=0.999, eps=1e-8,
    weight_decay=1e-2, amsgrad=0, maximize=0, grad="bf16", scale=1.0,
)
CASES = {
    "adamw": {},
    "adamw_changing_lr": dict(schedule="sawtooth"),
    "adamw_amsgrad": dict(amsgrad=1),
    "adamw_maximize": dict(maximize=1),
    "adamw_without_decay": dict(weight_decay=0.0),
    "adamw_strong_decay": dict(weight_decay=0.3, lr=3e-4, schedule="sawtooth"),
    "adamw_beta1_zero": dict(beta1=0.0),
    "adamw_beta1_0.4": dict(beta1=0.4),
    "adamw_beta1_0.5": dict(beta1=0.5),
    "adamw_beta_0.95": dict(beta1=0.95, beta2=0.95),
    "adamw_f16": dict(grad="f16", schedule="sawtooth"),
    "adamw_f32": dict(grad="f32", schedule="sawtooth"),
    "adamw_scaled": dict(grad="f32", scale=0.0123),
    "adamw_eps": dict(eps=1e-3),
    "adam": dict(algorithm="adam", weight_decay=0.0),
    "adam_l2": dict(algorithm="adam", schedule="sawtooth"),
    "adam_l2_amsgrad_maximize": dict(algorithm="adam", amsgrad=1, maximize=1),
    "adam_l2_beta1_0.4_f32": dict(algorithm="adam", beta1=0.4, grad="f32"),
}


def rate(case, step):
    """The learning rate of a step: constant, or falling by an eighth each step, seven steps long."""
    return case["lr"] * (1.0 - (step % 7) * 0.125) if case["schedule"] == "sawtooth" else case["lr"]


def run(case):
    parameter = torch.nn.Parameter(torch.from_numpy(start().copy()))
    kind = torch.optim.AdamW if case["algorithm"] == "adamw" else torch.optim.Adam
    optimizer = kind(
        [parameter], lr=case["lr"], betas=(case["beta1"], case["beta2"]), eps=case["eps"],
        weight_decay=case["weight_decay"], amsgrad=bool(case["amsgrad"]),
        maximize=bool(case["maximize"]), fused=True,
    )
    for step in range(1, RECORDED[-1] + 1):
        g = gradient(case["grad"], step) * np.float32(case["scale"])
        parameter.grad = torch.from_numpy(g)
        optimizer.param_groups[0]["lr"] = rate(case, step)
        optimizer.step()
        if step in RECORDED:
            state = optimizer.state[parameter]
            maximum = state["max_exp_avg_sq"] if case["amsgrad"] else torch.empty(0)
            named = dict(
                p=parameter, m=state["exp_avg"], v=state["exp_avg_sq"], x=maximum,
                bf16=parameter.to(torch.bfloat16), f16=parameter.to(torch.float16),
            )
            print(f"at {step}", *(f"{name}={fnv(bits(t)):016x}" for name, t in named.items()))


def main():
    torch.set_num_threads(1)
    print(f"torch {torch.__version__.split('+')[0]}, numpy {np.__version__}", file=sys.stderr)
    print(f"# Written by scripts/golden_adam.py with torch {torch.__version__.split('+')[0]}.")
    for name, change in CASES.items():
        case = BASE | change
        print(f"case {name}", *(f"{key}={value}" for key, value in case.items()))
        run(case)


if __name__ == "__main__":
    main()
