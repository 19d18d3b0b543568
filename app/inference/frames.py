"""Serializes batches and replies between the processes as flat arrays, without lists of numbers and without torch.

A batch is int32: a header, four numbers for each part, then `lengths`, `pair_starts` and `counts` of each input, the
positions of the outputs, the targets, the token ids. The reply is the seconds in float64, then float32: for each part,
the rows of its inputs end to end. A part with words has the scores, then their token ids as int32 in the same bytes.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from math import isfinite
from operator import attrgetter
from typing import Any

from app.errors import InferenceError
from app.inference.contract import BatchResult, ModelOutput, Part, Words

HEADER_BYTES = 8
"""Bytes of a message's header, which is the body's number of bytes. A batch's body is an array. An inference process
sends only pickles; its reply to a batch is a pickle of bytes that hold an array."""
_HEADER, _PART = 5, 4  # int32 numbers of each
_SECONDS = struct.Struct("<d")
_NOT_FINITE = "the model computed no finite number for this input; BERT_DTYPE=float32 may help"


@dataclass(frozen=True, slots=True)
class PartOfBatch:
    """What is computed for consecutive inputs of a batch; see `Query`."""

    inputs: int
    logits: bool
    top_k: int
    """0 unless it asks for words."""
    targets: memoryview


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch as the inference process reads it; the arrays are int32."""

    encoder: int
    """Index of the encoder in `BackendInfo.models`."""
    alone: bool
    """Whether it is one input and no other batch is being computed. A long input may then use all threads."""
    parts: list[PartOfBatch]
    lengths: memoryview
    """(inputs,) tokens."""
    pair_starts: memoryview
    """(inputs,) index of the first token of the second type."""
    counts: memoryview
    """(inputs,) number of positions whose hidden state is used: the masks, or [CLS]."""
    positions: memoryview
    """(outputs,) these positions, within each input."""
    ids: memoryview
    """(tokens,)"""


def frame(body: bytes) -> bytes:
    """A message with its header."""
    return len(body).to_bytes(HEADER_BYTES, "little") + body


def write_batch(encoder: int, parts: Sequence[Part], *, alone: bool = False) -> bytes:
    """Serialize parts of queries for an inference process. `encoder`: index of the encoder; `alone`: see `Batch`."""
    header = array("i", (encoder, alone, len(parts)))
    table, lengths, pair_starts, counts = array("i"), array("i"), array("i"), array("i")
    positions, targets = array("i"), array("i")
    ids: list[array[int]] = []
    for query, start, stop in parts:
        encodings = query.encodings[start:stop]
        table.extend((stop - start, query.logits, query.top_k, len(query.targets)))
        lengths.extend(query.lengths[start:stop])
        pair_starts.extend(map(attrgetter("second"), encodings))
        used = query.masks[start:stop] or [(0,)] * (stop - start)
        counts.extend(map(len, used))
        positions.extend(chain.from_iterable(used))
        targets.extend(query.targets)
        ids.extend(map(attrgetter("ids"), encodings))
    header.extend((len(lengths), len(positions)))
    return b"".join((header, table, lengths, pair_starts, counts, positions, targets, *ids))


def read_batch(body: bytes | bytearray) -> Batch:
    """Read a batch that `write_batch` wrote."""
    data = memoryview(body).cast("i")
    encoder, alone, count, inputs, outputs = data[:_HEADER]
    table = data[_HEADER : _HEADER + _PART * count].tolist()
    at = _HEADER + _PART * count

    def take(size: int) -> memoryview:
        nonlocal at
        at += size
        return data[at - size : at]

    lengths, pair_starts, counts, positions = take(inputs), take(inputs), take(inputs), take(outputs)
    parts = [
        PartOfBatch(table[i], bool(table[i + 1]), table[i + 2], take(table[i + 3])) for i in range(0, len(table), _PART)
    ]
    return Batch(encoder, bool(alone), parts, lengths, pair_starts, counts, positions, data[at:])


def write_scores(seconds: float, scores: bytes) -> bytes:
    """Serialize the reply to a batch."""
    return _SECONDS.pack(seconds) + scores


def read_scores(parts: Sequence[Part], body: bytes) -> BatchResult:
    """Read the reply to a batch. A part with an input whose scores are not finite has the error of that input.

    Raises:
        ValueError: the reply has more or fewer scores than the queries expect.
    """
    data = memoryview(body)[_SECONDS.size :]
    floats: memoryview[float] = data.cast("f")
    at = 0
    found: list[list[ModelOutput] | InferenceError] = []
    for query, start, stop in parts:
        sizes = [len(masks) * query.top_k for masks in query.masks[start:stop]] or [query.labels] * (stop - start)
        edges = list(accumulate(sizes, initial=0))
        first, at = at, at + edges[-1]
        scores = list[float](floats[first:at])
        outputs: list[Any] = [scores[a:b] for a, b in pairwise(edges)]
        if not isfinite(sum(scores)):  # float32 values cannot overflow in a float64 sum
            index = next(i for i, own in enumerate(outputs) if not isfinite(sum(own)))
            found.append(InferenceError(_NOT_FINITE, start + index))
        elif query.masks:
            ids = data.cast("i")[at : at + edges[-1]].tolist()
            found.append([Words(own, ids[a:b]) for own, (a, b) in zip(outputs, pairwise(edges), strict=True)])
        else:
            found.append(outputs)
        at += edges[-1] * bool(query.masks)
    if at != len(floats):
        raise ValueError(f"the head gave {len(floats)} numbers for this batch, not {at}: see `labels` of its queries")
    return BatchResult(found, _SECONDS.unpack_from(body)[0])
