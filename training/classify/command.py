"""`classify`: a table of texts and labels to the recipe of a classifier.

1. `columns` and `choice`: the columns that hold the texts and the labels. 2. `values` and `labels`: the values of the
label column, and the rows to leave out. 3. `output`: the recipe in the output folder. The commands of `all` do the
rest.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap

from bert_tables import TableError
from training.classify.arguments import Values, absolute, as_options, source_of, stated_values
from training.classify.choice import check_label_column, choose_columns, find_columns
from training.classify.columns import TableSurvey, survey_table
from training.classify.labels import MIN_TEXTS, LabelCounts, Labels, count_labels, name_labels, used
from training.classify.output import MODEL, check_output, write_recipe
from training.classify.start import PRETRAINED, choose_start
from training.classify.values import LIST, separator_of
from training.errors import SourceError
from training.recipe import MULTI_LABEL, REGRESSION, SINGLE_LABEL, FinetuneConfig, Recipe, SourceConfig, parse_recipe

TEST_FRACTION, MAX_TESTED = 0.2, 2000
"""Share of the texts that is held out for the report without --test, and approximate maximum of these texts. With
2,000, the standard error of an accuracy of 0.9 is 0.007."""


TRAINING_SHARE, START_MINUTES, MIN_TRAINING_SHARE = 0.8, 0.4, 0.6
"""Fine-tuning gets this share of the command's minutes, minus the start minutes, but at least the smaller share. The
table is read before it, and the report is made after it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The decisions of `classify`."""

    recipe: Recipe
    summary: str
    """Text for the user, before the work begins."""


@dataclass(frozen=True, slots=True)
class Survey:
    """The contents of the tables."""

    train: SourceConfig
    test: SourceConfig | None
    problem: str | None
    """Value of `finetune.problem_type`; None for the default."""
    separator: str | None
    """How a value of the label column is split, see `training.classify.values.split`."""
    counts: LabelCounts
    tested: LabelCounts
    """Labels of the test table; empty without one."""
    dev_fraction: float
    test_fraction: float


def plan(given: argparse.Namespace, overrides: Sequence[str], arguments: Sequence[str]) -> Plan:
    """Read the table, and write the recipe into the output folder.

    Args:
        overrides: Overrides of the recipe; `source.KEY=value` is for the table.
        arguments: The command line, for the first line of the recipe.

    Raises:
        SourceError: the table, its columns or its labels cannot be used; the message has the remedy.
        RunError: the output folder holds something else.
        RecipeError: an override makes no sense.
    """
    output = absolute(given.output)
    check_output(output, absolute(given.table))
    stated = stated_values(overrides)
    try:
        found = survey(given, stated)
        labels = _labels(given, stated, found)
    except (SourceError, TableError) as error:
        raise SourceError(as_options(error)) from error
    values = _recipe(given, stated, found, labels, output)
    recipe = parse_recipe(values, "the recipe of classify")  # checked before anything is written
    if "pretrained" not in stated["finetune"] and found.problem in (None, SINGLE_LABEL):
        values["finetune"]["pretrained"] = str(choose_start(recipe))
    recipe = write_recipe(output, values, f"bert-train {shlex.join(arguments)}")
    return Plan(recipe, "\n".join(_summary(given, stated, found, labels)))


def survey(given: argparse.Namespace, stated: Values) -> Survey:
    """Read the tables.

    Args:
        stated: Overrides as tables, with `source` and `finetune`.

    Raises:
        SourceError, TableError: see `plan`.
    """
    table = survey_table(source_of(given, stated, absolute(given.table)), given.table)
    train = _with_columns(given, table)
    problem, separator = _problem(table, train, stated)
    counts = count_labels(train, separator)
    test, tested = None, LabelCounts()
    if given.test:
        test = _like(train, survey_table(source_of(given, stated, absolute(given.test)), given.test))
        tested = count_labels(test, separator)
    fraction = 0.0 if test else round(min(TEST_FRACTION, MAX_TESTED / max(1, counts.texts)), 4)
    finetune = {"dev_fraction": FinetuneConfig().dev_fraction, "test_fraction": fraction} | stated["finetune"]
    fractions = finetune["dev_fraction"], finetune["test_fraction"]
    return Survey(train, test, problem, separator, counts, tested, *fractions)


def _labels(given: argparse.Namespace, stated: Values, found: Survey) -> Labels:
    if found.problem == REGRESSION:
        return Labels({}, [])
    named, fractions = stated["finetune"].get("labels", {}), (found.dev_fraction, found.test_fraction)
    return name_labels(found.counts, found.tested, named, fractions, given.table)


def _recipe(given: argparse.Namespace, stated: Values, found: Survey, labels: Labels, output: Path) -> Values:
    """The tables of the recipe. The paths of texts start from the folder of the table."""
    data = absolute(given.table).parent
    finetune: Values = {"pretrained": str(PRETRAINED), "test_fraction": found.test_fraction}
    if found.problem:
        finetune["problem_type"] = found.problem
    if given.minutes is not None:
        finetune["minutes"] = round(
            max(TRAINING_SHARE * given.minutes - START_MINUTES, MIN_TRAINING_SHARE * given.minutes), 2
        )
    finetune |= stated["finetune"]
    finetune |= {"labels": labels.names} if labels.names else {}
    sources = {"train": found.train, "test": found.test}
    finetune |= {key: [_values(source, found.separator, data)] for key, source in sources.items() if source}
    chosen = {
        "name": output.name,
        "description": f"Classifier of {Path(given.table).name}.",
        "run": str(output.parent),
        "data": str(data),
    }
    others = {key: value for key, value in stated.items() if key not in ("source", "finetune")}
    return chosen | others | {"export": {"classifier": str(output / MODEL)}, "finetune": finetune}


# --- the contents of the table -------------------------------------------------------------------------------------


def _with_columns(given: argparse.Namespace, table: TableSurvey) -> SourceConfig:
    """The source with its columns. Raises SourceError if the choice is in doubt, or the table is tiny."""
    if not table.columns:
        return table.source
    if table.rows < 2 * MIN_TEXTS:
        raise SourceError(
            f"{table.name}: has {table.rows} rows, but a classifier needs two labels with {MIN_TEXTS} texts each at "
            "least, better with hundreds"
        )
    texts, label = choose_columns(table, given.text, given.label)
    read = table.source.read or ("both" if len(texts) == 2 else None)
    return table.source.model_copy(update={"text": texts, "label": label, "read": read})


def _like(train: SourceConfig, test: TableSurvey) -> SourceConfig:
    """The source of the test table, with the columns of the same names."""
    if not test.columns or train.label is None:
        return test.source
    *texts, label = find_columns(test, [*train.text, train.label])
    return test.source.model_copy(update={"text": tuple(texts), "label": label, "read": train.read})


def _problem(table: TableSurvey, source: SourceConfig, stated: Values) -> tuple[str | None, str | None]:
    """The problem type if it is not the usual one, and how a value of the label column is split.

    Raises:
        SourceError: the column does not hold labels; the message says how to state its contents.
    """
    problem, separator = stated["finetune"].get("problem_type"), stated["source"].get("separator")
    column = next((column for column in table.columns if column.name == source.label), None)
    if column is None or problem in (SINGLE_LABEL, REGRESSION):
        return problem, separator
    separator = separator or (LIST if column.lists else separator_of(column.values))
    if separator or problem:
        return MULTI_LABEL, separator
    if "labels" in stated["finetune"]:  # the user says that they are labels
        return None, None
    check_label_column(table, source.text, column.name)
    return None, None


def _values(source: SourceConfig, separator: str | None, data: Path) -> Values:
    """A source as a table of the recipe, with the keys that differ from the defaults.

    Args:
        data: The recipe's folder of texts.
    """
    values = source.model_dump(mode="json", exclude_defaults=True)
    path = Path(source.path or "")
    values["path"] = str(path.relative_to(data)) if path.is_relative_to(data) else str(path)
    if "table" in values:
        default = SourceConfig(path="").model_dump(mode="json")["table"]
        values["table"] = {key: value for key, value in values["table"].items() if value != default[key]}
    if separator not in (None, LIST):
        values["separator"] = separator
    return values


# --- the summary before the work begins ----------------------------------------------------------------------------


def _summary(given: argparse.Namespace, stated: Values, found: Survey, labels: Labels) -> Iterator[str]:
    """Sentences about the data found, the decisions made and the work ahead. An estimate of the time is best added
    here."""
    counts, source = found.counts, found.train
    columns = f" (column{'s' * (len(source.text) > 1)} {', '.join(source.text)}; labels: column {source.label})"
    columns = ", labelled by their folders" if source.label == "folder" else columns
    columns = " of fastText" if source.format == "fasttext" else columns
    yield f"{given.table}: {counts.texts:,} texts{columns}"
    if labels.names:
        yield from wrap(f"labels: {used(counts, labels.names)}", 100)
    yield from labels.notes
    if found.problem == MULTI_LABEL and "problem_type" not in stated["finetune"]:
        how, advice = "are lists", ""
        if found.separator != LIST:
            how = f"hold labels that are separated by {found.separator!r}"
            advice = f"; if each cell is one label, add finetune.problem_type={SINGLE_LABEL}"
        yield f"a text may have several labels, because the cells {how}{advice}"
    dev, test = (round(share * counts.texts) for share in (found.dev_fraction, found.test_fraction))
    held_out = found.tested.texts or test
    yield f"about {counts.texts - dev - test:,} texts to train on, {dev:,} for dev, {held_out:,} for the report"
