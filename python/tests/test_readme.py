"""The Python examples of the README run as they stand there, each in a process of its own."""

import pathlib
import re

import pytest

README = pathlib.Path(__file__).parents[2] / "README.md"


def blocks():
    """Returns the code of each block, by the number of its first line."""
    text = README.read_text(encoding="utf-8")
    found = re.finditer(r"^```python\n(.*?)^```$", text, re.M | re.S)
    return {text.count("\n", 0, block.start(1)) + 1: block[1] for block in found}


def test_there_are_examples():
    assert len(blocks()) >= 3


@pytest.mark.parametrize("line", blocks())
def test_an_example_runs(line, run_python, tmp_path):
    code = blocks()[line]
    if "torch" in code:
        pytest.importorskip("torch", reason="torch is not installed: its examples are not run")
    # Where the examples keep things is a directory of this test.
    for place in set(re.findall(r'"(/[\w/]+)"', code)):
        (tmp_path / place[1:]).mkdir(parents=True)
        code = code.replace(f'"{place}"', f'DIR + "{place}"')
    ended = run_python(code)
    assert ended.code == 0, ended
