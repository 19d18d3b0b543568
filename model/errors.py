"""Everything that can go wrong below the HTTP line, in the domain's words.

BertError
├── ConfigError            a configuration that describes no model
├── CheckpointError        a directory that cannot be loaded; names the file and the reason
└── TextError              a text that has no answer; the caller can mend it
    ├── EmptyTextError
    ├── InvalidTextError
    ├── PairError
    ├── TextTooLongError
    ├── NoMaskError
    └── UnknownTargetError
"""

from __future__ import annotations

from pathlib import Path


class BertError(Exception):
    """Base of every error that `model` raises on purpose."""


class ConfigError(BertError, ValueError):
    """A configuration that describes no model."""


class CheckpointError(BertError):
    """A checkpoint directory that cannot be loaded or written."""

    def __init__(self, path: Path | str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = Path(path)
        self.reason = reason

    def __reduce__(self) -> tuple[type[CheckpointError], tuple[Path, str]]:
        return type(self), (self.path, self.reason)


class TextError(BertError, ValueError):
    """A text that has no answer. The message says what to change."""


class EmptyTextError(TextError):
    """Nothing is left of the text after normalisation. `half`: which of a pair, "text" or "text_pair"."""

    def __init__(self, half: str | None = None) -> None:
        super().__init__(f"{half or 'the text'} is empty")
        self.half = half


class InvalidTextError(TextError):
    """A string that is no text: a lone surrogate, which stands for no character."""


class PairError(TextError):
    """Two texts for a model that knows one segment."""


class TextTooLongError(TextError):
    """More tokens than the model has positions."""

    def __init__(self, tokens: int, limit: int) -> None:
        super().__init__(
            f"the input has {tokens} tokens, the model takes at most {limit} "
            "(special tokens included); shorten it or set parameters.truncate to true"
        )
        self.tokens = tokens
        self.limit = limit


class NoMaskError(TextError):
    """A text for fill-mask without a mask that reaches the model."""


class UnknownTargetError(TextError):
    """A target that is not a single token of the vocabulary."""

    def __init__(self, target: str, pieces: list[str]) -> None:
        if "[UNK]" in pieces:
            split = "it has characters that the vocabulary lacks"
        else:
            split = f"it is split into {pieces}" if pieces else "it holds no token at all"
        super().__init__(f"target {target!r} is no single token of the vocabulary: {split}")
        self.target = target
