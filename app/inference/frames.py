"""Serializes batches and replies between the processes as flat arrays, without lists of numbers and without torch.

A batch is int32: a header, four numbers for each part, then `lengths`, `seconds` and `counts` of each input, the
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

from app.errors import InferenceError
from app.inference.contract import Kind, ModelOutput, Part, Query, Words

_HEAD, _PART = 5, 4
_SECONDS = struct.Struct("<d")
_NOT_FINITE = "the model computed no finite number for this input; BERT_DTYPE=float32 may mend it"


@dataclass(frozen=True, slots=True)
class PartOfBatch:
    """The kind of output for consecutive inputs of a batch."""

    inputs: int
    kind: Kind
    top_k: int
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
    seconds: memoryview
    """(inputs,) index of the first token of the second type."""
    counts: memoryview
    """(inputs,) number of positions whose hidden state is used: the masks, or [CLS]."""
    positions: memoryview
    """(outputs,) these positions, within each input."""
    ids: memoryview
    """(tokens,)"""


def write_batch(encoder: int, parts: Sequence[Part], *, alone: bool = False) -> bytes:
    """Serialize a batch."""
    head = array("i", (encoder, alone, len(parts), sum(part.inputs for part in parts)))
    lengths, seconds, counts, positions, targets = (array("i") for _ in range(5))
    ids: list[array[int]] = []
    for query, start, stop in parts:
        encodings = query.encodings[start:stop]
        head.extend((stop - start, query.kind, query.top_k, len(query.targets)))
        lengths.extend(query.lengths[start:stop])
        seconds.extend([encoding.second for encoding in encodings])
        if query.kind is Kind.WORDS:
            counts.extend(map(len, query.masks[start:stop]))
            positions.extend(chain.from_iterable(query.masks[start:stop]))
            targets.extend(query.targets)
        else:
            counts.extend([1] * (stop - start))
            positions.extend([0] * (stop - start))
        ids += [encoding.ids for encoding in encodings]
    head.insert(_HEAD - 1, len(positions))
    return b"".join((head, lengths, seconds, counts, positions, targets, *ids))


def read_batch(frame: bytes | bytearray) -> Batch:
    """Read a batch that `write_batch` wrote."""
    data = memoryview(frame).cast("i")
    encoder, alone, count, inputs, outputs = data[:_HEAD]
    table = data[_HEAD : _HEAD + _PART * count].tolist()
    at = _HEAD + _PART * count

    def take(size: int) -> memoryview:
        nonlocal at
        at += size
        return data[at - size : at]

    lengths, seconds, counts, positions = take(inputs), take(inputs), take(inputs), take(outputs)
    parts = [
        PartOfBatch(table[i], Kind(table[i + 1]), table[i + 2], take(table[i + 3])) for i in range(0, len(table), _PART)
    ]
    return Batch(encoder, bool(alone), parts, lengths, seconds, counts, positions, data[at:])


def write_scores(seconds: float, scores: bytes) -> bytes:
    """Serialize the reply to a batch."""
    return _SECONDS.pack(seconds) + scores


def read_scores(parts: Sequence[Part], frame: bytes) -> tuple[float, list[list[ModelOutput | Exception]]]:
    """Read the seconds that a batch took, and the outputs of each part's inputs. An input whose scores are not finite
    gets an error."""
    data = memoryview(frame)[_SECONDS.size :]
    floats: memoryview[float] = data.cast("f")
    ints: memoryview[int] = data.cast("i")
    at = 0
    found: list[list[ModelOutput | Exception]] = []
    for query, start, stop in parts:
        if query.kind is Kind.WORDS:
            outputs, at = _words(query, start, stop, floats, ints, at)
            found.append([words if _is_finite(words.scores) else InferenceError(_NOT_FINITE) for words in outputs])
            continue
        first, at = at, at + query.labels * (stop - start)
        scores = list[float](floats[first:at])
        rows = [scores[i : i + query.labels] for i in range(0, len(scores), query.labels)]
        if _is_finite(scores):
            found.append(rows)  # type: ignore[arg-type]  # none of them is an error
        else:
            found.append([row if _is_finite(row) else InferenceError(_NOT_FINITE) for row in rows])
    return _SECONDS.unpack_from(frame)[0], found


def _words(
    query: Query, start: int, stop: int, floats: memoryview[float], ints: memoryview[int], at: int
) -> tuple[list[Words], int]:
    """The words for the inputs of a part whose scores begin at `at`; and the beginning of the next part's."""
    edges = list(accumulate((len(masks) * query.top_k for masks in query.masks[start:stop]), initial=0))
    middle, end = at + edges[-1], at + 2 * edges[-1]
    scores = list[float](floats[at:middle])
    ids = ints[middle:end].tolist()
    return [Words(scores[a:b], ids[a:b]) for a, b in pairwise(edges)], end


def _is_finite(scores: Sequence[float]) -> bool:
    """Whether all scores are finite: float32 values cannot overflow in a float64 sum."""
    return isfinite(sum(scores))
