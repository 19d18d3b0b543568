"""The model card of an exported checkpoint: `README.md`, with the resolved recipe beside it."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

from training.loop.log import RunLog
from training.problems.choose import PROBLEMS
from training.recipe import RESOLVED, Recipe, SourceConfig, read_resolved, source_name
from training.runtime.files import read_json, write_json

_TEMPLATE = Path(__file__).with_suffix(".md")
_LOCAL_KEYS = {"data", "run", "device", "export", "loaded", "overrides"}
"""Keys that depend on the machine of a run, or that repeat what the other keys say."""
_NETWORKS = ("start", "pretrained", "teacher")
"""Keys of checkpoint directories."""
_MODELS = ("pretrained", "classifier", "model")
"""Folders of networks, in runs and in the output of `classify`."""
_READABLE = {r"fin\w+-\w+/model$": "classifier", r"pretrain-\w+/model$": "pretrained", r"pretrain-\w+/": "pretrain/"}
"""Results in the folder `stages` of a run, and their readable paths."""


def write_card(recipe: Recipe, name: str, run: Path, target: Path, weights: str) -> None:
    """Write `README.md` and `recipe.json` into an exported directory.

    Settings are those of the training, overrides included. Descriptive keys (`description`, `limits`, the sources'
    notes) are the recipe's present ones, because weaknesses are known only after training. Figures are those of the
    run's report if it is about these weights.

    Args:
        recipe: the present recipe.
        run: folder of the training, with its log and recipe.
        weights: hash of the weights that the report is about.
    """
    trained = _portable_recipe(read_resolved(run) or recipe)
    trained = trained.model_copy(update={"description": recipe.description, "limits": recipe.limits})
    if name == "pretrained":
        task, title = "fill-mask", "BERT for masked words and next sentences"
        start, default_start = trained.pretrain.start, "random weights"
        sources, described = trained.corpus.sources, recipe.corpus.sources
    else:
        kind = PROBLEMS[trained.finetune.problem_type].kind
        task, title = "text-classification", f"BERT {kind}: {', '.join(trained.finetune.label_names)}"
        start, default_start = trained.finetune.pretrained, "this run's network"
        sources = trained.finetune.train + (trained.soft_labels.sources if trained.soft_labels else ())
        described = recipe.finetune.train + (recipe.soft_labels.sources if recipe.soft_labels else ())
    notes = {source_name(source): source.note for source in described}
    card = _TEMPLATE.read_text(encoding="utf-8").format(
        task=task,
        title=title,
        description=trained.description,
        start=f"`{start}`" if start else default_start,
        teachers=_teachers_line(trained, name),
        run=_run_line(run),
        resolved=RESOLVED,
        data="\n".join(_source_line(source, notes.get(source_name(source), source.note)) for source in sources),
        figures=_figures(recipe, name, target, weights) or "Not evaluated: run `bert-train evaluate`.",
        limits="\n".join(["## Limits", "", *(f"- {line}" for line in trained.limits)] if trained.limits else []),
    )
    (target / "README.md").write_text(card.rstrip() + "\n", encoding="utf-8")
    values = trained.model_dump(mode="json", exclude_none=True, exclude=_LOCAL_KEYS)
    write_json(target / RESOLVED, values)


def _figures(recipe: Recipe, name: str, target: Path, weights: str) -> str:
    """The model's tables in the run's report, and its plots; empty if the report is not about these weights."""
    report = read_json(recipe.folder / "report.json") or {}
    if report.get("weights", {}).get(name) != weights or name not in report.get("tables", {}):
        return ""
    if not (plots := recipe.folder / f"{name}.png").is_file():
        return str(report["tables"][name]).rstrip()
    shutil.copy(plots, target)
    return f"{report['tables'][name]}\n![{name}]({plots.name})"


def _run_line(run: Path) -> str:
    lines = list(RunLog(run / "log.jsonl"))
    if not lines:
        return ""
    last = lines[-1]
    machines = dict.fromkeys(line["machine"] for line in lines if line["event"] == "machine")
    where = f" on {', then '.join(machines)}" if machines else ""
    digits = 1 if last["minutes"] < 10 else 0
    minutes = f"{last['minutes']:.{digits}f} minutes of training"
    return f"{last['step']:,} steps, {last['tokens']:,} tokens, {minutes}{where}."


def _teachers_line(recipe: Recipe, name: str) -> str:
    if name == "pretrained":
        teacher = recipe.pretrain.teacher
        return f" It learned the attention relations of `{teacher}`, too." if teacher else ""
    if recipe.soft_labels is None or not recipe.soft_labels.weight:
        return ""
    own = f"{recipe.soft_labels.folds} classifiers, each on the texts that it has not read,"
    teachers = f"`{recipe.soft_labels.teacher}`" if recipe.soft_labels.teacher else own
    return f" It learned from the labels of {teachers} too, with the weight {recipe.soft_labels.weight:g}."


def _source_line(source: SourceConfig, note: str) -> str:
    place = source.path or f"{source.hub} ({source.split})"
    first = f", first {source.limit:,} documents" if source.limit else ""
    return f"- {source.name or place}: `{place}`{first}{f'. {note}' if note else ''}"


def _portable_recipe(recipe: Recipe) -> Recipe:
    """The recipe without the folders of one machine."""

    def rename(table: dict[str, Any]) -> dict[str, Any]:
        for key, value in table.items():
            if isinstance(value, str) and key in (*_NETWORKS, "path"):
                table[key] = _portable(key, _readable(value) if key in _NETWORKS else value, recipe)
        return table

    return Recipe(**json.loads(recipe.model_dump_json(), object_hook=rename))


def _readable(value: str) -> str:
    """The readable path of a result, as its user has named it.

    >>> _readable("runs/mine/stages/pretrain-3f2a9c1b7d/model")
    'runs/mine/pretrained'
    """
    for stage, name in _READABLE.items():
        value = re.sub(f"stages/{stage}", name, value)
    return value


def _portable(key: str, value: str, recipe: Recipe) -> str:
    """A path that tells nothing of the machine.

    A network in the recipe's folder of runs is in `runs`. Another one has its name, after that of its folder if many
    networks have this name. Text is relative to the folder of data.
    """
    is_network = key in _NETWORKS
    folder = (recipe.run if is_network else recipe.data).absolute()
    path = (Path() if is_network else folder).absolute() / value
    if path.is_relative_to(folder):
        return str(Path("runs" if is_network else "", path.relative_to(folder)))
    if not Path(value).is_absolute():
        return value
    return str(Path(*path.parts[-2:])) if is_network and path.name in _MODELS else path.name
