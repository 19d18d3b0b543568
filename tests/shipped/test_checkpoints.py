"""`transformers` opens the directories that ship, reads texts as the service does, and gets the same logits."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
import torch
from transformers import (
    AutoModelForPreTraining,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    logging,
    pipeline,
)

from model import BertForPreTraining, PackedBatch, load_checkpoint

WEIGHTS = Path(__file__).parents[2] / "model" / "weights"
TEXTS = (
    "I expected nothing, and it was wonderful.",
    "Naïve cafés & co. — don't ask; 3.14 ≠ π, ﬁne?",
    "The Berlin Wall fell in November 1989. " * 8,
)

logging.disable_progress_bar()


@pytest.mark.parametrize("text", TEXTS)
def test_masked_words_and_next_sentence(text: str) -> None:
    ours = load_checkpoint(WEIGHTS / "pretrained", dtype=torch.float32)
    assert isinstance(ours.model, BertForPreTraining)
    assert ours.model.next_sentence is not None
    theirs = AutoModelForPreTraining.from_pretrained(WEIGHTS / "pretrained", dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(WEIGHTS / "pretrained")
    masked = f"{text} It is {tokenizer.mask_token}."
    encoded = tokenizer(masked, "So they say.", return_tensors="pt")
    encoding = ours.tokenizer.encode(masked, "So they say.")
    assert encoding.input_ids == encoded["input_ids"][0].tolist()
    with torch.no_grad():
        wanted = theirs(**encoded)
        hidden = ours.model.eval()(PackedBatch.pack([encoding.input_ids], [encoding.token_type_ids]))
        torch.testing.assert_close(ours.model.masked_lm(hidden), wanted.prediction_logits[0], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(
            ours.model.next_sentence(hidden[:1]), wanted.seq_relationship_logits, rtol=1e-4, atol=1e-4
        )


@pytest.mark.parametrize("text", TEXTS)
def test_sentiment(text: str) -> None:
    ours = load_checkpoint(WEIGHTS / "sentiment", dtype=torch.float32)
    theirs = AutoModelForSequenceClassification.from_pretrained(WEIGHTS / "sentiment", dtype=torch.float32).eval()
    encoded = AutoTokenizer.from_pretrained(WEIGHTS / "sentiment")(text, return_tensors="pt")
    encoding = ours.tokenizer.encode(text)
    assert encoding.input_ids == encoded["input_ids"][0].tolist()
    with torch.no_grad():
        logits = ours.model.eval()(PackedBatch.pack([encoding.input_ids], outputs=[[0]]))
        torch.testing.assert_close(logits, theirs(**encoded).logits, rtol=1e-4, atol=1e-4)
    assert theirs.config.id2label == dict(enumerate(ours.config.labels))


def test_what_the_service_answers_is_the_softmax_of_these_logits(shipped: httpx.Client) -> None:
    theirs = pipeline("text-classification", str(WEIGHTS / "sentiment"), dtype=torch.float32, device="cpu")
    served = shipped.post("/sentiment", json={"inputs": list(TEXTS)}).json()["results"]
    for text, result in zip(TEXTS, served, strict=True):
        wanted = {entry["label"]: entry["score"] for entry in theirs(text, top_k=None)}
        given = {entry["label"]: entry["score"] for entry in result["predictions"]}
        assert given == pytest.approx(wanted, abs=0.01)  # bf16, where the processor has it
