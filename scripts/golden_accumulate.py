#!/usr/bin/env python3
"""Writes the golden vectors of the accumulators: hashes of what torch sums up to by `.grad += g`.

    VENV/bin/python scripts/golden_accumulate.py > optimizer/tests/golden/accumulate.txt

One line `TYPE COUNT HASH` for the sum of the first COUNT gradients of golden_adam.py, all in TYPE.
"""

import numpy as np
import torch

from golden_adam import bits, fnv, gradient

TYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
RECORDED = (2, 4, 16, 64)


def main():
    print(f"# Written by scripts/golden_accumulate.py with torch {torch.__version__.split('+')[0]}.")
    for kind, dtype in TYPES.items():
        total = None
        for count in range(1, RECORDED[-1] + 1):
            g = torch.from_numpy(np.ascontiguousarray(gradient(kind, count))).to(dtype)
            if total is None:
                total = g.clone()
            else:
                total += g
            if count in RECORDED:
                print(kind, count, f"{fnv(bits(total)):016x}")


if __name__ == "__main__":
    main()
