"""The model card of an exported checkpoint: `README.md`, and the resolved recipe beside it."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from training.finetune.selection import chosen_folder
from training.loop.log import RunLog
from training.recipe import RESOLVED, Recipe, SourceConfig, read_resolved
from training.report.run import PLOTS
from training.runtime.files import read_json, write_json

_PLOTS = {"pretrained": ("pretrain-loss.png",), "sentiment": ("finetune-loss.png", "reliability-*.png")}
_LOCAL_KEYS = ("data=", "run=", "export.", "device=", "tensorboard=")
"""Overrides that say where a run was made, not how."""


def write_card(recipe: Recipe, name: str, target: Path, weights: Mapping[str, str]) -> None:
    """Write `README.md` and `recipe.json` into an exported directory.

    The recipe is the one that the run was trained with, overrides included, whatever the command line says now. Figures
    are those of the run's report if the report is about these weights.

    Args:
        weights: hashes of the run's models by name.
    """
    run = recipe.folder / "pretrain" if name == "pretrained" else chosen_folder(recipe)
    trained = read_resolved(run) or recipe
    figures, pictures = _figures(recipe, name, target, weights)
    lines = [
        "---",
        f"pipeline_tag: {'fill-mask' if name == 'pretrained' else 'text-classification'}",
        "---",
        "",
        f"# {_title(trained, name)}",
        "",
        trained.description,
        "",
        "## How to make it",
        "",
        f"    python -m training all {_command(trained)}",
        "",
        f"{_origin(trained, name)} {_run_line(run)} `{RESOLVED}` beside this file has every setting.",
        "",
        "## Data",
        "",
        *(f"- {_source_line(source)}" for source in _sources(trained, name)),
        "",
        "## Figures",
        "",
        figures,
        *pictures,
        *_limits(trained),
    ]
    (target / "README.md").write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
    write_json(target / RESOLVED, _portable_recipe(trained))


def _title(recipe: Recipe, name: str) -> str:
    if name == "pretrained":
        return "BERT for masked words and next sentences"
    return f"BERT classifier: {', '.join(recipe.finetune.label_names)}"


def _sources(recipe: Recipe, name: str) -> tuple[SourceConfig, ...]:
    if name == "pretrained":
        return recipe.corpus.sources
    return recipe.finetune.train + (recipe.distill.sources if recipe.distill else ())


def _figures(recipe: Recipe, name: str, target: Path, weights: Mapping[str, str]) -> tuple[str, list[str]]:
    """The tables of the run's report, and its plots, if it is about these weights."""
    evaluated = (read_json(recipe.folder / "report.json") or {}).get("weights", {})
    if not (name in evaluated and evaluated.items() <= weights.items()):
        return "Not evaluated: run `python -m training evaluate`.\n", []
    pictures = []
    for pattern in _PLOTS[name]:
        for file in sorted(recipe.folder.glob(pattern)):
            shutil.copy(file, target)
            pictures += [f"![{file.stem}]({file.name})", ""]
    return (recipe.folder / "report.md").read_text(encoding="utf-8").split(PLOTS)[0], pictures


def _limits(recipe: Recipe) -> list[str]:
    return ["## Limits", "", *(f"- {line}" for line in recipe.limits), ""] if recipe.limits else []


def _origin(recipe: Recipe, name: str) -> str:
    start = recipe.pretrain.start if name == "pretrained" else recipe.finetune.pretrained
    if start is None:
        return "It starts from random weights." if name == "pretrained" else "It starts from this run's network."
    return f"It starts from `{_portable(str(start))}`."


def _run_line(run: Path) -> str:
    lines = list(RunLog(run / "log.jsonl"))
    if not lines:
        return ""
    last = lines[-1]
    machines = dict.fromkeys(line["machine"] for line in lines if line["event"] == "machine")
    where = f" on {', then '.join(machines)}" if machines else ""
    return f"{last['step']:,} steps, {last['tokens']:,} tokens, {last['minutes']:.0f} minutes of training{where}."


def _source_line(source: SourceConfig) -> str:
    place = _portable(source.path, "path") if source.path else f"{source.hub} ({source.split})"
    first = f", first {source.limit:,} documents" if source.limit else ""
    note = f". {source.note}" if source.note else ""
    return f"{source.name or place}: `{place}`{first}{note}"


def _command(recipe: Recipe) -> str:
    """The recipe's name and what was overridden in it, without the folders of one machine."""
    return shlex.join([_loaded(recipe), *_overrides(recipe)])


def _loaded(recipe: Recipe) -> str:
    loaded = Path(recipe.loaded or recipe.name)
    return loaded.name if loaded.is_absolute() else str(loaded)


def _overrides(recipe: Recipe) -> list[str]:
    parts = (override.partition("=") for override in recipe.overrides if not override.startswith(_LOCAL_KEYS))
    return [f"{key}={_portable(value)}" for key, _, value in parts]


def _portable_recipe(recipe: Recipe) -> Any:
    """The resolved recipe without the folders of one machine."""
    values = recipe.model_dump(mode="json", exclude_none=True, exclude={"data", "run", "device", "export"})
    return _portable_values(values | {"loaded": _loaded(recipe), "overrides": _overrides(recipe)})


def _portable_values(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: _portable_values(inner, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [_portable_values(inner, key) for inner in value]
    return _portable(value, key) if isinstance(value, str) else value


def _portable(value: str, key: str = "") -> str:
    """A path of one machine as `runs/<name>/pretrained`, or the file's name of a source; anything else as it is."""
    path = Path(value)
    if not path.is_absolute():
        return value
    return path.name if key == "path" else str(Path("runs", *path.parts[-2:]))
