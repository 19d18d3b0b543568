"""python -m training COMMAND RECIPE [--data FOLDER] [key=value ...]
python -m training classify TABLE --output FOLDER [key=value ...]"""

from __future__ import annotations

import argparse
import itertools
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
from model.files import system_remedy
from training.classify.arguments import add_arguments
from training.classify.command import plan
from training.corpus.prepare import prepare, prepare_labelled
from training.corpus.reader import PreparedText
from training.corpus.tokenizer import make_tokenizer, open_tokenizer
from training.errors import RunError
from training.examples.inspect import inspect
from training.export.run import check_targets, export
from training.finetune.distill import distill, load_teachers, with_earlier_distill
from training.finetune.run import finetune, starting_point, train_teachers
from training.pretrain.run import load_pretrained, pretrain
from training.recipe import Recipe, load_recipe
from training.runtime.device import configure_process
from training.runtime.distributed import world_size

logger = logging.getLogger(__name__)

STOPPED = 130
"""Exit status of a run that a signal ended; the same command continues it."""


def _prepare(recipe: Recipe) -> None:
    """The labelled texts first: a wrong label is found before the large text is prepared."""
    if _is_pretrained(recipe):
        start, recipe = starting_point(recipe)
        if recipe.finetune.train:
            prepare_labelled(recipe, start.tokenizer)
        return
    tokenizer = open_tokenizer(recipe)
    if recipe.finetune.train:
        prepare_labelled(recipe, tokenizer)
    folder = prepare(recipe, tokenizer)
    if (folder / "train").is_dir():
        text = PreparedText.open(folder / "train")
        size = f"{text.documents:,} documents with {text.tokens:,} tokens"
        logger.info(f"{size} in {folder}, unigram entropy {text.unigram_entropy:.2f} nats")


def _inspect(recipe: Recipe, examples: int) -> None:
    print(inspect(recipe, examples))


def _distill(recipe: Recipe) -> bool:
    if recipe.distill is None:
        recipe = with_earlier_distill(recipe)
    if recipe.distill and not recipe.distill.teacher and not train_teachers(recipe):
        return False
    start, recipe = starting_point(recipe)
    distill(recipe, start.tokenizer)
    return True


def _evaluate(recipe: Recipe, weights: Path | None = None) -> None:
    from training.report.run import evaluate  # other commands need neither scikit-learn nor matplotlib

    print(evaluate(recipe, weights))


def _all(recipe: Recipe) -> bool:
    check_targets(recipe)  # before hours of training
    if recipe.pretrain.start:
        load_pretrained(recipe.pretrain.start)
    if recipe.finetune.pretrained:
        starting_point(recipe)
    if recipe.distill and recipe.distill.teacher:
        load_teachers(recipe)
    return all(COMMANDS[name][0](recipe) is not False for name in _stages(recipe))


def _classify(parsed: argparse.Namespace, overrides: list[str], arguments: Sequence[str]) -> bool:
    planned = plan(parsed, overrides, arguments)
    print(planned.summary, flush=True)
    with logging_redirect_tqdm():
        return _all(planned.recipe)


def _is_pretrained(recipe: Recipe) -> bool:
    """Whether the recipe pretrains nothing: it fine-tunes a network that exists."""
    return bool(recipe.finetune.pretrained and (recipe.finetune.train or not recipe.corpus.sources))


def _stages(recipe: Recipe) -> list[str]:
    """The commands of `all`, in order."""
    return [
        *(("prepare",) if _is_pretrained(recipe) else ("tokenizer", "prepare", "pretrain")),
        *(("distill",) if recipe.distill and recipe.finetune.train else ()),
        *(("finetune",) if recipe.finetune.train else ()),
        *("evaluate", "export"),
    ]


COMMANDS: dict[str, tuple[Callable[..., object], str]] = {
    "tokenizer": (make_tokenizer, "learn the vocabulary from the recipe's text"),
    "prepare": (_prepare, "write the token ids of the text to pretrain on and of the labelled texts"),
    "pretrain": (pretrain, "train the network on masked words and next sentences"),
    "distill": (_distill, "let other classifiers label the texts; needs [distill]"),
    "finetune": (finetune, "train the classifier on labelled texts"),
    "evaluate": (_evaluate, "report on held-out text and test sets beside baselines"),
    "export": (export, "write the checkpoint directories that are served"),
    "all": (_all, "run the commands above that the recipe needs; nothing is trained twice"),
    "inspect": (_inspect, "print training examples with their masks and labels, and the share of each kind"),
}
"""Name -> function and its help. The function returns False if a signal ended it early."""

PARALLEL = ("pretrain", "finetune")
"""Commands that `torchrun` may start in several processes."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of `bert-train`: 0 when done, 1 after an error, 130 when stopped by a signal."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = _parser()
    # Overrides are what argparse leaves over, so they may stand before, between and after the options.
    parsed, overrides = parser.parse_known_args(arguments)
    unknown = [argument for argument in overrides if argument.startswith("-")]
    if unknown and parsed.command != "bench":
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s  %(message)s", datefmt="%H:%M:%S")
    logging.captureWarnings(True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # like Ctrl-C, so that nothing is left half-written
    try:
        finished = _run(parsed, overrides, arguments)
    except torch.OutOfMemoryError as error:
        is_training = parsed.command in (*PARALLEL, "all", "classify")
        advice = "\nlower micro_batch_tokens, and give the run another name" * is_training
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
        print(f"stopped; to continue: python -m training {shlex.join(arguments)}", file=sys.stderr)
    return 0 if finished else STOPPED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("bert-train", description="Train a BERT on your own text.")
    commands = parser.add_subparsers(dest="command", required=True)
    recipe = argparse.ArgumentParser(add_help=False)
    recipe.add_argument("recipe", help="a TOML file, or the name of a recipe that ships")
    recipe.add_argument("--data", help="folder that relative source paths start from")
    recipe.add_argument("--tensorboard", action="store_true", help="write event files for TensorBoard too")
    overrides = "Further arguments change keys of the recipe, such as pretrain.tokens=5000000."
    parsers = {
        name: commands.add_parser(name, help=summary, description=summary, parents=[recipe], epilog=overrides)
        for name, (_, summary) in COMMANDS.items()
    }
    parsers["evaluate"].add_argument("--weights", type=Path, help="folder of exported checkpoints to evaluate instead")
    parsers["inspect"].add_argument("--examples", type=int, default=5, help="how many to print")
    summary = "train a classifier on a table of texts and labels, without writing a recipe"
    add_arguments(commands.add_parser("classify", help=summary, description=summary, epilog=overrides))
    summary = "time a training step beside the same step of transformers"
    commands.add_parser("bench", help=summary, add_help=False)  # it parses its own arguments
    return parser


def _run(parsed: argparse.Namespace, overrides: list[str], arguments: Sequence[str]) -> bool:
    """Run a command. False if a signal ended it early."""
    if world_size() > 1 and parsed.command not in PARALLEL:
        raise RunError(f"{parsed.command} is for one process; torchrun is for {', '.join(PARALLEL)}")
    configure_process()
    if parsed.command == "bench":
        return _bench(overrides)
    if parsed.command == "classify":
        return _classify(parsed, overrides, arguments)
    places = [f"data={parsed.data}"] if parsed.data else []
    boards = ["tensorboard=true"] if parsed.tensorboard else []
    recipe = load_recipe(parsed.recipe, [*places, *boards, *overrides])
    options = {name: value for name, value in vars(parsed).items() if name in ("examples", "weights")}
    with logging_redirect_tqdm():
        finished = COMMANDS[parsed.command][0](recipe, **options) is not False
    following = dict(itertools.pairwise(_stages(recipe))).get(parsed.command)
    if finished and following and not options.get("weights") and os.environ.get("RANK", "0") == "0":
        logger.info("next: %s", shlex.join(["python", "-m", "training", following, *arguments[1:]]))
    return finished


def _bench(arguments: Sequence[str]) -> bool:
    try:
        from benchmarks import training_step  # no part of the installed package
    except ImportError as error:
        raise RunError(f"bench runs in the folder of the repository, with transformers installed ({error})") from error
    training_step.main(arguments)
    return True


if __name__ == "__main__":
    code = main()
    if world_size() > 1:  # the interpreter of a rank can abort at its exit, after everything is saved
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
