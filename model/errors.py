"""The errors of `model`."""

from __future__ import annotations

import re
from pathlib import Path

_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """A text with control characters as escapes, because names in strangers' files could forge lines of a log."""
    return _CONTROLS.sub(lambda found: ascii(found[0])[1:-1], text)


class BertError(Exception):
    """Base of all errors that `model` raises on purpose."""


class ConfigError(BertError, ValueError):
    """A configuration with an invalid value."""


class BatchError(BertError, ValueError):
    """A batch with a token id, position or token type that the model has no embedding for."""


class CheckpointError(BertError):
    """A checkpoint directory that cannot be read or written. The message names the file and the reason."""

    def __init__(self, path: Path | str, reason: str) -> None:
        super().__init__(printable(f"{path}: {reason}"))
        self.path = Path(path)
        self.reason = reason

    def __reduce__(self) -> tuple[type[CheckpointError], tuple[Path, str]]:
        return type(self), (self.path, self.reason)


class TextError(BertError, ValueError):
    """A text that the model cannot read. The message names the remedy."""


class EmptyTextError(TextError):
    """A text without tokens after normalisation. `half`: which text of a pair, "text" or "text_pair"."""

    def __init__(self, text: str, half: str | None = None) -> None:
        why = "has no characters that the model reads" if text.strip() else "is empty"
        super().__init__(f"{half or 'the text'} {why}")
        self.half = half


class InvalidTextError(TextError):
    """A string with a lone surrogate, which is not a character."""

    def __init__(self) -> None:
        super().__init__("the text holds half of a surrogate pair, such as \\ud83d; cut texts at whole characters")


class PairError(TextError):
    """A pair of texts for a model with one token type."""


class TextTooLongError(TextError):
    """More tokens than the model has positions, or more characters than are tokenized."""

    def __init__(self, length: int, limit: int, *, unit: str = "tokens", at_least: bool = False) -> None:
        """Make the error.

        Args:
            length, limit: number of tokens or characters (`unit`) of the text, and the maximum.
            at_least: `length` is a lower bound, because only a part of the text was tokenized.
        """
        included = " (special tokens included)" if unit == "tokens" else ""
        super().__init__(
            f"the input has {'at least ' * at_least}{length} {unit}, the model takes at most {limit}{included}; "
            "shorten it or set truncate to true"
        )
        self.length, self.limit = length, limit


class NoMaskError(TextError):
    """A text for fill-mask without a mask, or whose masks were truncated."""


class UnsupportedInt8Error(BertError):
    """Torch has no exact int8 product on this processor."""


class UnknownTargetError(TextError):
    """A target that is not a single token of the vocabulary."""

    def __init__(self, target: str, pieces: list[str]) -> None:
        if "[UNK]" in pieces:
            reason = "it has characters that are not in the vocabulary"
        else:
            reason = f"it splits into {pieces}" if pieces else "it has no tokens"
        super().__init__(f"target {target!r} is not a single token of the vocabulary: {reason}; give another word")
        self.target = target
