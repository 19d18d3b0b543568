"""benchmarks/ceiling.py on a tiny network."""

from __future__ import annotations

import sys

import pytest

from benchmarks import ceiling


def test_ceiling_prints_a_row_for_each_batch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--preset", "tiny", "--length", "28", "--tokens", "56", "112", "--rounds", "1", "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", ["ceiling", *arguments])
    ceiling.main()
    rows = capsys.readouterr().out.splitlines()[3:]
    assert [row.split(" | ")[0] for row in rows] == ["| 2", "| 4"]
