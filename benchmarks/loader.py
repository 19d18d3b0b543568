"""CPU time of pretraining batches: `python -m benchmarks.loader`; `--beside FOLDER` alternates with another checkout.

One process makes the batches of one pass over prepared text, collation included, on one core. Tokens are those of
examples, without padding. Do not compare figures of two runs: other work on the machine slows the memory.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import texts
from model.tokenizer import Tokenizer
from training.corpus.prepare import prepare
from training.corpus.reader import PreparedText
from training.examples.loader import MicroBatches
from training.examples.masking import Vocabulary
from training.examples.pretraining import PretrainingStream
from training.recipe import ExamplesConfig, Recipe

ROOT = Path(__file__).parent.parent
TOKENIZER = ROOT / "model" / "weights" / "pretrained"
BATCH_TOKENS = (2048, 65_536)
"""Tokens of a batch on a CPU, and on a GPU."""


def write_text(sentences: int, folder: Path) -> Path:
    """A file of generated sentences in documents of 1 to 60."""
    rng, left = random.Random(0), texts.load(None, sentences)
    with (folder / "text.txt").open("w", encoding="utf-8") as file:
        while left:
            document, left = left[: (size := rng.randint(1, 60))], left[size:]
            file.write(" ".join(document) + "\n\n")
    return folder / "text.txt"


def measure(source: Path) -> dict[int, dict[str, float]]:
    """The figures of one pass over a file or folder of text, by the tokens of a batch."""
    tokenizer = Tokenizer.load(TOKENIZER)
    recipe = Recipe.model_validate(
        {"name": "loader", "corpus": {"sources": [{"path": str(source.resolve())}], "heldout_fraction": 0}}
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made: Any = prepare(recipe, tokenizer, folder)
        # Version 0.3 returns nothing.
        text = PreparedText(folder, made) if made else PreparedText.open(folder / "train")  # type: ignore[attr-defined]
        return {tokens: _measure(text, tokenizer, tokens) for tokens in BATCH_TOKENS}


def _measure(text: PreparedText, tokenizer: Tokenizer, tokens: int) -> dict[str, float]:
    stream = PretrainingStream(text, Vocabulary.of(tokenizer), ExamplesConfig(), 1, tokens)
    number = max(1, text.tokens // tokens)
    began = time.process_time()
    batches = [made for made, _ in zip(MicroBatches(stream, number), range(number), strict=False)]
    seconds = time.process_time() - began
    ids = [getattr(made, "batch", made).packed.input_ids for made in batches]  # 0.3 wraps them
    examples = sum(int((each == tokenizer.cls_id).sum()) for each in ids)
    real = sum(int((each != tokenizer.pad_id).sum()) for each in ids)
    return {
        "us/example": 1e6 * seconds / examples,
        "examples/s": examples / seconds,
        "tokens/s": real / seconds,
        "tokens/example": real / examples,
        "share of padding": 1 - real / (number * tokens),
    }


def measure_tree(tree: Path, source: Path) -> dict[int, dict[str, float]]:
    """`measure` in a process that imports the packages of a checkout."""
    command = [sys.executable, __file__, "--measure", str(source.resolve())]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (tree, tree / "client")))}
    figures = json.loads(subprocess.check_output(command, cwd=tree, env=environment))
    return {int(tokens): each for tokens, each in figures.items()}


def table(trees: Sequence[Path], found: dict[tuple[int, str], list[list[float]]]) -> str:
    """The median of each tree, and the median ratio of the first to the second."""
    titles = ["tokens a batch", "figure", *(tree.name for tree in trees), *(["ratio"] if trees[1:] else [])]
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for (tokens, name), rounds in found.items():
        digits = 3 if name.startswith("share") else 1
        cells = [f"{median(column):,.{digits}f}" for column in zip(*rounds, strict=True)]
        if trees[1:]:
            cells.append(f"{median(own / other for own, other in rounds):.2f}")
        lines.append(f"| {tokens:,} | {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--beside", type=Path, help="folder of another checkout, measured in turns")
    parser.add_argument("--text", type=Path, help="file or folder of text, in place of generated sentences")
    parser.add_argument("--sentences", type=int, default=100_000, help="number of generated sentences")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--measure", type=Path, help="file or folder of text: print the figures of this tree as JSON")
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure)))
        return
    trees = [ROOT, *([options.beside.resolve()] if options.beside else [])]
    found: defaultdict[tuple[int, str], list[list[float]]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        source = options.text or write_text(options.sentences, Path(folder))
        for _ in range(options.rounds):
            runs = [measure_tree(tree, source) for tree in trees]
            for tokens, figures in runs[0].items():
                for name in figures:
                    found[tokens, name].append([run[tokens][name] for run in runs])
    print(table(trees, found))


if __name__ == "__main__":
    main()
