"""Plots of a run and of a classifier."""

from __future__ import annotations

from pathlib import Path

import torch

from training.evaluate.classifier import ClassifierReport
from training.evaluate.plots import plot
from training.metrics.classification import reliability

PNG = b"\x89PNG"


def test_plot_needs_a_line_or_answers_to_plot(tmp_path: Path) -> None:
    assert not plot(tmp_path / "loss.png", [{"event": "machine", "tokens": 0}])
    log = [
        {"event": "train", "tokens": 10, "loss": 3.0, "mlm_loss": 2.0, "nsp_loss": 1.0},
        {"event": "evaluation", "tokens": 10, "stories": {"mlm_loss": 2.5}},
    ]
    assert plot(tmp_path / "loss.png", log, unigram_entropy=3.6)
    assert (tmp_path / "loss.png").read_bytes().startswith(PNG)


def test_plot_has_panels_for_each_test_set(tmp_path: Path) -> None:
    bins, topics = reliability(torch.tensor([0.9, 0.6]), torch.tensor([True, False])), [f"topic {i}" for i in range(51)]
    for names, confusion, labels, size in (
        (["films", "shops"], [[3, 1], [0, 0]], ["$", "$$"], (1200, 1200)),
        (["films"], [[1] * 51] * 51, topics, (5600, 2800)),
        (["films", "shops"], None, ["stars"], (600, 1200)),
    ):
        report = ClassifierReport(2, {}, {}, {}, None, None, None, None, [], confusion, bins)
        assert plot(tmp_path / "answers.png", [], tests=dict.fromkeys(names, report), labels=labels)
        png = (tmp_path / "answers.png").read_bytes()
        assert (png[:4], int.from_bytes(png[16:20]), int.from_bytes(png[20:24])) == (PNG, *size)
