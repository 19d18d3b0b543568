"""Texts that are parts of other texts, such as the phrases of SST-2."""

from __future__ import annotations

from collections.abc import Sequence


def longest_containing(texts: Sequence[str]) -> list[str]:
    """For each text, the longest text that contains it as consecutive words, or the text itself. All texts are held in
    memory.

    >>> longest_containing(["a good film", "good film", "good", "bad"])
    ['a good film', 'a good film', 'a good film', 'bad']
    """
    words = [tuple(text.split()) for text in texts]
    lengths = {len(each) for each in words}
    phrases = set(words)
    container: dict[tuple[str, ...], str] = {}
    for text, found in sorted(zip(texts, words, strict=True), key=lambda pair: -len(pair[1])):
        if found not in container:
            for length in (n for n in lengths if n <= len(found)):
                for start in range(len(found) - length + 1):
                    part = found[start : start + length]
                    if part in phrases:
                        container.setdefault(part, text)
    return [container[each] for each in words]
