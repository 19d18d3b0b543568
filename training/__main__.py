"""`bert-train`, and `python -m training`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. It is imported here, so that a missing package gives a message with the remedy."""
    try:
        from training import command

        return command.main(arguments)
    except ModuleNotFoundError as error:
        print(f"error: {error}; install the packages of training: bert-service[train]", file=sys.stderr)
        return 1


if __name__ == "__main__":
    from bert_service import check_packages

    check_packages("bert-train", "model")
    code = main()
    if os.environ.get("RANK"):  # the interpreter of a rank can abort at its exit; all is saved, and all lines written
        os._exit(code)
    sys.exit(code)
