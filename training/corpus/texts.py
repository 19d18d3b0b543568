"""Reads labelled text from the sources once.

Repetitions are removed, and each text has its target. The parts are `train`, `dev/<source>` and `test/<source>`.
Baselines and reports read them, and `labelled` is encoded from them.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

from tqdm import tqdm

from training.corpus.inputs import labelled_inputs
from training.corpus.shards import ShardInput
from training.errors import CorpusError, MissingTextError
from training.recipe import Recipe
from training.runtime.files import reason
from training.sources.documents import Document
from training.sources.files import size
from training.sources.labels import Target


def write_texts(recipe: Recipe, folder: Path) -> None:
    """Write the texts of `finetune.train`, `finetune.test` and `distill.sources` into a folder.

    Raises:
        SourceError: text cannot be read, or a label is missing or unknown.
        RunError: no text of some label is left to train on.
        CorpusError: the disk is full.
    """
    unlabelled = recipe.distill.sources if recipe.distill else ()
    total = size((*recipe.finetune.train, *recipe.finetune.test, *unlabelled), recipe.data)
    try:
        with tqdm(desc="texts", total=total, unit="B", unit_scale=True, disable=None) as bar:
            for shard in labelled_inputs(recipe):
                _write(shard, folder)
                bar.update(shard.bytes_read - bar.n)
    except OSError as error:
        raise CorpusError(f"{folder}: {reason(error, recipe.folder)}. Remove the cause, and run it again") from error


def read_texts(folder: Path, *parts: str) -> Iterator[ShardInput]:
    """The texts of some parts: `train`, `dev` or `test`. The latter two have one part per source.

    Raises:
        MissingTextError: the texts are missing.
    """
    if not folder.is_dir():
        raise MissingTextError(f"{folder} is missing")
    for part in parts:
        for file in sorted((folder / part).rglob("*.jsonl.gz")):
            with gzip.open(file, "rt", encoding="utf-8", errors="surrogatepass") as lines:
                source, read = json.loads(next(lines))
                rows = [_row(*json.loads(line)) for line in lines]
            name, number = str(file.parent.relative_to(folder)), int(file.name.partition(".")[0])
            yield ShardInput(name, number, source, [row[0] for row in rows], [row[1] for row in rows], read)


def _write(shard: ShardInput, folder: Path) -> None:
    assert shard.labels is not None
    file = folder / shard.part / f"{shard.number:06d}.jsonl.gz"
    file.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(file, "wt", compresslevel=4, encoding="utf-8", errors="surrogatepass") as lines:
        lines.write(json.dumps([shard.source, shard.read]) + "\n")
        for document, target in zip(shard.documents, shard.labels, strict=True):
            row = [document.fields, document.group, document.domain, document.place, target]
            lines.write(json.dumps(row, ensure_ascii=False) + "\n")


def _row(
    fields: list[str], group: str | None, domain: str | None, place: str, target: int | list[float]
) -> tuple[Document, Target]:
    document = Document(tuple(fields), group=group, domain=domain, place=place)
    return document, tuple(target) if isinstance(target, list) else target
