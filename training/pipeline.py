"""The pipeline of a recipe: its stages, their dependencies, and the folders of their results.

    stage        needs
    tokenizer
    corpus       tokenizer
    pretrain     tokenizer, corpus
    labelled     tokenizer
    teacher      labelled, pretrain                        one for each fold
    soft_labels  labelled, teachers
    bag          labelled                                  one more for all rows
    finetune     labelled, pretrain, soft_labels or bag    one for each seed
    final        all seeds, and what each of them needs    with `finetune.all_rows`
    heldout      tokenizer                                 for `evaluate --weights`

The folder of a stage, `runs/<name>/stages/<stage>-<key>`, carries a hash of the stage's settings and of the stages that
it needs. So another setting means another folder, and no result is overwritten. Names of sources, and settings of test
texts that only a report shows, count for the stage that prepares the text, but not for later stages. No hash has
`micro_batch_tokens`: a training that was begun with another value goes on with its next examples. A result with
`done.json` is complete; without it, the same command continues. Links such as `runs/<name>/pretrained` lead to results.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from importlib.metadata import version
from math import inf
from pathlib import Path
from typing import Any

from model.checkpoint import Checkpoint, load_checkpoint
from model.errors import CheckpointError
from model.heads import BertForSequenceClassification
from model.tokenizer import Tokenizer
from training.corpus.fingerprint import (
    checkpoint_hash,
    file_hashes,
    raw_text_settings,
    source_settings,
    tokenizer_hash,
)
from training.corpus.parts import ALL_ROWS, Part
from training.corpus.prepare import corpus_settings, prepare, prepare_labelled, text_settings
from training.corpus.reader import FORMAT, PreparedText
from training.corpus.tokenizer import make_tokenizer
from training.errors import MissingTextError, RunError
from training.examples.labelled import Fold
from training.finetune.plan import bag_weight
from training.finetune.run import finetune
from training.finetune.selection import SeedResult, best_seed
from training.finetune.soft_labels import load_teachers, write_soft_labels
from training.finetune.task import keeps_last_layer
from training.pretrain.run import pretrain
from training.problems.choose import problem_of
from training.recipe import Recipe, SourceConfig, source_name
from training.runtime.distributed import DistContext
from training.stage import LINKS, Made, Stage, follow, link

_NOT_OF_TRAININGS = {"train", "test", "labels", "dev_fraction", "test_fraction", "augment_fraction", "all_rows"}
"""Keys of `[finetune]` on which the stage `labelled` or the list of trainings depends, but no single training."""

MIN_TRAINING_SHARE = 0.25
"""Minimum share of `finetune.minutes` that trainings get, however long the texts took to prepare."""

logger = logging.getLogger(__name__)


class Pipeline:
    """The stages of a recipe.

    Args:
        began: time on the monotonic clock from which `finetune.minutes` count; None for the start of the trainings.

    Raises:
        RunError: the folder of the run has folders in place of links.
    """

    def __init__(self, recipe: Recipe, began: float | None = None) -> None:
        self.recipe, self._began = _with_real_paths(recipe), began
        paths = [recipe.folder / name for name in LINKS]
        if old := next((path for path in paths if path.is_dir() and not path.is_symlink()), None):
            raise RunError(
                f"{old} is not a link into stages/, as in a copy that has followed links, or in a run of version 0.2: "
                "move it away, or give this run another name"
            )

    # --- text ------------------------------------------------------------------------------------------------------

    @cached_property
    def tokenizer(self) -> Stage:
        """The vocabulary."""
        recipe = self.recipe
        settings: dict[str, Any]
        if start := recipe.pretrain.start:
            settings = {"start": tokenizer_hash(Tokenizer.load(start))}
        else:
            config, sources = recipe.tokenizer.model_dump(mode="json"), raw_text_settings(recipe.corpus.sources)
            settings = {"tokenizer": config, "sources": sources, "files": self._files(recipe.corpus.sources)}
        make = _always(partial(make_tokenizer, recipe))
        return self._stage("tokenizer", "tokenizer", settings, make, links={"tokenizer": ""})

    @cached_property
    def corpus(self) -> Stage:
        """The token ids of the text to pretrain on."""
        make = _always(lambda folder: prepare(self.recipe, Tokenizer.load(self.tokenizer.folder), folder))
        settings, shown = self._corpus_settings(), self._corpus_names()
        return self._stage(
            "corpus", "prepare", settings, make, needs=(self.tokenizer,), shown=shown, links={"corpus": ""}
        )

    def heldout(self, tokenizer: Tokenizer) -> Stage:
        """The token ids of the held-out text in another vocabulary."""
        make = _always(lambda folder: prepare(self.recipe, tokenizer, folder, heldout_only=True))
        settings = self._corpus_settings() | {"tokenizer": tokenizer_hash(tokenizer)}
        return self._stage("heldout", "evaluate", settings, make, shown=self._corpus_names())

    @cached_property
    def labelled(self) -> Stage:
        """Token ids and the part (train, dev, test) of the labelled texts and of those that teachers label."""
        recipe, tokenizer = self.ordered, self.start.tokenizer if self.start else None
        return self._labelled(recipe, tokenizer, links={"labelled": ""})

    def labelled_for(self, tokenizer: Tokenizer) -> Stage:
        """The labelled text for another classifier: the run's if it is prepared, else one with the given tokenizer."""
        with suppress(MissingTextError, RunError):  # what only a training needs may be missing
            if self.labelled.record is not None:
                return self.labelled
        return self._labelled(self.recipe, tokenizer)

    def _labelled(self, recipe: Recipe, tokenizer: Tokenizer | None, **more: Any) -> Stage:
        """The labelled text with the labels in the order of a recipe.

        Args:
            tokenizer: None for that of the run.
        """
        config, unlabelled = recipe.finetune, recipe.soft_labels.sources if recipe.soft_labels else ()
        sources = (*config.train, *config.test, *unlabelled)
        settings = text_settings(recipe) | {"files": self._files(sources), "format": FORMAT}
        if tokenizer is not None:
            settings["tokenizer"] = tokenizer_hash(tokenizer)

        def make(folder: Path) -> Made:
            return prepare_labelled(recipe, tokenizer or Tokenizer.load(self.tokenizer.folder), folder)

        needs = () if tokenizer else (self.tokenizer,)
        shown = {"names": _names(sources), "reported": source_settings(config.test)}
        return self._stage("labelled", "prepare", settings, _always(make), needs=needs, shown=shown, **more)

    @cached_property
    def bag(self) -> Stage:
        """Scores of a bag of words for the labelled text."""
        return self.bag_of(self.labelled, synthetic=self._bag_weight(texts=0) > 0)

    @cached_property
    def bag_of_all_rows(self) -> Stage:
        """Scores of a bag of words that is trained on all rows; see `finetune.all_rows`."""
        return self.bag_of(self.labelled, ALL_ROWS, synthetic=True)

    def bag_of(self, labelled: Stage, *place: str, synthetic: bool = False) -> Stage:
        """Scores of a bag of words for other labelled text.

        Args:
            place: name of a folder in that of the text, with another column `parts`, such as `ALL_ROWS`.
            synthetic: whether to make synthetic texts, too, if classifiers of that many texts learn from the bag.
        """

        def make(folder: Path) -> Made:
            try:
                from training.finetune.bag import write_bag
            except ModuleNotFoundError as error:  # a machine with a GPU may lack scikit-learn
                raise RunError("scikit-learn is missing: run prepare elsewhere and copy stages/bag-*, too") from error
            store = PreparedText(labelled.folder, places=[labelled.folder / each for each in place])
            problem = problem_of(self.recipe.finetune.problem_type, store.labels)
            is_taught = synthetic and self._bag_weight(int((store.column("parts") == Part.TRAIN).sum())) > 0
            return write_bag(problem, store, folder, self._finetune_tokenizer if is_taught else None)

        settings = {"place": place, "synthetic": synthetic}
        return self._stage("bag", "prepare", settings, _always(make), needs=(labelled,))

    def _bag_weight(self, texts: int) -> float:
        has_labels = self.start is not None and keeps_last_layer(self.start.model, self.ordered.finetune)
        return bag_weight(self.ordered, texts, has_labels=has_labels)

    def _texts(self) -> Iterator[Stage]:
        """The labelled text, then the bags of words that classifiers learn from. The number of texts decides whether a
        classifier learns from a bag, so there is none before the labelled text is prepared."""
        if self.has_labels:
            yield self.labelled
        if self.has_labels and self.labelled.record is not None:
            texts = int((PreparedText(self.labelled.folder).column("parts") == Part.TRAIN).sum())
            is_taught = self._bag_weight(texts) > 0
            yield from [self.bag, self.bag_of_all_rows][: is_taught * (1 + self.recipe.finetune.all_rows)]

    # --- networks --------------------------------------------------------------------------------------------------

    @cached_property
    def pretrain(self) -> Stage:
        """The network for masked words and next sentences."""
        recipe, config = self.recipe, self.recipe.pretrain
        start = config.start
        settings = {
            "pretrain": config.model_dump(mode="json", exclude={"start", "teacher"}),
            "start": checkpoint_hash(start) if start else None,
            **({"teacher": checkpoint_hash(config.teacher)} if config.teacher else {}),
            "model": None if start else {**recipe.model.model_dump(), "positions": recipe.positions},
            "half_residual": recipe.half_residual,
            "seed": recipe.seed,
        }

        def make(folder: Path, dist: DistContext) -> Made:
            return pretrain(recipe, Tokenizer.load(self.tokenizer.folder), self.corpus.folder, folder, dist)

        links = {"pretrain": "", "pretrained": "model"}
        return self._stage(
            "pretrain", "pretrain", settings, make, needs=(self.tokenizer, self.corpus), links=links, in_ranks=True
        )

    @cached_property
    def start(self) -> Checkpoint | None:
        """The checkpoint of `finetune.pretrained`; None if the classifier starts from the run's own network.

        Raises:
            RunError: it cannot be loaded.
        """
        if (folder := self.recipe.finetune.pretrained) is None:
            return None
        if not folder.is_dir():
            raise RunError(f"finetune.pretrained: {folder} is missing")
        try:
            return load_checkpoint(folder, need_heads=False)
        except CheckpointError as error:
            raise RunError(f"finetune.pretrained: {error}") from error

    @cached_property
    def teachers(self) -> list[Stage]:
        """A classifier for each part of the labelled texts, trained without that part."""
        config = self.recipe.soft_labels
        if config is None or config.teacher or not config.weight:
            return []
        seed, count = self.recipe.seed, config.folds
        return [self._classifier("teacher", "soft-labels", seed + i, Fold(i, count)) for i in range(count)]

    @cached_property
    def soft_labels(self) -> Stage | None:
        """The teachers' probabilities for the labelled texts."""
        if (config := self.recipe.soft_labels) is None or not config.weight:
            return None
        teacher = config.teacher
        settings = {"teacher": checkpoint_hash(teacher)} if teacher else {"folds": config.folds}
        folders = [teacher] if teacher else [stage.folder / "model" for stage in self.teachers]

        def make(folder: Path) -> None:
            teachers = load_teachers(folders, self.ordered.finetune, self._finetune_tokenizer)
            write_soft_labels(self.ordered, teachers, self.labelled.folder, folder)

        needs = (self.labelled, *self.teachers)
        return self._stage(
            "soft_labels", "soft-labels", settings, _always(make), needs=needs, links={"soft_labels": ""}
        )

    @cached_property
    def seeds(self) -> dict[int, Stage]:
        """The classifier of each seed."""
        return {seed: self._classifier("finetune", "finetune", seed, None, self.soft_labels) for seed in self._seeds}

    @cached_property
    def final(self) -> Stage | None:
        """The classifier of all rows, with the settings of the best seed; None without `finetune.all_rows`."""
        return self._classifier("final", "finetune") if self.recipe.finetune.all_rows else None

    @property
    def _seeds(self) -> tuple[int, ...]:
        return self.recipe.finetune.seeds or (self.recipe.seed,)

    def _classifier(
        self,
        name: str,
        command: str,
        seed: int | None = None,
        left_out: Fold | None = None,
        soft_labels: Stage | None = None,
    ) -> Stage:
        """A training of the classifier.

        Args:
            seed: None for a training on all rows with the best seed and its settings.
            left_out: Texts that are not trained on.
        """
        recipe = self.ordered
        if recipe.finetune.minutes:
            soft = recipe.soft_labels
            teachers = soft.folds if soft and soft.weight and not soft.teacher else 0
            minutes = recipe.finetune.minutes / (teachers + len(self._seeds) + recipe.finetune.all_rows)
            recipe = recipe.model_copy(update={"finetune": recipe.finetune.model_copy(update={"minutes": minutes})})
        pretrained = recipe.finetune.pretrained
        settings = {
            "finetune": recipe.finetune.model_dump(mode="json", exclude={"seeds", "pretrained", *_NOT_OF_TRAININGS}),
            "start": checkpoint_hash(pretrained) if pretrained else None,
            "soft_label_weight": recipe.soft_labels.weight if recipe.soft_labels and soft_labels else None,
            "left_out": [left_out.number, left_out.count] if left_out else None,
            "half_residual": recipe.half_residual,
            # Not among the needs, because only rank 0 may have their results.
            "seed": sorted(stage.key for stage in self.seeds.values()) if seed is None else seed,
        }
        needs = (self.labelled, *(() if pretrained else (self.pretrain,)), *((soft_labels,) if soft_labels else ()))

        def make(folder: Path, dist: DistContext) -> Made:
            minutes = recipe.finetune.minutes and recipe.finetune.minutes * self._share_left
            timed = recipe.model_copy(update={"finetune": recipe.finetune.model_copy(update={"minutes": minutes})})
            start = self.start or load_checkpoint(self.pretrain.folder / "model")
            best = self.best if seed is None and dist.is_main else None
            chosen: Any = dist.all_gather(best and (best.settings["seed"], best.folder))[0] or (seed, None)
            bags = [*self._texts()][2 if seed is None else 1 :]
            soft = next((stage.folder for stage in (soft_labels, *bags) if stage), None)
            return finetune(timed, start, self.labelled.folder, soft, folder, left_out, dist, *chosen)

        return self._stage(name, command, settings, make, needs=needs, in_ranks=True)

    @cached_property
    def _share_left(self) -> float:
        """Share of `finetune.minutes` that is left when the first training begins."""
        spent = (time.monotonic() - self._began) / 60 if self._began else 0.0
        return max(MIN_TRAINING_SHARE, 1 - spent / (self.recipe.finetune.minutes or inf))

    # --- results ---------------------------------------------------------------------------------------------------

    def results(self) -> dict[int, SeedResult]:
        """Figures of each seed on dev.

        Raises:
            RunError: a seed is not trained.
        """
        found = {}
        for seed, stage in self.seeds.items():
            stage.check()
            found[seed] = SeedResult(**(stage.record or {})["result"])
        return found

    @property
    def best(self) -> Stage:
        """The classifier with the best figures on dev. Raises RunError like `results`."""
        return self.seeds[best_seed(list(self.results().values())).seed]

    def link_best(self) -> None:
        """Let the readable paths lead to the best training, and to the classifier that is exported."""
        link(self.recipe.folder / "finetune", self.best.folder)
        link(self.recipe.folder / "classifier", (self.final or self.best).folder / "model")

    def models(self, *, exported: bool = False) -> dict[str, Path]:
        """The run's networks that are complete: `pretrained`, `classifier`. Logs the others that the recipe makes.

        Args:
            exported: whether the classifier is the one of all rows, if the recipe has it.

        Raises:
            RunError: none is complete.
        """
        found, absent = {}, []
        for name, is_made in (("pretrained", self.pretrains), ("classifier", self.has_labels)):
            try:
                if is_made:
                    stage = self.pretrain if name == "pretrained" else (exported and self.final) or self.best
                    stage.check()
                    found[name] = stage.folder / "model"
            except RunError as error:
                absent.append(str(error))
        if not found:
            raise RunError("; ".join(absent) or "the recipe makes no model")
        for message in absent:
            logger.warning("left out: %s", message)
        return found

    # --- all of it -------------------------------------------------------------------------------------------------

    @property
    def pretrains(self) -> bool:
        """Whether the recipe pretrains a network, instead of fine-tuning an existing one."""
        config = self.recipe.finetune
        return not (config.pretrained and (config.train or not self.recipe.corpus.sources))

    @property
    def has_labels(self) -> bool:
        """Whether the recipe trains a classifier."""
        return bool(self.recipe.finetune.train)

    def of(self, command: str) -> Iterator[Stage]:
        """The stages that a command makes, in order. Some depend on the result of those before them."""
        if command == "tokenizer":
            yield self.tokenizer
        elif command == "prepare":  # labelled texts first: a wrong label is found before the large text is prepared
            yield from self._texts()
            yield from [self.corpus] if self.pretrains else []
        elif command == "pretrain":
            yield self.pretrain
        elif command == "soft-labels":
            if self.soft_labels is None:
                raise RunError(
                    "the recipe has no [soft_labels]: name a classifier, soft_labels.teacher=runs/big/classifier, "
                    "or learn from this run's own teachers, soft_labels.weight=0.5"
                )
            yield from (self.labelled, *self.teachers, self.soft_labels)
        elif command == "evaluate":
            yield from [self.bag] if self.has_labels else []
        elif not self.has_labels:
            raise RunError("finetune.train has no source to train a classifier on")
        else:
            yield from self._texts()
            yield from filter(None, (*self.seeds.values(), self.final))

    def commands(self) -> list[str]:
        """The commands of `all`, in order."""
        return [
            *(("tokenizer", "prepare", "pretrain") if self.pretrains else ("prepare",)),
            *(("soft-labels",) if self.recipe.soft_label_weight and self.has_labels else ()),
            *(("finetune",) if self.has_labels else ()),
            *("evaluate", "export"),
        ]

    def all(self) -> list[Stage]:
        """All stages, in order."""
        found = [stage for name in self.commands() if name != "export" for stage in self.of(name)]
        return list(dict.fromkeys(found))

    def unneeded(self) -> Iterator[Path]:
        """Folders of stages in the run's folder that this recipe does not need."""
        recipe, needed = self.recipe, {stage.folder for stage in self.all()}
        networks = [path.resolve() for _, _, path in _networks(recipe)]
        for folder in sorted(recipe.folder.glob("stages/*")):
            if folder not in needed and not any(path.is_relative_to(folder.resolve()) for path in networks):
                yield folder

    # --- settings --------------------------------------------------------------------------------------------------

    @cached_property
    def ordered(self) -> Recipe:
        """The recipe with its labels in the order of the classifier that it starts from."""
        if self.start is None or not isinstance(self.start.model, BertForSequenceClassification):
            return self.recipe
        config = self.recipe.finetune.in_order_of(self.start.config.labels)
        if not keeps_last_layer(self.start.model, config):
            theirs = ", ".join(self.start.config.labels[:5])
            logger.info("finetune.pretrained has other labels (%s): its last layer is new", theirs)
        return self.recipe.model_copy(update={"finetune": config})

    @property
    def _finetune_tokenizer(self) -> Tokenizer:
        return Tokenizer.load(self.tokenizer.folder) if self.start is None else self.start.tokenizer

    def _corpus_settings(self) -> dict[str, Any]:
        recipe = self.recipe
        left_out = recipe.left_out_of_corpus
        sources = (*recipe.corpus.heldout, *recipe.corpus.sources, *left_out.train, *left_out.test)
        return corpus_settings(recipe) | {"files": self._files(sources)} | _versions()

    def _corpus_names(self) -> dict[str, Any]:
        return {"names": _names((*self.recipe.corpus.heldout, *self.recipe.corpus.sources))}

    def _files(self, sources: Sequence[SourceConfig]) -> dict[str, str]:
        return file_hashes(sources, self.recipe.data, self.recipe.folder / "file-hashes.json")

    def _stage(self, name: str, command: str, settings: Mapping[str, Any], make: Any, **more: Any) -> Stage:
        return Stage(name, command, self.recipe.folder, settings, make, **more)


def _networks(recipe: Recipe) -> Iterator[tuple[str, str, Path]]:
    """Table, key and path of the networks that a recipe names."""
    keys = ("pretrain", "start"), ("pretrain", "teacher"), ("finetune", "pretrained"), ("soft_labels", "teacher")
    for table, key in keys:
        if (path := getattr(getattr(recipe, table), key, None)) is not None:
            yield table, key, path


def _with_real_paths(recipe: Recipe) -> Recipe:
    """The recipe with the folders that readable paths of runs lead to.

    Raises:
        RunError: it starts from a readable path of its own run, which will lead to what this run makes.
    """
    exported = {recipe.exported(name).resolve() for name in ("pretrained", "classifier")}
    for table, key, path in _networks(recipe):
        real = follow(path)
        is_own = path.parent.resolve() == recipe.folder.resolve() or real.resolve() in exported
        if is_own:
            other = f"name {real}, or " if real != path else ""
            raise RunError(f"{table}.{key} is {path}, which changes with this run: {other}give the run another name")
        recipe = recipe.model_copy(update={table: getattr(recipe, table).model_copy(update={key: real})})
    return recipe


def _always(make: Callable[[Path], Made]) -> Callable[[Path, DistContext], Made]:
    """The `Stage.make` of a function that runs in one process and always completes."""
    return lambda folder, _dist: make(folder) or {}


def _names(sources: Sequence[SourceConfig]) -> list[str]:
    return [source_name(source) for source in sources]


def _versions() -> dict[str, Any]:
    """Versions that prepared text depends on, in addition to its settings."""
    return {"format": FORMAT, "sentencex": version("sentencex")}
