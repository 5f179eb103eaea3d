"""A real browser, where there is one; who imports this is skipped elsewhere."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
_CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
NEEDED = pytest.mark.skipif(_CHROMIUM is None, reason="there is no Chromium on this machine")


def launched() -> Iterator[Any]:
    """The body of a fixture: the browser; it is closed afterwards."""
    with sync_api.sync_playwright() as playwright:
        sync_api.expect.set_options(timeout=60_000)
        browser = playwright.chromium.launch(executable_path=_CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()
