"""Our own models behind the seam, with tiny random weights."""

from __future__ import annotations

import hashlib
import json
import os
import re
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
from app.inference.torch_backend import TorchBackend, _torch_errors
from app.inference.types import Answer, BackendConfig, Query, Task
from model import BertForPreTraining, PackedBatch, Tokenizer, load_checkpoint, save_checkpoint
from model.errors import CheckpointError
from model.inference import quantization
from model.inference.quantization import QuantizedLinear
from model.packing import round_up_to_bucket

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
    masks = tuple(i for i, token_id in enumerate(encoding.input_ids) if token_id == tokenizer.mask_id)
    return Query(Task.FILL_MASK, encoding, masks, top_k, targets)


def answered(backend: TorchBackend, lane: str, queries: list[Query]) -> list[Answer]:
    answers = backend.run(lane, queries)
    assert all(isinstance(answer, Answer) for answer in answers)
    return [answer for answer in answers if isinstance(answer, Answer)]


def test_batch_answers_as_single_queries_do(loaded: TorchBackend, tokenizer: Tokenizer) -> None:
    queries = [masked(tokenizer, text) for text in TEXTS]
    pair = Query(Task.NEXT_SENTENCE, tokenizer.encode("a film", "it was good"))
    queries.insert(2, pair)
    together = answered(loaded, "pretrained", queries)
    alone = [answered(loaded, "pretrained", [query])[0] for query in queries]
    for one, other in zip(together, alone, strict=True):
        assert one.token_ids == other.token_ids
        for row, expected in zip(one.scores, other.scores, strict=True):
            assert row == pytest.approx(expected, abs=1e-5)


def test_mixed_tasks_of_one_encoder_cost_one_forward_pass(
    loaded: TorchBackend, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = Mock(side_effect=loaded._encoders["pretrained"])
    monkeypatch.setitem(loaded._encoders, "pretrained", encoder)
    pair = Query(Task.NEXT_SENTENCE, tokenizer.encode("a", "b"))
    loaded.run("pretrained", [masked(tokenizer, TEXTS[1]), pair, masked(tokenizer, TEXTS[2])])
    assert encoder.call_count == 1


def test_scores_are_probabilities_of_the_whole_vocabulary(loaded: TorchBackend, tokenizer: Tokenizer) -> None:
    (answer,) = answered(loaded, "pretrained", [masked(tokenizer, TEXTS[1], top_k=100)])
    assert len(answer.scores[0]) == tokenizer.vocab_size
    assert sum(answer.scores[0]) == pytest.approx(1, abs=1e-5)
    assert answer.scores[0] == sorted(answer.scores[0], reverse=True)


def test_targets_keep_their_probability_in_the_whole_vocabulary(loaded: TorchBackend, tokenizer: Tokenizer) -> None:
    good, bad = tokenizer.token_id("good"), tokenizer.token_id("bad")
    whole, chosen = answered(
        loaded,
        "pretrained",
        [masked(tokenizer, TEXTS[1], top_k=100), masked(tokenizer, TEXTS[1], 2, (bad, good))],
    )
    probabilities = dict(zip(whole.token_ids[0], whole.scores[0], strict=True))
    assert set(chosen.token_ids[0]) == {good, bad}
    assert chosen.scores[0] == sorted(chosen.scores[0], reverse=True)
    for token_id, score in zip(chosen.token_ids[0], chosen.scores[0], strict=True):
        assert score == pytest.approx(probabilities[token_id], abs=1e-6)


def test_targets_of_one_batch_may_differ_in_number(loaded: TorchBackend, tokenizer: Tokenizer) -> None:
    ids = tuple(map(tokenizer.token_id, ("good", "bad", "film", "movie")))
    kinds = ((2, ids[:2]), (5, ()), (4, ids), (1, ids[1:]))
    queries = [masked(tokenizer, "[MASK] a [MASK]", top_k, targets) for top_k, targets in kinds]
    together = answered(loaded, "pretrained", queries)
    assert [[len(row) for row in answer.token_ids] for answer in together] == [[n, n] for n in (2, 5, 4, 1)]
    for query, answer in zip(queries, together, strict=True):
        (alone,) = answered(loaded, "pretrained", [query])
        assert answer.token_ids == alone.token_ids
        assert answer.scores == [pytest.approx(row, abs=1e-6) for row in alone.scores]


def test_mask_answers_reads_the_device_as_often_for_many_queries(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, to_list = [], torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda tensor: (reads.append(1), to_list(tensor))[1])
    query = masked(tokenizer, "[MASK]", 2, (6, 7))
    counts = []
    for number in (1, 8):
        torch_backend._mask_answers(torch.zeros(number, 10), [query] * number)
        counts.append(len(reads))
        reads.clear()
    assert counts[0] == counts[1]


def test_many_masks_are_projected_in_pieces(
    loaded: TorchBackend, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries = [masked(tokenizer, "[MASK] " * n) for n in (3, 5, 1, 4)]
    whole = answered(loaded, "pretrained", queries)
    monkeypatch.setattr(torch_backend, "POLICY", replace(torch_backend.POLICY, masks_per_projection=4))
    pieces = answered(loaded, "pretrained", queries)
    assert [answer.token_ids for answer in pieces] == [answer.token_ids for answer in whole]


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
    (answer,) = answered(loaded, "pretrained", [Query(Task.NEXT_SENTENCE, encoding)])
    assert answer.scores[0] == pytest.approx(expected, abs=1e-5)


def test_bfloat16_gives_nearly_the_same_scores(
    loaded: TorchBackend, pretrained: Path, sentiment: Path, tokenizer: Tokenizer
) -> None:
    half = TorchBackend(BackendConfig(pretrained, sentiment, device="cpu", dtype="bfloat16"))
    half.load()
    queries = [masked(tokenizer, text, 3) for text in TEXTS]
    for one, other in zip(answered(half, "pretrained", queries), answered(loaded, "pretrained", queries), strict=True):
        assert one.scores[0] == pytest.approx(other.scores[0], abs=0.03)


def test_int8_gives_nearly_the_same_scores_and_the_same_in_any_batch(
    loaded: TorchBackend, pretrained: Path, sentiment: Path, tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        backend = TorchBackend(BackendConfig(pretrained, sentiment, device="cpu", dtype="int8", threads=1))
        backend.load()
    assert re.search(r"a linear layer takes [\d.]+ ms in int8 and [\d.]+ ms in (bfloat16|float32)", caplog.text)
    assert backend.info.dtype == "int8"
    linears = [part for part in backend._networks["pretrained"].modules() if isinstance(part, QuantizedLinear)]
    assert len(linears) == 5  # four in the first layer; keys and values in the second and last
    queries = [masked(tokenizer, text, 3) for text in TEXTS]
    together = answered(backend, "pretrained", queries)
    for one, other in zip(together, answered(loaded, "pretrained", queries), strict=True):
        assert one.scores[0] == pytest.approx(other.scores[0], abs=0.03)
    for query, answer in zip(queries, together, strict=True):
        (alone,) = answered(backend, "pretrained", [query])
        assert alone.scores[0] == pytest.approx(answer.scores[0], abs=1e-6)  # the heads compute in float32


@pytest.mark.parametrize(("in_int8", "recommended"), [(1e-3, True), (2.9e-3, False)])
def test_auto_recommends_int8_where_it_is_faster(
    in_int8: float,
    recommended: bool,
    pretrained: Path,
    sentiment: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(torch_backend, "linear_seconds", lambda *_: (3e-3, in_int8))
    with caplog.at_level("INFO"):
        TorchBackend(BackendConfig(pretrained, sentiment, device="cpu", dtype="auto")).load()
    assert ("a linear layer takes 1.00 ms in int8 and 3.00 ms" in caplog.text) is recommended
    assert ("BERT_DTYPE=int8 is faster" in caplog.text) is recommended


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
    good, bad = backend.run("pretrained", [masked(tokenizer, "good [MASK]"), masked(tokenizer, "bad [MASK]")])
    assert isinstance(good, Answer)
    assert isinstance(bad, Exception)


def test_checkpoint_that_computes_no_numbers_is_refused(save_pretrained: Any, sentiment: Path) -> None:
    directory = save_pretrained()
    tensors = load_file(directory / "model.safetensors")
    tensors["bert.embeddings.LayerNorm.weight"].fill_(float("nan"))
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError):
        TorchBackend(BackendConfig(directory, sentiment, device="cpu")).load()


def test_masked_lm_without_next_sentence_head_serves_one_task(save_pretrained: Any, sentiment: Path) -> None:
    backend = TorchBackend(BackendConfig(save_pretrained(next_sentence=False), sentiment, device="cpu"))
    backend.load()
    assert backend.info.models["pretrained"].tasks == (Task.FILL_MASK,)


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


def test_missing_directory_is_named(tmp_path: Path, sentiment: Path) -> None:
    with pytest.raises(CheckpointError, match="nowhere"):
        TorchBackend(BackendConfig(tmp_path / "nowhere", sentiment)).load()


def test_labels_are_the_checkpoints_own(pretrained: Path, save_sentiment: Any) -> None:
    directory = save_sentiment(id2label={0: "one star", 1: "two stars", 2: "three stars"})
    assert len(json.loads((directory / "config.json").read_text())["id2label"]) == 3
    backend = TorchBackend(BackendConfig(pretrained, directory, device="cpu"))
    backend.load()
    assert backend.info.models["sentiment"].config.labels == ["one star", "two stars", "three stars"]


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
    (answer,) = answered(backend, "sentiment", [Query(Task.SENTIMENT, encoding)])
    network = load_checkpoint(directory).model
    with torch.no_grad():
        logits = network(PackedBatch.pack([encoding.input_ids], [encoding.token_type_ids], [(0,)]))
    assert answer.scores[0] == pytest.approx(function(logits)[0].tolist(), abs=1e-5)


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
    query = masked(tokenizer, TEXTS[1], top_k=100)
    (answer,) = answered(backend, "pretrained", [query])
    assert sorted(answer.token_ids[0]) == list(range(size))
    assert sum(answer.scores[0]) == pytest.approx(1, abs=1e-5)
    batch = PackedBatch.pack([query.encoding.input_ids], [query.encoding.token_type_ids], [query.masks])
    with torch.no_grad():
        expected = network.masked_lm(network(batch))[0, :size].softmax(-1)
    assert answer.scores[0] == pytest.approx(expected[answer.token_ids[0]].tolist(), abs=1e-5)


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
    (answer,) = answered(backend, "pretrained", [masked(tokenizer, TEXTS[1], top_k=size + 1)])
    assert sorted(answer.token_ids[0]) == [*range(size - 1), size, size + 1]
    assert sum(answer.scores[0]) == pytest.approx(1, abs=1e-5)


def test_absent_device_is_named(pretrained: Path, sentiment: Path) -> None:
    with pytest.raises(SettingsError, match="BERT_DEVICE=cuda:99"):
        TorchBackend(BackendConfig(pretrained, sentiment, device="cuda:99")).load()


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
    for one, other in zip(
        answered(backend, "pretrained", queries), answered(loaded, "pretrained", queries), strict=True
    ):
        assert one.scores[0] == pytest.approx(other.scores[0], abs=1e-3)


# Prints what oneDNN says (ONEDNN_VERBOSE) while single texts and small batches of new lengths are computed.
NEW_SIZES = """
import random, sys
from dataclasses import replace
from pathlib import Path
from app.inference import torch_backend as backends
from app.errors import BackendDiedError, OutOfMemoryError
from app.inference.torch_backend import TorchBackend
from app.inference.types import BackendConfig, Query, Task
from model import Encoding

backends.POLICY = replace(backends.POLICY, warm_up_seconds=float(sys.argv[3]))  # a busy machine may take its time
backend = TorchBackend(BackendConfig(Path(sys.argv[1]), Path(sys.argv[2]), device="cpu", threads=1))
backend.load()
print("loaded", flush=True)
rng = random.Random(0)
for size in [1] * 60 + [rng.randint(2, 30) for _ in range(40)]:
    lengths = [rng.randint(3, min(64, 500 // size)) for _ in range(size)]
    encodings = [Encoding([5] * n, [0] * n, [(0, 0)] * n, truncated=False) for n in lengths]
    for lane, task in (("sentiment", Task.SENTIMENT), ("pretrained", Task.NEXT_SENTENCE)):
        backend.run(lane, [Query(task, encoding) for encoding in encodings])
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


def test_filled_batch_answers_as_single_queries_do(loaded: TorchBackend, tokenizer: Tokenizer) -> None:
    queries = [masked(tokenizer, text) for text in TEXTS] * 5
    tokens = sum(len(query.encoding) for query in queries)
    assert tokens != round_up_to_bucket(tokens)
    singles = [answered(loaded, "pretrained", [query])[0] for query in queries]
    for single, together in zip(singles, answered(loaded, "pretrained", queries), strict=True):
        torch.testing.assert_close(torch.tensor(single.scores), torch.tensor(together.scores), atol=1e-5, rtol=0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_lone_text_takes_all_threads_if_it_is_worth_it_and_gets_the_same_answer(
    pretrained: Path, sentiment: Path, tokenizer: Tokenizer, dtype: str
) -> None:
    before = torch.get_num_threads()
    backend = TorchBackend(
        BackendConfig(pretrained, sentiment, device="cpu", dtype=dtype, threads=2), one_process_per_thread=True
    )
    query = Query(Task.SENTIMENT, tokenizer.encode("a good film and great"))
    try:
        backend.load()
        backend.warm_up_alone()
        assert backend.info.processes == 2
        answers = []
        for speed, alone, threads in ((1e9, True, 1), (1.0, False, 1), (1.0, True, 2)):
            backend.info.tokens_per_second = speed
            (answer,) = backend.run("sentiment", [query], alone=alone)
            assert torch.get_num_threads() == threads
            assert isinstance(answer, Answer)
            answers.append(answer.scores[0])
        assert answers[1] == answers[0]
        assert answers[2] == pytest.approx(answers[0], abs=1e-5)
    finally:
        torch.set_num_threads(before)
