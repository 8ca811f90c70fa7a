"""Fine-tunes a real sentence encoder, once with torch.optim.AdamW and once with tensortier.AdamW.

    scripts/fetch-model
    python python/examples/finetune_minilm.py --plot losses.png

The model is all-MiniLM-L6-v2, of 22.7 M parameters. It learns which sentence follows which in Python's own
reference: each is to be nearer to the one that follows it than to those that follow the others. Same
seeds, same batches: every loss and every bit of the weights is the same at the end.
"""

from __future__ import annotations

import argparse
import pathlib
import re
import sys
import tempfile
from collections.abc import Callable, Iterator

import tensortier
import torch
from torch import Tensor, nn
from torch.nn import functional

import side_by_side

MODEL = pathlib.Path(__file__).parents[2] / "models/all-minilm-l6-v2/model.safetensors"
HEADS, EPSILON, LONGEST = 12, 1e-12, 32
TEMPERATURE = 0.05


class Encoder(nn.Module):
    """BERT as all-MiniLM-L6-v2 uses it: the mean over the words of a sentence, of length 1."""

    def __init__(self, weights: dict[str, Tensor]) -> None:
        super().__init__()
        self.layers = len({name.split(".")[2] for name in weights if name.startswith("encoder.")})
        # A name of torch has no dots.
        named = {name.replace(".", "/"): nn.Parameter(weight) for name, weight in weights.items()}
        self.weights = nn.ParameterDict(named)

    def weight(self, name: str) -> Tensor:
        return self.weights[name.replace(".", "/")]

    def linear(self, x: Tensor, name: str) -> Tensor:
        return functional.linear(x, self.weight(f"{name}.weight"), self.weight(f"{name}.bias"))

    def norm(self, x: Tensor, name: str) -> Tensor:
        weight, bias = self.weight(f"{name}.weight"), self.weight(f"{name}.bias")
        return functional.layer_norm(x, x.shape[-1:], weight, bias, EPSILON)

    def forward(self, words: Tensor) -> Tensor:
        there = words != 0
        x = functional.embedding(words, self.weight("embeddings.word_embeddings.weight"))
        x = x + self.weight("embeddings.position_embeddings.weight")[: words.shape[1]]
        x = x + self.weight("embeddings.token_type_embeddings.weight")[0]
        x = self.norm(x, "embeddings.LayerNorm")
        for layer in range(self.layers):
            x = self.layer(x, there, f"encoder.layer.{layer}")
        mean = (x * there.unsqueeze(-1)).sum(1) / there.sum(1, keepdim=True)
        return functional.normalize(mean, dim=-1)

    def layer(self, x: Tensor, there: Tensor, name: str) -> Tensor:
        batch, length, width = x.shape
        query, key, value = (
            self.linear(x, f"{name}.attention.self.{part}").view(batch, length, HEADS, -1).transpose(1, 2)
            for part in ("query", "key", "value")
        )
        mask = there[:, None, None, :]
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        mixed = self.linear(mixed.transpose(1, 2).reshape(x.shape), f"{name}.attention.output.dense")
        x = self.norm(x + mixed, f"{name}.attention.output.LayerNorm")
        wide = functional.gelu(self.linear(x, f"{name}.intermediate.dense"))
        return self.norm(x + self.linear(wide, f"{name}.output.dense"), f"{name}.output.LayerNorm")


def weights_of(file: pathlib.Path) -> dict[str, Tensor]:
    """Returns the tensors of a file that the encoder has use for."""
    unused = ("pooler.", "embeddings.position_ids")
    with tempfile.TemporaryDirectory() as place, tensortier.Store("64MiB", place) as store:
        store.adopt(file)
        keys = [key for key in store.list() if not key.startswith(unused)]
        return store.get_many(keys, framework="torch")


class Words:
    """Cuts text into the words and parts of words of a vocabulary, one a line."""

    def __init__(self, file: pathlib.Path) -> None:
        lines = file.read_text(encoding="utf-8").splitlines()
        self.numbers = {word: number for number, word in enumerate(lines)}

    def of(self, sentence: str) -> list[int]:
        words = re.findall(r"\w+|[^\w\s]", sentence.lower())
        numbers = [number for word in words for number in self.parts(word)][: LONGEST - 2]
        numbers = [self.numbers["[CLS]"], *numbers, self.numbers["[SEP]"]]
        return numbers + [0] * (LONGEST - len(numbers))

    def parts(self, word: str) -> Iterator[int]:
        """Yields the numbers of a word's parts: the longest that is known, again and again."""
        start = 0
        while start < len(word):
            for end in range(len(word), start, -1):
                number = self.numbers.get(("##" if start else "") + word[start:end])
                if number is not None:
                    yield number
                    start = end
                    break
            else:
                yield self.numbers["[UNK]"]
                return


def pairs() -> list[tuple[str, str]]:
    """Returns sentences of prose, each with the one that follows it."""
    found = []
    for paragraph in side_by_side.text().split("\n\n"):
        prose = " ".join(paragraph.split())
        sentences = [one for one in re.split(r"(?<=[.;:]) ", prose) if 30 < len(one) < 300]
        found += zip(sentences[0::2], sentences[1::2])
    return found


def build(args: argparse.Namespace) -> tuple[nn.Module, Callable[[int], Tensor]]:
    model = Encoder(weights_of(args.model))
    words = Words(args.model.with_name("vocab.txt"))
    data = torch.tensor([[words.of(one), words.of(other)] for one, other in pairs()])

    def loss_of(step: int) -> Tensor:
        chosen = data[torch.randperm(len(data))[: args.batch]]
        first, second = model(chosen.flatten(0, 1)).float().unflatten(0, (-1, 2)).unbind(1)
        likeness = first @ second.t() / TEMPERATURE
        return functional.cross_entropy(likeness, torch.arange(len(likeness)))

    return model, loss_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", type=pathlib.Path, default=MODEL, help="model.safetensors, beside vocab.txt")
    parser.add_argument("--batch", type=int, default=16, help="how many pairs of sentences in a step")
    parser.add_argument("--lr", type=float, default=5e-5, help="learning rate")




if __name__ == "__main__":
    if "--model" not in sys.argv and not (MODEL.exists() and MODEL.with_name("vocab.txt").exists()):
        sys.exit(f"{MODEL} or its vocab.txt is missing; scripts/fetch-model gets both")
    side_by_side.main(str(__doc__).split("\n\n")[0], build, add_arguments)
