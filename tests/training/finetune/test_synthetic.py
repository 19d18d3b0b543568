"""Synthetic texts: a bag of words labels copies of texts without some of their words."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from tests.training.conftest import MakeRecipe
from training.corpus.parts import Part
from training.corpus.reader import PreparedText
from training.corpus.shards import SYNTHETIC
from training.examples.labelled import LabelledStream, pass_size, trained_on
from training.finetune import synthetic
from training.finetune.synthetic import synthetic_texts
from training.pipeline import Pipeline
from training.runtime.distributed import DistContext
from training.sources.documents import Document


def is_in_order(some: Iterable[str], every: Iterable[str]) -> bool:
    rest = iter(every)
    return all(each in rest for each in some)


def test_synthetic_texts_lack_some_words_of_each_column_and_keep_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Document(("one two three four", "five, six! seven"), label="a", group="g", place="t.csv, line 2")
    chinese = Document(("这部电影很好看，我们都喜欢它，" * 9, ""))
    (pairs, texts) = synthetic_texts([pair, chinese, pair], ["pair", "text", "pair"], -1)
    assert [(each.number, each.use, each.read, len(each.documents)) for each in (pairs, texts)] == [
        (0, SYNTHETIC, "pair", 2 * synthetic.COPIES),
        (1, SYNTHETIC, "text", synthetic.COPIES),
    ]
    assert pairs.labels == [-1] * 2 * synthetic.COPIES
    found = [document.fields for document in pairs.documents]
    assert all(is_in_order(new, old) for each in found for new, old in zip(each, pair.fields, strict=True))
    assert len(set(found)) > synthetic.COPIES
    assert not any(document.group or document.place for document in pairs.documents)
    lengths = [len(document.fields[0]) / len(chinese.fields[0]) for document in texts.documents]
    assert 0.6 < np.mean(lengths) < 0.8
    monkeypatch.setattr(synthetic, "CHARACTERS", 3 * len(chinese.text) - 1)
    assert [len(each.documents) for each in synthetic_texts([chinese], ["text"], -1)] == [2]
    assert not list(synthetic_texts([chinese] * 3, ["text"] * 3, -1))


def test_bag_labels_synthetic_texts_and_each_pass_reads_another_copy(make_recipe: MakeRecipe) -> None:
    pipeline = Pipeline(make_recipe("finetune.bag_weight=0.5"))
    assert all(stage.ensure(DistContext()) for stage in (pipeline.labelled, pipeline.bag))
    alone = PreparedText(pipeline.labelled.folder)
    store = PreparedText(pipeline.labelled.folder, places=[pipeline.bag.folder])
    made, parts, labels = (store.column(name)[alone.documents :] for name in ("target_probs", "parts", "labels"))
    (copies,) = {int(shard.source) for shard in store.shards if shard.use == SYNTHETIC}
    trained, _ = pass_size(store, 48)
    assert len(made) == copies * trained
    assert (parts == Part.TRAIN).all()
    assert (labels == -1).all()
    rows = ((alone.column("parts") == Part.TRAIN) & (alone.column("labels") >= 0)).nonzero()[0]
    truth = alone.column("labels")[rows]
    assert (made.reshape(trained, copies, -1).argmax(2) == truth[:, None]).mean() > 0.8
    stream = LabelledStream(store, pipeline._finetune_tokenizer, 48, 0.5, 1, 256)
    assert stream.documents == 2 * trained
    window = store.window(range(len(store.shards)))
    read = [set(trained_on(window, pass_number=number)) - set(range(alone.documents)) for number in range(copies + 1)]
    assert len(set.union(*read)) == copies * trained
    assert read[0] == read[copies]
    assert pass_size(store, 48, with_unlabelled=True)[0] == 2 * trained
