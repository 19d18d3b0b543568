"""A report as Markdown."""

from __future__ import annotations

import re
from dataclasses import replace

import torch

from tests.training.evaluate.test_classifier import part
from tests.training.evaluate.test_classifier import report as report_of
from tests.training.texts import squeezed
from training.evaluate.classifier import BAG, OURS, ClassifierReport, Comparison, Domains, WrongAnswer
from training.evaluate.tables import Report, tables, wrong_answers
from training.metrics.pretraining import PretrainingReport
from training.problems.estimates import Figure
from training.problems.single_label import SingleLabel

PRETRAINING = PretrainingReport(10, 100, 3.0, 0.4, 6.0, 0.1, None, None, {})


def answered(names: tuple[str, ...], *rows: tuple[int, ...], bag: bool = False) -> ClassifierReport:
    """The report of a confusion: a row for each true label with the numbers of its answers."""
    counts = [(true, answer) for true, row in enumerate(rows) for answer, count in enumerate(row) for _ in range(count)]
    scores = torch.eye(len(names))[[answer for _, answer in counts]] * 0.6
    texts = part(*(true for true, _ in counts), outputs=len(names))
    return report_of(SingleLabel(names), scores, texts, **({BAG: scores} if bag else {}))


def report(test: ClassifierReport | None = None, name: str = "reviews", **changes: object) -> Report:
    test = test or answered(("NEGATIVE", "POSITIVE"), (5, 0), (1, 4), bag=True)
    made = Report({"tweets": PRETRAINING}, {name: test}, labels=["NEGATIVE", "POSITIVE"])
    return replace(made, **changes)


def text_of(made: Report) -> str:
    return "\n".join(tables(made).values())


def table_of(made: Report, head: str) -> list[str]:
    """The rows of the table whose first line begins with `head`, without what aligns them."""
    (found,) = (table for table in text_of(made).split("\n\n") if squeezed(table).startswith(head))
    return squeezed(found).strip().splitlines()[2:]


def test_tables_begin_with_the_comparisons_and_faults_come_first() -> None:
    test = report().classification["reviews"]
    always = "always answering NEGATIVE"
    good = {BAG: Comparison("accuracy", 0.05, 0.03, "neither better nor worse"), always: test.against[always]}
    first, *_ = text_of(report(replace(test, against=good), origin="Texts: 100.")).splitlines()
    assert first == (
        f"reviews: neither better nor worse than {BAG} (accuracy 0.9000 against 0.9000, a difference of 0.0500 ± "
        f"0.0300), better than {always} (accuracy 0.9000 against 0.5000, a difference of 0.4000 ± 0.1492)."
    )
    bad = replace(test, against={**good, always: Comparison("accuracy", -0.2, 0.01, "worse")})
    first, _, _, _, second, *_ = text_of(
        report(classification={"good": test, "bad": bad}, origin="Texts: 1.")
    ).splitlines()
    assert first.startswith(f"**bad: worse than {always} (accuracy 0.9000 against 0.5000, a difference of 0.2000 ± ")
    assert first.endswith(
        "More labelled texts will help most, then more time to train (minutes, passes), or another network to start "
        "from (finetune.pretrained).**"
    )
    assert "More time to train (minutes, passes) will help most, then more labelled texts, or" in text_of(
        report(classification={"bad": bad}, passes=0.4)
    ), "most texts are not read yet"
    assert second == "Texts: 1."
    constant = answered(("NEGATIVE", "POSITIVE"), (0, 5), (0, 5))
    verdict = text_of(report(constant)).splitlines()[0]
    assert verdict.startswith("**reviews: neither better nor worse than always answering NEGATIVE")
    assert "), all answers are the same: POSITIVE. More " in verdict


def test_tables_have_the_figures_of_each_test_set_and_the_thresholds() -> None:
    rare = answered(("NEGATIVE", "POSITIVE"), (19, 0), (0, 1))
    made = report(thresholds={"NEGATIVE": 0.5, "POSITIVE": 0.25})
    made.classification["rare"] = rare
    text = squeezed(text_of(made))
    assert "| accuracy | balanced accuracy | average precision of POSITIVE | F1 of POSITIVE |" in text
    assert re.search(r"\| reviews \| 10 \| this model \| 0.9000 ± 0.\d+ \| 0.9000 ± 0.\d+ \| – \| – \|", text)
    assert "above its threshold, chosen on dev: NEGATIVE 0.5, POSITIVE 0.25." in text


def test_wrong_answers_are_listed_and_in_no_table() -> None:
    wrong = WrongAnswer("Not `bad`.", "a.csv, line 7", "POSITIVE", "NEGATIVE", 0.98765)
    test = replace(report().classification["reviews"], wrong=[wrong])
    made = report(classification={"reviews": test, "reviews (pair)": test})
    assert wrong_answers(made).splitlines() == [
        "Most wrong answers, reviews:",
        "",
        "1. a.csv, line 7: POSITIVE, answered NEGATIVE (wrong by 0.9877)",
        "   `Not 'bad'.`",
    ]
    assert "Not" not in text_of(made)


def test_tables_have_each_model_with_errors_beside_a_trivial_guess() -> None:
    row = "0.9000 ± 0.0975 | 0.9000 ± 0.0999 |"
    assert table_of(report(), "| test set | texts | answers of | accuracy | balanced accuracy |") == [
        f"| reviews | 10 | this model | {row}",
        f"| reviews | 10 | {BAG} | {row}",
        "| reviews | 10 | always answering NEGATIVE | 0.5000 ± 0.1508 | 0.5000 ± 0.0619 |",
    ]
    text = text_of(report())
    assert "reviews: calibration error 0." in text
    for guess in ("unigram entropy", "most frequent token", "guessing"):
        assert guess in text


def test_tables_of_labels_begin_with_the_weakest_label() -> None:
    names = ("bill", "order", "other", "unused")
    topics = answered(names, (8, 2, 0, 0), (1, 9, 0, 0), (3, 1, 0, 0), (0, 0, 0, 0))
    rows = table_of(report(topics, "mail"), "| test set | label | texts | precision | recall | F1 |")
    figures = [re.sub(r" ± 0\.\d+", "", row) for row in rows]
    assert figures == [
        "| mail | other | 4 | – | 0.0000 | 0.0000 |",
        "| mail | bill | 10 | 0.6667 | 0.8000 | 0.7273 |",
        "| mail | order | 10 | 0.7500 | 0.9000 | 0.8182 |",
        "| mail | unused | 0 | – | – | – |",
    ]
    assert rows[1].count(" ± 0.") == 3
    assert len(table_of(report(), "| test set | label")) == 2, "of two labels, too"


def test_tables_of_seeds_have_the_mean_with_its_standard_error() -> None:
    seeds = {
        1: {"dev": Figure(0.8, 0.1), "reviews": Figure(0.7, 0.1)},
        2: {"dev": Figure(0.9, 0.1), "reviews": Figure(0.9, 0.2)},
    }
    *_, second, mean, difference = table_of(report(seeds=seeds), "| seed | dev | reviews |")
    assert second == "| 2 | 0.9000 ± 0.1000 | 0.9000 ± 0.2000 |"
    assert mean == "| mean | 0.8500 ± 0.0500 | 0.8000 ± 0.1000 |"
    assert difference == "| largest difference | 0.1000 | 0.2000 |"


def test_tables_domain_line_has_the_same_mean_of_the_other_models() -> None:
    means = {OURS: Figure(0.85, 0.01), "bag": Figure(0.75, 0.02)}
    test = replace(
        report().classification["reviews"], domains=Domains("balanced_accuracy", 19, means, "car", Figure(0.7, 0.05))
    )
    assert (
        "reviews (pair): mean balanced accuracy over 19 domains with 50 texts of each label 0.8500 ± 0.0100 of this "
        "model, 0.7500 ± 0.0200 of bag; worst domain car, 0.7000 ± 0.0500."
    ) in text_of(report(test, "reviews (pair)"))


def test_tables_missing_figure_is_a_dash() -> None:
    (row,) = table_of(report(), "| held-out text |")
    assert row == "| tweets | 10 | 3.000 | 6.000 | 0.400 | 0.100 | – | – | 0.500 |"


def test_tables_are_aligned_and_vertical_bars_of_names_end_no_cell() -> None:
    test = answered(("x|y", "z", "|"), (1, 0, 0), (0, 1, 0), (0, 0, 1))
    made = report(
        test, "c|d", pretraining={"a|b": PRETRAINING}, seeds={i: {"c|d": Figure(0.1 * i, 0.1)} for i in (1, 2)}
    )
    found = [part for part in text_of(made).split("\n\n") if part.lstrip().startswith("|")]
    assert len(found) == 4
    for table in found:
        lines = table.strip().splitlines()
        assert len({tuple(bar.start() for bar in re.finditer(r"(?<!\\)\|", line)) for line in lines}) == 1, table
    assert r"| c\|d     | x\|y  | 1 " in text_of(made)
