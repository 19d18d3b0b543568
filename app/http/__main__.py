"""`python -m app.http`: print the OpenAPI document of a service with default settings."""

from __future__ import annotations

import json
import sys

from app.http.application import create_app
from app.settings import Settings

if __name__ == "__main__":
    json.dump(create_app(Settings()).openapi(), sys.stdout, indent=2, ensure_ascii=False)
    sys.stdout.write("\n")
