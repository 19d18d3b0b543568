"""TensorBoard event files, where a recipe asks for them: scalars, the network's graph, sample predictions."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from model.heads import BertForPreTraining
from model.packing import PackedBatch
from training.errors import RunError
from training.loop.checkpoint import Progress

logger = logging.getLogger(__name__)


class Board:
    """Hears every line of a run's log."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise RunError("tensorboard is not installed: pip install tensorboard") from error
        self.writer = SummaryWriter(folder)

    def write(self, event: str, progress: Progress, figures: Mapping[str, Any]) -> None:
        """Numbers as scalars, under the event and their source; text as text."""
        for name, value in _flat(figures):
            if isinstance(value, str):
                self.writer.add_text(f"{event}/{name}", value, progress.step)
            else:
                self.writer.add_scalar(f"{event}/{name}", value, progress.step)
        self.writer.flush()

    def graph(self, model: BertForPreTraining) -> None:
        """The network as traced on a sequence of four tokens."""
        device = next(model.parameters()).device
        was_training = model.training
        model.eval()
        try:
            with warnings.catch_warnings(), torch.no_grad():  # no autocast: its copies are no parameters
                warnings.simplefilter("ignore")  # the tracer warns of every constant
                ids = torch.zeros(4, dtype=torch.int64, device=device)
                self.writer.add_graph(_OneSequence(model), ids)
        except Exception as error:  # a drawing is not worth a run
            logger.warning("the network's graph could not be traced: %s", str(error).split("\n")[0])
        finally:
            model.train(was_training)


class _OneSequence(nn.Module):
    """Token ids of one sequence (length,) -> logits of its masked words and of its next sentence."""

    def __init__(self, model: BertForPreTraining) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor) -> tuple[Tensor, Tensor]:
        packed = PackedBatch.pack([[0] * len(input_ids)]).to(input_ids.device)
        batch = PackedBatch(input_ids, packed.position_ids, packed.token_type_ids, packed.segments)
        hidden = self.model(batch)
        assert self.model.next_sentence is not None
        return self.model.masked_lm(hidden), self.model.next_sentence(hidden[:1])


def _flat(figures: Mapping[str, Any], prefix: str = "") -> list[tuple[str, float | str]]:
    found: list[tuple[str, float | str]] = []
    for name, value in figures.items():
        found += _flat(value, f"{prefix}{name}/") if isinstance(value, Mapping) else [(prefix + name, value)]
    return found
