"""Pages in a real browser. Without one there is nothing to test: the run ends with the code that CTest shows as skipped."""

import os
import sys

import pytest

sys.path.insert(0, os.path.dirname(__file__))
from browser import Browser, find_browser  # noqa: E402

NOT_INSTALLED = 77


def pytest_sessionstart(session):
    if not find_browser():
        pytest.exit("Chromium is not installed: the pages are not tested", returncode=NOT_INSTALLED)


@pytest.fixture(scope="session")
def browser():
    started = Browser(find_browser())
    yield started
    started.close()


@pytest.fixture
def opened(browser):
    """Opens pages, and checks at the end that none complained or loaded anything but itself."""
    pages = []

    def open_page(path, **options):
        pages.append(browser.open(path, **options))
        return pages[-1]

    yield open_page
    for page in pages:
        assert page.complaints == []
        assert len(page.loaded) == 1, page.loaded
        page.close()
