"""The report in a real browser: nothing is hidden, squeezed or hard to read."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import chromium
import jinja2
import pytest
from report_runs import write_table

from ensemble.arrow import open_table
from ensemble.report import decision, forecast, words


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium.started(tmp_path_factory.mktemp("profile")) as started:
        yield started


SIZES = """
const boxes = [...document.querySelectorAll(arguments[0])].map(e => e.getBoundingClientRect());
return boxes.map(box => [box.width, box.height]);
"""


SCROLLED = (
    "return [...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth).map(e => e.ariaLabel)"
)


@pytest.mark.parametrize("width", [360, 390, 768, 1280])
def test_a_browser_shows_it_all(browser: Any, scaled_page_file: Path, run: Path, width: int) -> None:
    """The page would scroll sideways on a phone, a table on a desktop, or there would be complaints or empty boxes."""
    chromium.show(browser, scaled_page_file, width)
    assert browser.get_log("browser") == []
    browser.execute_script("document.querySelectorAll('details').forEach(part => part.open = true)")
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert browser.execute_script(SCROLLED) == [] or width < 1280
    assert all(shown[0] > 150 for shown in browser.execute_script(SIZES, ".facts dd, td.words"))  # no column is squeezed
    pictures = browser.execute_script(SIZES, 'svg[role="img"]')
    assert len(pictures) == 8
    assert all(shown[0] > 250 and shown[1] > 150 for shown in pictures)
    products = browser.execute_script(SIZES, ".products > li")
    table = open_table(run / "prepared" / "rows" / "forecast")
    assert len(products) == min(forecast.NUM_ROWS, table.num_rows)
    assert all(shown[0] > 250 and shown[1] > 40 for shown in products)


@pytest.fixture(scope="module")
def table_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a binary table, whose feature and positive class have names of 300 and 60 characters."""
    folder = tmp_path_factory.mktemp("table")
    write_table(folder, "binary", "a_long_name_of_a_feature_" * 12, ("no", "yes_" * 15))
    return folder / "report.html"


CUT_OFF = """
return [...document.querySelectorAll(arguments[0])].filter(e => e.getBoundingClientRect().right > innerWidth + 1).length;
"""


@pytest.mark.parametrize("width", [360, 800, 1280])
def test_long_names_do_not_hide_other_columns(browser: Any, table_page: Path, width: int) -> None:
    """The first column of a table, which does not scroll, would cover all others, or the whole page would scroll."""
    chromium.show(browser, table_page, width)
    browser.execute_script("document.querySelectorAll('details').forEach(part => part.open = true)")
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    pinned = browser.execute_script(SIZES, ".pinned tr > th:first-child")
    assert len(pinned) > 20
    assert max(shown[0] for shown in pinned) <= 0.5 * width
    assert min(shown[0] for shown in browser.execute_script(SIZES, ".pinned th[scope=row]")) > 100
    assert width < 1280 or browser.execute_script(CUT_OFF, "#decision th, #decision td") == 0


def test_long_names_of_classes_do_not_hide_columns(browser: Any, tmp_path: Path) -> None:
    """A class with a name of 120 characters would push the columns of other classes out of the window."""
    write_table(tmp_path, "multiclass", names=("x" * 120, "two words", "c", "d"))
    chromium.show(browser, tmp_path / "report.html", 1280)
    assert browser.execute_script("return document.querySelectorAll('.confusion td').length") == 20
    assert browser.execute_script(CUT_OFF, ".confusion th, .confusion td") == 0
    assert browser.execute_script("return document.querySelectorAll('#forecast td').length") == 8
    assert browser.execute_script(CUT_OFF, "#forecast th, #forecast td") == 0


def test_paper_shows_what_the_screen_shows(browser: Any, table_page: Path) -> None:
    """Bars and swatches would be missing in print, columns that need scrolling cut off, and a last row be on every sheet."""
    chromium.show(browser, table_page, 720)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        assert browser.execute_script("return document.querySelectorAll('.scores td').length") > 20
        assert browser.execute_script(CUT_OFF, "th, td, .bar") == 0
        style = "const style = getComputedStyle(document.querySelector(arguments[0])); return style[arguments[1]];"
        assert browser.execute_script(style, ".scroll", "overflowX") == "visible"
        assert browser.execute_script(style, ".bar", "printColorAdjust") == "exact"
        assert browser.execute_script(style, "tfoot", "display") == "table-row-group"
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


SHOWN = """
const input = document.querySelector("#cost");
input.value = arguments[0];
input.dispatchEvent(new Event("input"));
return [document.querySelector("label[for=cost]").textContent, input.getAttribute("aria-valuetext")];
"""


def test_the_slider_reads_as_a_sentence(browser: Any, table_page: Path) -> None:
    """The slider would read "1 false alarms", and a screen reader would read the number of a step instead of a cost."""
    chromium.show(browser, table_page, 1280)
    for step, cost in ((26, "1 false alarm"), (46, "10 false alarms"), (20, "0.5 false alarms")):
        label, read = browser.execute_script(SHOWN, step)
        assert label.endswith(f"costs as much as {cost}:")
        assert read == cost


def test_the_slider_has_the_numbers_of_the_table(browser: Any, tmp_path: Path) -> None:
    """Below the slider, 0.00498 missed rows of 1,000 would be 0, and 0.00498 in the table."""
    values = [1.0, 0.123, 0.25, 0.125, 1234.5, 123.45, 12.345, 1.2345, 0.00498]
    loader = jinja2.FileSystemLoader(Path(decision.__file__).parent)
    content = {"table": [], "steps": [values], "start": 0}
    page = words.templates(loader).get_template("decision.html.j2").render(yes="yes", scored="test", decision=content)
    (tmp_path / "page.html").write_text(page, encoding="utf-8")
    chromium.show(browser, tmp_path / "page.html", 1280)
    shown = browser.execute_script("return [...document.querySelectorAll('[data-shown]')].map(part => part.textContent)")
    shares = [words.percent(value, digits) for value, digits in zip(values[1:4], (1, 0, 0), strict=True)]
    assert shown == ["1 false alarm", *shares, *map(words.number, values[4:])]


CONTRASTS = """
const light = colour => {
  const parts = colour.match(/[0-9.]+/g).slice(0, 3).map(v => v / 255);
  const [r, g, b] = parts.map(v => v <= .04 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
  return .2126 * r + .7152 * g + .0722 * b;
};
const paper = light(getComputedStyle(document.body).backgroundColor);
return [...document.querySelectorAll(arguments[0])].map(e => {
  const style = getComputedStyle(e), ink = light(e.ownerSVGElement ? style.fill : style.color);
  return (Math.max(ink, paper) + .05) / (Math.min(ink, paper) + .05);
});
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_in_light_and_dark(browser: Any, scaled_page_file: Path, scheme: str) -> None:
    """Labels of pictures, or small print, would vanish in one of the two colour schemes (WCAG AA asks for 4.5)."""
    chromium.show(browser, scaled_page_file, 1280, scheme)
    paper = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", paper)[:3])) < 200) == (scheme == "dark")
    contrasts = browser.execute_script(CONTRASTS, "p, td, th, li, .id, .why b, svg text, .lead b, .good, .bad")
    assert len(contrasts) > 100
    assert min(contrasts) > 4.5
