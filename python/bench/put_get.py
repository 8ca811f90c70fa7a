#!/usr/bin/env python3
"""One torch tensor of 1 GiB, put and read back through Python and, in turns, through Rust.

    cargo build --release -p tensortier-bench
    python/bench/put_get.py --path /var/tmp --rust target/release/store

The package must be installed in the interpreter that runs this, built in release mode (`pip install
./python`). Prints MB/s as medians over all turns, and their ratio.
"""

import argparse
import json
import statistics
import subprocess
import tempfile
import time

import torch

import tensortier

BYTES = 1 << 30
CASES = {"in memory": "2304MiB", "out of core": "256MiB"}
REPEATS = 5


def rate(call):
    begin = time.perf_counter()
    call()
    return BYTES / 1e6 / (time.perf_counter() - begin)


def through_python(path, tensor, into):
    rates = {}
    for case, host_memory in CASES.items():
        with (
            tempfile.TemporaryDirectory(dir=path) as scratch,
            tensortier.Store(host_memory, scratch) as store,
        ):

            def put(flush=case == "out of core", store=store):
                store.put("tensor", tensor)
                if flush:
                    store.flush()

            # The first also commits memory and allocates space.
            put()
            for _ in range(REPEATS):
                for verb, call in {
                    "put": put,
                    "get into": lambda: store.get_into("tensor", into),
                    "get": lambda: store.get("tensor"),
                }.items():
                    rates.setdefault(f"{verb}, {case}", []).append(rate(call))
            assert torch.equal(store.get("tensor"), tensor)
    return rates


def through_rust(program, path):
    command = [program, "one-gib", "--json", "--path", path]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    figures = [json.loads(line) for line in printed.splitlines()]
    return {figure["case"]: figure["achieved"]["median"] for figure in figures}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--path", default=tempfile.gettempdir(), help="directory to work in")
    parser.add_argument("--rust", help="the program `store` of the Rust bench")
    parser.add_argument("--turns", type=int, default=2)
    options = parser.parse_args()

    tensor = torch.arange(BYTES // 8, dtype=torch.int64) * 0x9E37_79B9
    into = torch.ones_like(tensor)
    python, rust = {}, {}
    for _ in range(options.turns):
        for case, rates in through_python(options.path, tensor, into).items():
            python.setdefault(case, []).append(statistics.median(rates))
        if options.rust:
            for case, achieved in through_rust(options.rust, options.path).items():
                rust.setdefault(case, []).append(achieved)
    print(f"{'case':24} {'Python':>10} {'Rust':>10} {'ratio':>7}   MB/s")
    for case, rates in python.items():
        ours = statistics.median(rates)
        line = f"{case:24} {ours:10.0f}"
        if case in rust:
            theirs = statistics.median(rust[case])
            line += f" {theirs:10.0f} {ours / theirs:7.3f}"
        print(line)


if __name__ == "__main__":
    main()
