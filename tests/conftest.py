"""Shared by all tests: small random checkpoints with a vocabulary that has meaning to a reader."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

import pytest

# Before torch is imported, also by processes that tests start: threads that wait for each other would spin, on cores
# that other tests need.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch

from model import BertConfig, BertForPreTraining, BertForSequenceClassification, Tokenizer, save_checkpoint
from model.tokenizer import SPECIAL_TOKENS

WORDS = [
    *("the", "a", "film", "movie", "was", "is", "good", "bad", "great", "boring", "and", "i", "loved", "hated"),
    *("it", ".", ",", "!", "?", "walk", "##ing", "##s"),
]
LETTERS = [chr(code) for code in range(ord("a"), ord("z") + 1)]
VOCAB = [*SPECIAL_TOKENS, *dict.fromkeys([*WORDS, *LETTERS, *(f"##{letter}" for letter in LETTERS)])]

with suppress(ImportError):  # not in the environment of `make test-cuda-dry`
    from hypothesis import settings

    settings.register_profile("repeatable", derandomize=True, deadline=None)
    settings.load_profile("repeatable")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a shell's background job; tests send Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # as under nohup; processes that tests start get the default
    signal.signal(signal.SIGHUP, lambda *_: None)

try:
    distribution("bert-service-client")
except PackageNotFoundError:  # a checkout that is not installed: processes that tests start need it as well
    client = str(Path(__file__).parents[1] / "client")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [client, os.environ.get("PYTHONPATH")]))


@pytest.fixture(scope="session", autouse=True)
def one_root_certificate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """httpx loads 140 root certificates for each client, in 40 ms, and no test needs them: it finds one."""
    if find_spec("certifi") is None:  # as above
        yield
        return
    certifi = import_module("certifi")
    first, end, _ = certifi.contents().partition("-----END CERTIFICATE-----\n")
    file = tmp_path_factory.mktemp("certificates") / "root.pem"
    file.write_text(first + end)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(certifi, "where", lambda: str(file))
        yield


MakeCheckpoint = Callable[..., Path]


def tiny_config(**changes: object) -> BertConfig:
    """Two layers of 32 over 64 positions."""
    shape: dict[str, object] = {
        "vocab_size": len(VOCAB),
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "max_position_embeddings": 64,
        "initializer_range": 0.3,  # wide enough for scores that differ
    }
    return BertConfig(**(shape | changes))  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    """A tokenizer of 76 tokens: a few whole words, and letters for the rest."""
    return Tokenizer.from_vocab(VOCAB)


@pytest.fixture(scope="session")
def save_pretrained(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> MakeCheckpoint:
    """Writes a masked-LM checkpoint, with a next-sentence head or without."""

    def save(name: str = "tiny-pretrained", *, next_sentence: bool = True, **changes: object) -> Path:
        network = BertForPreTraining(tiny_config(**changes), next_sentence=next_sentence)
        network.initialise(torch.Generator().manual_seed(0))
        directory = tmp_path_factory.mktemp("checkpoints") / name
        save_checkpoint(directory, network, tokenizer)
        return directory

    return save


@pytest.fixture(scope="session")
def save_sentiment(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> MakeCheckpoint:
    """Writes a classifier of two labels."""

    def save(name: str = "tiny-sentiment", **changes: object) -> Path:
        labels = {0: "NEGATIVE", 1: "POSITIVE"}
        network = BertForSequenceClassification(tiny_config(**({"id2label": labels} | changes)))
        network.initialise(torch.Generator().manual_seed(1))
        directory = tmp_path_factory.mktemp("checkpoints") / name
        save_checkpoint(directory, network, tokenizer)
        return directory

    return save


@pytest.fixture(scope="session")
def pretrained(save_pretrained: MakeCheckpoint) -> Path:
    """Directory of a tiny random pre-trained checkpoint."""
    return save_pretrained()


@pytest.fixture(scope="session")
def sentiment(save_sentiment: MakeCheckpoint) -> Path:
    """Directory of a tiny random classifier."""
    return save_sentiment()
