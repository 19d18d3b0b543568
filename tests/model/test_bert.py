from __future__ import annotations

import random
import warnings
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.activations import ACT2FN

from model import BertConfig, BertForPreTraining, BertForSequenceClassification, PackedBatch
from model.bert import Activation, BertEmbeddings, BertEncoder
from model.config import ACTIVATIONS
from model.packing import OutputPositions, SequenceBounds
from tests.model.reference import randomise

CONFIG = BertConfig(
    vocab_size=50,
    hidden_size=32,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=48,
    max_position_embeddings=200,
)


def network(config: BertConfig = CONFIG, seed: int = 0) -> BertForPreTraining:
    model = BertForPreTraining(config)
    randomise(model, seed)
    return model.eval()


def some_sequences(count: int, seed: int) -> list[list[int]]:
    """Lengths in several buckets, single tokens included."""
    rng = random.Random(seed)
    lengths = [rng.choice([1, 2, 3, 9, 40, 41, 199, 200]) for _ in range(count)]
    return [[rng.randrange(CONFIG.vocab_size) for _ in range(n)] for n in lengths]


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())  # a tied weight counts once


# --- sizes, as published ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "with_pooler", "millions"),
    [
        ("tiny", 4_385_920, 4.4),  # Turc et al. 2019, table 1, and the released models
        ("mini", 11_170_560, 11.2),
        ("small", 28_763_648, 28.8),
        ("medium", 41_373_184, 41.4),
        ("base", 109_482_240, 109.5),
        ("large", 335_141_888, 335.1),
    ],
)
def test_encoder_and_pooler_have_the_published_size(name: str, with_pooler: int, millions: float) -> None:
    with torch.device("meta"):
        model = BertForSequenceClassification(BertConfig.preset(name))
    assert count(model) - count(model.classifier) == with_pooler
    assert round(with_pooler / 1e6, 1) == millions


@pytest.mark.parametrize(("name", "parameters"), [("base", 110_106_428), ("large", 336_226_108)])
def test_pretraining_model_has_the_published_size(name: str, parameters: int) -> None:
    """110M and 340M in Devlin et al. 2018, section 3."""
    with torch.device("meta"):
        assert count(BertForPreTraining(BertConfig.preset(name))) == parameters


# --- a sequence gets the same result in any batch ------------------------------------------------------------


@torch.no_grad()
def one_by_one(model: BertForPreTraining, sequences: list[list[int]]) -> list[Tensor]:
    return [model.masked_lm(model(PackedBatch.pack([ids]))) for ids in sequences]


@pytest.mark.parametrize("seed", range(4))
def test_encoder_gives_a_sequence_the_same_logits_in_any_batch(seed: int) -> None:
    model, sequences = network(), some_sequences(12, seed)
    expected = one_by_one(model, sequences)
    for order in (range(12), sorted(range(12), key=lambda i: len(sequences[i])), [7, 3, 11], [5] * 3):
        with torch.no_grad():
            logits = model.masked_lm(model(PackedBatch.pack([sequences[i] for i in order])))
        torch.testing.assert_close(logits, torch.cat([expected[i] for i in order]), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("seed", range(4))
def test_encoder_in_bfloat16_predicts_the_same_words_in_any_batch(seed: int) -> None:
    model, sequences = network(seed=seed), some_sequences(12, seed)
    best, second = torch.cat(one_by_one(model, sequences)).topk(2).values.unbind(-1)
    clear = best - second > 0.05  # closer than that, the two are one number in bfloat16
    assert clear.float().mean() > 0.8
    model.to(torch.bfloat16)
    expected = torch.cat(one_by_one(model, sequences)).argmax(-1)
    with torch.no_grad():
        logits = model.masked_lm(model(PackedBatch.pack(sequences)))
    assert logits.dtype == torch.bfloat16
    assert torch.equal(logits.argmax(-1)[clear], expected[clear])


@pytest.mark.parametrize("seed", range(4))
def test_encoder_outputs_equal_rows_of_all_positions(seed: int) -> None:
    model, sequences, rng = network(), some_sequences(9, seed), random.Random(seed)
    outputs = [sorted(rng.sample(range(len(ids)), rng.randint(0, min(len(ids), 4)))) for ids in sequences]
    outputs[0] = [0]
    batch = PackedBatch.pack(sequences)
    with torch.no_grad():
        everything, some = model(batch), model(batch.with_outputs(outputs))
    chosen = [start + i for start, row in zip(batch.cu_seqlens.tolist(), outputs, strict=False) for i in row]
    torch.testing.assert_close(some, everything[chosen], atol=1e-5, rtol=1e-5)


def test_encoder_without_outputs_gives_no_rows() -> None:
    with torch.no_grad():
        assert network()(PackedBatch.pack([[1, 2], [3]], outputs=[[], []])).shape == (0, 32)


def test_encoder_gradients_through_outputs_equal_those_through_all_positions() -> None:
    sequences, outputs = [[1, 2, 3], [4], [5, 6, 7, 8, 9]], [[0, 2], [], [3]]
    batch = PackedBatch.pack(sequences)
    gradients = []
    for rows in (lambda model: model(batch.with_outputs(outputs)), lambda model: model(batch)[[0, 2, 7]]):
        model = network().double()
        rows(model).square().sum().backward()
        gradients.append([p.grad for p in model.encoder.parameters()])
    for mine, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, expected)


def test_encoder_does_not_attend_across_sequences() -> None:
    model = network()
    with torch.no_grad():
        before = model(PackedBatch.pack([[1, 2, 3], [4, 5]]))[:3]
        after = model(PackedBatch.pack([[1, 2, 3], [9, 9, 9, 9]]))[:3]
    torch.testing.assert_close(before, after, atol=1e-6, rtol=1e-6)


def test_encoder_uses_words_positions_token_types_and_context() -> None:
    """Word, position, segment and every other word of the sequence."""
    model = network()
    variants = [([7, 8, 9], [0, 0, 0]), ([7, 8, 6], [0, 0, 0]), ([8, 7, 9], [0, 0, 0]), ([7, 8, 9], [0, 0, 1])]
    with torch.no_grad():
        firsts = [model(PackedBatch.pack([ids], [types]))[0] for ids, types in variants]
    for i, first in enumerate(firsts):
        assert all((first - other).abs().max() > 1e-3 for other in firsts[:i])


# --- batches of constant shape -----------------------------------------------------------------------------


def constant_shape(*, on_host: bool) -> PackedBatch:
    """64 tokens in 3 of at most 5 sequences, 8 output positions."""
    ids = torch.arange(64) % CONFIG.vocab_size
    positions = torch.cat([torch.arange(n) for n in (40, 9, 15)])
    index = torch.tensor([0, 3, 39, 40, 49, 50, 51, 63])
    tokens = SequenceBounds.of((40, 9, 15), capacity=5, max_seqlen=48)
    outputs = SequenceBounds.of((3, 1, 4), capacity=5, max_seqlen=8)
    if not on_host:
        tokens, outputs = replace(tokens, lengths=None), replace(outputs, lengths=None)
    return PackedBatch(ids, positions, (ids > 25).long(), tokens, OutputPositions(index, outputs))


@pytest.mark.parametrize("on_host", [True, False], ids=["lengths on the host", "no lengths"])
@pytest.mark.parametrize("learn", [True, False], ids=["training", "inference"])
def test_encoder_takes_a_batch_of_constant_shape(on_host: bool, learn: bool) -> None:
    encoder, batch = network().encoder, constant_shape(on_host=on_host)
    ids, types = batch.input_ids.split((40, 9, 15)), batch.token_type_ids.split((40, 9, 15))
    plain = PackedBatch.pack([x.tolist() for x in ids], [x.tolist() for x in types])
    assert batch.outputs is not None
    with torch.set_grad_enabled(learn):
        out = encoder(batch)
        torch.testing.assert_close(out, encoder(plain)[batch.outputs.index], atol=1e-5, rtol=1e-5)
    assert out.requires_grad is learn


def test_encoder_head_and_loss_are_one_graph() -> None:
    """With the bounds of sequences on the device only, as in training on a GPU."""
    model = network(CONFIG.replace(hidden_dropout_prob=0.0)).train()  # dropout for a CPU is not traced
    batch = constant_shape(on_host=False)

    def loss(batch: PackedBatch) -> Tensor:
        logits = model.masked_lm(model(batch))
        return F.cross_entropy(logits.float(), torch.zeros(8, dtype=torch.int64))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, on import of its compiler
        compiled = torch.compile(loss, backend="eager", fullgraph=True)
        found = compiled(batch)
    torch.testing.assert_close(found, loss(batch))


# --- parts --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation_is_that_of_transformers(name: str) -> None:
    x = torch.linspace(-4, 4, 101)
    torch.testing.assert_close(Activation(CONFIG.replace(hidden_act=name))(x), ACT2FN[name](x), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("token_types", [1, 2, 3])
def test_token_type_embeddings_are_rows_of_their_table(token_types: int) -> None:
    embeddings = BertEmbeddings(CONFIG.replace(type_vocab_size=token_types))
    ids = torch.arange(50) % token_types
    rows, expected = embeddings._token_types(ids), embeddings.token_type_embeddings(ids)
    assert torch.equal(rows, expected)
    weights = torch.randn(rows.shape, generator=torch.Generator().manual_seed(0))
    table = embeddings.token_type_embeddings.weight
    ours, theirs = (torch.autograd.grad((x * weights).sum(), table)[0] for x in (rows, expected))
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_encoder_normalises_after_residuals() -> None:
    """Post-LN: a layer's output is normalised, for inputs of any size."""
    encoder = BertEncoder(CONFIG).eval()
    with torch.no_grad():
        hidden = encoder(PackedBatch.pack([[1, 2, 3, 4]]))
    torch.testing.assert_close(hidden.mean(-1), torch.zeros(4), atol=1e-5, rtol=0)
    torch.testing.assert_close(hidden.var(-1, unbiased=False), torch.ones(4), atol=1e-3, rtol=0)


def test_encoder_dropout_is_active_in_training_only() -> None:
    model, batch = network(CONFIG.replace(hidden_dropout_prob=0.5)), PackedBatch.pack([[1, 2, 3]])
    assert torch.equal(model(batch), model(batch))
    model.train()
    assert not torch.equal(model(batch), model(batch))


def test_encoder_ignores_attention_dropout() -> None:
    config = CONFIG.replace(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.5)
    model, batch = network(config).train(), PackedBatch.pack([[1, 2, 3]])
    assert torch.equal(model(batch), model(batch))


def test_initialise_draws_published_weights_from_the_generator() -> None:
    first, second, other = (BertForPreTraining(CONFIG) for _ in range(3))
    for model, seed in ((first, 1), (second, 1), (other, 2)):
        model.initialise(torch.Generator().manual_seed(seed))
    state = first.state_dict()
    assert all(torch.equal(tensor, second.state_dict()[name]) for name, tensor in state.items())
    assert not torch.equal(first.masked_lm.transform.weight, other.masked_lm.transform.weight)
    for name, tensor in state.items():
        if "norm" in name:
            assert torch.equal(tensor, torch.full_like(tensor, float(name.endswith("weight"))))
        elif name.endswith("bias"):
            assert not tensor.any()
        else:
            assert 0.015 < tensor.std() < 0.025


def test_encoder_under_autocast_trains_float32_weights() -> None:
    model = network().train()
    with torch.autocast("cpu", torch.bfloat16):
        loss = model.masked_lm(model(PackedBatch.pack([[1, 2, 3], [4, 5]]))).float().logsumexp(-1).mean()
    loss.backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert gradients
    assert all(grad.dtype == torch.float32 and grad.isfinite().all() for grad in gradients)


def test_encoder_with_a_half_residual_is_nearly_the_same_under_autocast_and_the_same_without() -> None:
    model = network().eval()
    batch = PackedBatch.pack([[1, 2, 3], [4, 5]])
    whole = model(batch)
    with torch.autocast("cpu", torch.bfloat16):
        before = model(batch)
        model.encoder.half_residual = True
        after = model(batch)
    assert (before.dtype, after.dtype) == (torch.float32, torch.bfloat16)
    torch.testing.assert_close(after.float(), before, rtol=0.05, atol=0.05)
    assert torch.equal(model(batch), whole)
