"""Fill-mask: the most probable words for each `[MASK]` of a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from pydantic import Field, StrictInt
from pydantic_core import to_json
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from app.errors import InvalidInputError
from app.inference.contract import Head, ModelOutput, Query, ServedModel, Words
from app.tasks.schemas import MAX_TOP_K, Input, OneOrMany, Parameters, Reading, Strict, Target, described, with_examples
from app.tasks.task import PREDICTION_BYTES, Operation, Question, Task, reading
from model.errors import NoMaskError, TextError
from model.tokenizer import Encoding

DEFAULT_TOP_K = 5
MAX_TARGETS = 100


class FillMaskParameters(Parameters):
    """Parameters of fill-mask."""

    top_k: StrictInt | None = Field(
        None, ge=1, le=MAX_TOP_K, description="Predictions per mask. Default: 5, or all of `targets` if there are any."
    )
    targets: list[Target] | None = Field(
        None,
        min_length=1,
        max_length=MAX_TARGETS,
        fail_fast=True,
        description="Score only these words. Each must be a single token of the vocabulary.",
    )


class FillMaskRequest(Strict):
    """Texts with one or more `[MASK]`."""

    model_config = with_examples(
        {"inputs": "The movie was [MASK] and I loved it."},
        {"inputs": ["A [MASK] film.", "I [MASK] it."], "parameters": {"top_k": 2, "truncate": True}},
        {"inputs": "The movie was [MASK].", "parameters": {"targets": ["good", "bad"]}},
    )

    inputs: OneOrMany[str] = Field(
        title="FillMaskInputs", description="One text or many; each holds at least one `[MASK]`."
    )
    parameters: FillMaskParameters | None = None


@described
class TokenPrediction(TypedDict):
    """A token that may stand in place of a mask."""

    score: float
    """Its probability over the whole vocabulary."""
    token: int
    """Its index in the vocabulary."""
    token_str: str
    """Spelling in the vocabulary. A piece that joins the word before it begins with `##`."""
    sequence: str
    """The text with this one mask replaced."""


@described
class Mask(TypedDict):
    """A mask of a text, and its predictions, most likely first."""

    position: int
    """Index of its token; [CLS] has 0."""
    predictions: list[TokenPrediction]


@described
class MaskResult(Reading):
    """The result of a text."""

    masks: list[Mask]
    """One entry per `[MASK]`, in order."""


@described
class FillMaskResponse(TypedDict):
    """One result per input, in the order of the inputs."""

    model: str
    """The checkpoint that computed the results."""
    results: list[MaskResult]


@dataclass(slots=True)
class FillMaskQuestion(Question):
    """The words for the masks of texts.

    Raises:
        InvalidInputError: a target is not a single token of the vocabulary.
    """

    served: ServedModel
    inputs: Sequence[Input]
    top_k: int | None = None
    targets: Sequence[str] = ()
    truncate: bool = False
    target_ids: tuple[int, ...] = field(init=False)
    words_per_mask: int = field(init=False)
    split_advice = "lower top_k, or send fewer masks or fewer or shorter texts"

    def __post_init__(self) -> None:
        self.target_ids = _target_ids(self.served, self.targets)
        most = len(self.target_ids) or self.served.tokenizer.vocab_size
        self.words_per_mask = min(self.top_k or len(self.target_ids) or DEFAULT_TOP_K, most)

    def encode(self, given: Input) -> Encoding:
        """Tokenize a text. Raises NoMaskError if it has no mask, or if truncation removed one."""
        encoding = self.served.tokenizer.encode(
            str(given),
            max_length=self.served.config.max_position_embeddings,
            truncate=self.truncate,
            truncation=self.served.config.truncation,
        )
        if encoding.masks_lost:
            raise NoMaskError("a [MASK] lies beyond the model's limit and was lost by truncation; shorten the text")
        if self.served.tokenizer.mask_id not in encoding.ids:
            raise NoMaskError("the text holds no [MASK]: write it in capitals and brackets")
        return encoding

    def query(self, encodings: list[Encoding]) -> Query:
        """Ask for the words at the masks."""
        mask_id = self.served.tokenizer.mask_id
        masks = [tuple(i for i, token in enumerate(one.ids) if token == mask_id) for one in encodings]
        return Query(encodings, masks=masks, top_k=self.words_per_mask, targets=self.target_ids)

    def results(self, query: Query, outputs: Sequence[ModelOutput]) -> list[MaskResult]:
        """The predictions for each mask of each text."""
        results: list[MaskResult] = []
        inputs = zip(map(str, self.inputs), query.encodings, query.masks, outputs, strict=True)
        for text, encoding, positions, words in inputs:
            assert isinstance(words, Words)
            found = zip(words.scores, words.token_ids, strict=True)
            masks: list[Mask] = []
            for position in positions:
                own = islice(found, self.words_per_mask)
                predictions = [self._prediction(text, encoding.spans[position], *pair) for pair in own]
                masks.append({"position": position, "predictions": predictions})
            results.append({"masks": masks, **reading(encoding, self.served.tokenizer.unk_id)})
        return results

    def response_bytes(self, query: Query) -> int:
        """Estimate the bytes of the response, which repeats the text for each prediction."""
        return self.words_per_mask * sum(
            (len(to_json(text)) + PREDICTION_BYTES) * len(positions)
            for text, positions in zip(self.inputs, query.masks, strict=True)
        )

    def _prediction(self, text: str, span: tuple[int, int], score: float, token_id: int) -> TokenPrediction:
        """The prediction of a token for the mask at `span`."""
        token = self.served.tokenizer.token(token_id)
        return {"score": score, "token": token_id, "token_str": token, "sequence": fill(text, span, token)}


def _target_ids(served: ServedModel, targets: Sequence[str]) -> tuple[int, ...]:
    """Token ids in the caller's order, each once: "Good" and "good" may be the same token.

    Raises:
        InvalidInputError: a target is not a single token of the vocabulary.
    """
    ids: dict[int, None] = {}
    for i, word in enumerate(targets):
        try:
            ids[served.tokenizer.target_id(word)] = None
        except TextError as error:
            raise InvalidInputError([(error, ("parameters", "targets", i))]) from error
    return tuple(ids)


def fill(text: str, span: tuple[int, int], token: str) -> str:
    """A text with the mask at `span` replaced by a token. A `##` piece joins the word before it. White space in the
    span, which some checkpoints count as a part of the mask, stays.

    >>> fill("I was walk [MASK] home", (11, 17), "##ing")
    'I was walking home'
    """
    mask = text[slice(*span)].strip()
    start = text.index(mask, span[0])
    before, after = text[:start], text[start + len(mask) :]
    if token.startswith("##") and len(token) > 2:
        return before.rstrip() + token[2:] + after
    return before + token + after


_PREDICTION = {"score": 0.21, "token": 1523, "token_str": "good", "sequence": "The movie was good and I loved it."}
_RESULT: dict[str, Any] = {
    "masks": [{"position": 4, "predictions": [_PREDICTION]}],
    "tokens": 11,
    "truncated": False,
}

FILL_MASK = Task(
    name="fill-mask",
    description="The most probable words for each `[MASK]`, with their probability over the whole vocabulary.",
    operations=[Operation("/fill-mask", "Fill in masked words", {"model": "pretrained", "results": [_RESULT]})],
    request=FillMaskRequest,
    response=FillMaskResponse,
    head=Head.WORDS,
    inputs="text",
    hugging_face="fill-mask",
    question=FillMaskQuestion,
)
