"""python -m training COMMAND RECIPE [--data FOLDER] [key=value ...]"""

from __future__ import annotations

import argparse
import logging
import os
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from tqdm.contrib.logging import logging_redirect_tqdm

from model.errors import BertError
from model.inference.cpu_features import available_cpus
from model.tokenizer import Tokenizer
from training.corpus.prepare import prepare
from training.corpus.tokenizer import make_tokenizer
from training.errors import RunError
from training.evaluate.bench import bench
from training.evaluate.report import evaluate
from training.examples.inspect import inspect
from training.export.run import check_targets, export
from training.finetune.dataset import split_sources
from training.finetune.run import finetune
from training.loop.average import average
from training.pretrain.adapt import adapt
from training.pretrain.run import pretrain
from training.recipe import Recipe, load_recipe
from training.runtime.distributed import launched
from training.runtime.memory import keep_freed_memory

STOPPED = 130
"""Exit status of a run that a signal ended; run the same command again to continue."""


def _tokenizer(recipe: Recipe) -> bool:
    return bool(make_tokenizer(recipe))


def _prepare(recipe: Recipe) -> bool:
    return bool(prepare(recipe, Tokenizer.load(recipe.folder / "tokenizer")))


def _export(recipe: Recipe) -> bool:
    return bool(export(recipe))


def _evaluate(recipe: Recipe, weights: Path | None = None) -> bool:
    print(evaluate(recipe, weights))
    return True


def _all(recipe: Recipe) -> bool:
    adapting = (adapt,) if recipe.adapt else ()
    check_targets(recipe)  # before hours of training
    if recipe.finetune.train:
        split_sources(recipe)
    finetuning = (finetune,) if recipe.finetune.train else ()
    alone = recipe.finetune.pretrained and not recipe.corpus.sources  # labelled texts are all there is
    pretraining = () if alone else (_tokenizer, _prepare, pretrain)
    steps = (*pretraining, *adapting, *finetuning, _evaluate, _export)
    return all(step(recipe) for step in steps)


COMMANDS: dict[str, tuple[Callable[[Recipe], bool], str]] = {
    "tokenizer": (_tokenizer, "learn the vocabulary from the recipe's text"),
    "prepare": (_prepare, "turn the text into memory-mapped token ids"),
    "pretrain": (pretrain, "train masked LM and next sentence"),
    "adapt": (adapt, "go on pretraining on the classifier's texts, if the recipe has [adapt]"),
    "finetune": (finetune, "train the classifier on labelled texts"),
    "evaluate": (_evaluate, "report on held-out text and test sets, beside trivial guesses"),
    "export": (_export, "write the directories that are served"),
    "all": (_all, "all of these, in this order"),
}


PARALLEL = ("pretrain", "finetune")
"""Commands that `torchrun` may start in several processes."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of `bert-train`: 0 when done, 1 after an error, 130 when stopped by a signal."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parsed = _parse(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s  %(message)s", datefmt="%H:%M:%S")
    logging.captureWarnings(True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: nothing half-written is left behind
    try:
        finished = _run(parsed)
    except (BertError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        finished = False
    if not finished:
        print(f"stopped; to continue: python -m training {shlex.join(arguments)}", file=sys.stderr)
    return 0 if finished else STOPPED


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Options may stand anywhere among the overrides, which argparse alone does not allow."""
    parser = _parser()
    parsed, rest = parser.parse_known_args(arguments)
    if unknown := [argument for argument in rest if argument.startswith("-")]:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    if rest and parsed.command in ("average", "bench"):
        parser.error(f"unrecognized arguments: {' '.join(rest)}; {parsed.command} reads no recipe")
    parsed.override += rest
    return parsed


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("bert-train", description="Train a BERT on your own text.")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, (_, summary) in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary)
        command.add_argument("recipe", help="a TOML file, or the name of a recipe that ships")
        command.add_argument("--data", help="folder that relative source paths start from")
        command.add_argument("override", nargs="*", metavar="key=value", help="e.g. pretrain.minutes=5")
        command.add_argument("--tensorboard", action="store_true", help="write event files for TensorBoard too")
        if name == "evaluate":
            command.add_argument(
                "--weights", type=Path, help="folder of exported checkpoints to evaluate instead"
            )
    summary = "print decoded examples with their masks and labels, and the balances"
    inspection = commands.add_parser("inspect", help=summary, description=summary)
    inspection.add_argument("recipe", help="of a run whose corpus is prepared")
    inspection.add_argument("--data", help="folder that relative source paths start from")
    inspection.add_argument("--examples", type=int, default=5, help="how many to print")
    inspection.add_argument("override", nargs="*", metavar="key=value")
    summary = "write the mean of several checkpoints, e.g. of a run and the one that went on from it"
    mean = commands.add_parser("average", help=summary, description=summary)
    mean.add_argument("target", type=Path, help="directory to write")
    mean.add_argument("checkpoint", type=Path, nargs="+", help="directories to read")
    mean.set_defaults(override=[])
    summary = "time a training step beside the same step of transformers"
    timing = commands.add_parser("bench", help=summary, description=summary)
    timing.add_argument("preset", nargs="?", default="mini", help="tiny, mini, small, medium, base or large")
    timing.add_argument("--length", type=int, default=128, help="tokens of a full example")
    timing.add_argument("--batch", type=int, default=32, help="examples per step")
    timing.add_argument("--steps", type=int, default=20, help="steps to time")
    timing.add_argument("--threads", type=int, help="CPU threads; all cores if absent")
    timing.add_argument("--device", default="auto")
    timing.set_defaults(override=[])
    return parser


def _run(parsed: argparse.Namespace) -> bool:
    """False if a signal ended it early."""
    if launched() > 1 and parsed.command not in PARALLEL:
        raise RunError(f"{parsed.command} is for one process; torchrun is for {' and '.join(PARALLEL)}")
    keep_freed_memory()
    if parsed.command == "bench":
        _use_threads(parsed.threads)
        print(bench(parsed.preset, parsed.length, parsed.batch, parsed.steps, parsed.device))
        return True
    if parsed.command == "average":
        return bool(average(parsed.checkpoint, parsed.target))
    recipe = load_recipe(parsed.recipe, _overrides(parsed))
    if parsed.command == "inspect":
        print(inspect(recipe, parsed.examples))
        return True
    _use_threads(recipe.threads)
    torch.backends.cuda.matmul.allow_tf32 = True  # for what a GPU computes in float32
    with logging_redirect_tqdm():
        if parsed.command == "evaluate":
            return _evaluate(recipe, parsed.weights)
        return COMMANDS[parsed.command][0](recipe)


def _use_threads(wanted: int | None) -> None:
    torch.set_num_threads(wanted or max(1, available_cpus() // launched()))


def _overrides(parsed: argparse.Namespace) -> list[str]:
    data = [f"data={parsed.data}"] if parsed.data else []
    tensorboard = ["tensorboard=true"] if getattr(parsed, "tensorboard", False) else []
    return [*data, *tensorboard, *parsed.override]


if __name__ == "__main__":
    code = main()
    if launched() > 1:  # one of several has aborted as its interpreter ended, with all done and saved
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
