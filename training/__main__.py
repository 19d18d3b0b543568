"""python -m training COMMAND RECIPE [--data FOLDER] [key=value ...]"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable, Sequence

import torch
from tqdm.contrib.logging import logging_redirect_tqdm

from model.errors import BertError
from model.tokenizer import Tokenizer
from training.config import Recipe, load_recipe
from training.corpus import prepare, train_tokenizer
from training.export import export
from training.finetune import finetune
from training.memory import keep_freed_memory
from training.pretrain import pretrain
from training.report import evaluate

STOPPED = 130
"""Exit status of a run that a signal ended; run the same command again to continue."""


def _tokenizer(recipe: Recipe) -> bool:
    folder = recipe.folder / "tokenizer"
    if (folder / "tokenizer.json").is_file():
        logging.info("%s is there already", folder)
    else:
        train_tokenizer(recipe)
    return True


def _prepare(recipe: Recipe) -> bool:
    prepare(recipe, Tokenizer.load(recipe.folder / "tokenizer"))
    return True


def _export(recipe: Recipe) -> bool:
    return bool(export(recipe))


def _evaluate(recipe: Recipe) -> bool:
    print(evaluate(recipe))
    return True


def _all(recipe: Recipe) -> bool:
    return all(step(recipe) for step in (_tokenizer, _prepare, pretrain, finetune, _evaluate, _export))


COMMANDS: dict[str, tuple[Callable[[Recipe], bool], str]] = {
    "tokenizer": (_tokenizer, "learn the vocabulary from the recipe's text"),
    "prepare": (_prepare, "turn the text into memory-mapped token ids"),
    "pretrain": (pretrain, "train masked LM and next sentence"),
    "finetune": (finetune, "train the classifier on labelled texts"),
    "evaluate": (_evaluate, "report on held-out text and test sets, beside trivial guesses"),
    "export": (_export, "write the directories that are served"),
    "all": (_all, "all of these, in this order"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of `bert-train`: 0 when done, 1 after an error, 130 when stopped by a signal."""
    parser = argparse.ArgumentParser("bert-train", description="Train a BERT on your own text.")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, (_, summary) in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary)
        command.add_argument("recipe", help="a TOML file, or the name of a recipe that ships")
        command.add_argument("--data", help="folder that relative source paths start from")
        command.add_argument("override", nargs="*", metavar="key=value", help="e.g. pretrain.minutes=5")
    parsed = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s  %(message)s", datefmt="%H:%M:%S")
    logging.captureWarnings(True)
    try:
        recipe = load_recipe(parsed.recipe, _overrides(parsed))
        keep_freed_memory()
        torch.set_num_threads(recipe.threads or len(os.sched_getaffinity(0)))
        with logging_redirect_tqdm():
            finished = COMMANDS[parsed.command][0](recipe)
    except BertError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0 if finished else STOPPED


def _overrides(parsed: argparse.Namespace) -> list[str]:
    data = [f"data={parsed.data}"] if parsed.data else []
    return [*data, *parsed.override]


if __name__ == "__main__":
    sys.exit(main())
