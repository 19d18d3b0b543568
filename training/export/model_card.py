"""The README.md of an exported checkpoint: where it comes from and how good it is, from the run's own files."""

from __future__ import annotations

import functools
import json
import logging
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from training.corpus.shards import read_json
from training.evaluate.report import PLOTS
from training.finetune.run import with_remembered
from training.finetune.seeds import chosen_folder, chosen_seed
from training.loop.checkpoint import began_with, differences, identity
from training.loop.log import RunLog
from training.recipe import Recipe, SourceConfig

logger = logging.getLogger(__name__)

_PLOTS = {"pretrained": ("pretrain-loss.png",), "sentiment": ("finetune-loss.png", "reliability-*.png")}


def write_card(recipe: Recipe, name: str, target: Path, weights: Mapping[str, str]) -> None:
    """Write `README.md` into an exported directory, with the figures of the run's report if it is one of this
    model as it is now. `weights` are the fingerprints of the run's models."""
    if name == "sentiment":
        recipe = with_remembered(recipe)
    if name == "pretrained":
        task, title = "fill-mask", "BERT for masked words and next sentences"
        sources, start = recipe.corpus.sources, recipe.pretrain.start
    else:
        task, title = (
            "text-classification",
            f"BERT that tells {', '.join(recipe.finetune.label_names)} apart",
        )
        start = recipe.finetune.pretrained or recipe.pretrain.start
        sources = recipe.finetune.train
    evaluated = (read_json(recipe.folder / "report.json") or {}).get("weights", {})
    if current := name in evaluated and evaluated.items() <= weights.items():
        figures = (recipe.folder / "report.md").read_text(encoding="utf-8").split(PLOTS)[0]
    else:
        figures = "Not evaluated: run `python -m training evaluate`.\n"
    otherwise = _trained_otherwise(recipe, name)
    seed = recipe.seed if name == "pretrained" else chosen_seed(recipe)
    lines = [
        "---",
        f"pipeline_tag: {task}",
        "---",
        "",
        f"# {title}",
        "",
        recipe.description,
        "",
        f"Trained from {_portable(str(start)) if start else 'random weights'} by this repository, with",
        "",
        f"    python -m training all {_command(recipe, otherwise)}",
        "",
        f"Seed {seed}. {_run_line(recipe, name)}",
        "",
        "## Data",
        "",
        *(f"- {_source_line(source)}" for source in sources),
        "",
        "## Figures",
        "",
        figures,
        *(_pictures(recipe, name, target) if current else ()),
        *_weaknesses(recipe),
        "## Settings",
        "",
        "```json",
        json.dumps(_settings(recipe, name, otherwise), indent=2),
        "```",
        "",
    ]
    (target / "README.md").write_text("\n".join(lines), encoding="utf-8")


def _trained_otherwise(recipe: Recipe, name: str) -> dict[str, Any]:
    """Settings that the run was trained with, where the recipe has others now: key of the recipe -> value."""
    stage = "pretrain" if name == "pretrained" else "finetune"
    began = began_with(recipe.folder / "pretrain" if name == "pretrained" else chosen_folder(recipe))
    now = identity(**{stage: getattr(recipe, stage).model_dump(mode="json")})
    trained = {key: value for key, value in began.items() if key.startswith(f"{stage}.")}
    differ = differences(trained, {key: value for key, value in now.items() if key in trained})
    if differ:
        were = ", ".join(f"{key}={was!r}" for key, (was, _) in differ.items())
        logger.warning("trained with %s; the card says so, though the recipe does not", were)
    return {key: was for key, (was, _) in differ.items()}


def _settings(recipe: Recipe, name: str, otherwise: Mapping[str, Any]) -> dict[str, Any]:
    stage = recipe.pretrain if name == "pretrained" else recipe.finetune
    settings = stage.model_dump(mode="json", exclude={"train", "test"})
    for key, value in otherwise.items():
        _, *tables, last = key.split(".")
        functools.reduce(lambda table, name: table.setdefault(name, {}), tables, settings)[last] = value
    return settings | {key: _portable(settings[key]) for key in ("start", "pretrained") if settings.get(key)}


def _pictures(recipe: Recipe, name: str, target: Path) -> list[str]:
    """Copy the report's plots that are about this checkpoint; the lines that show them."""
    lines = []
    for pattern in _PLOTS[name]:
        for file in sorted(recipe.folder.glob(pattern)):
            shutil.copy(file, target)
            lines += [f"![{file.stem}]({file.name})", ""]
    return lines


def _weaknesses(recipe: Recipe) -> list[str]:
    if not recipe.weaknesses:
        return []
    lines = (f"- {line}" for line in recipe.weaknesses)
    return ["## Known weaknesses", "", "As its author found them in networks of this recipe:", "", *lines, ""]


def _run_line(recipe: Recipe, name: str) -> str:
    folder = recipe.folder / "pretrain" if name == "pretrained" else chosen_folder(recipe)
    lines = list(RunLog(folder / "log.jsonl"))
    if not lines:
        return ""
    last = lines[-1]
    machines = dict.fromkeys(line["machine"] for line in lines if line["event"] == "machine")
    where = f" on {', then '.join(machines)}" if machines else ""
    return (
        f"{last['step']:,} steps, {last['tokens']:,} tokens, {last['minutes']:.0f} minutes of training{where}."
    )


def _source_line(source: SourceConfig) -> str:
    place = source.path or f"{source.hub} ({source.split})"
    first = f", first {source.limit:,} documents" if source.limit else ""
    note = f". {source.note}" if source.note else ""
    return f"{source.name or place}: `{place}`{first}{note}"


def _command(recipe: Recipe, otherwise: Mapping[str, Any]) -> str:
    """The recipe and what was changed in it, without the folders of one machine."""
    places = ("data=", "run=", "export.", "threads=", "device=")
    loaded = Path(recipe.loaded or recipe.name)
    words = [loaded.name if loaded.is_absolute() else str(loaded)]
    for override in recipe.overrides:
        key, _, value = override.partition("=")
        if not override.startswith(places) and key not in otherwise:
            words.append(f"{key}={_portable(value) if key in _STARTS else value}")
    return shlex.join([*words, *(f"{key}={json.dumps(value)}" for key, value in otherwise.items())])


_STARTS = ("pretrain.start", "finetune.pretrained")


def _portable(checkpoint: str) -> str:
    """Another run's checkpoint, wherever its run was: `runs/<name>/pretrained`."""
    path = Path(checkpoint)
    return str(Path("runs", *path.parts[-2:])) if path.is_absolute() else checkpoint
