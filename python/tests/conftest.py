"""What all tests share: stores on a directory of their own, and children with time limits."""

import os
import subprocess
import sys
import textwrap

import pytest

import tensortier


@pytest.fixture
def open_store(tmp_path):
    """Opens stores of 16 MiB with chunks of 1 MiB, and closes them."""
    opened = []

    def open_one(host_memory="16MiB", **settings):
        settings.setdefault("chunk_size", "1MiB")
        settings.setdefault("paths", tmp_path)
        store = tensortier.Store(host_memory, **settings)
        opened.append(store)
        return store

    yield open_one
    for store in opened:
        store.close()


@pytest.fixture
def store(open_store):
    return open_store()


class Ended:
    """How a child ended."""

    def __init__(self, child):
        self.code, self.out, self.err = child.returncode, child.stdout, child.stderr

    def __repr__(self):
        # Shown whole: pytest cuts what __repr__ returns.
        print(f"exit {self.code}\n{self.out}\n{self.err}")
        return f"exit {self.code}"


@pytest.fixture
def run_python(tmp_path):
    """Runs a program in a process of its own; `DIR` is a directory for it.

    One that takes longer than its limit fails the test: that is what a hang looks like.
    """

    def run(code, limit=60, environment=None):
        program = f"DIR = {str(tmp_path)!r}\n" + textwrap.dedent(code)
        child = subprocess.run(
            [sys.executable, "-X", "faulthandler", "-c", program],
            capture_output=True,
            text=True,
            timeout=limit,
            env={**os.environ, **(environment or {})},
        )
        return Ended(child)

    return run


@pytest.fixture(autouse=True)
def one_thread():
    """Has torch use one thread where it is imported: its bits depend on how many there are."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)
