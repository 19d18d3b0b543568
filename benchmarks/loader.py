"""CPU time of pretraining batches: `python -m benchmarks.loader`; `--beside FOLDER` alternates with another checkout.

One process makes the batches of one pass over prepared text, collation included, on one core. Tokens are those of
examples, without padding. Figures of two runs do not compare: other work on the machine slows the memory.
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
from training.runtime.files import DONE, write_json

ROOT = Path(__file__).parent.parent
TOKENIZER = ROOT / "model" / "weights" / "pretrained"
BATCH_TOKENS = (2048, 65_536)
"""Tokens of a batch on a CPU, and on a GPU."""


def prepared(text: Path | None, sentences: int, folder: Path) -> Path:
    """The folder of the prepared text: of a file or folder, or of generated sentences in documents of 1 to 60."""
    if text is None:
        rng, left = random.Random(0), texts.load(None, sentences)
        text = folder / "text.txt"
        with text.open("w", encoding="utf-8") as file:
            while left:
                document, left = left[: (size := rng.randint(1, 60))], left[size:]
                file.write(" ".join(document) + "\n\n")
    recipe = Recipe.model_validate(
        {"name": "loader", "corpus": {"sources": [{"path": str(text.resolve())}], "heldout_fraction": 0}}
    )
    made = prepare(recipe, Tokenizer.load(TOKENIZER), folder / "corpus")
    write_json(folder / "corpus" / DONE, made)
    return folder / "corpus"


def measure(corpus: Path, tokens: int) -> dict[str, float]:
    """The figures of one pass over a prepared text, in batches of `tokens` tokens."""
    tokenizer, text = Tokenizer.load(TOKENIZER), PreparedText(corpus)
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


def measure_tree(tree: Path, corpus: Path, tokens: int) -> dict[str, float]:
    """`measure` in a process that imports the packages of a checkout."""
    command = [sys.executable, __file__, "--corpus", str(corpus), "--tokens", str(tokens)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (tree, tree / "client")))}
    figures: dict[str, Any] = json.loads(subprocess.check_output(command, cwd=tree, env=environment))
    return figures


def table(trees: Sequence[Path], found: dict[tuple[int, str], list[list[float]]]) -> str:
    """The medians of each tree, and of the ratios to the second."""
    heads = ["tokens a batch", "figure", *(tree.name for tree in trees), *(["ratio"] if trees[1:] else [])]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
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
    parser.add_argument("--corpus", type=Path, help="prepared text: print the figures of one pass over it as JSON")
    parser.add_argument("--tokens", type=int, default=BATCH_TOKENS[0], help="of a batch, with --corpus")
    options = parser.parse_args()
    if options.corpus:
        print(json.dumps(measure(options.corpus, options.tokens)))
        return
    trees = [ROOT, *([options.beside.resolve()] if options.beside else [])]
    found: defaultdict[tuple[int, str], list[list[float]]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        corpus = prepared(options.text, options.sentences, Path(folder))
        for _ in range(options.rounds):
            for tokens in BATCH_TOKENS:
                runs = [measure_tree(tree, corpus, tokens) for tree in trees]
                for name in runs[0]:
                    found[tokens, name].append([run[name] for run in runs])
    print(table(trees, found))


if __name__ == "__main__":
    main()
