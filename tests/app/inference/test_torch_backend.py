"""Our own models behind the seam, with tiny random weights."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import load_file, save_file

from app.errors import BackendDiedError, OutOfMemoryError, SettingsError
from app.inference import torch_backend
from app.inference.contract import BackendConfig, Head, Part, Query, Words
from app.inference.frames import read_batch, write_batch
from app.inference.torch_backend import TorchBackend, _torch_errors
from model import BertForPreTraining, PackedBatch, Tokenizer, load_checkpoint, save_checkpoint
from model.errors import CheckpointError
from model.inference import quantization
from model.inference.quantization import QuantizedLinear
from model.packing import round_up_to_bucket
from tests.app.backends import computed

TEXTS = [
    "[MASK]",
    "the [MASK] was good",
    "i loved the movie and hated the [MASK] [MASK] .",
    "a b [MASK] c d e f g",
]


@pytest.fixture(scope="module")
def loaded(pretrained: Path, sentiment: Path) -> TorchBackend:
    backend = TorchBackend(BackendConfig(pretrained, sentiment, device="cpu", dtype="float32", threads=1))
    backend.load()
    return backend


def masked(tokenizer: Tokenizer, text: str, top_k: int = 5, targets: tuple[int, ...] = ()) -> Query:
    encoding = tokenizer.encode(text)
    masks = tuple(i for i, token_id in enumerate(encoding.ids) if token_id == tokenizer.mask_id)
    return Query([encoding], masks=[masks], top_k=top_k, targets=targets)


def pair_of(tokenizer: Tokenizer, first: str, second: str) -> Query:
    return Query([tokenizer.encode(first, second)], labels=2)


def answered(backend: TorchBackend, encoder: str, queries: list[Query]) -> list[list[float] | Words]:
    """The answers to queries of one input each, in one batch."""
    answers = computed(backend, encoder, [Part(query, 0, 1) for query in queries]).outputs
    assert not any(isinstance(answer, Exception) for (answer,) in answers)
    return [answer for (answer,) in answers]  # type: ignore[misc]


def words(backend: TorchBackend, queries: list[Query]) -> list[Words]:
    """The words for the masks of queries of one input each, in one batch."""
    return [answer for answer in answered(backend, "pretrained", queries) if isinstance(answer, Words)]


def test_batch_answers_as_single_queries_do(loaded: TorchBackend, tokenizer: Tokenizer) -> None:
    queries = [masked(tokenizer, text) for text in TEXTS] * 5
    queries.insert(2, pair_of(tokenizer, "a film", "it was good"))
    tokens = sum(sum(query.lengths) for query in queries)
    assert tokens != round_up_to_bucket(tokens)  # so the batch is filled up
    together = answered(loaded, "pretrained", queries)
    alone = [answered(loaded, "pretrained", [query])[0] for query in queries]
    for one, other in zip(together, alone, strict=True):
        if isinstance(one, Words) and isinstance(other, Words):
            assert one.token_ids == other.token_ids
            assert one.scores == pytest.approx(other.scores, abs=1e-5)
        else:
            assert one == pytest.approx(other, abs=1e-5)


def test_parts_of_a_batch_get_their_own_answers(loaded: TorchBackend, tokenizer: Tokenizer) -> None:
    """Inputs of unequal lengths, of which the batch holds only some."""
    texts = ["a film", "the movie was good and bad", "film"]
    query = Query([tokenizer.encode(text, "so") for text in texts], labels=2)
    mask = masked(tokenizer, TEXTS[1])
    parts = [Part(query, 2, 3), Part(mask, 0, 1), Part(query, 0, 2)]
    first, second, third = computed(loaded, "pretrained", parts).outputs
    alone = [answered(loaded, "pretrained", [pair_of(tokenizer, text, "so")])[0] for text in texts]
    assert [*third, *first] == [pytest.approx(answer, abs=1e-5) for answer in alone]
    assert isinstance(second[0], Words)


def test_scores_of_a_head_that_a_query_does_not_expect_are_an_error(loaded: TorchBackend, tokenizer: Tokenizer) -> None:
    pair = pair_of(tokenizer, "a", "b")
    with pytest.raises(ValueError, match="the head gave 4 numbers for this batch, not 3"):
        computed(loaded, "pretrained", [Part(Query(pair.encodings, 1), 0, 1), Part(pair, 0, 1)])


def test_mixed_tasks_of_one_encoder_cost_one_forward_pass(
    loaded: TorchBackend, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = Mock(side_effect=loaded._forwards["pretrained"])
    monkeypatch.setitem(loaded._forwards, "pretrained", encoder)
    pair = pair_of(tokenizer, "a", "b")
    answered(loaded, "pretrained", [masked(tokenizer, TEXTS[1]), pair, masked(tokenizer, TEXTS[2])])
    assert encoder.call_count == 1


def test_scores_are_probabilities_of_the_whole_vocabulary(loaded: TorchBackend, tokenizer: Tokenizer) -> None:
    (answer,) = words(loaded, [masked(tokenizer, TEXTS[1], top_k=tokenizer.vocab_size)])
    assert sum(answer.scores) == pytest.approx(1, abs=1e-5)
    assert answer.scores == sorted(answer.scores, reverse=True)


def test_targets_keep_their_probability_in_the_whole_vocabulary(loaded: TorchBackend, tokenizer: Tokenizer) -> None:
    good, bad = tokenizer.token_id("good"), tokenizer.token_id("bad")
    whole, chosen = words(
        loaded, [masked(tokenizer, TEXTS[1], tokenizer.vocab_size), masked(tokenizer, TEXTS[1], 2, (bad, good))]
    )
    probabilities = dict(zip(whole.token_ids, whole.scores, strict=True))
    assert set(chosen.token_ids) == {good, bad}
    assert chosen.scores == sorted(chosen.scores, reverse=True)
    for token_id, score in zip(chosen.token_ids, chosen.scores, strict=True):
        assert score == pytest.approx(probabilities[token_id], abs=1e-6)


def test_targets_of_one_batch_may_differ_in_number(loaded: TorchBackend, tokenizer: Tokenizer) -> None:
    ids = tuple(map(tokenizer.token_id, ("good", "bad", "film", "movie")))
    kinds = ((2, ids[:2]), (5, ()), (4, ids), (1, ids[1:]))
    queries = [masked(tokenizer, "[MASK] a [MASK]", top_k, targets) for top_k, targets in kinds]
    together = words(loaded, queries)
    assert [len(answer.token_ids) for answer in together] == [4, 10, 8, 2]
    for query, answer in zip(queries, together, strict=True):
        (alone,) = words(loaded, [query])
        assert answer.token_ids == alone.token_ids
        assert answer.scores == pytest.approx(alone.scores, abs=1e-6)


def test_scores_of_a_batch_are_read_from_the_device_once(
    loaded: TorchBackend, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = Mock(side_effect=torch.Tensor.numpy)
    monkeypatch.setattr(torch.Tensor, "numpy", lambda tensor: reads(tensor))
    for name in ("tolist", "item", "__bool__"):
        monkeypatch.setattr(torch.Tensor, name, Mock(side_effect=AssertionError))
    queries = [masked(tokenizer, "[MASK]", 2, (6, 7)), masked(tokenizer, "a [MASK]"), pair_of(tokenizer, "a", "b")]
    batch = read_batch(bytearray(write_batch(0, [Part(query, 0, 1) for query in queries])))
    hidden = torch.zeros(len(batch.positions), loaded.info.models["pretrained"].config.hidden_size)
    monkeypatch.setitem(loaded._forwards, "pretrained", lambda _: hidden)
    loaded.launch(batch)()
    assert reads.call_count == 1


def test_many_masks_are_projected_in_pieces(
    loaded: TorchBackend, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = (tokenizer.token_id("good"),)
    queries = [masked(tokenizer, "[MASK] " * n, 1, good if n > 3 else ()) for n in (3, 5, 1, 4)]
    whole = words(loaded, queries)
    monkeypatch.setattr(torch_backend, "POLICY", replace(torch_backend.POLICY, masks_per_projection=4))
    pieces = words(loaded, queries)
    assert [answer.token_ids for answer in pieces] == [answer.token_ids for answer in whole]
    assert [answer.scores for answer in pieces] == [pytest.approx(answer.scores, abs=1e-6) for answer in whole]


def test_next_sentence_follows_the_models_own_logits(
    loaded: TorchBackend, pretrained: Path, tokenizer: Tokenizer
) -> None:
    network = load_checkpoint(pretrained).model
    assert isinstance(network, BertForPreTraining)
    assert network.next_sentence is not None
    encoding = tokenizer.encode("a film", "it was good")
    with torch.inference_mode():
        batch = PackedBatch.pack([encoding.input_ids], [encoding.token_type_ids], [[0]])
        expected = network.next_sentence(network(batch)).softmax(-1)[0].tolist()
    (answer,) = answered(loaded, "pretrained", [pair_of(tokenizer, "a film", "it was good")])
    assert answer == pytest.approx(expected, abs=1e-5)


def test_bfloat16_gives_nearly_the_same_scores(
    loaded: TorchBackend, pretrained: Path, sentiment: Path, tokenizer: Tokenizer
) -> None:
    half = TorchBackend(BackendConfig(pretrained, sentiment, device="cpu", dtype="bfloat16"))
    half.load()
    queries = [masked(tokenizer, text, 3) for text in TEXTS]
    for one, other in zip(words(half, queries), words(loaded, queries), strict=True):
        assert one.scores == pytest.approx(other.scores, abs=0.03)


def test_int8_gives_nearly_the_same_scores_and_the_same_in_any_batch(
    loaded: TorchBackend, pretrained: Path, sentiment: Path, tokenizer: Tokenizer
) -> None:
    backend = TorchBackend(BackendConfig(pretrained, sentiment, device="cpu", dtype="int8", threads=1))
    backend.load()
    assert backend.info.dtype == "int8"
    linears = [part for part in backend._networks["pretrained"].modules() if isinstance(part, QuantizedLinear)]
    assert len(linears) == 5  # four in the first layer; keys and values in the second and last
    queries = [masked(tokenizer, text, 3) for text in TEXTS]
    together = words(backend, queries)
    for one, other in zip(together, words(loaded, queries), strict=True):
        assert one.scores == pytest.approx(other.scores, abs=0.03)
    for query, answer in zip(queries, together, strict=True):
        (alone,) = words(backend, [query])
        assert alone.scores == pytest.approx(answer.scores, abs=1e-6)  # the heads compute in float32


@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_int8_on_cuda_is_refused(device: str) -> None:
    with pytest.raises(SettingsError, match=r"BERT_DTYPE=int8 is for CPUs; set BERT_DTYPE=auto"):
        torch_backend._resolve_dtype("int8", device)


def test_int8_that_would_not_be_exact_is_refused(
    pretrained: Path, sentiment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def zeros(x: torch.Tensor, zero_point: int, weight: torch.Tensor, scales: torch.Tensor, _: object) -> torch.Tensor:
        return x.new_zeros(len(x), len(scales))

    monkeypatch.setattr(quantization, "_multiply", zeros)
    quantization.weight_limit.cache_clear()
    with pytest.raises(SettingsError, match=r"BERT_DTYPE=int8: .* no exact int8 product .*; set BERT_DTYPE=auto"):
        TorchBackend(BackendConfig(pretrained, sentiment, device="cpu", dtype="int8")).load()


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_answer_that_is_no_number_is_an_error_of_its_input_only(
    pretrained: Path, sentiment: Path, tokenizer: Tokenizer, dtype: str
) -> None:
    backend = TorchBackend(BackendConfig(pretrained, sentiment, device="cpu", dtype=dtype))
    backend.load()
    network = backend._networks["pretrained"]
    with torch.no_grad():
        network.encoder.embeddings.word_embeddings.weight[tokenizer.token_id("bad")] = float("nan")
    queries = [masked(tokenizer, "good [MASK]"), masked(tokenizer, "bad [MASK]")]
    ((good,), bad) = computed(backend, "pretrained", [Part(query, 0, 1) for query in queries]).outputs
    assert isinstance(good, Words)
    assert isinstance(bad, Exception)


def test_checkpoint_that_computes_no_numbers_is_refused(save_pretrained: Any, sentiment: Path) -> None:
    directory = save_pretrained()
    tensors = load_file(directory / "model.safetensors")
    tensors["bert.embeddings.LayerNorm.weight"].fill_(float("nan"))
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError):
        TorchBackend(BackendConfig(directory, sentiment, device="cpu")).load()


def test_masked_lm_without_next_sentence_head_has_one_head(save_pretrained: Any, sentiment: Path) -> None:
    backend = TorchBackend(BackendConfig(save_pretrained(next_sentence=False), sentiment, device="cpu"))
    backend.load()
    assert backend.info.models["pretrained"].heads == (Head.WORDS,)


def test_weights_in_several_files_have_one_hash(tmp_path: Path, pretrained: Path, sentiment: Path) -> None:
    directory = Path(shutil.copytree(sentiment, tmp_path / "shards"))
    tensors = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    files = [directory / f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    shards = {name: files[i % 2].name for i, name in enumerate(tensors)}
    for file in files:
        save_file({name: tensor for name, tensor in tensors.items() if shards[name] == file.name}, file)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    backend = TorchBackend(BackendConfig(pretrained, directory, device="cpu"))
    backend.load()
    expected = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
    assert backend.info.models["sentiment"].sha256 == expected


def test_swapped_directories_are_named(pretrained: Path, sentiment: Path) -> None:
    with pytest.raises(CheckpointError, match=r"tiny-pretrained: has no classification head"):
        TorchBackend(BackendConfig(pretrained, pretrained, device="cpu")).load()
    with pytest.raises(CheckpointError, match=r"tiny-sentiment: is a sequence classifier"):
        TorchBackend(BackendConfig(sentiment, sentiment, device="cpu")).load()


@pytest.mark.parametrize(
    ("labels", "problem_type", "function"),
    [
        (3, "multi_label_classification", torch.sigmoid),
        (1, None, torch.sigmoid),
        (1, "regression", lambda logits: logits),
        (2, "regression", lambda logits: logits),
        (3, None, lambda logits: logits.softmax(-1)),
    ],
)
def test_label_scores_follow_the_problem_type(
    pretrained: Path, save_sentiment: Any, tokenizer: Tokenizer, labels: int, problem_type: str | None, function: Any
) -> None:
    names = {i: f"LABEL_{i}" for i in range(labels)}
    directory = save_sentiment(f"{problem_type}-{labels}", id2label=names, problem_type=problem_type)
    backend = TorchBackend(BackendConfig(pretrained, directory, device="cpu", dtype="float32", threads=1))
    backend.load()
    encoding = tokenizer.encode("the film was good")
    (answer,) = answered(backend, "sentiment", [Query([encoding], labels)])
    network = load_checkpoint(directory).model
    with torch.no_grad():
        logits = network(PackedBatch.pack([encoding.input_ids], [encoding.token_type_ids], [(0,)]))
    assert answer == pytest.approx(function(logits)[0].tolist(), abs=1e-5)


def test_output_rows_beyond_the_vocabulary_take_no_probability(
    save_pretrained: Any, sentiment: Path, tokenizer: Tokenizer
) -> None:
    size = tokenizer.vocab_size
    padded = save_pretrained("padded", vocab_size=size + 20)
    network = load_checkpoint(padded).model
    assert isinstance(network, BertForPreTraining)
    with torch.no_grad():
        network.masked_lm.decoder.bias[size:] = 9.0
    save_checkpoint(padded, network, tokenizer)
    backend = TorchBackend(BackendConfig(padded, sentiment, device="cpu", dtype="float32", threads=1))
    backend.load()
    query = masked(tokenizer, TEXTS[1], top_k=size)
    (answer,) = words(backend, [query])
    assert sorted(answer.token_ids) == list(range(size))
    assert sum(answer.scores) == pytest.approx(1, abs=1e-5)
    batch = PackedBatch.pack([query.encodings[0].input_ids], outputs=query.masks)
    with torch.no_grad():
        expected = network.masked_lm(network(batch))[0, :size].softmax(-1)
    assert answer.scores == pytest.approx(expected[answer.token_ids].tolist(), abs=1e-5)


def test_output_row_of_an_id_without_token_takes_no_probability(
    save_pretrained: Any, sentiment: Path, tokenizer: Tokenizer
) -> None:
    """A repeated line of vocab.txt leaves an id without a token."""
    size = tokenizer.vocab_size
    directory = save_pretrained("gap", vocab_size=size + 2)
    (directory / "tokenizer.json").unlink()
    lines = [*tokenizer.vocab, tokenizer.vocab[-1], "last"]
    (directory / "vocab.txt").write_text("\n".join(lines), encoding="utf-8")
    backend = TorchBackend(BackendConfig(directory, sentiment, device="cpu", dtype="float32", threads=1))
    backend.load()
    (answer,) = words(backend, [masked(tokenizer, TEXTS[1], top_k=size + 1)])
    assert sorted(answer.token_ids) == [*range(size - 1), size, size + 1]
    assert sum(answer.scores) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(("built_for", "warnings"), [("12.8", 1), (None, 0)])
def test_device_auto_warns_if_torch_is_built_for_gpus_and_finds_none(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, built_for: str | None, warnings: int
) -> None:
    def init() -> None:
        raise RuntimeError("Found no NVIDIA driver on your system.")

    monkeypatch.setattr("torch.version.cuda", built_for)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.cuda.init", init)
    assert torch_backend._resolve_device("auto") == "cpu"
    assert sum("the CPU is used: Found no NVIDIA driver" in message for message in caplog.messages) == warnings
    with pytest.raises(SettingsError, match="BERT_DEVICE=cuda: no usable CUDA device: Found no NVIDIA driver"):
        torch_backend._resolve_device("cuda")


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (torch.OutOfMemoryError("x"), OutOfMemoryError),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried ..."), OutOfMemoryError),
        (torch.AcceleratorError("CUDA error: out of memory"), OutOfMemoryError),
        (MemoryError(), OutOfMemoryError),
        (torch.AcceleratorError("device-side assert"), BackendDiedError),
        (RuntimeError("shape"), RuntimeError),
    ],
)
def test_errors_of_torch_get_their_meaning(raised: Exception, expected: type[Exception]) -> None:
    with pytest.raises(expected), _torch_errors():
        raise raised


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_cuda_answers_as_the_cpu_does(
    loaded: TorchBackend, pretrained: Path, sentiment: Path, tokenizer: Tokenizer
) -> None:
    backend = TorchBackend(BackendConfig(pretrained, sentiment, device="cuda", dtype="float32"))
    backend.load()
    queries = [masked(tokenizer, text) for text in TEXTS]
    for one, other in zip(words(backend, queries), words(loaded, queries), strict=True):
        assert one.scores == pytest.approx(other.scores, abs=1e-3)


# Prints what oneDNN says (ONEDNN_VERBOSE) while single texts and small batches of new lengths are computed.
NEW_SIZES = """
import random, sys
from array import array
from dataclasses import replace
from pathlib import Path
from app.inference import torch_backend as backends
from app.errors import BackendDiedError, OutOfMemoryError
from app.inference.torch_backend import TorchBackend
from app.inference.frames import read_batch, write_batch
from app.inference.contract import BackendConfig, Part, Query
from model import Encoding

backends.POLICY = replace(backends.POLICY, warm_up_seconds=float(sys.argv[3]))  # a busy machine may take its time
backend = TorchBackend(BackendConfig(Path(sys.argv[1]), Path(sys.argv[2]), device="cpu", threads=1))
backend.load()
print("loaded", flush=True)
rng = random.Random(0)
for size in [1] * 60 + [rng.randint(2, 30) for _ in range(40)]:
    lengths = [rng.randint(3, min(64, 500 // size)) for _ in range(size)]
    query = Query([Encoding(array("i", [5] * n), n, [], truncated=False) for n in lengths])
    for encoder in (0, 1):
        backend.launch(read_batch(bytearray(write_batch(encoder, [Part(query, 0, size)]))))()
print("answered", flush=True)
"""


def test_once_loaded_no_small_batch_waits_for_a_kernel_to_be_made(pretrained: Path, sentiment: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", NEW_SIZES, str(pretrained), str(sentiment), "60"],
        cwd=Path(__file__).parents[3],
        env=os.environ | {"ONEDNN_VERBOSE": "profile_create"},
        capture_output=True,
        text=True,
        check=True,
    )
    before, _, after = done.stdout.partition("loaded\n")
    if "create:cache_miss" not in before:
        pytest.skip("no oneDNN here")
    assert after.endswith("answered\n")
    assert [line for line in after.splitlines() if "create:cache_miss" in line] == []


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_lone_text_takes_all_threads_if_it_is_worth_it_and_gets_the_same_answer(
    pretrained: Path, sentiment: Path, tokenizer: Tokenizer, dtype: str
) -> None:
    before = torch.get_num_threads()
    backend = TorchBackend(
        BackendConfig(pretrained, sentiment, device="cpu", dtype=dtype, threads=2), one_process_per_thread=True
    )
    part = Part(Query([tokenizer.encode("a good film and great")], labels=2), 0, 1)
    try:
        backend.load()
        backend.warm_up_alone()
        assert backend.info.processes == 2
        answers = []
        for speed, alone, threads in ((1e9, True, 1), (1.0, False, 1), (1.0, True, 2)):
            backend.info.tokens_per_second = speed
            scores = backend.launch(read_batch(bytearray(write_batch(1, [part], alone=alone))))()
            assert torch.get_num_threads() == threads
            answers.append(memoryview(scores).cast("f").tolist())
        assert answers[1] == answers[0]
        assert answers[2] == pytest.approx(answers[0], abs=1e-5)
    finally:
        torch.set_num_threads(before)
