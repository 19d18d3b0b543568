"""Sample predictions: what the network puts in place of each mask of a few held-out examples."""

from __future__ import annotations

from model.heads import BertForPreTraining
from model.tokenizer import Tokenizer
from training.evaluate.metrics import EVALUATION_SEED, evaluating
from training.examples.batches import collate_pretraining
from training.examples.pairs import Example, ExampleMaker, Text, Vocabulary
from training.recipe import ExamplesConfig

SAMPLES = 4


def sample_predictions(
    model: BertForPreTraining, text: Text, tokenizer: Tokenizer, config: ExamplesConfig
) -> str:
    """A paragraph of Markdown per example: the network's guess for each masked word in bold, then the truth."""
    maker = ExampleMaker(text, Vocabulary.of(tokenizer), config, EVALUATION_SEED)
    examples = [maker(0, i) for i in range(min(SAMPLES, len(maker.starts(0))))]
    return "\n\n".join(_filled(model, example, tokenizer) for example in examples)


def _filled(model: BertForPreTraining, example: Example, tokenizer: Tokenizer) -> str:
    batch = collate_pretraining([example]).to(next(model.parameters()).device)
    with evaluating(model):
        hidden = model(batch.packed).index_select(0, batch.masked_rows)
        guesses = model.masked_lm(hidden).argmax(1).tolist()
    words = [tokenizer.token(i) for i in example.input_ids.tolist()]
    for position, guess, truth in zip(example.masked_positions, guesses, example.masked_ids, strict=True):
        words[position] = f"**{tokenizer.token(guess)}** ({tokenizer.token(int(truth))})"
    return " ".join(words).replace(" ##", "")
