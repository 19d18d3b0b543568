"""Short opinions in everyday English, and what "not", "never" and "hardly" make of them.

Reviews say what they mean many times over, so a classifier may learn from them to read words, not sentences.
Here one word decides. The sentences are made from frames, as in CheckList (Ribeiro et al. 2020, section 3).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

OF_EACH_FRAME = 60
_PLACE = re.compile(r"\[([^\[\]]*)\]|\{(\w+)\}")


def opinions() -> Iterator[tuple[str, bool]]:
    """The sentences, each once, and whether they say something good; always the same ones.

    >>> next(opinions())
    ('The quality was very amazing.', True)
    """
    made = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
    draw = np.random.default_rng(0)
    for kind, frames in made["frames"].items():
        for frame in frames.strip().splitlines():
            drawn = (_fill(frame, made["words"], draw) for _ in range(OF_EACH_FRAME))
            yield from ((text, kind == "good") for text in dict.fromkeys(drawn))


def _fill(frame: str, lists: Mapping[str, str], draw: np.random.Generator) -> str:
    while place := _PLACE.search(frame):
        words = (place[1] if place[2] is None else lists[place[2]]).split("|")
        frame = frame[: place.start()] + words[draw.integers(len(words))] + frame[place.end() :]
    text = re.sub(r" +(?=[ ,']|$)", "", frame)
    return f"{text[0].upper()}{text[1:]}."
