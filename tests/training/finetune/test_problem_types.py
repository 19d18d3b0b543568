"""Several labels and numbers: from a recipe to an exported checkpoint that the service's backend answers with."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from app.inference.contract import BackendConfig, Part, Query
from app.inference.torch_backend import TorchBackend
from model import BertForSequenceClassification, PackedBatch, load_checkpoint
from tests.app.backends import computed
from tests.training.conftest import MakeRecipe
from tests.training.stages import save_new_network
from tests.training.texts import BLAME, OBJECTS, PRAISE, sentence
from training.command import main

SETTINGS = (
    *("finetune.learning_rate=1e-3", "finetune.passes=20", "finetune.dev_fraction=0.1", "finetune.augment_fraction=0"),
    *("model.hidden_size=64", "device=cpu"),
)


def write(folder: Path, label: Any) -> list[str]:
    """Write texts to train on and to test on. `label` is called with whether a text is good, and whether it is about a
    dog. The overrides of a recipe that name the files."""
    rng = random.Random(0)
    for name, count in (("train", 300), ("test", 60)):
        rows = []
        for i in range(count):
            good, dog = i % 2 == 1, i % 4 > 1
            thing = "a small dog" if dog else rng.choice(OBJECTS[:4])
            text = f"We saw {thing}. It was {rng.choice(PRAISE if good else BLAME)}. {sentence(rng)}"
            rows.append({"text": text.replace("a small dog", "a dog"), "about": label(good, dog)})
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = (f'[{{path="{folder}/{name}.jsonl",label="about",separator=";"}}]' for name in ("train", "test"))
    return [f"finetune.{key}={value}" for key, value in zip(("train", "test"), files, strict=True)]


def run_all(make_recipe: MakeRecipe, recipe_file: Path, *overrides: str) -> Path:
    """The run's folder after `all`."""
    recipe = save_new_network(make_recipe(*SETTINGS))
    start = f"finetune.pretrained={recipe.folder / 'pretrained'}"
    places = [f"data={recipe.data}", f"run={recipe.run}", "name=typed"]
    assert main(["all", str(recipe_file), *places, start, *SETTINGS, *overrides]) == 0
    return recipe.run / "typed"


def figures(folder: Path) -> dict[str, dict[str, float]]:
    """By model and name."""
    (test,) = json.loads((folder / "report.json").read_text())["classification"].values()
    return {model: {name: figure["value"] for name, figure in each.items()} for model, each in test["figures"].items()}


def served(folder: Path, pretrained: Path, text: str) -> list[float]:
    """The scores that the service computes for a text."""
    backend = TorchBackend(
        BackendConfig(pretrained, folder / "export" / "classifier", device="cpu", dtype="float32", threads=1)
    )
    backend.load()
    model = backend.info.models["sentiment"]
    query = Query([model.tokenizer.encode(text)], len(model.config.labels))
    ((answer,),) = computed(backend, "sentiment", [Part(query, 0, 1)]).outputs
    assert isinstance(answer, list)
    return answer


def logits(folder: Path, text: str) -> torch.Tensor:
    loaded = load_checkpoint(folder / "export" / "classifier")
    assert isinstance(loaded.model, BertForSequenceClassification)
    with torch.no_grad():
        return loaded.model.eval()(PackedBatch.pack([loaded.tokenizer.encode(text).input_ids], outputs=[[0]]))[0]


TEXT = "We saw a dog. It was wonderful. My neighbour sold the red house."


def test_several_labels_from_a_recipe_to_the_service(
    make_recipe: MakeRecipe, recipe_file: Path, tmp_path: Path, pretrained: Path
) -> None:
    files = write(tmp_path, lambda good, dog: " ; ".join(["good"] * good + ["animal"] * dog) or "[]")
    changes = ["finetune.problem_type=multi_label_classification", "finetune.labels={good='GOOD',animal='DOG'}"]
    folder = run_all(make_recipe, recipe_file, *files, *changes)
    found = figures(folder)
    assert found["this model"]["micro_f1"] > found["always answering GOOD, DOG"]["micro_f1"] + 0.1
    assert found["TF-IDF + linear SVM"]["micro_f1"] > 0.9
    config = load_checkpoint(folder / "export" / "classifier").config
    assert (config.problem_type, config.labels) == ("multi_label_classification", ["GOOD", "DOG"])
    assert served(folder, pretrained, TEXT) == pytest.approx(logits(folder, TEXT).sigmoid().tolist(), abs=1e-3)
    assert "multi-label classifier: GOOD, DOG" in (folder / "export" / "classifier" / "README.md").read_text()


def test_numbers_from_a_recipe_to_the_service(
    make_recipe: MakeRecipe, recipe_file: Path, tmp_path: Path, pretrained: Path
) -> None:
    files = [each.replace(',separator=";"', "") for each in write(tmp_path, lambda good, dog: 200_000 + 2 * good + dog)]
    changes = ["finetune.problem_type=regression", "finetune.labels={}"]
    folder = run_all(make_recipe, recipe_file, *files, *changes)
    found = figures(folder)
    errors = {model: each["root_mean_squared_error"] for model, each in found.items()}
    (constant,) = (error for model, error in errors.items() if model.startswith("always answering 20000"))
    assert errors["this model"] < 0.6 * constant
    assert errors["TF-IDF + linear SVM"] < 0.6 * constant
    record = json.loads((folder / "finetune" / "done.json").read_text())
    assert record["result"]["dev_score"] < 0, "higher is better"
    config = load_checkpoint(folder / "export" / "classifier").config
    assert (config.problem_type, config.labels) == ("regression", ["about"])
    (number,) = logits(folder, TEXT).tolist()
    assert number == pytest.approx(200_003, abs=1)
    assert served(folder, pretrained, TEXT) == [pytest.approx(number, abs=0.1)]
