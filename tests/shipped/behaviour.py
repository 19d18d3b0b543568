"""Renews the tables of behaviour in the cards of the shipped weights: `python -m tests.shipped.behaviour`.

Accuracy hides what a model cannot do. Each row of the table in `model/weights/sentiment/README.md` asks for one
ability, in the manner of CheckList (Ribeiro et al. 2020, https://aclanthology.org/2020.acl-main.442): sentences made
from patterns, whose answer is known, and changes of a text that should leave its answer as it is. The table in
`model/weights/pretrained/README.md` compares two words at a mask, of which grammar allows one (Goldberg 2019,
https://arxiv.org/abs/1901.05287).
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterable
from itertools import product
from pathlib import Path
from typing import Any

import httpx

from tests.docs.answers import service

FOLDER = Path(__file__).parent
WEIGHTS = FOLDER.parents[1] / "model" / "weights"
CARDS = {name: WEIGHTS / name / "README.md" for name in ("pretrained", "sentiment")}
START, END = "<!-- behaviour -->\n\n", "\n\n<!-- /behaviour -->"

THINGS = ("camera", "film", "food", "hotel", "phone", "book", "service", "game", "ending", "staff")
PRAISE = ("good", "great", "impressive", "worth the money", "helpful", "enjoyable", "reliable", "interesting")
BLAME = ("bad", "boring", "terrible", "disappointing", "a waste of time", "annoying", "awful", "overpriced")
NAMES = (
    *("Emily", "Anne", "Jill", "Allison", "Mary", "Greg", "Brad", "Todd", "Matthew", "Peter"),
    *("Aisha", "Keisha", "Lakisha", "Ebony", "Latoya", "Jamal", "Tyrone", "Darnell", "Rasheed", "Hakim"),
    *("Mei", "Yuki", "Priya", "Fatima", "Guadalupe", "Wei", "Hiroshi", "Raj", "Mohammed", "Jose"),
)
"""A third each of names that Americans take for white, for black (in the manner of Bertrand and Mullainathan 2004), and
of other origin; half of women, half of men."""
GROUPS = (
    *("American", "French", "Nigerian", "Mexican", "Chinese", "Indian", "Russian", "Turkish"),
    *("Christian", "Jewish", "Muslim", "Hindu", "atheist"),
    *("black", "white", "Asian", "gay", "straight", "transgender", "deaf", "blind", "disabled", "old", "young", "poor"),
)
NAMED = {
    "{} showed us around and was wonderful.": "POSITIVE",
    "{} answered all my questions and I am very happy.": "POSITIVE",
    "The story of {} is beautifully told.": "POSITIVE",
    "I loved the scene in which {} comes home.": "POSITIVE",
    "Thanks to {} we had a lovely evening.": "POSITIVE",
    "{} was rude and did not help us at all.": "NEGATIVE",
    "{} never called me back, what a waste of time.": "NEGATIVE",
    "The story of {} is dull and badly told.": "NEGATIVE",
    "I hated the scene in which {} comes home.": "NEGATIVE",
    "Because of {} we had an awful evening.": "NEGATIVE",
}
GROUPED = {
    "My {} neighbour likes it, and so do I.": "POSITIVE",
    "A funny and touching film about a {} family.": "POSITIVE",
    "The {} waiter was friendly and quick.": "POSITIVE",
    "It is the best book that a {} writer has ever written.": "POSITIVE",
    "The {} woman at the desk was very helpful.": "POSITIVE",
    "My {} neighbour hates it, and so do I.": "NEGATIVE",
    "A dull and silly film about a {} family.": "NEGATIVE",
    "The {} waiter was rude and slow.": "NEGATIVE",
    "It is the worst book that a {} writer has ever written.": "NEGATIVE",
    "The {} woman at the desk was no help at all.": "NEGATIVE",
}
FULL_FORMS = {
    "can't": "cannot",
    "won't": "will not",
    "n't": " not",
    "'m": " am",
    "'ve": " have",
    "'ll": " will",
    "it's": "it is",
}
NEUTRAL = (
    "I bought it in March.",
    "There were four of us that day.",
    "We had seen it in a shop window.",
    "My brother was there too.",
    "It was a Tuesday, and it rained.",
    "We talked about it on the way home.",
)

Case = tuple[str, str]
"""A text and its right label."""

Answer = tuple[str, float]
"""A label and its score."""


def read(name: str) -> list[Any]:
    """The rows of a file of this folder."""
    rows: list[Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return rows


def ask(client: httpx.Client, texts: list[str]) -> list[Answer]:
    """The sentiment of each text."""
    answer = client.post("/sentiment", json={"inputs": texts, "parameters": {"top_k": 1}}).raise_for_status()
    return [(best["label"], best["score"]) for result in answer.json()["results"] for best in result["predictions"]]


def negations() -> dict[str, list[Case]]:
    """Sentences of each ability, made from patterns."""
    praised, blamed = list(product(THINGS, PRAISE)), list(product(THINGS, BLAME))
    mixed = [(thing, PRAISE[n], BLAME[n]) for thing in THINGS for n in range(len(PRAISE))]
    return {
        "praise negated": [(f"The {thing} was not {praise}.", "NEGATIVE") for thing, praise in praised],
        "praise negated from afar": [
            (f"I don't think that the {thing} was {praise}.", "NEGATIVE") for thing, praise in praised
        ],
        "blame negated": [(f"The {thing} was never {blame}.", "POSITIVE") for thing, blame in blamed],
        "the writer's view, not that of others": [
            *(
                (f"Many found the {thing} {blame}, but I found it {praise}.", "POSITIVE")
                for thing, praise, blame in mixed
            ),
            *(
                (f"Many found the {thing} {praise}, but I found it {blame}.", "NEGATIVE")
                for thing, praise, blame in mixed
            ),
        ],
    }


def filled(patterns: dict[str, str], fillers: Iterable[str]) -> list[Case]:
    """Each pattern with each filler."""
    return [(pattern.format(filler), label) for pattern, label in patterns.items() for filler in fillers]


def misspelt(text: str) -> str:
    """Two different neighbours inside the longest word change places."""
    word = max(re.findall(r"[A-Za-z]+", text), key=len)
    places = [i for i in range(1, len(word) - 2) if word[i] != word[i + 1]]
    if not places:
        return text
    i = random.Random(text).choice(places)
    return text.replace(word, word[:i] + word[i + 1] + word[i] + word[i + 2 :], 1)


def in_full(text: str) -> str:
    """Contractions written out."""
    for short, full in FULL_FORMS.items():
        text = re.sub(rf"(?i){short}\b", full, text)
    return text


def amid_neutral_sentences(text: str) -> str:
    """The text between sentences that judge nothing."""
    return " ".join([*NEUTRAL[:3], text, *NEUTRAL[3:]])


CHANGES: dict[str, Callable[[str], str]] = {
    "capitals": str.upper,
    "contractions written out": in_full,
    "a typing error in the longest word": misspelt,
    "amid six neutral sentences": amid_neutral_sentences,
}
"""Changes that should leave an answer as it is."""


def abilities(client: httpx.Client) -> dict[str, list[Case]]:
    """All cases. A changed text has the label that the service gives the unchanged one."""
    opinions = [text for name in ("opinions", "everyday", "contractions") for text, _ in read(name)]
    unchanged = dict(zip(opinions, (label for label, _ in ask(client, opinions)), strict=True))
    return {
        **negations(),
        "30 first names": filled(NAMED, NAMES),
        "25 groups of people": filled(GROUPED, GROUPS),
        **{
            f"unchanged: {name}": [(change(text), label) for text, label in unchanged.items() if change(text) != text]
            for name, change in CHANGES.items()
        },
    }


def sentiment_table(client: httpx.Client) -> str:
    """What stands in the classifier's card."""
    lines = ["| ability | right | the surest error |", "|---|---|---|"]
    for ability, cases in abilities(client).items():
        answers = ask(client, [text for text, _ in cases])
        errors = [(score, text) for (text, right), (label, score) in zip(cases, answers, strict=True) if label != right]
        surest = max(errors, default=None)
        example = f'"{surest[1]}", wrong with {surest[0]:.2f}' if surest else "–"
        lines.append(f"| {ability} | {len(cases) - len(errors)} of {len(cases)} | {example} |")
    return "\n".join(lines)


def grammar_table(client: httpx.Client) -> str:
    """What stands in the card of the pretrained network."""
    chosen: dict[str, list[tuple[bool, str]]] = {}
    for phenomenon, text, right, wrong in read("grammar"):
        parameters = {"targets": [right, wrong], "top_k": 1}
        answer = client.post("/fill-mask", json={"inputs": text, "parameters": parameters}).raise_for_status()
        word = answer.json()["results"][0]["masks"][0]["predictions"][0]["token_str"]
        chosen.setdefault(phenomenon, []).append((word == right, text.replace("[MASK]", f"*{word}*")))
    lines = ["| grammar | right | an error |", "|---|---|---|"]
    for phenomenon, choices in chosen.items():
        errors = [text for is_right, text in choices if not is_right]
        lines.append(
            f"| {phenomenon} | {len(choices) - len(errors)} of {len(choices)} | {errors[0] if errors else '–'} |"
        )
    return "\n".join(lines)


TABLES = {"pretrained": grammar_table, "sentiment": sentiment_table}


def table_of(card: str) -> str:
    """The table that stands in a card."""
    return card.partition(START)[2].partition(END)[0]


def main() -> None:
    """Renew both cards."""
    with service({}) as client:
        for name, file in CARDS.items():
            card = file.read_text(encoding="utf-8")
            file.write_text(card.replace(table_of(card), TABLES[name](client)), encoding="utf-8")


if __name__ == "__main__":
    main()
