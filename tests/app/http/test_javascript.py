"""`@huggingface/inference`, the JavaScript client, reads what `/hf/*` answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.app.node import call, install

SOURCES = Path(__file__).parent / "javascript"


@pytest.fixture
def client(tmp_path: Path) -> Path:
    """`javascript/client.js`, with the client beside it."""
    install(SOURCES, tmp_path, "Hugging Face's client for JavaScript")
    return tmp_path / "client.js"


@pytest.mark.parametrize("url", [{"api_keys": "the-key"}], indirect=True)
def test_client_of_hugging_face_reads_the_answers(client: Path, url: str) -> None:
    done = call("node", client, url, "the-key", cwd=client.parent)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["filled"] == [
        {"score": 0.5, "token": 5, "token_str": "the", "sequence": "the the"},
        {"score": pytest.approx(1 / 3), "token": 6, "token_str": "a", "sequence": "the a"},
    ]
    assert said["aimed"] == ["good", "bad"]
    assert said["felt"] == [{"label": "POSITIVE", "score": 0.75}]
    assert "the text holds no [MASK]" in said["refused"]
    assert said["locked"][0] == 401
    assert "invalid API key" in said["locked"][1]
