"""The commands `bert-serve` and `bert-train`.

Their packages have names that many programs use. This module has a rare name, so Python finds it even where a folder on
Python's path has a `model.py` or an `app.py`, which would be imported instead of the package.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path


def serve() -> None:
    """`bert-serve`: serve, then end the process."""
    check_packages("bert-serve", "app", "model")
    from app.__main__ import serve as run

    run()


def train() -> int:
    """`bert-train`: run a command of training. Returns the exit status."""
    check_packages("bert-train", "training", "model")
    os.environ["PYTHONSAFEPATH"] = "1"  # Python 3.11's fork server imports from the current folder first
    from training.__main__ import main

    return main()


def check_packages(command: str, *packages: str) -> None:
    """Exit with a message if Python would import another file in place of one of the packages beside this file.

    Args:
        command: The command that the message names.
    """
    for package in packages:
        spec = find_spec(package)
        assert spec is not None, f"{package} is beside this file"
        found, own = Path(str(spec.origin)), Path(__file__).with_name(package) / "__init__.py"
        if found != own:
            place = found.parent if found.name == own.name else found
            advice = f"rename it, or run {command} without its folder in PYTHONPATH"
            sys.exit(f"error: {place} hides the package {package!r} of bert-service: {advice}")
