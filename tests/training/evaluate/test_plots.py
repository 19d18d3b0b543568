"""Plots of a run and of a classifier."""

from __future__ import annotations

from pathlib import Path

import torch

from training.evaluate.plots import plot_answers, plot_losses
from training.metrics.classification import reliability

PNG = b"\x89PNG"


def test_plot_losses_needs_a_line_to_plot(tmp_path: Path) -> None:
    assert not plot_losses([{"event": "machine", "tokens": 0}], tmp_path / "loss.png")
    log = [
        {"event": "train", "tokens": 10, "loss": 3.0, "mlm_loss": 2.0, "nsp_loss": 1.0},
        {"event": "evaluation", "tokens": 10, "stories": {"mlm_loss": 2.5}},
    ]
    assert plot_losses(log, tmp_path / "loss.png", unigram_entropy=3.6)
    assert (tmp_path / "loss.png").read_bytes().startswith(PNG)


def test_plot_answers_has_a_panel_or_two(tmp_path: Path) -> None:
    bins, topics = reliability(torch.tensor([0.9, 0.6]), torch.tensor([True, False])), [f"topic {i}" for i in range(51)]
    for confusion, labels, width in (
        ([[3, 1], [0, 0]], ["$", "$$"], 1200),
        ([[1] * 51] * 51, topics, 3400),
        (None, topics, 600),
    ):
        plot_answers(confusion, bins, labels, tmp_path / "answers.png")
        png = (tmp_path / "answers.png").read_bytes()
        assert (png[:4], int.from_bytes(png[16:20])) == (PNG, width)
