"""Debian's Chromium, driven by Playwright, cut off from everything but this machine."""

from __future__ import annotations

import shutil
from urllib.parse import urlsplit

from playwright.sync_api import Browser, BrowserContext, Playwright, Route

EXECUTABLE = shutil.which("chromium")
FLAGS = [
    "--no-sandbox",  # tests may run as root
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--force-color-profile=srgb",
]


def launch(playwright: Playwright) -> Browser:
    """A headless browser."""
    return playwright.chromium.launch(executable_path=EXECUTABLE, args=FLAGS)


def cut_off(context: BrowserContext) -> list[str]:
    """Let requests to this machine through, stop all others; returns the list that those end up in."""
    stopped: list[str] = []

    def decide(route: Route) -> None:
        if urlsplit(route.request.url).hostname == "127.0.0.1":
            route.continue_()
        else:
            stopped.append(route.request.url)
            route.abort()

    context.route("**/*", decide)
    return stopped
