"""Sentences for measurements: generated, the same in every run, or real ones from a JSON Lines file of reviews."""

from __future__ import annotations

import json
import lzma
import random
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path


def _phrases(text: str) -> list[str]:
    return text.strip().replace("\n", " ").split(", ")


_SUBJECTS = _phrases("""
the film, the director, this sequel, the whole cast, her performance, the second half, a quiet supporting
role, the dialogue, my favourite scene, the camera work, the story of two brothers, nobody in the audience,
the score, the ending that everyone talks about, an unknown actress, the script, every single joke, the long
opening shot""")
_VERBS = _phrases("""
never finds, barely earns, quietly builds, throws away, deserves, completely ruins, slowly loses, surprises us
with, borrows, mistakes noise for, carries, hides, turns into, begs for, asks far too much of, does not need""")
_OBJECTS = _phrases("""
its own rhythm, a better ending, any sense of danger, the patience of its viewers, a kind of gentle sadness,
our sympathy, the charm of the original novel, a dozen tired clichés, real tension, something close to
greatness, the budget, an honest laugh, two hours of my life, a lesson about friendship, the oldest trick in
the book""")
_TAILS = _phrases("""
from the first minute, after the war, in spite of the price, with almost no money, for once, at the very end,
without saying a word, like a television play, in 1987, on a rainy night in Paris, when the lights go out,
again""")
_JOINTS = (", and ", ", but ", "; ", " because ", ", which means that ", " while ", " - and yet ", ", although ")


def generated(count: int, seed: int = 0) -> list[str]:
    """Sentences with about the lengths of those in film reviews: most have 10 to 40 tokens, a few 100."""
    rng = random.Random(seed)
    return [_sentence(rng) for _ in range(count)]


def _sentence(rng: random.Random) -> str:
    words = min(max(rng.lognormvariate(2.85, 0.62), 3), 95)
    text = ""
    while True:
        clause = f"{rng.choice(_SUBJECTS)} {rng.choice(_VERBS)} {rng.choice(_OBJECTS)}"
        if rng.random() < 0.4:
            clause += " " + rng.choice(_TAILS)
        text += clause
        if len(text.split()) >= words:
            kept = " ".join(text.split()[: round(words)]).rstrip(",;- ")
            return kept[0].upper() + kept[1:] + rng.choice("...!?")
        text += rng.choice(_JOINTS)


def reviews(file: Path, count: int, seed: int = 0) -> list[str]:
    """Sentences of the field `text` of a JSON Lines file (plain or .xz), in a shuffled order."""
    sentences = list(islice(_split(file), 5 * count))
    random.Random(seed).shuffle(sentences)
    if not sentences:
        raise ValueError(f"{file} holds no text")
    return sentences[:count]


def _split(file: Path) -> Iterator[str]:
    with (lzma.open if file.suffix == ".xz" else open)(file, "rt", encoding="utf-8") as lines:
        for line in lines:
            text = re.sub(r"<br\s*/?>", " ", json.loads(line)["text"])
            yield from (part for part in re.split(r"(?<=[.!?])\s+", text) if len(part) > 10)


def load(file: Path | None, count: int) -> list[str]:
    """Real sentences from `file` if it is given, otherwise generated ones."""
    return generated(count) if file is None else reviews(file, count)
