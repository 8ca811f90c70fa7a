#!/usr/bin/env python3
"""Writes tests/fixtures/tiny.safetensors: every shape and type that `tensortier adam` takes, in 4 KiB.

The same bytes on every run; only the standard library.
"""

import json
import pathlib
import struct

FIXTURE = pathlib.Path(__file__).resolve().parent.parent / "tests/fixtures/tiny.safetensors"


def values(count, seed):
    """Returns small numbers of both signs; each is a multiple of 2^-7, exact in all three types."""
    state = seed
    for _ in range(count):
        state = (state * 1103515245 + 12345) % 2**31
        yield ((state >> 16) % 255 - 127) / 128


def f32(numbers):
    return b"".join(struct.pack("<f", number) for number in numbers)


def f16(numbers):
    return b"".join(struct.pack("<e", number) for number in numbers)


def bf16(numbers):
    # The upper half of an f32; exact for these numbers.
    return b"".join(struct.pack("<f", number)[2:] for number in numbers)


TENSORS = [
    ("embed.weight", "F32", [17, 8], f32),
    ("layer.0.norm.weight", "F32", [8], f32),
    ("layer.0.scale", "F32", [], f32),
    ("layer.0.fc.weight", "BF16", [8, 33], bf16),
    ("layer.0.fc.bias", "BF16", [33], bf16),
    ("layer.0.unused", "F32", [0, 8], f32),
    ("layer.1.fc.weight", "F16", [11, 23], f16),
    ("layer.1.scale", "F16", [], f16),
]


def main():
    header = {"__metadata__": {"made-by": "scripts/make-fixture.py"}}
    data = b""
    for index, (name, dtype, shape, pack) in enumerate(TENSORS):
        count = 1
        for dim in shape:
            count *= dim
        start = len(data)
        data += pack(values(count, index + 1))
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, len(data)]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    whole = struct.pack("<Q", len(text)) + text + data
    assert len(whole) <= 4096, len(whole)
    FIXTURE.parent.mkdir(parents=True, exist_ok=True)
    FIXTURE.write_bytes(whole)
    print(f"wrote {FIXTURE.name}: {len(whole)} bytes, {len(TENSORS)} tensors")


if __name__ == "__main__":
    main()
