"""The service of the tests of `app`, on a port."""

from tests.app.conftest import backend, url

__all__ = ["backend", "url"]
