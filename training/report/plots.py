"""Figures of a report as PNG: what the loss did, what is confused with what, whether confidence is honest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from training.evaluate.classification import Bin

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def plot_losses(log: Iterable[Mapping[str, Any]], file: Path, unigram_entropy: float | None = None) -> bool:
    """Training and held-out losses over tokens, from the lines of a run's log; False if there are none."""
    lines = list(log)
    figure, axes = _axes("tokens", "loss (nats)")
    _training_curves(axes, [line for line in lines if line["event"] == "train"])
    _heldout_curves(axes, [line for line in lines if line["event"] == "evaluation"])
    if not axes.lines:
        return False
    if unigram_entropy is not None:
        axes.axhline(unigram_entropy, color="grey", linestyle=":", label="unigram entropy")
    figure.legend(loc="outside upper left", ncols=2, frameon=False)  # over a curve it would hide it
    figure.savefig(file)
    return True


def _training_curves(axes: Axes, lines: Sequence[Mapping[str, Any]]) -> None:
    names = [name for name in (lines[0] if lines else {}) if name.endswith("_loss")] or ["loss"]
    for name in names if lines else []:
        axes.plot([line["tokens"] for line in lines], [line[name] for line in lines], label=name)


def _heldout_curves(axes: Axes, lines: Sequence[Mapping[str, Any]]) -> None:
    sources = [name for name, value in (lines[-1] if lines else {}).items() if isinstance(value, dict)]
    for source in sources:
        loss = "mlm_loss" if "mlm_loss" in lines[-1][source] else "loss"
        points = [(line["tokens"], line[source][loss]) for line in lines if source in line]
        axes.plot(*zip(*points, strict=True), marker="o", linestyle="--", label=f"{source} ({loss}, held out)")


def plot_confusion(counts: Sequence[Sequence[int]], labels: Sequence[str], file: Path) -> None:
    """True labels down, answers across, as shares of the true label with counts written in."""
    figure, axes = _axes("answer", "true label")
    shares = [[count / max(1, sum(row)) for count in row] for row in counts]
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    axes.set_xticks(range(len(labels)), labels)
    axes.set_yticks(range(len(labels)), labels)
    for i, row in enumerate(counts):
        for j, count in enumerate(row):
            axes.text(j, i, f"{count:,}", ha="center", color="white" if shares[i][j] > 0.5 else "black")
    figure.savefig(file)


def plot_reliability(bins: Sequence[Bin], file: Path) -> None:
    """Accuracy over confidence (Guo et al. 2017, figure 1); on the diagonal, confidence is honest, and within
    the bars (two standard errors) as honest as so few texts can tell (Bröcker & Smith 2007)."""
    figure, axes = _axes("confidence", "accuracy")
    filled = [b for b in bins if b.count]
    most = max((b.count for b in filled), default=1)
    axes.plot([0, 1], [0, 1], color="grey", linestyle=":")
    sizes = [200 * b.count / most for b in filled]
    sure = [b.confidence for b in filled]
    axes.errorbar(
        sure,
        sure,
        yerr=[2 * b.standard_error for b in filled],
        fmt="none",
        ecolor="lightgrey",
        elinewidth=4,
        zorder=0,
    )
    axes.scatter(sure, [b.accuracy for b in filled], s=sizes)
    axes.set_xlim(0, 1.02)
    axes.set_ylim(0, 1.02)
    figure.savefig(file)


def _axes(across: str, up: str) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure  # most commands draw nothing, and it takes 0.6 s

    figure = Figure(figsize=(6, 4), layout="constrained")  # no pyplot: it would look for a display
    axes = figure.add_subplot()
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    return figure, axes
