"""A browser for the tests that look at pages."""

import os
import shutil

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="module")
def browser():
    """A headless Chromium. Without one the test is skipped, or fails where CI is set."""
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        missing = f"needs one of {', '.join(BROWSERS)} on the PATH (apt-get install chromium)"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield launched
        launched.close()
