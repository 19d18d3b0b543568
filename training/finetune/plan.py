"""Chooses the settings of fine-tuning that a recipe leaves out, depending on the texts.

The rules were measured on tables of 100 to 8,110 texts (experiments/LOG.md, 2026-11-28).

A small table needs many small steps: 1,000 texts in steps of 4,096 tokens are 57 steps in two passes, which hardly move
a network.
"""

from __future__ import annotations

from dataclasses import dataclass

from training.recipe import BUCKET_TOKENS, REGRESSION, Recipe

PLANNED = {"passes", "batch_tokens", "learning_rate", "embedding_factor", "bag_weight"}
"""Settings of `[finetune]` that may be left out."""


@dataclass(frozen=True, slots=True)
class PlanPolicy:
    """Length and learning rate of the training of a classifier."""

    tokens: int = 2_000_000
    """Tokens of a run, within `min_passes` and `max_passes`."""
    classifier_tokens: int = 250_000
    """Tokens of a run that starts from a classifier, which overfits sooner."""
    min_passes: float = 2.0
    max_passes: float = 20.0
    min_steps: int = 200
    """Fewer steps hardly change a network. For them, few short texts are read more than `max_passes` times."""
    steps: int = 3000
    """Steps of a run, if each has `min_batch_tokens` to `max_batch_tokens`."""
    min_batch_tokens: int = 512
    max_batch_tokens: int = 4096
    learning_rate: float = 2e-4
    """Peak learning rate with steps of `min_batch_tokens`. It grows with the fourth root of a step's tokens, which
    agrees with the recipes `cpu` (3e-4 at 4,096) and `shipped` (5e-4 at 32,768)."""
    embedding_factor: float = 10.0
    bag_weight: float = 0.5
    max_bag_texts: int = 20_000
    """Maximum number of texts with which a bag of words is used, because it was not measured with more."""


def planned(
    recipe: Recipe,
    texts: int,
    tokens: int,
    *,
    from_classifier: bool = False,
    has_labels: bool = False,
    world_size: int = 1,
    policy: PlanPolicy = PlanPolicy(),
) -> Recipe:
    """The recipe with values for all settings of `[finetune]` that depend on the texts.

    Args:
        tokens: tokens of one pass.
        from_classifier: whether the network to start from is a classifier. It needs less training, and no higher
            learning rate for embeddings.
        has_labels: whether it has the recipe's labels, so that its last layer is kept.
        world_size: processes that share a step.
    """
    config = recipe.finetune
    most = max(policy.max_passes, policy.min_steps * policy.min_batch_tokens / tokens)
    wanted_tokens = policy.classifier_tokens if from_classifier else policy.tokens
    passes = config.passes or min(most, max(policy.min_passes, wanted_tokens / tokens))
    batch = config.batch_tokens
    if batch is None:
        wanted = min(policy.max_batch_tokens, max(policy.min_batch_tokens, passes * tokens / policy.steps))
        micro_batches = -(-wanted // (world_size * recipe.micro_batch_tokens))  # of a process, for a step
        each = max(wanted / world_size / micro_batches, config.max_length)
        batch = int(micro_batches) * world_size * _round_up(each, BUCKET_TOKENS)
    is_given = config.learning_rate is not None
    changes = {
        "passes": passes,
        "batch_tokens": batch,
        "learning_rate": config.learning_rate or policy.learning_rate * (batch / policy.min_batch_tokens) ** 0.25,
        "embedding_factor": config.embedding_factor
        or (1.0 if is_given or from_classifier else policy.embedding_factor),
        "bag_weight": bag_weight(recipe, texts, has_labels=has_labels, policy=policy),
    }
    return recipe.model_copy(update={"finetune": config.model_copy(update=changes)})


def bag_weight(recipe: Recipe, texts: int, *, has_labels: bool, policy: PlanPolicy = PlanPolicy()) -> float:
    """The weight of a bag of words; 0 if the classifier does not learn from one. See `planned`.

    Args:
        has_labels: a bag of words would not help a network with the recipe's labels.
    """
    config = recipe.finetune
    if recipe.soft_label_weight or config.problem_type == REGRESSION:
        return 0.0
    if config.bag_weight is not None:
        return config.bag_weight
    return policy.bag_weight * (texts <= policy.max_bag_texts and not has_labels)


def with_whole_micro_batches(recipe: Recipe, world_size: int) -> Recipe:
    """The recipe with `micro_batch_tokens` lowered to the largest size that divides the share of each process in a
    step; unchanged if no size does."""
    config, batch = recipe.finetune, recipe.finetune.batch_tokens or 0
    smallest = _round_up(config.max_length, BUCKET_TOKENS)
    sizes = range(smallest, min(recipe.micro_batch_tokens, batch) + 1, BUCKET_TOKENS)
    fitting = [size for size in sizes if batch % (size * world_size) == 0]
    return recipe.model_copy(update={"micro_batch_tokens": fitting[-1]}) if fitting else recipe


def _round_up(number: float, step: int) -> int:
    return -(-int(number) // step) * step
