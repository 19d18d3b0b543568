"""bert-train COMMAND RECIPE [--data FOLDER] [key=value ...]
bert-train classify TABLE --output FOLDER [key=value ...]"""

from __future__ import annotations

import argparse
import itertools
import logging
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path

import torch
from tqdm.contrib.logging import logging_redirect_tqdm

from model.errors import BertError
from model.files import system_remedy
from model.tokenizer import Tokenizer
from training.classify.arguments import add_arguments
from training.classify.command import plan
from training.errors import RunError
from training.examples.inspect import inspect
from training.export.run import check_targets, export
from training.finetune.run import check_start
from training.finetune.soft_labels import load_teachers
from training.pipeline import Pipeline
from training.pretrain.run import load_pretrained
from training.recipe import load_recipe
from training.runtime.console import guard_console
from training.runtime.device import configure_process
from training.runtime.distributed import DistContext, distributed, launched
from training.runtime.lock import run_lock
from training.runtime.signals import stop_signals
from training.stage import LINKS, follow

logger = logging.getLogger(__name__)

STOPPED = 130
"""Exit status of a run that a signal ended; the same command continues it."""


def _make(command: str) -> Callable[[Pipeline], bool]:
    """The function of a command that makes stages."""

    def make(pipeline: Pipeline) -> bool:
        with distributed() if command in PARALLEL else nullcontext(DistContext()) as dist:
            finished = all(stage.ensure(dist) for stage in pipeline.of(command))
            if finished and command == "finetune" and dist.is_main:
                pipeline.link_best()
        return finished

    return make


def _inspect(pipeline: Pipeline, examples: int) -> None:
    pipeline.corpus.check()
    tokenizer = Tokenizer.load(pipeline.tokenizer.folder)
    print(inspect(pipeline.recipe, tokenizer, pipeline.corpus.folder, examples))


def _evaluate(pipeline: Pipeline, weights: Path | None = None) -> None:
    from training.evaluate.run import evaluate  # a machine with a GPU may lack scikit-learn and matplotlib

    print(evaluate(pipeline, weights))


def _all(pipeline: Pipeline) -> bool:
    recipe = pipeline.recipe
    check_targets(recipe)  # before hours of training
    pipeline.all()  # checks that all inputs of the recipe exist
    if recipe.pretrain.start and pipeline.pretrains:
        load_pretrained(recipe.pretrain.start)
    if recipe.soft_labels and recipe.soft_labels.teacher:
        tokenizer = pipeline.start.tokenizer if pipeline.start else None
        load_teachers([recipe.soft_labels.teacher], recipe.finetune, tokenizer)
    if pipeline.start:
        check_start(recipe, pipeline.start)
    return all(COMMANDS[name][0](pipeline) is not False for name in pipeline.commands())


def _list(pipeline: Pipeline) -> None:
    """Print the stages of the recipe, and the results that it does not need."""
    for stage in pipeline.all():
        state = "done" if stage.record else "begun" if stage.folder.is_dir() else "missing"
        print(f"{state:8}{_megabytes(stage.folder):>9}  {stage.folder}")
    for folder in pipeline.unneeded():
        print(f"{'unneeded':8}{_megabytes(folder):>9}  {folder}")


def _clean(pipeline: Pipeline) -> None:
    """Remove the results that the recipe does not need."""
    folders = list(pipeline.unneeded())
    with ExitStack() as stack:
        for folder in folders:  # all before the first is removed, because a training also reads other stages
            for place in (folder, *folder.glob("rank-*")):
                stack.enter_context(run_lock(place))
        for folder in folders:
            print(f"removing {_megabytes(folder)}  {folder}")
            shutil.rmtree(folder)
    for link in (pipeline.recipe.folder / name for name in LINKS):
        if not follow(link).exists():
            link.unlink(missing_ok=True)


def _megabytes(folder: Path) -> str:
    return f"{sum(file.stat().st_size for file in folder.rglob('*') if file.is_file()) / 1e6:,.1f} MB"


def _classify(parsed: argparse.Namespace, overrides: list[str], arguments: Sequence[str]) -> bool:
    began = time.monotonic()
    planned = plan(parsed, overrides, arguments)
    print(planned.summary)
    return _all(Pipeline(planned.recipe, began))


PARALLEL = ("pretrain", "finetune")
"""Commands that `torchrun` may start in several processes."""

COMMANDS: dict[str, tuple[Callable[..., object], str]] = {
    "tokenizer": (_make("tokenizer"), "learn the vocabulary from the recipe's text"),
    "prepare": (_make("prepare"), "write the token ids of the text to pretrain on and of the labelled texts"),
    "pretrain": (_make("pretrain"), "train the network on masked words and next sentences"),
    "soft-labels": (_make("soft-labels"), "let other classifiers label the texts; needs [soft_labels]"),
    "finetune": (_make("finetune"), "train the classifier on labelled texts"),
    "evaluate": (_evaluate, "report on held-out text and test sets beside baselines"),
    "export": (export, "write the checkpoint directories that are served"),
    "all": (_all, "run the commands above that the recipe needs; nothing is trained twice"),
    "inspect": (_inspect, "print training examples with their masks and labels"),
    "list": (_list, "print the results that the recipe has, lacks and does not need"),
    "clean": (_clean, "remove results of other settings from the run's folder; see list"),
}
"""Name -> function and its help. The function returns False if a signal ended it early."""


@stop_signals(signal.default_int_handler)  # each acts like Ctrl-C, so that nothing is left half-written
def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status of a command: 0 when done, 1 after an error, 130 when stopped by a signal."""
    guard_console()
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = _parser()
    # `parse_known_args` returns the overrides, so they may stand before, between and after the options.
    parsed, overrides = parser.parse_known_args(arguments)
    unknown = [argument for argument in overrides if argument.startswith("-")]
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s  %(message)s", datefmt="%H:%M:%S")
    logging.captureWarnings(True)
    try:
        with logging_redirect_tqdm():
            finished = _run(parsed, overrides, arguments)
    except torch.OutOfMemoryError as error:
        is_training = parsed.command in (*PARALLEL, "all", "classify")
        advice = "\nlower micro_batch_tokens" * is_training
        print(f"error: {error}{advice}", file=sys.stderr)
        return 1
    except BertError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"error: {error}{system_remedy(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        finished = False
    if not finished:
        print(f"stopped; to continue: bert-train {shlex.join(arguments)}", file=sys.stderr)
    return 0 if finished else STOPPED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("bert-train", description="Train a BERT on your own text.")
    commands = parser.add_subparsers(dest="command", required=True)
    recipe = argparse.ArgumentParser(add_help=False)
    recipe.add_argument("recipe", help="a TOML file, or the name of a recipe that ships")
    recipe.add_argument("--data", help="folder that relative source paths start from")
    overrides = "Further arguments change keys of the recipe, such as pretrain.tokens=5000000."
    parsers = {
        name: commands.add_parser(name, help=summary, description=summary, parents=[recipe], epilog=overrides)
        for name, (_, summary) in COMMANDS.items()
    }
    parsers["evaluate"].add_argument("--weights", type=Path, help="folder of exported checkpoints to evaluate instead")
    parsers["inspect"].add_argument("--examples", type=int, default=5, help="how many to print")
    summary = "train a classifier on a table of texts and labels, without writing a recipe"
    add_arguments(commands.add_parser("classify", help=summary, description=summary, epilog=overrides))
    return parser


def _run(parsed: argparse.Namespace, overrides: list[str], arguments: Sequence[str]) -> bool:
    """Run a command. False if a signal ended it early."""
    if launched().world_size > 1 and parsed.command not in PARALLEL:
        raise RunError(f"{parsed.command} is for one process; torchrun is for {', '.join(PARALLEL)}")
    configure_process()
    if parsed.command == "classify":
        return _classify(parsed, overrides, arguments)
    places = [f"data={parsed.data}"] if parsed.data else []
    recipe = load_recipe(parsed.recipe, [*places, *overrides])
    options = {name: value for name, value in vars(parsed).items() if name in ("examples", "weights")}
    pipeline = Pipeline(recipe)
    finished = COMMANDS[parsed.command][0](pipeline, **options) is not False
    following = dict(itertools.pairwise(pipeline.commands())).get(parsed.command)
    if finished and following and not options.get("weights") and launched().is_main:
        logger.info("next: %s", shlex.join(["bert-train", following, *arguments[1:]]))
    return finished
