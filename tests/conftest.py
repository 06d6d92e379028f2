"""A browser for the tests that look at pages."""

import os
import shutil

import pytest

from tools.carry_pdf import BROWSERS


@pytest.fixture(scope="session")
def chromium():
    """Path of a Chromium. Without one the test is skipped, or fails where CI is set."""
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        missing = f"needs one of {', '.join(BROWSERS)} on the PATH (apt-get install chromium)"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    return path


@pytest.fixture(scope="module")
def browser(chromium):
    """A headless Chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield launched
        launched.close()
