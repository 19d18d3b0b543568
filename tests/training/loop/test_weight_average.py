"""The mean of checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from training.loop.average import RunningMean, average

from model import load_checkpoint, save_checkpoint
from tests.conftest import MakeCheckpoint
from training.__main__ import main
from training.errors import RunError


def moved(checkpoint: Path, target: Path, by: float) -> Path:
    """The checkpoint with every weight moved."""
    loaded = load_checkpoint(checkpoint)
    with torch.no_grad():
        for parameter in loaded.model.parameters():
            parameter += by
    save_checkpoint(target, loaded.model, loaded.tokenizer)
    return target


def test_every_weight_is_the_mean(pretrained: Path, tmp_path: Path) -> None:
    others = [moved(pretrained, tmp_path / str(by), by) for by in (0.5, 1.0)]
    target = tmp_path / "mean" / "pretrained"
    assert main(["average", str(target), *map(str, [pretrained, *others])]) == 0
    found, began = (load_checkpoint(folder).model.state_dict() for folder in (target, pretrained))
    for name, weight in found.items():
        torch.testing.assert_close(weight, began[name] + 0.5)


def test_a_folder_of_checkpoints_is_not_replaced_by_their_mean(pretrained: Path, tmp_path: Path) -> None:
    sources = [moved(pretrained, tmp_path / "runs" / str(by), by) for by in (0.5, 1.0)]
    with pytest.raises(RunError, match=r"would be deleted: 0\.5/, 1\.0/; name another directory"):
        average(sources, tmp_path / "runs")
    assert average(sources, sources[0]) == sources[0]
    assert load_checkpoint(sources[1])


def test_one_alone_has_no_mean(pretrained: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="two checkpoints or more"):
        average([pretrained], tmp_path / "mean")


def test_what_does_not_fit_together_is_refused(
    pretrained: Path, save_pretrained: MakeCheckpoint, save_sentiment: MakeCheckpoint, tmp_path: Path
) -> None:
    narrow = save_pretrained("narrow", intermediate_size=32)
    for other in (narrow, save_sentiment("sentiment")):
        with pytest.raises(RunError, match="has other weights than"):
            average([pretrained, other], tmp_path / "mean")
    assert not (tmp_path / "mean").exists()


def test_a_classifier_of_other_labels_is_refused(save_sentiment: MakeCheckpoint, tmp_path: Path) -> None:
    pair = [save_sentiment("one"), save_sentiment("other", id2label={0: "BAD", 1: "GOOD"})]
    with pytest.raises(RunError, match="has other labels than"):
        average(pair, tmp_path / "mean")


def test_a_running_mean_takes_the_place_of_the_weights_for_a_while() -> None:
    network = nn.Linear(2, 2)
    mean = RunningMean(network)
    before = network.weight.clone()
    with mean.in_place():
        assert torch.equal(network.weight, before)
    for value in (1.0, 2.0, 6.0):
        nn.init.constant_(network.weight, value)
        mean.add()
    with mean.in_place():
        torch.testing.assert_close(network.weight, torch.full((2, 2), 3.0))
    assert torch.equal(network.weight, torch.full((2, 2), 6.0))
    mean.clear()
    with mean.in_place():
        assert torch.equal(network.weight, torch.full((2, 2), 6.0))
