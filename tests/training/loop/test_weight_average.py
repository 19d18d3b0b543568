"""The mean of a network's weights."""

from __future__ import annotations

import torch
from torch import nn

from training.loop.weight_average import WeightAverage


def averaged(*values: float) -> tuple[nn.Linear, WeightAverage]:
    network = nn.Linear(2, 2)
    average = WeightAverage(network)
    for value in values:
        nn.init.constant_(network.weight, value)
        average.update()
    return network, average


def filled(value: float) -> torch.Tensor:
    return torch.full((2, 2), value)


def test_weight_average_is_swapped_with_the_weights_and_back() -> None:
    network, average = averaged(1.0, 2.0, 6.0)
    average.swap()
    torch.testing.assert_close(network.weight.detach(), filled(3.0))
    average.swap()
    assert torch.equal(network.weight, filled(6.0))


def test_weight_average_of_no_step_leaves_the_weights() -> None:
    network, average = averaged(5.0)
    average.reset()
    average.swap()
    assert torch.equal(network.weight, filled(5.0))


def test_weight_average_goes_on_from_a_saved_state() -> None:
    _, average = averaged(1.0, 2.0)
    network, other = averaged()
    other.load_state_dict(average.state_dict())
    nn.init.constant_(network.weight, 6.0)
    other.update()
    other.swap()
    torch.testing.assert_close(network.weight.detach(), filled(3.0))
