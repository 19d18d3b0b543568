"""Plots of a run and of a classifier."""

from __future__ import annotations

from pathlib import Path

import torch

from training.evaluate.classification import reliability
from training.report.plots import plot_confusion, plot_losses, plot_reliability

PNG = b"\x89PNG"


def test_plot_losses_needs_a_line_to_plot(tmp_path: Path) -> None:
    assert not plot_losses([{"event": "machine", "tokens": 0}], tmp_path / "loss.png")
    log = [
        {"event": "train", "tokens": 10, "loss": 3.0, "mlm_loss": 2.0, "nsp_loss": 1.0},
        {"event": "evaluation", "tokens": 10, "stories": {"mlm_loss": 2.5}},
    ]
    assert plot_losses(log, tmp_path / "loss.png", unigram_entropy=3.6)
    assert (tmp_path / "loss.png").read_bytes().startswith(PNG)


def test_plot_confusion_and_reliability_write_png(tmp_path: Path) -> None:
    plot_confusion([[3, 1], [0, 0]], ["NEGATIVE", "POSITIVE"], tmp_path / "confusion.png")
    plot_reliability(reliability(torch.tensor([0.9, 0.6]), torch.tensor([True, False])), tmp_path / "r.png")
    plot_confusion([[3, 1], [0, 0]], ["$", "$$"], tmp_path / "prices.png")
    plot_confusion([[1] * 51] * 51, [f"topic {i}" for i in range(51)], tmp_path / "topics.png")
    for name in ("confusion.png", "prices.png", "topics.png", "r.png"):
        assert (tmp_path / name).read_bytes().startswith(PNG)
