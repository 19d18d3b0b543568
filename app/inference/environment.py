"""Environment variables that have to be set before torch and the tokenizer are loaded."""

from __future__ import annotations

from collections.abc import MutableMapping


def set_defaults(environ: MutableMapping[str, str]) -> None:
    """Set the variables that the environment does not set; inference processes inherit them."""
    # Read when torch is imported. By default, OpenMP's threads spin for milliseconds while they wait for each other,
    # on cores that the event loop and the tokenizer need: on two busy cores, a batch took 4 to 7 times as long as with
    # threads that sleep at once. But waking a thread takes time, forty times in a forward pass, so spinning for about
    # ten microseconds first makes a single request a third faster.
    if "OMP_WAIT_POLICY" not in environ:
        environ.setdefault("GOMP_SPINCOUNT", "10000")
    # The tokenizer gets one text at a time. It would start a thread per core to share a list of texts.
    environ.setdefault("TOKENIZERS_PARALLELISM", "false")
