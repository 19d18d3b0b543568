"""The steps that made the classifier in `model/weights`: it learned from three others and naive Bayes (LOG.md,
2026-11-27). An earlier form with the same settings, which trained three networks at once, ran on an H200.

    PYTHONPATH=.:client python experiments/students.py run=FOLDER data=FOLDER

From `model/weights/pretrained` and the labelled texts to `student/sentiment` in the folder `run`. Finished steps are
skipped. `--prepare` makes the student's texts and naive Bayes only, which needs no GPU. Other keys of a recipe, such as
`finetune.epochs=0.05`, hold for every network: for a rehearsal.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier
from sklearn.naive_bayes import MultinomialNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer

from model.checkpoint import load_checkpoint
from model.heads import BertForPreTraining
from training.corpus.inputs import labelled_inputs
from training.corpus.prepare import prepare_labelled
from training.corpus.shards import ShardInput
from training.evaluate.classification import load_classifier
from training.finetune.distill import COLUMN, RECORD, mean_probabilities
from training.finetune.run import finetune
from training.loop.checkpoint import weights_hash
from training.pretrain import adapt
from training.pretrain.run import load_pretrained
from training.recipe import Recipe, load_recipe
from training.report.baselines import WORD, Labelled
from training.runtime.checkpoint_dir import write_checkpoint_dir
from training.runtime.device import choose_device, configure_process
from training.runtime.files import read_json, write_json

PRETRAINED = Path("model/weights/pretrained")
FOLDS = 5
BAYES_SOURCES, BAYES_WEIGHT = ("imdb", "imdb-unlabelled"), 0.4
"""Where naive Bayes of IMDB is as good as the network, and its share of the log-probabilities."""


def main(arguments: list[str]) -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s  %(message)s", datefmt="%H:%M:%S")
    configure_process()
    places = [argument for argument in arguments if argument != "--prepare"]

    def recipe(name: str, start: Path, *changes: str) -> Recipe:
        return load_recipe("gpu", [f"finetune.pretrained={start}", *changes, *places, f"name={name}"])

    adapted = recipe("adapted", PRETRAINED, "adapt.tokens=100_000_000")
    unlabelled = 'distill.sources=[{name="imdb-unlabelled", path="imdb/unlabelled.jsonl.xz"}]'
    teacher = f"distill.teacher={adapted.folder / 'sentiment'}"
    student = recipe(
        *("student", adapted.folder / "adapt" / "pretrained", "finetune.seeds=[1, 2, 3]"),
        *(teacher, unlabelled, "distill.weight=0.7"),
    ).model_copy(update={"adapt": None})
    prepare_labelled(student, load_checkpoint(PRETRAINED).tokenizer)
    bayes = naive_bayes(student)
    if "--prepare" in arguments:
        return
    plain = recipe("plain", PRETRAINED)
    eight = recipe(
        *("eight", stacked(adapted), "adapt.tokens=150_000_000", "finetune.epochs=2", "finetune.learning_rate=4e-4"),
    )
    teachers = (adapted, plain, eight)
    for stage in teachers:
        adapt.RATE_FACTOR = 1 / 2 if stage is eight else 1 / 3
        if not (stage.adapt is None or adapt.adapt(stage)) or not finetune(stage):
            sys.exit("stopped; the same command continues")
    label(student, [stage.folder / "sentiment" for stage in teachers], bayes)
    if not finetune(student):
        sys.exit("stopped; the same command continues")


def naive_bayes(recipe: Recipe) -> dict[int, np.ndarray]:
    """Probabilities of naive Bayes of IMDB by shard. A film's reviews are labelled by a bag that has not read them."""
    file = recipe.folder / "naive-bayes.npz"
    if not file.is_file():
        shards = {s.number: s for s in labelled_inputs(recipe) if s.part == "train" and s.source in BAYES_SOURCES}
        groups = sorted({str(d.group) for s in shards.values() if s.source == "imdb" for d in s.documents})
        fold_of = {group: number % FOLDS for number, group in enumerate(groups)}
        found = {number: np.zeros((len(shard.documents), 2)) for number, shard in shards.items()}
        for fold in range(FOLDS):
            train = [
                (document, label)
                for shard in shards.values()
                if shard.source == "imdb"
                for document, label in zip(shard.documents, shard.labels or (), strict=True)
                if fold_of[str(document.group)] != fold
            ]
            bag = fit_naive_bayes(train)
            for number, shard in shards.items():
                probabilities = bag.predict_proba([document.text for document in shard.documents])
                is_unlabelled = shard.source != "imdb"
                share = [is_unlabelled / FOLDS or fold_of[str(document.group)] == fold for document in shard.documents]
                found[number] += np.array(share, float)[:, None] * probabilities
        part = file.with_suffix(".part.npz")
        np.savez_compressed(part, allow_pickle=False, **{str(number): each for number, each in found.items()})
        part.replace(file)
    return {int(number): each for number, each in np.load(file).items()}


def fit_naive_bayes(train: Labelled) -> Any:
    """Logistic regressions over naive Bayes log-count ratios of words, pairs and triples (Wang & Manning 2012,
    https://aclanthology.org/P12-2018); a scikit-learn pipeline."""
    words = CountVectorizer(ngram_range=(1, 3), token_pattern=WORD, binary=True, min_df=2, dtype=np.float32)
    classifier = make_pipeline(LogCountRatio(), Normalizer(), LogisticRegression(C=10, max_iter=1000))
    texts, labels = [document.text for document, _ in train], [label for _, label in train]
    return make_pipeline(words, OneVsRestClassifier(classifier)).fit(texts, labels)


class LogCountRatio(BaseEstimator, TransformerMixin):
    """Multiplies each feature by the log of how much more often it occurs in texts of a label than in others."""

    def fit(self, features: Any, labels: Any) -> LogCountRatio:
        """Learn the ratios, with one added to each count: features (texts, words), labels (texts,) 0 or 1."""
        others, ours = MultinomialNB(alpha=1).fit(features, labels).feature_log_prob_
        self.ratio_ = ours - others
        return self

    def transform(self, features: Any) -> Any:
        """(texts, words) -> (texts, words)"""
        return features.multiply(self.ratio_[None]).tocsr()


def stacked(recipe: Recipe) -> Path:
    """The pretrained network with its layers twice, one block on the other (Gong et al. 2019)."""
    folder = recipe.folder / "stacked"
    if not folder.is_dir():
        model, checkpoint = load_pretrained(PRETRAINED)
        layers = model.config.num_hidden_layers
        deep = BertForPreTraining(model.config.replace(num_hidden_layers=2 * layers))
        weights = model.state_dict()
        prefix = "encoder.layers."
        for name in deep.state_dict():
            if name.startswith(prefix):
                number, rest = name.removeprefix(prefix).split(".", 1)
                weights[name] = weights[f"{prefix}{int(number) % layers}.{rest}"]
        deep.load_state_dict(weights)
        write_checkpoint_dir(folder, deep, checkpoint.tokenizer, torch.float32)
    return folder


def label(recipe: Recipe, folders: list[Path], bayes: dict[int, np.ndarray]) -> None:
    """Write what the teachers say beside the student's texts, unless it is there."""
    teachers = [load_classifier(folder, recipe.finetune) for folder in folders]
    folder = recipe.folder / "labelled" / "train"
    record, said_by = folder / "said-by.json", [weights_hash(teacher.model) for teacher in teachers]
    for teacher in teachers:
        teacher.model.to(choose_device(recipe.device))

    def probabilities(shard: ShardInput) -> np.ndarray:
        network = mean_probabilities(teachers, shard)
        if shard.number not in bayes:
            return network
        share = BAYES_WEIGHT * np.log(bayes[shard.number] + 1e-6) + (1 - BAYES_WEIGHT) * np.log(network + 1e-6)
        return np.exp(share) / np.exp(share).sum(1, keepdims=True)

    if read_json(record) != said_by:
        for shard in labelled_inputs(recipe):
            if shard.part == "train":
                file = folder / f"{shard.number:06d}" / f"{COLUMN}.npy"
                np.save(file, probabilities(shard).astype(np.float32))
        write_json(record, said_by)
        write_json(folder / RECORD, said_by[0])  # `finetune` asks for that of `distill.teacher`


if __name__ == "__main__":
    main(sys.argv[1:])
