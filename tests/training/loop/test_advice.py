"""Warnings during a run."""

from __future__ import annotations

import random

from training.loop.advice import ADVICE, LEFT_PLATEAU, LINES, Advisor


def events(advisor: Advisor, loss: float, spent: float) -> list[str]:
    return [event for event, _ in advisor.on_figures({"mlm_loss": loss}, spent)]


def test_advisor_reports_once_that_the_plateau_is_left() -> None:
    advisor = Advisor(unigram_entropy=6.5)
    assert [events(advisor, 6.2, 0.01 * i) for i in range(LINES)] == [[]] * (LINES - 1) + [[LEFT_PLATEAU]]
    assert events(advisor, 6.1, 0.1) == []


def test_advisor_is_not_misled_by_noise_of_short_lines() -> None:
    advisor, noise = Advisor(unigram_entropy=6.5), random.Random(1)
    found = [events(advisor, noise.gauss(6.5, 0.15), 0.01 * i) for i in range(100)]
    assert [ADVICE] in found
    assert [LEFT_PLATEAU] not in found


def test_advisor_takes_a_slightly_lower_loss_for_other_words() -> None:
    advisor = Advisor(unigram_entropy=6.5)
    assert [LEFT_PLATEAU] not in [events(advisor, 6.4, 0.01 * i) for i in range(100)]


def test_advisor_warns_once_after_a_third_of_the_budget_on_the_plateau() -> None:
    advisor = Advisor(unigram_entropy=6.5)
    assert events(advisor, 3.0, 0.9) == [], "one line is too few"
    advisor = Advisor(unigram_entropy=6.5)
    assert [events(advisor, 6.6, 0.3) for _ in range(LINES)] == [[]] * LINES
    assert events(advisor, 6.6, 0.34) == [ADVICE]
    assert events(advisor, 6.6, 0.5) == []
    assert [LEFT_PLATEAU] in [events(advisor, 6.2, 0.6) for _ in range(2 * LINES)]


def test_advisor_without_an_entropy_knows_no_plateau() -> None:
    assert events(Advisor(), 99.0, 0.9) == []
