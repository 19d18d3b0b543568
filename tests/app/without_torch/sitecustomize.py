"""Replaces `app.inference.torch_backend` by the file beside this one; see `tests.app.process.WITHOUT_TORCH`."""

import sys
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path


class Replacement:
    """A finder of this one module."""

    @staticmethod
    def find_spec(name: str, path: object, target: object = None) -> ModuleSpec | None:
        if name != "app.inference.torch_backend":
            return None
        return spec_from_file_location(name, Path(__file__).with_name("torch_backend.py"))


sys.meta_path.insert(0, Replacement)
