"""What a source of a recipe may say."""

from __future__ import annotations

import pytest

from bert_tables.dialect import Dialect
from training.errors import RecipeError
from training.recipe import SourceConfig, load_recipe


def test_source_config_table_is_a_dialect() -> None:
    source = SourceConfig.model_validate(
        {"path": "a.csv", "text": [2, 3], "label": 1, "table": {"header": False, "delimiter": "tab"}}
    )
    assert (source.text, source.label) == (("2", "3"), "1")
    assert source.table == Dialect(header=False, delimiter="\t")
    named = SourceConfig.model_validate({"path": "a.csv", "table": {"header": ["a", "b"], "quote": ""}})
    assert named.table == Dialect(header=("a", "b"), quote="")
    assert SourceConfig.model_validate(named.model_dump(mode="json")) == named


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            '{delimeter=";"}',
            r"sources\.0\.table\.delimeter: no such key; the keys are first_line, header, delimiter",
        ),
        ('{delimiter=";;"}', "delimiter is ';;': give one character"),
        ('{encoding="utf-9"}', "encoding 'utf-9' is unknown"),
        ("{header=5}", r"sources\.0\.table\.header"),
        ('";"', r"sources\.0\.table"),
    ],
)
def test_source_config_table_mistake_is_named(table: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        load_recipe("quick", [f'corpus.sources=[{{path="a.csv",table={table}}}]'])
