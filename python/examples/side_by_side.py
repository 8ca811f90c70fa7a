"""What both examples share: one model is trained twice, each time in a process of its own, and compared.

Two processes, so that the peak memory of one says nothing about the other. Both draw the same weights and
batches from the same seed; only the optimizer differs: torch's fused AdamW, and tensortier's with its state
in a store of which a quarter is in memory and the rest on two paths.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch

import tensortier

TORCH, OURS = "torch.optim.AdamW", "tensortier.AdamW"
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}

#: Makes a model, and what returns its loss on the batch of a step, for the arguments of a run.
Build = Callable[[argparse.Namespace], tuple[torch.nn.Module, Callable[[int], torch.Tensor]]]


def main(description: str, build: Build, add_arguments: Callable[[argparse.ArgumentParser], None]) -> None:
    """Runs an example: as the process that compares, or as one of the two that it starts."""
    args = parse(description, add_arguments)
    if args.only:
        train(args, build)
    else:
        compare(args)


class HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Tells the default of what has one."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return super()._get_help_string(action) if action.default else action.help


def parse(description: str, add_arguments: Callable[[argparse.ArgumentParser], None]) -> argparse.Namespace:
    cores = len(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser(description=description, formatter_class=HelpFormatter)
    parser.add_argument("--steps", type=int, default=40, help="how many steps each run makes")
    parser.add_argument("--paths", nargs="+", metavar="DIR", default=[], help="where the state lives; "
                        "two temporary directories if not said")
    parser.add_argument("--host-memory", default="", help="the memory of the store, such as 48MiB; a "
                        "quarter of the state if not said")
    parser.add_argument("--dtype", choices=DTYPES, default="fp32", help="the type of the weights; beside "
                        "bf16 both runs keep a master copy in fp32")
    parser.add_argument("--seed", type=int, default=1, help="what weights and batches follow from")
    # A power of two: torch cuts a tensor at its threads, and rounds the end of a cut otherwise if that
    # is no whole vector.
    parser.add_argument("--threads", type=int, default=1 << (min(cores, 16).bit_length() - 1),
                        help="threads that compute")
    parser.add_argument("--plot", metavar="FILE", default="", help="write the loss curves here, as PNG")
    parser.add_argument("--only", choices=(TORCH, OURS), help=argparse.SUPPRESS)
    add_arguments(parser)
    return parser.parse_args()


# One run.


def train(args: argparse.Namespace, build: Build) -> None:
    """Trains a model with one optimizer and prints a line of JSON per step, and one at the end."""
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    model, loss_of = build(args)
    model.to(DTYPES[args.dtype])
    params = [param for param in model.parameters() if param.requires_grad]
    tell(parameters=sum(param.numel() for param in params), before=peak())
    optimizer, update = by_torch(params, args) if args.only == TORCH else by_tensortier(params, args)
    warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=max(1, args.steps // 4))
    for step in range(args.steps):
        torch.manual_seed(args.seed + step)
        started = time.perf_counter()
        loss = loss_of(step)
        loss.backward()
        computed = time.perf_counter()
        update()
        ended = time.perf_counter()
        optimizer.zero_grad()
        warm_up.step()
        tell(loss=loss.item(), seconds=ended - started, update=ended - computed)
    weights = hashlib.sha256()
    for param in params:
        weights.update(ctypes.string_at(param.data_ptr(), param.numel() * param.element_size()))
    tell(peak=peak(), weights=weights.hexdigest())
    if args.only == OURS:
        optimizer.close()


def by_torch(params: list[Any], args: argparse.Namespace) -> tuple[Any, Callable[[], None]]:
    """Returns torch's optimizer, with fp32 copies of weights of another type, and what updates."""
    if args.dtype == "fp32":
        optimizer = torch.optim.AdamW(params, lr=args.lr, fused=True)
        return optimizer, lambda: optimizer.step()
    masters = [param.detach().float().requires_grad_() for param in params]
    optimizer = torch.optim.AdamW(masters, lr=args.lr, fused=True)

    @torch.no_grad()
    def update() -> None:
        for param, master in zip(params, masters):
            master.grad, param.grad = param.grad.float(), None
        optimizer.step()
        for param, master in zip(params, masters):
            param.copy_(master)

    return optimizer, update


def by_tensortier(params: list[Any], args: argparse.Namespace) -> tuple[Any, Callable[[], None]]:
    optimizer = tensortier.AdamW(params, lr=args.lr, host_memory=args.host_memory, paths=args.paths)
    return optimizer, lambda: optimizer.step()


def peak() -> int:
    """Returns the most memory that this process has had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def tell(**known: Any) -> None:
    print(json.dumps(known), flush=True)


# The comparison.


def compare(args: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="tensortier-example-", dir=temporary()) as place:
        if not args.paths:
            args.paths = [os.path.join(place, name) for name in ("path-a", "path-b")]
            for path in args.paths:
                os.mkdir(path)
        theirs = run(TORCH, args, [])
        state = theirs["parameters"] * (8 if args.dtype == "fp32" else 12)
        memory = args.host_memory or str(state // 4)
        ours = run(OURS, args, ["--paths", *args.paths, "--host-memory", memory])
    report(args, theirs, ours, state, memory)
    if args.plot:
        plot(args.plot, theirs, ours)
    if different(theirs, ours):
        sys.exit("the two runs differ")


def temporary() -> str:
    """Returns where temporary files go: a disk rather than memory."""
    return os.environ.get("TMPDIR", "/var/tmp")


def run(name: str, args: argparse.Namespace, more: list[str]) -> dict[str, Any]:
    """Runs one half in a process of its own, and returns what it told."""
    print(f"\n{name}, {args.steps} steps", flush=True)
    command = [sys.executable, *sys.argv, "--only", name, *more]
    told: dict[str, Any] = {"loss": [], "seconds": [], "update": []}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            known = json.loads(line)
            if "loss" in known:
                for key, value in known.items():
                    told[key].append(value)
                show(len(told["loss"]), args.steps, known)
            else:
                told.update(known)
    if child.returncode:
        sys.exit(f"{name} ended with {child.returncode}")
    return told


def show(step: int, steps: int, known: dict[str, float]) -> None:
    """Prints some ten steps of all."""
    if step == 1 or step == steps or step % max(1, steps // 10) == 0:
        print(f"  step {step:4}  loss {known['loss']:8.5f}  {known['seconds']:6.2f} s", flush=True)


def different(theirs: dict[str, Any], ours: dict[str, Any]) -> bool:
    return theirs["loss"] != ours["loss"] or theirs["weights"] != ours["weights"]


def report(
    args: argparse.Namespace, theirs: dict[str, Any], ours: dict[str, Any], state: int, memory: str
) -> None:
    largest = max(abs(one - other) for one, other in zip(theirs["loss"], ours["loss"]))
    same = "the same bits" if theirs["weights"] == ours["weights"] else "DIFFERENT BITS"
    print(f"\n{theirs['parameters'] / 1e6:.1f} M parameters in {args.dtype}, {mib(state)} of optimizer state,"
          f"\nof which tensortier has {mib(memory)} of memory and {len(args.paths)} paths; {args.threads} threads")
    print(f"\n{'':28}{TORCH:>20}{OURS:>20}")
    rows = [
        ("loss of the first step", *(f"{run['loss'][0]:.6f}" for run in (theirs, ours))),
        ("loss of the last step", *(f"{run['loss'][-1]:.6f}" for run in (theirs, ours))),
        ("seconds per step (median)", *(f"{middle(run['seconds']):.3f}" for run in (theirs, ours))),
        ("  of these, the optimizer", *(f"{middle(run['update']):.3f}" for run in (theirs, ours))),
        ("peak memory", *(mib(run["peak"]) for run in (theirs, ours))),
        ("  above that before step 1", *(mib(run["peak"] - run["before"]) for run in (theirs, ours))),
    ]
    for what, one, other in rows:
        print(f"{what:28}{one:>20}{other:>20}")
    print(f"\nlargest difference of the loss in {args.steps} steps: {largest}")
    print(f"weights after the last step: {same}")


def mib(count: Any) -> str:
    return f"{count if str(count).endswith('iB') else f'{int(count) / (1 << 20):.0f} MiB'}"


def middle(values: list[float]) -> float:
    """Returns the median, without the first step where there are others."""
    return statistics.median(values[1:] or values)


def plot(file: str, theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print(f"no {file}: matplotlib is not installed (pip install matplotlib)")
        return
    figure = Figure(figsize=(8, 5))
    axes = figure.add_subplot(xlabel="step", ylabel="loss", title="The same training, twice")
    steps = range(1, len(theirs["loss"]) + 1)
    axes.plot(steps, theirs["loss"], linewidth=5, alpha=0.35, label=TORCH)
    axes.plot(steps, ours["loss"], linewidth=1.2, color="black", label=OURS)
    axes.legend()
    figure.savefig(file, dpi=120)
    print(f"plot: {file}")


# Text that every Python has.


def text() -> str:
    """Returns the reference of the language, as `help()` shows it: half a million characters."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics))
