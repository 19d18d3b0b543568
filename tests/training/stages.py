"""Stages of a recipe in this process, and networks in place of trained ones."""

from __future__ import annotations

from model.checkpoint import Model, save_checkpoint
from model.tokenizer import Tokenizer
from training.command import COMMANDS
from training.pipeline import Pipeline
from training.pretrain.run import new_model
from training.recipe import Recipe
from training.runtime.files import DONE, write_json
from training.stage import Stage, link


def made(recipe: Recipe, *commands: str) -> bool:
    """Whether commands such as `finetune` have finished."""
    return all(COMMANDS[command][0](Pipeline(recipe)) is not False for command in commands)


def put_network(stage: Stage, model: Model, tokenizer: Tokenizer, **record: object) -> None:
    """Put a network where a stage leaves its own."""
    save_checkpoint(stage.folder / "model", model, tokenizer)
    write_json(stage.folder / DONE, {"settings": stage.settings, "needs": [], "files": {}, **record})
    for name, inside in stage.links.items():
        link(stage.run_folder / name, stage.folder / inside)


def save_new_network(recipe: Recipe, seed: int = 1) -> Recipe:
    """Put a network with new weights where `pretrain` leaves its own."""
    pipeline = Pipeline(recipe)
    tokenizer = Tokenizer.load(pipeline.tokenizer.folder)
    put_network(pipeline.pretrain, new_model(recipe.model_copy(update={"seed": seed}), tokenizer), tokenizer)
    return recipe
