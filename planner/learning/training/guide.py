"""The network of the placer `learned`, for training. Ours; rules only.

It tells what biases list scheduling (planner/placing/guided): for each task and machine a bias, and for each task
the weights of the machines' standings. Machines are described and not numbered, so there may be any number of them:
a bias is the product of what the task asks for and what the machine offers, plus what holds for the pair. Before it
is trained, the network is plain list scheduling by earliest finish.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from edgepart.planner.placing.engine.flat_serial import STANDINGS
from edgepart.planner.placing.guided.decode import PLAIN
from edgepart.planner.placing.guided.features import MACHINE_FEATURES, PAIR_FEATURES, TASK_FEATURES

# The products are so small that threads would only wait for each other.
torch.set_num_threads(1)

WIDTH, PAIR_WIDTH, ROUNDS = 64, 16, 4
"""The width of what is known of a task or a machine, that of a pair, and how far a task sees, in tasks."""


class Guide(nn.Module):
    """What a workload's features say of each task and machine."""

    def __init__(self) -> None:
        super().__init__()
        self.machine = nn.Sequential(nn.Linear(MACHINE_FEATURES, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
        self.task = nn.Linear(TASK_FEATURES + 2 * PAIR_FEATURES + WIDTH, WIDTH)
        self.sent = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2 * ROUNDS))
        self.heard = nn.ModuleList(nn.Linear(3 * WIDTH, WIDTH) for _ in range(ROUNDS))
        self.normal = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(ROUNDS))
        self.whole = nn.Linear(2 * WIDTH, WIDTH)
        self.asks, self.offers = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.pair_task, self.pair_machine = nn.Linear(WIDTH, PAIR_WIDTH), nn.Linear(WIDTH, PAIR_WIDTH)
        self.pair = nn.Linear(PAIR_FEATURES, PAIR_WIDTH)
        self.pair_bias = nn.Linear(PAIR_WIDTH, 1)
        self.weights = nn.Linear(WIDTH, STANDINGS)
        for last in (self.asks, self.pair_bias, self.weights):
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)
        self.register_buffer("plain", torch.tensor(PLAIN))

    def forward(
        self, tasks: Tensor, machines: Tensor, pairs: Tensor, before: Tensor, behind: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the bias (n, m) and the weights (n, STANDINGS) for features as planner/placing/guided/features.py has
        them."""
        offered = self.machine(machines)
        count = tasks.shape[0]
        seen = [tasks, pairs.mean(1), pairs.amax(1), offered.mean(0, keepdim=True).expand(count, -1)]
        known = torch.relu(self.task(torch.cat(seen, 1)))
        for number in range(ROUNDS):
            up = torch.relu(self.sent[2 * number](known))[before].amax(1)
            down = torch.relu(self.sent[2 * number + 1](known))[behind].amax(1)
            heard = torch.relu(self.heard[number](torch.cat([known, up, down], 1)))
            known = self.normal[number](known + heard)
        whole = torch.cat([known.mean(0, keepdim=True), known.amax(0, keepdim=True)], 1)
        known = torch.relu(known + self.whole(whole))
        product = self.asks(known) @ self.offers(offered).T / WIDTH**0.5
        of_pair = self.pair(pairs) + self.pair_task(known)[:, None] + self.pair_machine(offered)[None]
        bias = product + self.pair_bias(torch.relu(of_pair))[..., 0]
        return bias, self.plain + self.weights(known)


def as_tensors(inputs: Mapping[str, object]) -> dict[str, Tensor]:
    """Return a workload's features as the network takes them."""
    return {name: torch.as_tensor(value) for name, value in inputs.items()}


def log_likelihood(
    scores: tuple[Tensor, Tensor], standings: Tensor, allowed: Tensor, placements: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the logarithm of how likely each of k placements (k, n) is, (k,), and the mean entropy of choices.

    `standings` (k, n, m, STANDINGS) and `allowed` (k, n, m) are those at the moment of each choice."""
    bias, weights = scores
    score = bias[None] + torch.einsum("knmf,nf->knm", standings, weights)
    chances = torch.log_softmax(score.masked_fill(~allowed, -1e9), dim=2)
    chosen = chances.gather(2, placements[..., None])[..., 0]
    entropy = -(chances.exp() * chances.masked_fill(~allowed, 0.0)).sum(2).mean()
    return chosen.sum(1), entropy
