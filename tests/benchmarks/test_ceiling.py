"""benchmarks/ceiling.py on a tiny network."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from app.inference import torch_backend
from benchmarks import ceiling


def test_ceiling_prints_a_row_for_each_batch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--preset", "tiny", "--length", "28", "--tokens", "56", "112", "--rounds", "1", "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", ["ceiling", *arguments])
    monkeypatch.setattr(torch_backend, "POLICY", replace(torch_backend.POLICY, warm_up_seconds=0.0))
    ceiling.main()
    rows = capsys.readouterr().out.splitlines()[3:]
    assert [row.split(" | ")[0] for row in rows] == ["| 2", "| 4"]
