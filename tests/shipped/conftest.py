"""The real service on the weights that ship, started once."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.docs.answers import service


@pytest.fixture(scope="session")
def shipped() -> Iterator[httpx.Client]:
    """A client of a `bert-serve` process with every default but the port."""
    with service() as client:
        yield client
