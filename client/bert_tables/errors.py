"""The error of this package."""

from __future__ import annotations


class TableError(Exception):
    """A file cannot be read as a table. The message names the file, the place in it and the remedy."""
