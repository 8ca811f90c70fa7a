"""The examples train, and find no difference between torch's optimizer and ours."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="torch is not installed: the examples are not run")

EXAMPLES = pathlib.Path(__file__).parents[1] / "examples"
MODEL = EXAMPLES.parents[1] / "models/all-minilm-l6-v2/model.safetensors"
TINY = ["--layers", "2", "--width", "256", "--heads", "2", "--context", "32", "--batch", "2"]


def run(name, tmp_path, *arguments):
    paths = [tmp_path / "a", tmp_path / "b"]
    for path in paths:
        path.mkdir()
    command = [sys.executable, EXAMPLES / name, "--threads", "1", "--paths", *paths, *arguments]
    ended = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"
    assert [*paths[0].iterdir(), *paths[1].iterdir()] == []
    return ended.stdout


def told(out, what):
    return re.search(rf"^{what}.*?: (.*)$", out, re.M)[1]


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_gpt_is_trained_with_the_same_bits(dtype, tmp_path):
    plot = tmp_path / "losses.png"
    out = run("train_gpt.py", tmp_path, *TINY, "--steps", "3", "--dtype", dtype, "--plot", plot)
    assert told(out, "largest difference") == "0.0"
    assert told(out, "weights after") == "the same bits"
    assert plot.exists() or "matplotlib is not installed" in out


def test_minilm_is_trained_with_the_same_bits(tmp_path):
    if not MODEL.with_name("vocab.txt").exists():
        pytest.skip("the model is not there: scripts/fetch-model gets it")
    out = run("finetune_minilm.py", tmp_path, "--steps", "2", "--batch", "2")
    assert told(out, "largest difference") == "0.0"
    assert told(out, "weights after") == "the same bits"


def test_a_difference_of_losses_or_weights_is_one():
    code = (
        f"import sys; sys.path.insert(0, {str(EXAMPLES)!r}); import side_by_side\n"
        "one = {'loss': [1.0], 'weights': 'a'}\n"
        "assert not side_by_side.different(one, dict(one))\n"
        "assert side_by_side.different(one, {**one, 'weights': 'b'})\n"
        "assert side_by_side.different(one, {**one, 'loss': [1.5]})\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
