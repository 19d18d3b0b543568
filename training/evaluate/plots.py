"""Figures of a report as PNG: losses, confusion between labels, calibration."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from training.metrics.classification import Bin


def plot_losses(log: Iterable[Mapping[str, Any]], file: Path, unigram_entropy: float | None = None) -> bool:
    """Training and held-out losses over tokens, from the lines of a run's log; False if there are none."""
    curves: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for line in log:
        for name, loss in _losses(line).items():
            curves[name].append((line["tokens"], loss))
    if not curves:
        return False
    figure = Figure((6, 4), layout="constrained")  # not pyplot, which looks for a display
    axes = figure.add_subplot(xlabel="tokens", ylabel="loss (nats)")
    for name, points in curves.items():
        axes.plot(*zip(*points, strict=True), "o--" if name.endswith("held out)") else "-", label=name)
    if unigram_entropy is not None:
        axes.axhline(unigram_entropy, color="grey", linestyle=":", label="unigram entropy")
    figure.legend(loc="outside upper left", ncols=2, frameon=False)  # inside the axes it could hide a curve
    figure.savefig(file)
    return True


def _losses(line: Mapping[str, Any]) -> dict[str, float]:
    """The losses of a line of the log, by the name of their curve."""
    if line["event"] == "train":
        parts = {name: line[name] for name in line if name.endswith("_loss")}
        return parts or {name: line[name] for name in line if name == "loss"}
    if line["event"] != "evaluation":
        return {}
    losses = {}
    for source, figures in line.items():
        if isinstance(figures, dict):
            name = "mlm_loss" if "mlm_loss" in figures else "loss"
            losses[f"{source} ({name}, held out)"] = figures[name]
    return losses


def plot_answers(
    confusion: Sequence[Sequence[int]] | None, bins: Sequence[Bin], labels: Sequence[str], file: Path
) -> None:
    """The confusion between labels, if each text has one label, and the calibration, side by side."""
    side = min(len(labels), 50) / 2 if confusion else 0  # inches
    widths = [max(6, 3 + side), 6] if confusion else [6]
    figure = Figure((sum(widths), max(4, 2 + side)), layout="constrained")
    axes = figure.subplots(ncols=len(widths), width_ratios=widths, squeeze=False)[0]
    if confusion:
        _plot_confusion(axes[0], confusion, labels)
    _plot_reliability(axes[-1], bins)
    figure.savefig(file)


def _plot_confusion(axes: Axes, counts: Sequence[Sequence[int]], labels: Sequence[str]) -> None:
    """True labels down, answers across, as shares of the true label with counts written in."""
    labels = [label.replace("$", r"\$") for label in labels]  # matplotlib reads text between two of them as mathematics
    shares = [[count / max(1, sum(row)) for count in row] for row in counts]
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    axes.set(xlabel="answer", ylabel="true label")
    axes.set_xticks(range(len(labels)), labels, rotation=90 if len(labels) > 4 else 0)
    axes.set_yticks(range(len(labels)), labels)
    for i, row in enumerate(counts):
        for j, count in enumerate(row):
            axes.text(j, i, f"{count:,}", ha="center", color="white" if shares[i][j] > 0.5 else "black")


def _plot_reliability(axes: Axes, bins: Sequence[Bin]) -> None:
    """Accuracy over confidence (Guo et al. 2017, figure 1). On the diagonal, confidence is calibrated. Within the bars
    of two standard errors, a difference may be chance (Bröcker & Smith 2007)."""
    filled = [b for b in bins if b.count]
    largest = max(b.count for b in filled)
    sure = [b.confidence for b in filled]
    errors = [2 * b.standard_error for b in filled]
    axes.plot([0, 1], [0, 1], color="grey", linestyle=":")
    axes.errorbar(sure, sure, yerr=errors, fmt="none", ecolor="lightgrey", elinewidth=4, zorder=0)
    axes.scatter(sure, [b.accuracy for b in filled], s=[200 * b.count / largest for b in filled])
    axes.set(xlim=(0, 1.02), ylim=(0, 1.02), xlabel="confidence", ylabel="accuracy", aspect="equal")
