"""The benchmark of pretraining batches."""

from __future__ import annotations

from pathlib import Path

from benchmarks.loader import ROOT, measure_tree, table, write_text


def test_loader_benchmark_compares_two_trees(tmp_path: Path) -> None:
    source = write_text(4000, tmp_path)
    figures = [measure_tree(ROOT, source)[2048] for _ in range(2)]
    assert figures[0]["share of padding"] == figures[1]["share of padding"] < 0.1
    assert figures[0]["tokens/example"] > 50
    text = table([ROOT, ROOT], {(2048, "us/example"): [[figure["us/example"] for figure in figures]]})
    assert text.count("|") == 3 * 6
