"""Plots of a network as one PNG: its losses; of a classifier, also the confusion between labels and the calibration."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from training.evaluate.classifier import ClassifierReport
from training.metrics.classification import Bin

SIDE = 6
"""Inches of a panel, without many labels."""


def plot(
    file: Path,
    log: Iterable[Mapping[str, Any]],
    unigram_entropy: float | None = None,
    tests: Mapping[str, ClassifierReport] | None = None,
    labels: Sequence[str] = (),
) -> bool:
    """Plot the lines of a run's log, and a classifier's answers to each test set. False if there is nothing to plot.

    Args:
        unigram_entropy: loss in nats of a network that knows only the frequencies of words.
        tests: reports by name of the test set.
    """
    curves: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for line in log:
        for name, loss in _losses(line).items():
            curves[name].append((line["tokens"], loss))
    rows: list[list[Callable[[Axes], None]]] = [[partial(_plot_losses, curves, unigram_entropy)]] if curves else []
    for name, test in (tests or {}).items():
        confusion = [partial(_plot_confusion, name, test.confusion, labels)] if test.confusion else []
        rows += [[*confusion, partial(_plot_calibration, name, test.reliability)]] if test.reliability else []
    if not rows:
        return False
    side, columns = max(SIDE, 3 + min(len(labels), 50) / 2), max(map(len, rows))
    figure = Figure((side * columns, side * len(rows)), layout="constrained")  # not pyplot, which looks for a display
    for line, row in zip(figure.subplots(len(rows), columns, squeeze=False), rows, strict=True):
        for axes in line[len(row) :]:
            axes.set_axis_off()
        for axes, panel in zip(line, row, strict=False):
            panel(axes)
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


def _plot_losses(curves: Mapping[str, Sequence[tuple[int, float]]], unigram_entropy: float | None, axes: Axes) -> None:
    """Losses over tokens by the name of their curve."""
    for name, points in curves.items():
        axes.plot(*zip(*points, strict=True), "o--" if name.endswith("held out)") else "-", label=name)
    if unigram_entropy is not None:
        axes.axhline(unigram_entropy, color="grey", linestyle=":", label="unigram entropy")
    axes.set(xlabel="tokens", ylabel="loss (nats)")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False)  # inside it could hide a curve


def _plot_confusion(name: str, counts: Sequence[Sequence[int]], labels: Sequence[str], axes: Axes) -> None:
    """True labels down, answers across, as shares of the true label with counts written in."""
    labels = [label.replace("$", r"\$") for label in labels]  # matplotlib reads text between two of them as mathematics
    shares = [[count / max(1, sum(row)) for count in row] for row in counts]
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    axes.set(title=name, xlabel="answer", ylabel="true label")
    axes.set_xticks(range(len(labels)), labels, rotation=90 if len(labels) > 4 else 0)
    axes.set_yticks(range(len(labels)), labels)
    for i, row in enumerate(counts):
        for j, count in enumerate(row):
            axes.text(j, i, f"{count:,}", ha="center", color="white" if shares[i][j] > 0.5 else "black")


def _plot_calibration(name: str, bins: Sequence[Bin], axes: Axes) -> None:
    """Accuracy over confidence (Guo et al. 2017, figure 1). On the diagonal, confidence is calibrated. Within the bars
    of two standard errors, a difference may be chance (Bröcker & Smith 2007)."""
    filled = [b for b in bins if b.count]
    largest = max(b.count for b in filled)
    sure = [b.confidence for b in filled]
    errors = [2 * b.standard_error for b in filled]
    axes.plot([0, 1], [0, 1], color="grey", linestyle=":")
    axes.errorbar(sure, sure, yerr=errors, fmt="none", ecolor="lightgrey", elinewidth=4, zorder=0)
    axes.scatter(sure, [b.accuracy for b in filled], s=[200 * b.count / largest for b in filled])
    axes.set(title=name, xlim=(0, 1.02), ylim=(0, 1.02), xlabel="confidence", ylabel="accuracy", aspect="equal")
