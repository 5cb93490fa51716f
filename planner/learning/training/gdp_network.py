"""GDP's network: a graph embedding, and a Transformer that decides the machines of all operators at once.

From the source (GDP, 2019, as a lecture of March 2020 presents it):

- The embedding of node v is made of its own and its neighbours': h_N(v) = max over u in N(v) of sigma(W h_u + b), and
  h_v' = f(concat(h_v, h_N(v))), for some rounds.
- The placer is a Transformer without positions. Nodes come in segments, and each segment also attends to the hidden
  states of the segment before, through which no gradient flows. A softmax over a fixed number of machines decides.
- Superposition: x^(l+1) = g^(l)(c(x^(0)) * x^(l)), where the g^(l) are the layers and c is one layer more.

The source leaves open what is ours: the sizes (`GdpSizes`), sigma (the logistic function), f (linear, ReLU and
normalised), rounds in each direction with weights of their own, pre-norm layers, c near 1 in the beginning, and that
machines which cannot run a task are out of the question for it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from edgepart.planner.placing.guided.gdp_features import OPS, SEGMENT, width_of

# The products are so small that threads would only wait for each other.
torch.set_num_threads(1)

OP_WIDTH = 16
"""The numbers that stand for the type of an operator."""

NEVER = -1e9
"""The logit of what is out of the question."""


@dataclass(frozen=True)
class GdpSizes:
    """The shape of the network; the two switches are there to see what a part is worth."""

    machines: int
    """The number of machines that the softmax chooses from."""
    width: int = 64
    rounds: int = 3
    """Rounds of the embedding, in each direction."""
    layers: int = 2
    heads: int = 4
    superposition: bool = True
    attention: bool = True
    """Whether nodes attend to each other; without, each is placed by its embedding alone. Only for comparisons: such
    a network has no use for all inputs, and gdp_export.py leaves those out."""


class GdpNetwork(nn.Module):
    """From the inputs of `gdp_features.INPUTS` to a logit for each row and machine, (r, d)."""

    def __init__(self, sizes: GdpSizes) -> None:
        super().__init__()
        width = sizes.width
        self.sizes = sizes
        self.op = nn.Embedding(OPS, OP_WIDTH)
        self.begin = nn.Linear(OP_WIDTH + width_of(sizes.machines), width)
        self.forwards = nn.ModuleList(_Round(width) for _ in range(sizes.rounds))
        self.backwards = nn.ModuleList(_Round(width) for _ in range(sizes.rounds))
        self.both = nn.Sequential(nn.Linear(2 * width, width), nn.LayerNorm(width))
        self.condition = _Layer(sizes) if sizes.superposition else None
        self.gate = nn.Linear(width, width)
        self.layers = nn.ModuleList(_Layer(sizes) for _ in range(sizes.layers))
        self.normal = nn.LayerNorm(width)
        self.head = nn.Linear(width, sizes.machines)
        with torch.no_grad():
            self.head.weight.mul_(0.1)  # Nearly uniform in the beginning, so that samples explore.
            self.gate.weight.mul_(0.1)
            self.gate.bias.fill_(1.0)

    def forward(
        self,
        ops: Tensor,
        numbers: Tensor,
        sources: Tensor,
        readers: Tensor,
        real: Tensor,
        able: Tensor,
        continues: Tensor,
    ) -> Tensor:
        x = self._embed(ops, numbers, sources, readers).reshape(-1, SEGMENT, self.sizes.width)
        here = real.reshape(-1, SEGMENT)
        before = torch.cat([here[-1:], here[:-1]]) * continues.unsqueeze(1)
        # (s, 1, 1, 2 * SEGMENT): what no row may attend to.
        never = ((1.0 - torch.cat([before, here], 1)) * NEVER).unsqueeze(1).unsqueeze(1)
        gate = None if self.condition is None else self.gate(self.condition(x, never))
        for layer in self.layers:
            x = layer(x if gate is None else gate * x, never)
        logits: Tensor = self.head(self.normal(x)).reshape(-1, self.sizes.machines)
        return logits + (1.0 - able) * NEVER

    def _embed(self, ops: Tensor, numbers: Tensor, sources: Tensor, readers: Tensor) -> Tensor:
        x = torch.relu(self.begin(torch.cat([self.op(ops), numbers], 1)))
        forward = backward = x
        for one, other in zip(self.forwards, self.backwards, strict=True):
            forward, backward = one(forward, sources), other(backward, readers)
        joined: Tensor = self.both(torch.cat([forward, backward], 1))
        return joined


class _Round(nn.Module):
    """One round of the embedding, along one direction of the edges."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.hand = nn.Linear(width, width)
        self.join = nn.Linear(2 * width, width)
        self.normal = nn.LayerNorm(width)

    def forward(self, x: Tensor, neighbours: Tensor) -> Tensor:
        handed = torch.sigmoid(self.hand(x))
        # The row behind all rows stands for no neighbour: less than the logistic function ever is.
        handed = torch.cat([handed, torch.zeros_like(handed[:1])])
        pooled = functional.embedding(neighbours, handed).amax(1)
        made: Tensor = self.normal(torch.relu(self.join(torch.cat([x, pooled], 1))))
        return made


class _Layer(nn.Module):
    """A layer of the Transformer, over the rows of each segment and of the one before."""

    def __init__(self, sizes: GdpSizes) -> None:
        super().__init__()
        width = sizes.width
        self.heads, self.attends = sizes.heads, sizes.attention
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        if self.attends:
            self.ask = nn.Linear(width, width)
            self.tell = nn.Linear(width, 2 * width)
            self.out = nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor, never: Tensor) -> Tensor:
        if self.attends:
            x = x + self._attend(self.first(x), never)
        fed: Tensor = x + self.feed(self.second(x))
        return fed

    def _attend(self, x: Tensor, never: Tensor) -> Tensor:
        """x: (s, SEGMENT, w). All segments are computed at once, as a layer only needs the layer below of the
        segment before."""
        before = torch.cat([x[-1:], x[:-1]]).detach()
        keys, values = self.tell(torch.cat([before, x], 1)).chunk(2, 2)
        query = self._apart(self.ask(x), SEGMENT)
        scores = query @ self._apart(keys, 2 * SEGMENT).transpose(2, 3) / (x.shape[2] / self.heads) ** 0.5
        mixed = torch.softmax(scores + never, 3) @ self._apart(values, 2 * SEGMENT)
        made: Tensor = self.out(mixed.transpose(1, 2).reshape(-1, SEGMENT, self.out.in_features))
        return made

    def _apart(self, x: Tensor, rows: int) -> Tensor:
        """(s, rows, w) to (s, heads, rows, w / heads)."""
        return x.reshape(-1, rows, self.heads, self.out.in_features // self.heads).transpose(1, 2)
