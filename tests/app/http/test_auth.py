"""What `announce` logs at start. tests/app/http/test_head.py sends keys."""

from __future__ import annotations

import logging

import pytest

from app.http.auth import announce
from app.settings import Settings

NO_KEYS = "API keys: none, so everyone may call the tasks"


@pytest.mark.parametrize(
    ("environ", "lines"),
    [
        ({}, [NO_KEYS]),
        ({"BERT_API_KEYS": "first,second"}, ["API keys: 2"]),
        (
            {"BERT_API_KEY": "secret"},
            [
                "unknown setting BERT_API_KEY ignored; did you mean BERT_API_KEYS?",
                NO_KEYS,
            ],
        ),
    ],
)
def test_announce_logs_keys_and_misspelt_settings(
    caplog: pytest.LogCaptureFixture, environ: dict[str, str], lines: list[str]
) -> None:
    with caplog.at_level(logging.INFO, "app.http.auth"):
        announce(Settings.read(environ), environ)
    assert caplog.messages == lines
