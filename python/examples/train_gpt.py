"""Trains a small GPT on Python's own reference, once with torch.optim.AdamW and once with tensortier.AdamW.

    python python/examples/train_gpt.py
    python python/examples/train_gpt.py --steps 200 --paths /nvme0 /nvme1 --plot losses.png

Same seeds, same batches: every loss and every bit of the weights is the same at the end.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

import side_by_side

#: The model reads bytes.
VOCABULARY = 256


class Block(nn.Module):
    """Attention to what came before, then two layers, each added to its input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_layers = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.layers = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.attention(self.before_attention(x)).split(width, dim=2)
        query, key, value = (
            part.view(batch, length, self.heads, -1).transpose(1, 2) for part in parts
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.layers(self.before_layers(x))


class Gpt(nn.Module):
    """Predicts each byte of a text from those before it."""

    def __init__(self, layers: int, width: int, heads: int, context: int) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.last, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1])
        return self.head(self.last(self.blocks(self.bytes(x) + self.places(places))))


def build(args: argparse.Namespace) -> tuple[nn.Module, Callable[[int], Tensor]]:
    corpus = torch.tensor(list(side_by_side.text().encode()), dtype=torch.uint8)
    model = Gpt(args.layers, args.width, args.heads, args.context)

    def loss_of(step: int) -> Tensor:
        starts = torch.randint(len(corpus) - args.context - 1, (args.batch,)).tolist()
        rows = torch.stack([corpus[at : at + args.context + 1] for at in starts]).long()
        logits = model(rows[:, :-1])
        return functional.cross_entropy(logits.flatten(0, 1).float(), rows[:, 1:].flatten())

    return model, loss_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--layers", type=int, default=6, help="how many blocks")
    parser.add_argument("--width", type=int, default=512, help="a multiple of 64 and of the heads")
    parser.add_argument("--heads", type=int, default=8, help="of attention, in each block")
    parser.add_argument("--context", type=int, default=64, help="how many bytes it looks back")
    parser.add_argument("--batch", type=int, default=8, help="how many pieces of text in a step")
    parser.add_argument("--lr", type=float, default=6e-4, help="learning rate")


if __name__ == "__main__":
    side_by_side.main(str(__doc__).split("\n\n")[0], build, add_arguments)
