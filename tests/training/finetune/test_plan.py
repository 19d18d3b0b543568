"""What fine-tuning chooses by the texts."""

from __future__ import annotations

import pytest

from training.finetune.plan import PlanPolicy, planned, with_whole_micro_batches
from training.recipe import Recipe

POLICY = PlanPolicy()


def plan(tokens: int, texts: int = 1000, world_size: int = 1, **changes: object) -> Recipe:
    recipe = Recipe(name="mine", finetune=changes)
    return with_whole_micro_batches(planned(recipe, texts, tokens, world_size=world_size), world_size)


@pytest.mark.parametrize("tokens", [1, 10_000, 160_000, 3_000_000, 10**9])
def test_planned_steps_are_many_for_small_tables_and_large_for_large_ones(tokens: int) -> None:
    config = plan(tokens).finetune
    assert POLICY.min_passes <= config.passes
    assert config.passes <= POLICY.max_passes or config.passes * tokens / config.batch_tokens <= POLICY.min_steps
    assert POLICY.min_batch_tokens <= config.batch_tokens <= POLICY.max_batch_tokens
    few = plan(tokens // 2 + 1).finetune
    assert few.passes >= config.passes
    assert few.batch_tokens <= config.batch_tokens
    assert few.learning_rate <= config.learning_rate


def test_planned_keeps_what_the_recipe_names() -> None:
    named = {"passes": 0.3, "batch_tokens": 4096, "learning_rate": 1e-3, "bag_weight": 0.25}
    config = plan(1_000_000, **named).finetune
    assert {name: getattr(config, name) for name in named} == named
    assert config.embedding_factor == 1


def test_planned_bag_of_words_is_a_teacher_of_few_texts_only() -> None:
    assert plan(10_000, texts=POLICY.max_bag_texts).finetune.bag_weight == POLICY.bag_weight
    assert plan(10_000, texts=POLICY.max_bag_texts + 1).finetune.bag_weight == 0


def test_planned_bag_of_words_is_no_teacher_of_a_classifier_of_the_labels() -> None:
    recipe = Recipe(name="mine")
    others, same = (planned(recipe, 1000, 100_000, from_classifier=True, has_labels=has) for has in (False, True))
    assert (others.finetune.bag_weight, others.finetune.embedding_factor) == (POLICY.bag_weight, 1)
    assert (same.finetune.bag_weight, same.finetune.embedding_factor) == (0, 1)


def test_planned_passes_of_a_classifier_are_fewer() -> None:
    found = planned(Recipe(name="mine"), 1000, 50_000, from_classifier=True).finetune.passes
    assert found == POLICY.classifier_tokens / 50_000
    assert found < (plan(50_000).finetune.passes or 0)


@pytest.mark.parametrize("world_size", [1, 2, 8])
@pytest.mark.parametrize("tokens", [1000, 10**6, 10**8])
def test_planned_steps_can_be_shared_by_the_processes(world_size: int, tokens: int) -> None:
    recipe = plan(tokens, world_size=world_size, max_length=512)
    micro = recipe.micro_tokens(recipe.finetune)
    assert micro >= 512
    assert recipe.finetune.batch_tokens % (micro * world_size) == 0


@pytest.mark.parametrize("tokens", [1000, 3_600_000, 4_100_000, 10**8])
def test_planned_steps_hardly_depend_on_the_memory(tokens: int) -> None:
    batches = []
    for micro in (256, 512, 1024, 2048, 65_536):
        recipe = Recipe(name="mine", micro_batch_tokens=micro)
        recipe = with_whole_micro_batches(planned(recipe, 1000, tokens), 1)
        assert recipe.micro_batch_tokens <= micro
        batches.append(recipe.finetune.batch_tokens)
    assert max(batches) < 1.3 * min(batches)


def test_with_whole_micro_batches_leaves_the_step_as_it_is() -> None:
    recipe = Recipe(name="mine", finetune={"max_length": 256, "batch_tokens": 1280}, micro_batch_tokens=1280)
    smaller = [
        with_whole_micro_batches(recipe.model_copy(update={"micro_batch_tokens": n}), 1) for n in (1280, 1024, 256, 128)
    ]
    assert [each.micro_batch_tokens for each in smaller] == [1280, 640, 256, 128]
    assert with_whole_micro_batches(recipe, 2).micro_batch_tokens == 640
