"""Texts without labels, labelled for the classifier that is to come: what a bag of words and an earlier
classifier say of them together. The two err on different texts, so together they know more than either."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from model.checkpoint import Checkpoint, load_checkpoint
from model.heads import BertForSequenceClassification
from model.tokenizer import Tokenizer
from training.baselines import BagOfWords, key_of
from training.classification import LabelledTexts, as_served, encode, label_numbers, split_documents
from training.config import Recipe, TeachConfig
from training.errors import RunError
from training.evaluation import predict_classification
from training.examples import Floats, Ints
from training.hardware import choose_device
from training.run_state import fingerprint
from training.sources import Document, documents, source_name

logger = logging.getLogger(__name__)

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


@dataclass(frozen=True, slots=True)
class Teachers:
    """A bag of words and a network that know the same labels."""

    bag: BagOfWords
    network: BertForSequenceClassification
    checkpoint: Checkpoint
    recipe: Recipe

    def on_dev(self, name: str, texts: Sequence[Document]) -> Opinions:
        """The same, beside the labels that these texts have."""
        labels = label_numbers(name, texts, self.recipe.finetune)
        return Opinions(name, *self.of(name, texts), np.array(labels))

    def of(self, name: str, texts: Sequence[Document]) -> tuple[Floats, Floats]:
        """Log-probabilities of each label, of the bag of words and of the network: (texts, num_labels) each."""
        config = self.recipe.finetune
        bag = self.bag.log_probabilities(texts, list(config.labels))
        unknown = np.zeros_like(bag)
        read = encode(name, texts, list(unknown), as_served(config, self.checkpoint), self.checkpoint.tokenizer)
        batches = tqdm(list(read.batches()), desc=name, unit="batch")
        logits, _ = predict_classification(self.network, batches)
        network = np.empty_like(bag)
        network[read.longest_first] = (logits / self.checkpoint.config.temperature).log_softmax(1).numpy()
        return bag, network


def teach(recipe: Recipe) -> bool:
    """Label the texts of `[teach]`, into the folder `taught` of the run. True when finished.

    Raises:
        RunError: the recipe has no `[teach]`, or its classifier is missing or has other labels.
    """
    config, finetune = _config(recipe), recipe.finetune
    checkpoint = _classifier(recipe, config)
    split = [split_documents(source, recipe.data, finetune.dev_fraction) for source in finetune.train]
    train = [document for part, _ in split for document in part]
    dev = [part for _, part in split]
    if not any(dev):
        raise RunError("teach weighs the teachers on dev: finetune.dev_fraction must be above 0")
    texts = _texts(recipe, config)
    about: dict[str, object] = {
        "texts": key_of(texts),
        "teachers": f"{fingerprint(checkpoint.model)} {key_of(train, *dev)}",
    }
    if about.items() <= _read(recipe).items():
        logger.info("%d texts are labelled already", len(texts))
        return True
    assert isinstance(checkpoint.model, BertForSequenceClassification)
    network = checkpoint.model.to(choose_device(recipe.device))
    bag = BagOfWords.fit(train, [document for part in dev for document in part])
    teachers = Teachers(bag, network, checkpoint, recipe)
    parts = zip(map(source_name, finetune.train), dev, strict=True)
    opinions = [teachers.on_dev(name, part) for name, part in parts if part]
    blend = best_blend(opinions)
    targets = blend(*teachers.of("texts", texts))
    folder = _folder(recipe)
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "targets.npy", targets)
    accuracy = {o.name: _accuracies(o, blend) for o in opinions}
    about |= {"count": len(texts), "blend": asdict(blend), "dev_accuracy": accuracy}
    (folder / "about.json").write_text(json.dumps(about, indent=2) + "\n")
    logger.info("labelled %d texts; accuracy on dev: %s", len(texts), accuracy)
    return True


def taught(recipe: Recipe, tokenizer: Tokenizer) -> LabelledTexts:
    """The texts of `[teach]` with what `teach` gave them, as fine-tuning reads its texts.

    Raises:
        RunError: `teach` has not been run on these texts.
    """
    texts = _texts(recipe, _config(recipe))
    if _read(recipe).get("texts") != key_of(texts):
        raise RunError(f"{_folder(recipe)} does not hold the labels of [teach]'s texts; run teach first")
    return encode("taught", texts, list(np.load(_folder(recipe) / "targets.npy")), recipe.finetune, tokenizer)


def best_blend(opinions: Sequence[Opinions]) -> Blend:
    """The one of the lowest loss, in which every source weighs the same."""
    candidates = [Blend(share, temperature) for share in SHARES for temperature in TEMPERATURES]
    return min(candidates, key=lambda blend: sum(opinion.loss(blend) for opinion in opinions))


def _accuracies(opinions: Opinions, blend: Blend) -> dict[str, float]:
    who = {"bag of words": Blend(1.0, 1.0), "classifier": Blend(0.0, 1.0), "together": blend}
    return {name: round(opinions.accuracy(each), 4) for name, each in who.items()}


def _config(recipe: Recipe) -> TeachConfig:
    if recipe.teach is None:
        raise RunError("the recipe has no [teach]; give it texts and a classifier")
    return recipe.teach


def _classifier(recipe: Recipe, config: TeachConfig) -> Checkpoint:
    if not config.classifier.is_dir():
        raise RunError(f"teach.classifier: {config.classifier} is missing; run finetune first, without [teach]")
    checkpoint = load_checkpoint(config.classifier)
    known, labels = checkpoint.config.labels, list(recipe.finetune.labels.values())
    if not isinstance(checkpoint.model, BertForSequenceClassification) or known != labels:
        raise RunError(f"teach.classifier: {config.classifier} is no classifier of {labels}")
    return checkpoint


def _texts(recipe: Recipe, config: TeachConfig) -> list[Document]:
    return [document for source in config.texts for document in documents(source, recipe.data)]


def _folder(recipe: Recipe) -> Path:
    return recipe.folder / "taught"


def _read(recipe: Recipe) -> dict[str, object]:
    file = _folder(recipe) / "about.json"
    return json.loads(file.read_text()) if file.is_file() else {}
