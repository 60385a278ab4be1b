"""Headless Chromium, as the tests of pages use it."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


@contextmanager
def started(profile: Path) -> Iterator[Any]:
    """A browser with a profile in an empty folder, ended in every case; the test is skipped where there is none."""
    selenium = pytest.importorskip("selenium.webdriver", reason="selenium is not installed: pip install selenium")
    driver, program = shutil.which("chromedriver"), shutil.which("chromium") or shutil.which("google-chrome")
    if not (driver and program):
        pytest.skip("Chromium is not installed: apt-get install chromium chromium-driver")
    options = selenium.ChromeOptions()
    options.binary_location = program
    for name in "headless no-sandbox disable-gpu disable-quic no-first-run disable-component-update disable-sync".split():
        options.add_argument(f"--{name}")
    options.add_argument("--disable-background-networking")
    options.add_argument(f"--user-data-dir={profile}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = selenium.Chrome(options, selenium.ChromeService(driver))
    try:
        yield browser
    finally:
        browser.quit()


def show(browser: Any, page: Path, width: int, scheme: str = "light") -> None:
    """Open a page of this machine in a window of this width in pixels. `scheme` is the preferred colours: light or dark."""
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
    browser.get(page.as_uri())
