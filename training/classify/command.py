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
from model.tokenizer import Tokenizer
from training.classify.arguments import Values, absolute, as_options, source_of, stated_values
from training.classify.choice import check_label_column, choose_columns
from training.classify.columns import TableSurvey, survey_table
from training.classify.labels import LabelCounts, count_labels, name_labels, used
from training.classify.output import MODEL, check_output, write_recipe
from training.classify.start import PRETRAINED, choose_start
from training.classify.values import separator_advice, separator_of
from training.corpus.prepare import vocabulary_advice
from training.errors import SourceError
from training.recipe import MULTI_LABEL, REGRESSION, SINGLE_LABEL, Recipe, SourceConfig, parse_recipe
from training.sources.documents import documents_of, open_files

TEST_FRACTION, MAX_TESTED = 0.2, 2000
"""Share of the texts that is held out for the report without --test, and approximate maximum of these texts. With
2,000, the standard error of an accuracy of 0.9 is 0.007."""


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
    counts: LabelCounts
    tested: LabelCounts
    """Labels of the test table; empty without one."""
    test_fraction: float
    """Share of the texts for the report."""
    labels: dict[str, str]
    """The value of `finetune.labels`; empty for numbers."""
    notes: list[str]
    """Descriptions of the values that are left out or in doubt."""


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
    except (SourceError, TableError) as error:
        raise SourceError(as_options(error)) from error
    values = _recipe(given, stated, found, output)
    recipe = parse_recipe(values, "the recipe of classify")  # checked before anything is written
    if "pretrained" not in stated["finetune"]:
        values["finetune"]["pretrained"] = str(choose_start(recipe, found.counts.sample))
    advice = vocabulary_advice(Tokenizer.load(values["finetune"]["pretrained"]), found.counts.sample)
    recipe = write_recipe(output, values, f"bert-train {shlex.join(arguments)}")
    return Plan(recipe, "\n".join([*_summary(given, stated, found, all_rows=recipe.finetune.all_rows), *advice]))


def survey(given: argparse.Namespace, stated: Values) -> Survey:
    """Read the tables.

    Args:
        stated: Overrides as tables, with `source` and `finetune`.

    Raises:
        SourceError, TableError: see `plan`.
    """
    table = survey_table(source_of(given, stated), given.table)
    train, problem = _with_columns(given, stated, table)
    counts = count_labels(documents_of(train, table.files), may_lack=problem == MULTI_LABEL)
    test, tested = None, LabelCounts()
    if given.test:
        test = train.model_copy(update={"path": str(absolute(given.test))})
        tested = count_labels(documents_of(test, open_files(test, Path())), may_lack=problem == MULTI_LABEL)
    fraction = 0.0 if test else round(min(TEST_FRACTION, MAX_TESTED / max(1, counts.texts)), 4)
    labels: tuple[dict[str, str], list[str]] = {}, []
    if problem != REGRESSION:
        of_file = table.names.get("".join(train.label_columns), {})
        names = {value: name for value, name in of_file.items() if value in counts.values}
        labels = name_labels(counts, tested, names | stated["finetune"].get("labels", {}), given.table)
    return Survey(train, test, problem, counts, tested, fraction, *labels)


def _recipe(given: argparse.Namespace, stated: Values, found: Survey, output: Path) -> Values:
    """The tables of the recipe. The paths of texts start from the folder of the table."""
    data = absolute(given.table).parent
    finetune: Values = {"pretrained": str(PRETRAINED), "test_fraction": found.test_fraction}
    if found.problem:
        finetune["problem_type"] = found.problem
    finetune |= {} if given.minutes is None else {"minutes": given.minutes}
    finetune |= stated["finetune"]
    is_held_out = finetune.get("dev_fraction") != 0 or finetune["test_fraction"] > 0
    if is_held_out and "soft_labels" not in stated:
        finetune.setdefault("all_rows", True)
    finetune |= {"labels": found.labels} if found.labels else {}
    sources = {"train": found.train, "test": found.test}
    finetune |= {key: [_values(source, data)] for key, source in sources.items() if source}
    chosen = {
        "name": output.name,
        "description": f"Classifier of {Path(given.table).name}.",
        "run": str(output.parent),
        "data": str(data),
    }
    others = {key: value for key, value in stated.items() if key not in ("source", "finetune")}
    return chosen | others | {"export": {"classifier": str(output / MODEL)}, "finetune": finetune}


# --- the contents of the table -------------------------------------------------------------------------------------


def _with_columns(given: argparse.Namespace, stated: Values, table: TableSurvey) -> tuple[SourceConfig, str | None]:
    """The source with its columns and the separator of its labels, and the problem type if it is not the usual one.

    Raises:
        SourceError: the choice is in doubt, or the column holds no labels; the message says what to state.
    """
    problem = stated["finetune"].get("problem_type")
    if not table.columns:
        return table.source, problem
    columns, labels = choose_columns(table, given.text, given.label)
    texts = tuple(column.name for column in columns)
    read = table.source.read or ("both" if len(texts) == 2 else None)
    source = table.source.model_copy(update={"text": texts, "label": labels[0].name, "read": read})
    if len(labels) > 1:
        return source.model_copy(update={"label": tuple(each.name for each in labels)}), problem or MULTI_LABEL
    (column,) = labels
    if problem in (SINGLE_LABEL, REGRESSION):
        return source, problem
    separator = source.separator or (None if column.lists else separator_of(column.values))
    if separator or column.lists or problem:
        return source.model_copy(update={"separator": separator}), MULTI_LABEL
    if "labels" not in stated["finetune"] and column.name not in table.names:  # else they are labels
        check_label_column(table, column)
    return source, None


def _values(source: SourceConfig, data: Path) -> Values:
    """A source as a table of the recipe, with the keys that differ from the defaults.

    Args:
        data: The recipe's folder of texts.
    """
    values = source.model_dump(mode="json", exclude_defaults=True, exclude_none=True)
    path = Path(source.path or "")
    values["path"] = str(path.relative_to(data)) if path.is_relative_to(data) else str(path)
    return values


# --- the summary before the work begins ----------------------------------------------------------------------------


def _summary(given: argparse.Namespace, stated: Values, found: Survey, *, all_rows: bool) -> Iterator[str]:
    """Sentences about the data found, the decisions made and the work ahead."""
    counts, source = found.counts, found.train
    columns = f" (text: {', '.join(source.text)}; labels: {', '.join(source.label_columns)})"
    columns = ", labelled by their folders" if source.label == "folder" else columns
    columns = " of fastText" if source.format == "fasttext" else columns
    yield f"{given.table}: {counts.texts:,} texts{columns}"
    if found.labels:
        yield from wrap(f"labels: {used(counts, found.labels)}", 100)
    yield from found.notes
    if found.problem == MULTI_LABEL and "" in found.labels and source.label:
        none = "[]" if isinstance(source.label, str) else "0"
        yield f"to train on texts that have none of the labels, write {none} into their cells"
    if not found.problem:
        yield from separator_advice(found.counts.values)
    if found.problem == MULTI_LABEL and "problem_type" not in stated["finetune"]:
        how, advice = "the cells are lists" if isinstance(source.label, str) else "each label has a column", ""
        if source.separator:
            how = f"the cells hold labels that are separated by {source.separator!r}"
            advice = f"; if each cell is one label, add finetune.problem_type={SINGLE_LABEL}"
        yield f"a text may have several labels, because {how}{advice}"
    if all_rows:
        yield "trains twice: without the held-out texts for the report, then on all (finetune.all_rows=false: once)"
    if given.minutes is None:
        yield "takes as long as the texts need; --minutes N limits the time"
