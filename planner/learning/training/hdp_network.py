"""The network of a hierarchical placer: a grouper puts operators into groups, and a placer gives each group a machine.

The lecture that GDP is built from compares it with HDP and says no more of that than its name, and its paper was not at
hand. What is generally known of HDP: the grouper is a feed-forward network with a softmax over groups, for each
operator by itself; the placer is a sequence-to-sequence LSTM with attention, which reads the groups and writes a
machine for each; both are trained together. Ours are the sizes, and what a group is told as: the mean of its operators'
features, its share of them, and the bytes that it hands to each other group.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from edgepart.planner.placing.guided.gdp_features import OPS, width_of

# The products are so small that threads would only wait for each other.
torch.set_num_threads(1)


@dataclass(frozen=True)
class HdpSizes:
    """The shape of the network."""

    machines: int
    groups: int = 16
    """The most groups."""
    width: int = 64
    op_width: int = 16


@dataclass(frozen=True)
class Drawn:
    """Decisions on b placements of one graph, and the logarithms of their odds."""

    groups: Tensor
    """(b, n). The group of each operator."""
    machines: Tensor
    """(b, g). The machine of each group."""
    log_odds: Tensor
    """(b,). Of all decisions together."""
    spread: Tensor
    """The mean entropy of one decision: that of a grouping plus that of a placement."""


class HdpNetwork(nn.Module):
    """Draws placements of one graph at a time."""

    def __init__(self, sizes: HdpSizes) -> None:
        super().__init__()
        width = sizes.width
        self.sizes = sizes
        self.op = nn.Embedding(OPS, sizes.op_width)
        told = sizes.op_width + width_of(sizes.machines)
        self.grouper = nn.Sequential(nn.Linear(told, width), nn.ReLU(), nn.Linear(width, sizes.groups))
        self.encoder = nn.LSTM(told + 1 + sizes.groups, width, batch_first=True)
        self.decoder = nn.LSTMCell(width, width)
        self.begin = nn.Parameter(torch.zeros(width))
        self.before = nn.Embedding(sizes.machines, width)
        """What the decoder is told of the machine that it chose last."""
        self.ask = nn.Linear(width, width)
        self.head = nn.Linear(2 * width, sizes.machines)

    def draw(
        self, ops: Tensor, numbers: Tensor, handed: Tensor, samples: int, generator: torch.Generator
    ) -> Drawn:
        """Draw placements of a graph of n operators: ops (n,), numbers (n, f), and handed (n, n), the share of all
        bytes that each operator hands to each other."""
        told = torch.cat([self.op(ops), numbers], 1)
        odds = torch.log_softmax(self.grouper(told), 1)
        groups = torch.multinomial(odds.exp(), samples, True, generator=generator).T
        chosen = odds.gather(1, groups.T).sum(0)
        machines, placed, spread = self._place(_group(told, handed, groups, self.sizes.groups), generator)
        grouping = -(odds.exp() * odds).sum(1).mean()
        return Drawn(groups, machines, chosen + placed, grouping + spread)

    def _place(self, told: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Read the groups, (b, g, f), and draw a machine for one after another. Return these, (b, g), the logarithm of
        the odds of all, (b,), and the mean entropy of one."""
        read, (hidden, cell) = self.encoder(told)
        h, c = hidden[0], cell[0]
        last = self.begin.expand(len(told), -1)
        machines, total, spread = [], torch.zeros(len(told)), torch.zeros(())
        for _ in range(told.shape[1]):
            h, c = self.decoder(last, (h, c))
            looks = torch.softmax(torch.einsum("bgw,bw->bg", read, self.ask(h)), 1)
            context = torch.einsum("bg,bgw->bw", looks, read)
            odds = torch.log_softmax(self.head(torch.cat([h, context], 1)), 1)
            machine = torch.multinomial(odds.exp().detach(), 1, generator=generator)
            total = total + odds.gather(1, machine)[:, 0]
            spread = spread - (odds.exp() * odds).sum(1).mean() / told.shape[1]
            last = self.before(machine[:, 0])
            machines.append(machine[:, 0])
        return torch.stack(machines, 1), total, spread


def _group(told: Tensor, handed: Tensor, groups: Tensor, count: int) -> Tensor:
    """Return what each group of each sample is told as, (b, g, f + 1 + g)."""
    member = functional.one_hot(groups, count).to(told.dtype)
    size = member.sum(1).unsqueeze(2)
    mean = torch.einsum("bng,nf->bgf", member, told) / size.clamp(min=1.0)
    between = torch.einsum("bng,bnh->bgh", member, handed @ member)
    return torch.cat([mean, size / groups.shape[1], between], 2)
