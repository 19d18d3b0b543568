"""Unlabelled texts that a bag of words and a classifier label together."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from model import load_checkpoint
from tests.training.conftest import MakeRecipe
from tests.training.test_finetune import with_pretrained
from tests.training.texts import review
from training.classification import key_of_text, split_sources
from training.config import Recipe, SourceConfig, TeachConfig
from training.errors import RunError
from training.examples import Floats
from training.finetune import finetune, read_all
from training.naive_bayes import NaiveBayesBag
from training.sources import Document
from training.teaching import (
    EXCERPTS_OF_EACH,
    Blend,
    Folds,
    Group,
    Opinions,
    Teachers,
    best_blend,
    excerpts_of,
    judges,
    parts_of,
    some_excerpts,
    some_sentences,
    taught,
    teach,
)

GOOD = [number % 3 == 0 for number in range(30)]


def with_texts(recipe: Recipe, folder: Path) -> Recipe:
    """A run of another name, from the same pretrained network, with 30 texts whose labels only this test knows,
    and one of the test set."""
    rng = random.Random(7)
    rows = [json.dumps({"text": review(rng, good=good)}) for good in GOOD]
    rows.append((recipe.data / "test.jsonl").read_text().splitlines()[0])
    (folder / "unlabelled.jsonl").write_text("\n".join(rows))
    source = SourceConfig(path=str(folder / "unlabelled.jsonl"))
    started = recipe.finetune.model_copy(update={"pretrained": recipe.folder / "pretrained"})
    teach = TeachConfig(texts=(source,), classifier=recipe.folder / "sentiment")
    return recipe.model_copy(update={"name": "student", "teach": teach, "finetune": started})


@pytest.fixture(scope="module")
def labelled(make_recipe_in: MakeRecipe, tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    folder = tmp_path_factory.mktemp("taught")
    recipe = with_pretrained(make_recipe_in(folder, "finetune.epochs=1"))
    assert finetune(recipe)
    recipe = with_texts(recipe, folder)
    assert teach(recipe)
    return recipe


def given(recipe: Recipe) -> Floats:
    targets: Floats = np.load(recipe.folder / "taught" / "targets.npz")["targets"]
    return targets


def what_folds_say(
    folds: Folds, texts: Sequence[Document], origins: Sequence[tuple[int, ...]], labels: Sequence[str]
) -> Floats:
    """Log-probabilities by bags that have not read the texts; alike where there is none."""
    out = np.full((len(texts), len(labels)), -np.log(len(labels)), dtype=np.float32)
    for places, bag in folds.bags(origins):
        out[places] = bag.log_probabilities([texts[i] for i in places], labels)
    return out


def test_texts_get_the_labels_that_their_words_tell(labelled: Recipe) -> None:
    targets = given(labelled)
    assert targets.shape == (len(GOOD), 2)  # without that of the test set
    assert targets.sum(axis=1) == pytest.approx(np.ones(len(GOOD)), abs=1e-5)
    assert (targets.argmax(axis=1) == GOOD).mean() >= 0.8


def test_sentences_are_drawn_from_all_texts_and_none_that_judge() -> None:
    known = [f"This is the {ordinal} of them all." for ordinal in ("first", "SECÖND", "third", "fourth")]
    long = "I have seen it " + "again and " * 40 + "again."
    texts = [Document(text, (text,)) for text in (" ".join(known), "Too short. So is this.", known[0], long)]
    judging = {key_of_text(Document(known[1].lower(), (known[1].lower(),)))}
    drawn = some_sentences(texts, 3, judging, seed=0)
    assert [sentence.fields for sentence, _ in drawn] == [(sentence.text,) for sentence, _ in drawn]
    assert all(sentence.text in text.text for sentence, text in drawn)
    kept = [sentence.text for sentence, _ in drawn]
    assert set(kept) <= {known[0], known[2], known[3]}
    assert some_sentences(texts, 3, judging, seed=0) == drawn
    everything = some_sentences(texts, 1000, judging, seed=0)
    assert sorted(sentence.text for sentence, _ in everything) == sorted([known[0], *known[2:], known[0]])
    assert some_sentences(texts, 0, set(), seed=0) == []


def test_excerpts_are_sentences_in_a_row_of_one_text_or_of_two_with_the_same_teachers() -> None:
    bodies = [[f"Text {text} has sentence number {n} of ten." for n in range(10)] for text in range(8)]
    texts = [Document(" ".join(sentences), ("",)) for sentences in bodies]
    parts = [(number % 4 == 0, number % 2) for number in range(8)]
    drawn = some_excerpts(texts, parts, 400, set(), seed=0)
    assert [texts.index(of[0]) for _, of in drawn] == [number % 8 for number in range(400)]
    partners = set()
    for excerpt, of in drawn:
        assert excerpt.fields == (excerpt.text,)
        read = [(int(t), int(n)) for t, n in re.findall(r"Text (\d) has sentence number (\d) ", excerpt.text)]
        assert excerpt.text == " ".join(bodies[t][n] for t, n in read)
        breaks = [i for i in range(1, len(read)) if read[i] != (read[i - 1][0], read[i - 1][1] + 1)]
        assert [read[i][0] for i in (0, *breaks)] == [texts.index(text) for text in of]
        partners |= {(read[0][0], read[i][0]) for i in breaks}
    assert partners == {(a, b) for a in range(8) for b in range(8) if parts[a] == parts[b] and a != b}
    assert 100 < sum(len(of) == 2 for _, of in drawn) < 200  # some would have gone on with themselves
    words = [len(excerpt.text.split()) for excerpt, _ in drawn]
    assert (min(words), np.median(words) < 50, max(words) > 80) == (8, True, True)  # 8 a sentence, 80 a text
    assert some_excerpts(texts, parts, 400, set(), seed=0) == drawn


def test_excerpts_are_drawn_from_all_texts_and_have_nothing_that_judges() -> None:
    texts = [
        Document(text, ("",)) for text in ("It was good. I liked it.", "Bad.", "It was fine. I left early.")
    ]
    judging = {key_of_text(Document(text, ("",))) for text in ("i liked it.", "bad.")}
    drawn = some_excerpts(texts, [(False, 0)] * 3, 60, judging, seed=0)
    assert {text.text for _, of in drawn for text in of} == {texts[0].text, texts[2].text}
    assert not any("liked" in excerpt.text or "Bad" in excerpt.text for excerpt, _ in drawn)
    few = some_excerpts(texts, [(False, i) for i in range(3)], 2, set(), seed=0)
    assert [of for _, of in few] == [(texts[0],), (texts[1],)]
    assert some_excerpts(texts, [(False, 0)] * 3, 0, set(), seed=0) == []
    assert some_excerpts([], [], 5, set(), seed=0) == []


def test_teachers_of_excerpts_are_weighed_on_excerpts_of_one_text_with_its_label() -> None:
    bodies = [[f"Text {text} has sentence number {n} of ten." for n in range(10)] for text in range(4)]
    texts = [Document(" ".join(body), ("",), str(number % 2)) for number, body in enumerate(bodies)]
    drawn = excerpts_of(texts, seed=0)
    assert len(drawn) == 4 * EXCERPTS_OF_EACH
    for excerpt in drawn:
        (text,) = [text for text in texts if excerpt.text in text.text]
        assert excerpt.label == text.label


def test_parts_of_what_judges_are_not_taught() -> None:
    whole, part = Document("It is a Fine film .", ("",)), Document("a fine film", ("",), group="films")
    judging = {key_of_text(whole)}
    assert judges(Document("it is a fine film .", ("",)), judging)
    assert not judges(part, judging)
    assert judges(replace(part, whole="it is a fine film ."), judging)
    assert not judges(replace(part, whole="it is not a fine film ."), judging)


def test_sentences_are_labelled_after_the_texts(labelled: Recipe) -> None:
    assert labelled.teach is not None
    more = labelled.teach.model_copy(update={"sentences": 12})
    recipe = labelled.model_copy(update={"teach": more, "name": "student-of-sentences"})
    assert teach(recipe)
    assert len(GOOD) < len(given(recipe)) <= len(GOOD) + 12
    assert given(recipe)[: len(GOOD)] == pytest.approx(given(labelled), abs=1e-3)


def test_excerpts_are_labelled_last(labelled: Recipe) -> None:
    assert labelled.teach is not None
    more = labelled.teach.model_copy(update={"excerpts": {"unlabelled": 20}})
    recipe = labelled.model_copy(update={"teach": more, "name": "student-of-excerpts"})
    assert teach(recipe)
    assert len(given(recipe)) == len(GOOD) + 20
    assert given(recipe)[: len(GOOD)] == pytest.approx(given(labelled), abs=1e-3)
    about = json.loads((recipe.folder / "taught" / "about.json").read_text())
    assert {name: of["texts"] for name, of in about.items()} == {"all": len(GOOD), "excerpts like all": 20}


def test_what_the_teachers_know_is_written_down(labelled: Recipe) -> None:
    about = json.loads((labelled.folder / "taught" / "about.json").read_text())
    assert list(about) == ["all"]
    accuracy = about["all"]["dev_accuracy"]["reviews"]
    assert set(accuracy) == {"bag of words", "classifier", "together"}
    assert accuracy["together"] >= accuracy["classifier"]
    assert about["all"]["texts"] == len(GOOD)


def test_texts_that_are_like_one_source_have_teachers_of_their_own(labelled: Recipe) -> None:
    assert labelled.teach is not None
    update = {"like": {"unlabelled": "reviews"}, "sentences": 12}
    recipe = labelled.model_copy(
        update={"teach": labelled.teach.model_copy(update=update), "name": "student-of-reviews"}
    )
    assert teach(recipe)
    assert recipe.teach is not None
    about = json.loads((recipe.folder / "taught" / "about.json").read_text())
    assert list(about) == ["reviews", "all"]  # sentences are like no source
    assert about["reviews"]["texts"] == len(GOOD)
    assert 0 < about["all"]["texts"] <= 12
    assert len(given(recipe)) == about["reviews"]["texts"] + about["all"]["texts"]
    assert (given(recipe)[: len(GOOD)].argmax(axis=1) == GOOD).mean() >= 0.8
    changed = recipe.model_copy(update={"teach": recipe.teach.model_copy(update={"like": {}})})
    with pytest.raises(RunError, match="run teach first"):  # other teachers, other labels
        taught(changed, load_checkpoint(recipe.teach.classifier).tokenizer)


def test_a_text_with_a_label_is_judged_by_a_bag_that_has_not_read_it(labelled: Recipe, tmp_path: Path) -> None:
    """Each text has words that no other has: only who has read it can tell its label, and its sentences'."""
    labels = random.Random(3).choices((0, 1), k=120)
    texts = [f"Tell riddle{n} of answer{n}. Then again riddle{n} and answer{n}." for n in range(120)]
    rows = [json.dumps({"text": text, "label": label}) for text, label in zip(texts, labels, strict=True)]
    (tmp_path / "riddles.jsonl").write_text("\n".join(rows))
    riddles = SourceConfig(path=str(tmp_path / "riddles.jsonl"), label="label")
    assert labelled.teach is not None
    more = {"texts": (riddles,), "sentences": 1000, "excerpts": {"riddles": 300}}
    update = {
        "teach": labelled.teach.model_copy(update=more),
        "finetune": labelled.finetune.model_copy(update={"train": (*labelled.finetune.train, riddles)}),
        "name": "student-of-riddles",
    }
    recipe = labelled.model_copy(update=update)
    assert teach(recipe)
    (_, train, _) = next(part for part in split_sources(recipe) if part[0] == "riddles")
    truth = [int(document.label or 0) for document in train]
    whole, rest = np.split(given(recipe).argmax(axis=1), [len(train)])
    sentences, excerpts = np.split(rest, [2 * len(train)])
    assert len(train) > 80
    assert 0.3 < np.mean(whole == truth) < 0.7
    assert 0.3 < np.mean(sentences == np.repeat(truth, 2)) < 0.7
    assert len(excerpts) == 300
    assert 0.3 < np.mean(excerpts == np.resize(truth, 300)) < 0.7


def test_the_network_judges_excerpts_of_texts_that_have_a_label_but_not_the_texts(labelled: Recipe) -> None:
    assert labelled.teach is not None
    split, checkpoint = split_sources(labelled), load_checkpoint(labelled.teach.classifier)
    teachers = Teachers.learn(split, None, checkpoint, labelled.finetune)
    train = split[0][1]
    keys = [(key_of_text(text),) for text in train]
    known = {key for (key,) in keys}
    blend, alone = Blend(0.25, 1.0), Blend(1.0, 2.0)
    bag = what_folds_say(teachers.folds, train, keys, list(labelled.finetune.labels))
    whole, _ = teachers.label("whole", Group(train, keys, None), known, blend, alone)
    assert whole == pytest.approx(alone(bag, bag))
    parts, _ = teachers.label("parts", Group(train, keys, None, excerpts=True), known, blend, alone)
    assert parts == pytest.approx(blend(bag, teachers.network_says("parts", train)))
    assert np.abs(parts - whole).max() > 0.05


def test_what_belongs_to_the_same_group_is_judged_by_a_bag_that_has_read_none_of_it() -> None:
    """Each sentence is there in two spellings whose words differ, and nothing else tells its label."""
    rng = random.Random(3)
    pairs = [("".join(rng.choices("abcdefgh", k=6)), str(number % 2)) for number in range(60)]
    train = [
        Document(text, (text,), label, group=word)
        for word, label in pairs
        for text in (f"{word} is n't it", f"{word} isn't it now")
    ]
    folds = Folds(train, parts_of(train), NaiveBayesBag, strength=10.0)
    says = what_folds_say(folds, train, [(key_of_text(text),) for text in train], ["0", "1"])
    right = says.argmax(1) == np.array([int(str(document.label)) for document in train])
    assert right.mean() < 0.7


def test_a_text_that_is_in_two_groups_is_judged_by_a_bag_that_has_read_neither() -> None:
    rng = random.Random(3)
    words = [("".join(rng.choices("abcdefgh", k=6)), str(number % 2)) for number in range(60)]
    train = [Document(w, (w,), label, group=f"{w} {copy}") for w, label in words for copy in range(2)]
    folds = Folds(train, parts_of(train), NaiveBayesBag, strength=10.0)
    says = what_folds_say(folds, train, [(key_of_text(text),) for text in train], ["0", "1"])
    assert says.max() == pytest.approx(np.log(0.5), abs=0.3)


def test_what_is_of_two_texts_is_judged_by_a_bag_that_has_read_neither() -> None:
    """Also where the second is in another part than the first, and where the bags read only some texts."""
    rng = random.Random(3)
    words = [("".join(rng.choices("abcdefgh", k=6)), str(rng.randrange(2))) for _ in range(120)]
    every = [Document(word, (word,), label) for word, label in words]
    pairs = [(rng.choice(every), text) for text in every]
    both = [Document(f"{a.text} {b.text}", ("",)) for a, b in pairs]
    origins = [(key_of_text(a), key_of_text(b)) for a, b in pairs]
    for train in (every, every[::2]):
        folds = Folds(train, parts_of(every), NaiveBayesBag, strength=10.0)
        says = what_folds_say(folds, both, origins, ["0", "1"])
        assert says.max() == pytest.approx(np.log(0.5), abs=0.3)


def test_labels_by_teachers_of_another_split_are_refused(labelled: Recipe) -> None:
    assert labelled.finetune.pretrained is not None
    start = load_checkpoint(labelled.finetune.pretrained)
    other = labelled.finetune.model_copy(update={"dev_fraction": 0.4})
    with pytest.raises(RunError, match="by its teachers; run teach first"):
        read_all(labelled.model_copy(update={"finetune": other}), start)


def test_labels_outlive_the_network_that_gave_them(labelled: Recipe, caplog: pytest.LogCaptureFixture) -> None:
    assert labelled.teach is not None
    gone = labelled.teach.model_copy(update={"classifier": labelled.run / "gone"})
    tokenizer = load_checkpoint(labelled.teach.classifier).tokenizer
    assert len(taught(labelled.model_copy(update={"teach": gone}), tokenizer)) == len(GOOD)
    assert "gone is gone; the labels that it gave are kept" in caplog.text


def test_phrases_of_a_labelled_source_are_phrases_when_taught(labelled: Recipe) -> None:
    values = labelled.model_dump(exclude={"loaded", "overrides"})
    (source,) = values["finetune"]["train"]
    source["phrases"] = True
    values["teach"]["texts"] = [source]
    Recipe(**values)
    values["teach"]["texts"] = [source | {"phrases": False}]
    with pytest.raises(ValidationError, match=r"has phrases = true in finetune\.train; give it here as well"):
        Recipe(**values)


def test_parts_too_small_to_learn_from_have_no_opinion() -> None:
    texts = [Document(word, (word,), str(number % 2)) for number, word in enumerate(("one", "two", "three"))]
    folds = Folds(texts, parts_of(texts), NaiveBayesBag, strength=1.0)
    says = np.exp(what_folds_say(folds, texts, [(key_of_text(text),) for text in texts], ["0", "1"]))
    assert says == pytest.approx(np.full((3, 2), 0.5))


def test_a_source_of_one_label_alone_teaches_nothing(labelled: Recipe, tmp_path: Path) -> None:
    rows = [json.dumps({"text": f"a good film {number}", "label": 1}) for number in range(40)]
    (tmp_path / "praise.jsonl").write_text("\n".join(rows))
    praise = SourceConfig(path=str(tmp_path / "praise.jsonl"), label="label")
    assert labelled.teach is not None
    update = {
        "teach": labelled.teach.model_copy(update={"like": {"unlabelled": "praise"}}),
        "finetune": labelled.finetune.model_copy(update={"train": (*labelled.finetune.train, praise)}),
        "name": "student-of-praise",
    }
    with pytest.raises(RunError, match="all texts of 'praise' have the same label"):
        teach(labelled.model_copy(update=update))


def test_fine_tuning_reads_them_as_probabilities_and_finishes(labelled: Recipe) -> None:
    assert labelled.finetune.pretrained is not None
    start = load_checkpoint(labelled.finetune.pretrained)
    (own, added), (dev,) = read_all(labelled, start)
    assert {target.max() for target in own.targets} == {1.0}
    assert any(0.5 <= target.max() < 1 for target in added.targets)
    assert len(added) == len(GOOD)
    assert dev.name == "reviews"
    assert finetune(labelled)


def test_texts_are_labelled_once_for_the_same_teachers(labelled: Recipe) -> None:
    file = labelled.folder / "taught" / "targets.npz"
    before = file.stat().st_mtime_ns
    assert teach(labelled)
    assert file.stat().st_mtime_ns == before


def test_other_texts_have_to_be_labelled_first(labelled: Recipe, tmp_path: Path) -> None:
    assert labelled.teach is not None
    (tmp_path / "more.jsonl").write_text(json.dumps({"text": "a good film"}) + "\n")
    texts = (*labelled.teach.texts, SourceConfig(path=str(tmp_path / "more.jsonl")))
    changed = labelled.teach.model_copy(update={"texts": texts})
    with pytest.raises(RunError, match="run teach first"):
        taught(
            labelled.model_copy(update={"teach": changed}),
            load_checkpoint(labelled.teach.classifier).tokenizer,
        )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"teach": None}, r"has no \[teach\]"),
        ({"classifier": "tiny/nowhere"}, "is missing; first run finetune elsewhere"),
        ({"classifier": "student"}, "would be overwritten; give this run another name"),
        ({"classifier": "tiny/pretrained"}, r"is no classifier of \['NEGATIVE', 'POSITIVE'\]"),
        ({"dev_fraction": 0.0}, r"some in dev \(dev_fraction\)"),
        ({"train": ()}, "needs texts of finetune.train"),
    ],
)
def test_what_is_missing_is_said(labelled: Recipe, changes: dict[str, object], message: str) -> None:
    recipe = labelled
    assert recipe.teach is not None
    if "teach" in changes:
        recipe = recipe.model_copy(update=changes)
    if "classifier" in changes:
        folder = recipe.run / str(changes["classifier"])
        recipe = recipe.model_copy(update={"teach": recipe.teach.model_copy(update={"classifier": folder})})
    if "dev_fraction" in changes or "train" in changes:
        recipe = recipe.model_copy(update={"finetune": recipe.finetune.model_copy(update=changes)})
    with pytest.raises(RunError, match=message):
        teach(recipe)


def test_labels_in_another_order_have_to_be_given_anew(labelled: Recipe) -> None:
    labels = dict(reversed(labelled.finetune.labels.items()))
    other = labelled.model_copy(update={"finetune": labelled.finetune.model_copy(update={"labels": labels})})
    assert labelled.teach is not None
    with pytest.raises(RunError, match="is no classifier of"):
        taught(other, load_checkpoint(labelled.teach.classifier).tokenizer)


def test_another_number_of_text_columns_is_refused(labelled: Recipe) -> None:
    values = labelled.model_dump(exclude={"loaded", "overrides"})
    values["teach"]["texts"][0]["text"] = ("title", "text")
    with pytest.raises(ValidationError, match="same number of text columns"):
        Recipe(**values)


def with_words(recipe: Recipe, name: str, **changes: object) -> Recipe:
    assert recipe.teach is not None
    update = {"like": {"unlabelled": "reviews"}, "sentences": 12, "word_loss": 0.5, **changes}
    return recipe.model_copy(update={"teach": recipe.teach.model_copy(update=update), "name": name})


def test_words_are_learned_beside_the_labels(labelled: Recipe) -> None:
    recipe = with_words(labelled, "student-of-words")
    assert teach(recipe)
    assert recipe.teach is not None
    tokenizer = load_checkpoint(recipe.teach.classifier).tokenizer
    texts = taught(recipe, tokenizer)
    sums = [np.nansum(evidence.astype(np.float32)) for evidence in texts.evidence[: len(GOOD)]]
    assert np.mean([(total > 0) == good for total, good in zip(sums, GOOD, strict=True)]) >= 0.8
    assert all(
        np.isnan(evidence).all() for evidence in texts.evidence[len(GOOD) :]
    )  # sentences: like no source
    long = {"epochs": 20, "learning_rate": 5e-3}
    longer = recipe.model_copy(update={"finetune": recipe.finetune.model_copy(update=long)})
    assert finetune(longer)
    lines = map(json.loads, next((longer.folder / "finetune").rglob("log.jsonl")).read_text().splitlines())
    losses = [line["word_loss"] for line in lines if line["event"] == "train"]
    assert losses[0] > 0.6
    other = with_words(longer, "student-of-words", word_loss=0.25)
    with pytest.raises(RunError, match=r"teach\.word_loss"):
        finetune(other)
    assert np.mean(losses[-10:]) < 0.4


def test_what_is_said_of_words_is_there_or_missed(labelled: Recipe) -> None:
    without = with_words(labelled, "student-without-words", word_loss=0)
    assert teach(without)
    assert not (without.folder / "taught" / "words.npz").exists()
    recipe = with_words(labelled, "student-without-words")
    assert recipe.teach is not None
    tokenizer = load_checkpoint(recipe.teach.classifier).tokenizer
    with pytest.raises(RunError, match=r"what is said of words \(teach.word_loss\); run teach first"):
        taught(recipe, tokenizer)
    assert teach(recipe)
    assert taught(recipe, tokenizer).evidence
    assert not taught(without, tokenizer).evidence


def test_words_of_a_text_with_a_label_are_judged_by_a_bag_that_has_not_read_it() -> None:
    """Each text has a word that no other has, of which no other bag can say anything."""
    train = [Document(f"riddle{n} is it", (f"riddle{n} is it",), str(n % 2)) for n in range(60)] * 2
    keys = [(key_of_text(text),) for text in train]
    folds = Folds(train, parts_of(train), NaiveBayesBag, strength=10.0)
    for places, bag in folds.bags(keys):
        assert isinstance(bag, NaiveBayesBag)
        assert max(abs(said[0]).item() for said in bag.evidence([train[i] for i in places])) == 0
    (said,) = NaiveBayesBag.fit(train, []).evidence(train[:1])
    assert abs(said[0]).item() > 0


def test_words_need_a_source_that_texts_are_like(labelled: Recipe) -> None:
    assert labelled.teach is not None
    with pytest.raises(ValidationError, match="say in `like` which source"):
        TeachConfig(texts=labelled.teach.texts, classifier=labelled.teach.classifier, word_loss=0.5)


def opinions(bag: tuple[float, float], network: tuple[float, float]) -> Opinions:
    """2,000 texts of two labels; each teacher is right so often, and so sure of every answer."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 2000)

    def says(accuracy: float, sureness: float) -> Floats:
        answer = np.where(rng.random(2000) < accuracy, labels, 1 - labels)
        likely = np.where(np.arange(2) == answer[:, None], sureness, 1 - sureness)
        return np.log(likely).astype(np.float32)

    return Opinions("texts", says(*bag), says(*network), labels)


def test_a_teacher_that_is_sure_without_knowing_weighs_less() -> None:
    knows, boasts = (0.9, 0.9), (0.55, 0.9)
    assert best_blend([opinions(knows, boasts)]).share > 0.8
    assert best_blend([opinions(boasts, knows)]).share < 0.2


def test_a_single_text_does_not_decide_for_thousands() -> None:
    many = opinions((0.95, 0.9), (0.6, 0.9))
    wrong, right = np.log([[1e-9, 1.0]]), np.log([[1.0, 1e-9]])
    one = Opinions("one", wrong.astype(np.float32), right.astype(np.float32), np.array([0]))
    assert best_blend([many, one]).share > 0.5


def test_two_independent_teachers_are_surer_together() -> None:
    both = opinions((0.8, 0.8), (0.8, 0.8))
    blend = best_blend([both])
    assert blend.share == pytest.approx(0.5, abs=0.1)
    assert blend.temperature == pytest.approx(0.5, abs=0.1)  # the sum of their log-odds, not the mean
    assert both.loss(blend) < min(both.loss(Blend(0.0, 1.0)), both.loss(Blend(1.0, 1.0)))
