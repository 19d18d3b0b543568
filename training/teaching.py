"""Texts without labels, labelled for the classifier that is to come: what a bag of words and an earlier
classifier say of them together. The two err on different texts, so together they know more than either.

A text that has a label may be among them: then a bag that has not read it says how sure the label is."""

from __future__ import annotations

import functools
import json
import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from model.checkpoint import Checkpoint, load_checkpoint
from model.heads import BertForSequenceClassification
from model.tokenizer import Tokenizer
from training import word_evidence
from training.bag_of_words import BagOfWords, num_words
from training.baselines import Split, key_of
from training.classification import (
    LabelledTexts,
    as_served,
    encode,
    evenly,
    judges,
    key_of_text,
    label_numbers,
    respelled,
    split_sources,
    voices,
)
from training.config import FinetuneConfig, Recipe, source_name
from training.errors import RunError
from training.evaluation import predict_classification
from training.examples import Floats, Ints
from training.hardware import choose_device
from training.naive_bayes import Evidence, NaiveBayesBag
from training.pieces import text_hash
from training.run_state import fingerprint
from training.sentences import split_sentences
from training.sources import Document, documents

logger = logging.getLogger(__name__)

SENTENCE_WORDS = (4, 60)
EXCERPT_WORDS = (8, 160)
"""Of one text, as many short as long ones; a sentence is not cut, so it may be more."""
FOLDS = 5
_WORDS = "words.npz"
EXCERPTS_OF_EACH = 3
"""Of the texts that weigh the teachers"""
_REMEMBERED = 100_000
"""Texts whose sentences are not looked for again"""
SHARES = [i / 20 for i in range(21)]
TEMPERATURES = [1.1**i for i in range(-10, 11)]  # 0.39 to 2.6


@dataclass(frozen=True, slots=True)
class Blend:
    """The weighted geometric mean of two opinions, made sharper or softer."""

    share: float
    """Of the bag of words in the mean"""
    temperature: float

    def __call__(self, bag: Floats, network: Floats) -> Floats:
        """Probabilities from two log-probabilities: (texts, num_labels) each."""
        mean = self.share * bag + (1 - self.share) * network
        probabilities: Floats = torch.from_numpy(mean / self.temperature).softmax(1).numpy()
        return probabilities


@dataclass(frozen=True, slots=True)
class Opinions:
    """What both teachers say of labelled texts: log-probabilities, (texts, num_labels)."""

    name: str
    bag: Floats
    network: Floats
    labels: Ints
    """(texts,)"""

    def loss(self, blend: Blend) -> float:
        """Mean cross-entropy in nats."""
        right = blend(self.bag, self.network)[np.arange(len(self.labels)), self.labels]
        return float(-np.log(right).mean())

    def accuracy(self, blend: Blend) -> float:
        """Share of labels that the blend guesses."""
        return float((blend(self.bag, self.network).argmax(1) == self.labels).mean())


Bag = BagOfWords | NaiveBayesBag


@dataclass(frozen=True, slots=True)
class Group:
    """Texts that have the same teachers."""

    texts: list[Document]
    origins: list[tuple[int, ...]]
    """Keys of the texts that each is, or has parts of"""
    like: str | None
    """The source of `finetune.train` that they are like; None: all of them"""
    excerpts: bool = False
    """Parts of texts: the network judges them even where it has read the whole; excerpts weigh the teachers"""


def parts_of(train: Sequence[Document]) -> dict[int, int]:
    """The part of `Folds` that each of these texts is in, by its key."""
    return {key_of_text(text): _part(text) for text in train}


def _part(text: Document) -> int:
    return text_hash(text.group or text.text) % FOLDS


@dataclass(frozen=True, slots=True)
class Folds:
    """Labelled texts in `FOLDS` parts, no group in two, each judged by a bag of words that has read the others
    only: of a text that it has read, a bag repeats the label."""

    train: Sequence[Document]
    """What the bags may read"""
    parts: dict[int, int]
    """The part of each text by its key, also of those that are not read"""
    kind: type[Bag]
    strength: float

    def bags(self, origins: Sequence[tuple[int, ...]]) -> Iterator[tuple[list[int], Bag]]:
        """A bag for each part, and which texts it has not read: their places in `origins`. None where the other
        parts are too small to learn from. What has parts of several texts is judged with the part of the first.
        """
        keys, part_of = list(map(key_of_text, self.train)), np.array(list(map(_part, self.train)))
        own = np.array([self.parts.get(first, first % FOLDS) for first, *_ in origins])
        for part in np.unique(own):
            chosen = np.flatnonzero(own == part).tolist()
            judged = {key for i in chosen for key in origins[i]}  # one may be in several groups
            read = (i for i in np.flatnonzero(part_of != part).tolist() if keys[i] not in judged)
            others = [self.train[i] for i in read]
            if len({document.label for document in others}) < 2:
                continue
            try:
                yield chosen, self.kind.fit(others, [], (self.strength,))
            except RunError:
                continue


@dataclass(frozen=True, slots=True)
class Teachers:
    """A bag of words and a network that know the same labels."""

    bag: Bag
    folds: Folds
    network: BertForSequenceClassification
    checkpoint: Checkpoint
    config: FinetuneConfig

    @classmethod
    def learn(
        cls, sources: Sequence[Split], like: str | None, checkpoint: Checkpoint, config: FinetuneConfig
    ) -> Teachers:
        """A bag of the train parts, of the kind that suits one source or all; dev parts decide its strength."""
        every = [document for _, part, _ in sources for document in part]
        train = [every[i] for i in evenly(len(every), config.baseline_texts or len(every))]
        dev = [document for _, _, part in sources for document in part]
        kind = BagOfWords if like is None else NaiveBayesBag
        bag = kind.fit(train, dev)
        assert isinstance(checkpoint.model, BertForSequenceClassification)
        folds = Folds(train, parts_of(every), kind, bag.strength)
        return cls(bag, folds, checkpoint.model, checkpoint, config)

    def label(
        self,
        name: str,
        group: Group,
        labelled: set[int],
        blend: Blend,
        alone: Blend,
        *,
        wants_words: bool = False,
    ) -> tuple[Floats, list[Evidence | None]]:
        """Probabilities of each label: (texts, num_labels); and what the bag says of each word of a text, if it
        is one of a source alone.

        Texts of `labelled`, and parts of them, are judged by a bag that has not read them; all labels are alike
        where what it might read is too little. The network may have read them; it is asked about excerpts only,
        which it remembers little of.

        Args:
            blend: weighs both teachers.
            alone: the bag's opinion, made as sure as it may be.
        """
        names, texts = list(self.config.labels), group.texts
        known = np.array([not labelled.isdisjoint(keys) for keys in group.origins], dtype=bool)
        unread, read = (np.flatnonzero(part).tolist() for part in (~known, known))
        bag = np.full((len(texts), len(names)), -np.log(len(names)), dtype=np.float32)
        words: list[Evidence | None] = [None] * len(texts)
        if read:
            logger.info("%s: %d have a label; a bag that has not read it judges them", name, len(read))
        apart = self.folds.bags([group.origins[i] for i in read])
        judges = (([read[i] for i in places], judge) for places, judge in apart)
        for places, judge in chain([(unread, self.bag)] if unread else [], judges):
            bag[places] = judge.log_probabilities([texts[i] for i in places], names)
            if wants_words and isinstance(judge, NaiveBayesBag):
                for i, said in zip(places, judge.evidence([texts[i] for i in places]), strict=True):
                    words[i] = said
        if group.excerpts:
            return blend(bag, self.network_says(name, texts)), words
        targets = alone(bag, bag)
        if unread:
            targets[unread] = blend(bag[unread], self.network_says(name, [texts[i] for i in unread]))
        return targets, words

    def network_says(self, name: str, texts: Sequence[Document]) -> Floats:
        """The network's log-probabilities of each label: (texts, num_labels)."""
        unknown = list(np.zeros((len(texts), len(self.config.labels)), dtype=np.float32))
        served = as_served(self.config, self.checkpoint)
        read = encode(name, texts, unknown, served, self.checkpoint.tokenizer)
        batches = tqdm(read.batches(), desc=name, total=read.num_batches, unit="batch")
        logits, _ = predict_classification(self.network, batches)
        out: Floats = np.empty(logits.shape, dtype=np.float32)
        out[read.longest_first] = logits.log_softmax(1).numpy()
        return out

    def on_dev(self, name: str, texts: Sequence[Document]) -> Opinions:
        """What they say of labelled texts."""
        labels = label_numbers(name, texts, self.config)
        bag = self.bag.log_probabilities(texts, list(self.config.labels))
        return Opinions(name, bag, self.network_says(name, texts), np.array(labels))


def teach(recipe: Recipe) -> bool:
    """Label the texts of `[teach]`, into the folder `taught` of the run. True when finished.

    Raises:
        RunError: the recipe has no `[teach]`, its classifier cannot be used, or nothing is left to weigh it on.
    """
    checkpoint, split = teacher(recipe), split_sources(recipe)
    groups = _groups(recipe, split)
    likes = list(dict.fromkeys(group.like for group in groups))
    sources = {like: [part for part in split if like in (None, part[0])] for like in likes}
    for like, part in sources.items():
        if not any(train for _, train, _ in part) or not any(dev for _, _, dev in part):
            raise RunError("teach needs texts of finetune.train to learn from, and some in dev (dev_fraction)")
        if like and len({document.label for _, train, _ in part for document in train}) < 2:
            raise RunError(f"teach.like: all texts of {like!r} have the same label; that teaches nothing")
    labelled = {key_of_text(document) for _, train, _ in split for document in train}
    teachers_key = _teachers_key(recipe, fingerprint(checkpoint.model), split)
    folder, key = _folder(recipe), _key(recipe, groups)
    wants_words = recipe.teach is not None and recipe.teach.word_loss > 0
    found, whole_key = _read(folder), f"{key} {teachers_key}"
    has_words = not wants_words or word_evidence.load(folder / _WORDS, whole_key) is not None
    if found and (found.texts, found.teachers) == (key, teachers_key) and has_words:
        logger.info("%d texts are labelled already", len(found.targets))
        return True
    checkpoint.model.to(choose_device(recipe.device))
    targets: dict[int, Floats] = {}
    words: dict[int, list[Evidence | None]] = {}
    about: dict[str, Any] = {}
    for like, part in sources.items():
        name = like or "all"
        teachers = Teachers.learn(part, like, checkpoint, recipe.finetune)
        chosen = [i for i, group in enumerate(groups) if group.like == like]
        for cut in dict.fromkeys(groups[i].excerpts for i in chosen):
            what = f"excerpts like {name}" if cut else name
            dev = {source: excerpts_of(texts, recipe.seed) if cut else texts for source, _, texts in part}
            opinions = [teachers.on_dev(source, texts) for source, texts in dev.items() if texts]
            blend, alone = best_blend(opinions), best_blend(opinions, shares=[1.0])
            accuracy = {o.name: _accuracies(o, blend) for o in opinions}
            logger.info("teachers of %s: accuracy on dev %s", what, accuracy)
            about[what] = {"blend": asdict(blend), "dev_accuracy": accuracy, "texts": 0}
            for i in chosen:
                if groups[i].excerpts == cut:
                    targets[i], words[i] = teachers.label(
                        what, groups[i], labelled, blend, alone, wants_words=wants_words
                    )
                    about[what]["texts"] += len(groups[i].texts)
    if wants_words:
        folder.mkdir(parents=True, exist_ok=True)
        word_evidence.save(folder / _WORDS, whole_key, [said for i in range(len(groups)) for said in words[i]])
    Taught(key, teachers_key, np.concatenate([targets[i] for i in range(len(groups))])).write(folder)
    (folder / "about.json").write_text(json.dumps(about, indent=2) + "\n")
    return True


def taught(recipe: Recipe, tokenizer: Tokenizer) -> LabelledTexts:
    """The texts of `[teach]` with what `teach` gave them, as fine-tuning reads its texts.

    Raises:
        RunError: `teach` has not been run on these texts.
    """
    split, folder = split_sources(recipe), _folder(recipe)
    groups, found = _groups(recipe, split), _read(folder)
    assert recipe.teach is not None
    if found and not (classifier := recipe.teach.classifier).exists():
        logger.warning("teach.classifier: %s is gone; the labels that it gave are kept", classifier)
        network = found.teachers.split()[0]
    else:
        network = fingerprint(teacher(recipe).model)
    keys = (_key(recipe, groups), _teachers_key(recipe, network, split))
    if found is None or (found.texts, found.teachers) != keys:
        raise RunError(f"{folder} does not hold the labels of [teach]'s texts by its teachers; run teach first")
    texts = [document for group in groups for document in group.texts]
    spelled = respelled(texts, recipe.finetune.typographic_fraction)
    read = encode("taught", spelled, list(found.targets), recipe.finetune, tokenizer)
    if not recipe.teach.word_loss:
        return read
    said = word_evidence.load(folder / _WORDS, " ".join(keys))
    if said is None:
        raise RunError(f"{folder} does not hold what is said of words (teach.word_loss); run teach first")
    if all(words is None for words in said):
        raise RunError("teach.word_loss: what is left to learn words from is too little; set it to 0")
    likes = [group.like for group in groups for _ in group.texts]
    return word_evidence.with_evidence(read, texts, spelled, said, likes, recipe.finetune, tokenizer)


def best_blend(opinions: Sequence[Opinions], shares: Sequence[float] = SHARES) -> Blend:
    """The one of the lowest loss, in which every source weighs the same, but for a tiny one."""
    says = voices([opinion.labels for opinion in opinions])
    candidates = [Blend(share, temperature) for share in shares for temperature in TEMPERATURES]
    return min(candidates, key=lambda blend: np.dot(says, [opinion.loss(blend) for opinion in opinions]))


def _accuracies(opinions: Opinions, blend: Blend) -> dict[str, float]:
    who = {"bag of words": Blend(1.0, 1.0), "classifier": Blend(0.0, 1.0), "together": blend}
    return {name: round(opinions.accuracy(each), 4) for name, each in who.items()}


def teacher(recipe: Recipe) -> Checkpoint:
    """The network that teaches.

    Raises:
        RunError: the recipe names none, or one that is missing, knows other labels, or is this run's own.
    """
    if recipe.teach is None:
        raise RunError("the recipe has no [teach]; give it texts and a classifier")
    folder = recipe.teach.classifier
    if not folder.is_dir():
        raise RunError(f"teach.classifier: {folder} is missing; first run finetune elsewhere, without [teach]")
    if folder.resolve().is_relative_to(recipe.folder.resolve()):
        raise RunError(f"teach.classifier: {folder} would be overwritten; give this run another name")
    checkpoint, labels = load_checkpoint(folder), list(recipe.finetune.labels.values())
    if not isinstance(checkpoint.model, BertForSequenceClassification) or checkpoint.config.labels != labels:
        raise RunError(f"teach.classifier: {folder} is no classifier of {labels}")
    return checkpoint


def _groups(recipe: Recipe, split: Sequence[Split]) -> list[Group]:
    """The texts of each source, but those that the classifier is judged by; then single sentences of all of
    them that have no label yet, and excerpts."""
    config = recipe.finetune
    assert recipe.teach is not None
    dev = (part for _, _, part in split)
    test = (documents(source, recipe.data) for source in config.test)
    judging = {key_of_text(document) for part in (*dev, *test) for document in part}
    labelled = {key_of_text(document) for _, train, _ in split for document in train}
    groups, excerpts = [], []
    for source in recipe.teach.texts:
        name, texts = source_name(source), list(documents(source, recipe.data))
        kept = [document for document in texts if not judges(document, judging)]
        if len(kept) < len(texts):
            logger.info("%s: %d texts stand in dev or test too, and are left out", name, len(texts) - len(kept))
        keys, like = list(map(key_of_text, kept)), recipe.teach.like.get(name)
        groups.append(Group(kept, [(key,) for key in keys], like))
        if count := recipe.teach.excerpts.get(name, 0):
            part_of = parts_of([text for other, train, _ in split if like in (None, other) for text in train])
            parts = [(key in labelled, part_of.get(key, key % FOLDS)) for key in keys]
            made = some_excerpts(kept, parts, count, judging, recipe.seed)
            origins = [tuple(map(key_of_text, of)) for _, of in made]
            excerpts.append(Group([excerpt for excerpt, _ in made], origins, like, excerpts=True))
    every = [document for group in groups for document in group.texts]
    drawn = some_sentences(every, recipe.teach.sentences, judging | labelled, recipe.seed)
    sentences = Group([sentence for sentence, _ in drawn], [(key_of_text(text),) for _, text in drawn], None)
    return [group for group in (*groups, sentences, *excerpts) if group.texts]


def some_sentences(
    texts: Sequence[Document], count: int, known: set[int], seed: int
) -> list[tuple[Document, Document]]:
    """At most `count` sentences of ordinary length, about as many of each text, and none of `known`; each with
    the text that it is from."""
    rng = np.random.default_rng(seed)
    chosen: list[tuple[Document, Document]] = []
    for number, document in enumerate(texts):
        wanted = (number + 1) * count // len(texts) - len(chosen)  # a short text leaves some to the next
        fitting = [
            sentence
            for sentence in map(str.strip, split_sentences(document.text))
            if SENTENCE_WORDS[0] <= num_words(sentence) <= SENTENCE_WORDS[1]
            and key_of_text(Document(sentence, (sentence,))) not in known
        ]
        drawn = rng.permutation(len(fitting))[:wanted]
        chosen += [(Document(fitting[i], (fitting[i],)), document) for i in drawn]
    return chosen


def some_excerpts(
    texts: Sequence[Document], parts: Sequence[tuple[bool, int]], count: int, judging: set[int], seed: int
) -> list[tuple[Document, tuple[Document, ...]]]:
    """At most `count` excerpts, about as many of each text, without sentences of `judging`; each with the texts
    that it is from. Half of them go on with another text of the same part (whether it has a label, and its part
    of `Folds`), which the same teachers have not read."""
    rng = np.random.default_rng(seed)
    alike = defaultdict(list)
    for i, part in enumerate(parts):
        alike[part].append(i)

    @functools.lru_cache(maxsize=_REMEMBERED)
    def sentences(i: int) -> list[str]:
        every = map(str.strip, split_sentences(texts[i].text))
        return [sentence for sentence in every if key_of_text(Document(sentence, (sentence,))) not in judging]

    def excerpt(of: Sequence[str]) -> str:
        at = start = int(rng.integers(len(of)))
        missing = np.exp(rng.uniform(*np.log(EXCERPT_WORDS)))
        while missing > 0 and at < len(of):
            missing -= num_words(of[at])
            at += 1
        return " ".join(of[start:at])

    chosen = []
    for number in range(count if texts else 0):
        i = number * len(texts) // count if count < len(texts) else number % len(texts)
        others = alike[parts[i]]
        other = others[int(rng.integers(len(others)))] if rng.random() < 0.5 else i
        of = [j for j in dict.fromkeys((i, other)) if sentences(j)]
        if of:
            text = " ".join(excerpt(sentences(j)) for j in of)
            chosen.append((Document(text, (text,)), tuple(texts[j] for j in of)))
    return chosen


def excerpts_of(texts: Sequence[Document], seed: int) -> list[Document]:
    """Excerpts of labelled texts, each of one text and with its label: what weighs the teachers of excerpts."""
    alone = [(True, number) for number in range(len(texts))]
    made = some_excerpts(texts, alone, EXCERPTS_OF_EACH * len(texts), set(), seed)
    return [replace(excerpt, label=of.label) for excerpt, (of,) in made]


def _teachers_key(recipe: Recipe, network: str, split: Sequence[Split]) -> str:
    """What the teachers are made of: the network's fingerprint, and the texts that the bags read and that weigh
    them."""
    read = key_of(*(texts for _, *parts in split for texts in parts))
    return f"{network} {read} {recipe.finetune.baseline_texts}"


def _key(recipe: Recipe, groups: Sequence[Group]) -> str:
    likes = " ".join(f"like {group.like}" for group in groups if group.like)
    texts = key_of(*(group.texts for group in groups))
    judged = ["excerpts by both"] if any(group.excerpts for group in groups) else []
    return " ".join([f"{FOLDS} folds", texts, *recipe.finetune.labels, likes, *judged])


@dataclass(frozen=True, slots=True)
class Taught:
    """What `teach` leaves in one file."""

    texts: str
    """Which texts, and which labels in which order"""
    teachers: str
    targets: Floats
    """(texts, num_labels)"""

    def write(self, folder: Path) -> None:
        """At once or not at all."""
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / "part.npz"
        np.savez(part, texts=self.texts, teachers=self.teachers, targets=self.targets)
        part.replace(folder / "targets.npz")


def _folder(recipe: Recipe) -> Path:
    return recipe.folder / "taught"


def _read(folder: Path) -> Taught | None:
    file = folder / "targets.npz"
    if not file.is_file():
        return None
    with np.load(file) as stored:
        return Taught(str(stored["texts"]), str(stored["teachers"]), stored["targets"])
