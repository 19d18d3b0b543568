"""Means of metrics over a window of steps."""

from __future__ import annotations

import pytest
import torch

from training.errors import RunError
from training.loop.checkpoint import TrainState
from training.loop.metrics import MetricWindow


def test_metric_window_summary_has_means_and_speed() -> None:
    window = MetricWindow(("loss", "accuracy"), TrainState(tokens=100, seconds=1.0))
    for loss, norm in ((2.0, 3.0), (6.0, 5.0)):
        sums = torch.tensor([[loss, 2.0], [1.0, 4.0]])
        window.add(sums, torch.tensor(norm), learning_rate=0.1, waited=0.25)
    assert window.summary(TrainState(tokens=300, seconds=3.0), window.sums()) == {
        "loss": 2.0,
        "accuracy": 0.25,
        "gradient_norm": 4.0,
        "learning_rate": 0.1,
        "tokens_per_second": 100.0,
        "batch_wait": 0.25,
    }


def test_metric_window_leaves_out_a_metric_of_no_label() -> None:
    window = MetricWindow(("mlm_loss", "nsp_loss"), TrainState())
    window.add(torch.tensor([[6.0, 2.0], [0.0, 0.0]]), torch.tensor(1.0), learning_rate=0.1, waited=0.0)
    figures = window.summary(TrainState(), window.sums())
    assert figures["mlm_loss"] == 3
    assert "nsp_loss" not in figures, "0 would look like a loss that is as low as can be"


@pytest.mark.parametrize("norm", ["inf", "nan"])
def test_metric_window_leaves_out_skipped_steps_and_allows_three_in_a_row(norm: str) -> None:
    state = TrainState()
    window = MetricWindow(("loss",), state)

    def add(*norms: float) -> None:
        for value in norms:
            loss = torch.tensor([[2.0 if value == 1 else float(norm), 1.0]])
            window.add(loss, torch.tensor(value), learning_rate=0.1, waited=0.0)
        state.step += len(norms)
        window.count_skipped(state)

    bad = float(norm)
    add(bad, bad, bad)
    assert window.summary(state, window.sums()).keys() & {"loss", "gradient_norm", "skipped_steps"} == {"skipped_steps"}
    add(1.0, bad, bad)
    figures = window.summary(state, window.sums())
    assert (figures["loss"], figures["gradient_norm"], figures["skipped_steps"]) == (2, 1, 5)
    assert state.skipped_in_row == 2
    window = MetricWindow(("loss",), state)
    add(bad)
    with pytest.raises(RunError, match=f"norm is {norm} by step 8, as in 3 steps before, .*: start again with a lower"):
        add(bad)
