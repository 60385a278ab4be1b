"""The report of sudoku: what it counts, the boards of a trained member, and how a browser plays them."""

import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import chromium
import numpy as np
import pytest
from accelerate import Accelerator
from scripts_run import NETWORKS, fork

from ensemble import predictions
from ensemble.arrow import Column, open_table
from ensemble.errors import UserError
from ensemble.neural import loop
from ensemble.neural.settings import config_class
from ensemble.predictor import fit as predictor
from ensemble.recipes.sudoku import page, played, training
from ensemble.recipes.sudoku.prepare import prepare
from ensemble.recipes.sudoku.settings import PrepareConfig, RecipeConfig
from ensemble.report import page as report
from ensemble.report import run as report_run

NUM_TEST, NUM_SOLVED = 120, 30


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run: a network that was trained for a moment, and a made-up member that solves a quarter of the puzzles."""
    folder = tmp_path_factory.mktemp("run")
    data = folder / "prepared"
    prepare(PrepareConfig(out=str(data), side=9, num_train=40, num_validation=10, num_blend=20, num_test=NUM_TEST))
    network = RecipeConfig(width=16, num_heads=2, num_layers=1, inner_width=16, segments=2, predict_segments=5, images=1)
    words = {"data": str(data), "out": str(folder / "members" / "net"), "batch_size": 20, "max_epochs": 2.0}
    config = config_class("sudoku")(**words, warmup_steps=0, recipe=network)
    loop.train(training.make(network, str(data)), config, Accelerator(cpu=True))
    fork(
        "predict",
        f"member={folder / 'members' / 'net'}",
        f"data={data}",
        f"out={folder / 'predictions'}",
        libraries=NETWORKS,
    )
    for split in ("blend", "test"):
        result = predictions.read(folder / "predictions" / f"net.{split}.parquet")
        probability = np.full(result.prediction.shape, 0.0125)
        digit = result.target.astype(int)
        first_cells = result.row_id % 81 == 0  # in these, the puzzles after the first NUM_SOLVED are wrong
        is_wrong = first_cells & (result.cluster >= result.cluster.min() + NUM_SOLVED)
        digit[is_wrong] = (digit[is_wrong] + 1) % 9
        probability[np.arange(len(digit)), digit] = 0.9
        made_up = {**vars(result), "member": "made-up", "prediction": probability, "config": {}}
        predictions.write(folder / "predictions" / f"made-up.{split}.parquet", predictions.Predictions(**made_up))
    predictor.fit(folder / "predictions", data, folder / "ensemble", num_draws=20)
    return folder


def write(run: Path, out: Path) -> str:
    report.write(run / "ensemble", run / "prepared", run / "predictions", out)
    return out.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def written(run: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    return write(run, tmp_path_factory.mktemp("page") / "report.html")


def boards(text: str) -> dict[str, Any]:
    result = re.search(r'<script type="application/json" id="traces">(.*?)</script>', text, flags=re.DOTALL)
    assert result
    return json.loads(result[1])


def test_the_last_board_is_that_of_the_prediction_file(run: Path, written: str) -> None:
    """The page would show other boards than those that are scored, or boards of another puzzle."""
    test = predictions.read(run / "predictions" / "net.test.parquet")
    rows = open_table(run / "prepared" / "rows" / "test")
    columns = {name: Column(rows, name).all() for name in rows.column_names}
    result = boards(written)
    assert (result["side"], result["box_rows"], result["box_columns"]) == (9, 3, 3)
    assert list(result["members"]) == ["net"]  # the other member has no network
    puzzles = result["members"]["net"]["puzzles"]
    assert 1 <= len(puzzles) <= 2 * played.NUM_SHOWN
    for puzzle in puzzles:
        (row,) = np.flatnonzero(columns["row_id"] == puzzle["row_id"])
        assert puzzle["puzzle"] == columns["puzzle"][row].tolist()
        assert puzzle["solution"] == columns["solution"][row].tolist()
        assert puzzle["backtracks"] == columns["backtracks"][row]
        of_puzzle = test.prediction[test.cluster == puzzle["row_id"]]
        assert len(puzzle["segments"]) == 5
        last = puzzle["segments"][-1]
        assert last["digits"] == (1 + of_puzzle.argmax(axis=1)).tolist()
        np.testing.assert_allclose(last["confidence"], of_puzzle.max(axis=1), atol=2e-3)
        assert puzzle["solved"] == (last["digits"] == puzzle["solution"])
        assert all(0 <= segment["halt"] <= 1 for segment in puzzle["segments"])


def test_puzzles_that_are_counted(run: Path, written: str) -> None:
    """The share of solved puzzles, or of right blank cells, would be computed from other rows."""
    of_run = report_run.read(run / "ensemble", run / "prepared", run / "predictions")
    result = {row["name"]: row for row in page.parts(of_run)["exact"]["rows"]}
    made_up = result["made-up"]
    assert made_up["share"] == NUM_SOLVED / NUM_TEST
    assert made_up["low"] == pytest.approx(0.1810, abs=1e-4)  # Wilson's interval of 30 of 120
    assert made_up["high"] == pytest.approx(0.3345, abs=1e-4)
    rows = open_table(run / "prepared" / "rows" / "test")
    puzzle = Column(rows, "puzzle").all()
    num_wrong = (puzzle[NUM_SOLVED:, 0] == 0).sum()
    assert made_up["blanks"] == pytest.approx(1 - num_wrong / (puzzle == 0).sum())
    assert f"of {NUM_TEST} test puzzles" in re.sub(r"<.*?>", "", written)
    assert "25.0" in written
    # Levels and clues hold each puzzle at most once
    levels = page.parts(of_run)["levels"]
    backtracks = Column(rows, "backtracks").all()
    assert levels[0]["words"] == "0"
    assert levels[0]["puzzles"] == (backtracks == 0).sum()
    assert [level["words"] for level in levels] == ["0", "1 to 3", "4 to 15", "16 to 63", "64 and more"][: len(levels)]
    is_solved = np.arange(NUM_TEST) < NUM_SOLVED
    for level, first, last in zip(levels, (0, 1, 4), (0, 3, 15), strict=False):
        chosen = (backtracks >= first) & (backtracks <= last)
        assert level["solved"]["made-up"]["share"] == pytest.approx(is_solved[chosen].mean())


def test_the_page_needs_no_other_file(written: str) -> None:
    """The page would need other files, or inform a server about its readers."""
    assert not re.search(r"""(?:src|href)=(?!["']?(?:#|data:))""", written)
    assert not re.search(r"url\((?!#|data:)|@import|fetch\(|XMLHttpRequest", written)
    commands = re.findall(r"<code>(python scripts/prepare_data.*?)</code>", written)
    assert "--recipe sudoku" in commands[0]
    assert "clues=0" in commands[0]


def test_which_puzzles_are_shown() -> None:
    """The page would show only easy puzzles, or only solved ones."""
    num, segments, cells = 40, 4, 16
    solution = np.ones((num, cells), np.int64)
    digits = np.full((num, segments, cells), 2)
    for row in range(20):  # solved from segment row % 4 on
        digits[row, row % segments :] = 1
    for row in range(20, 40):  # never solved, with 40 − row wrong cells
        digits[row, :, 40 - row :] = 1
    digits[20:24] = 2
    columns = {"row_id": np.arange(num), "puzzle": solution * 0, "solution": solution, "backtracks": np.zeros(num, int)}
    shown = played.select(columns, digits, np.ones((num, segments, cells)), np.zeros((num, segments)))
    assert [puzzle["row_id"] for puzzle in shown] == [3, 7, 11, 15, 19, 2, 39, 38, 37, 36, 35, 34]
    assert [puzzle["solved"] for puzzle in shown] == [True] * 6 + [False] * 6


def test_a_member_of_other_data_is_refused(run: Path, tmp_path: Path) -> None:
    """Boards of another side, or training puzzles, would be shown as test puzzles."""
    for side, message in ((6, "was prepared in another way"), (9, "was trained on data")):
        out = tmp_path / str(side)
        prepare(PrepareConfig(out=str(out), side=side, num_train=4, num_validation=2, num_blend=2, num_test=3))
        with pytest.raises(UserError, match=message):
            played.traces_of(run / "members" / "net", out)
    of_run = report_run.read(run / "ensemble", run / "prepared", run / "predictions")
    assert list(of_run.networks) == ["net"]
    (network,) = (member for member in of_run.members if member.name == "net")
    bag = dataclasses.replace(network, folder=tmp_path)  # whose copies have the weights
    of_table = dataclasses.replace(network, summary={**network.summary, "recipe": "table"})
    for member in (bag, of_table):
        assert dataclasses.replace(of_run, members=[member]).networks == {}


# In a real browser: 4 × 4 boards of a member that was made up, whose digits and confidences are known


def made_up() -> dict[str, Any]:
    solution = [1, 2, 3, 4, 3, 4, 1, 2, 2, 1, 4, 3, 4, 3, 2, 1]
    puzzle = [digit if cell % 3 == 0 else 0 for cell, digit in enumerate(solution)]

    def segment(wrong: list[int], confidence: float, halt: float) -> dict[str, Any]:
        digits = [1 + digit % 4 if cell in wrong else digit for cell, digit in enumerate(solution)]
        return {"digits": digits, "confidence": [confidence] * 15 + [1.0], "halt": halt}

    common = {"puzzle": puzzle, "solution": solution, "backtracks": 3}
    solved = [segment([1, 2, 4], 0.3, 0.0123), segment([2], 0.6, 0.4), segment([], 0.99, 0.97)]
    failed = [segment([1, 2], 0.3, 0.1), segment([2], 0.5, 0.1), segment([2], 0.7, 0.2)]
    puzzles = [
        {"row_id": 7, "solved": True, "segments": solved, **common},
        {"row_id": 9, "solved": False, "segments": failed, **common},
    ]
    return {"solved_after": [0.0, 0.0, 0.5], "puzzles": puzzles}


@pytest.fixture(scope="module")
def page_file(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page with made-up boards of two members."""
    file = tmp_path_factory.mktemp("made-up") / "report.html"
    write(run, file)
    text = file.read_text(encoding="utf-8")
    start = text.index('id="traces">') + len('id="traces">')
    shape = {"side": 4, "box_rows": 2, "box_columns": 2}
    content = json.dumps({"members": {"one": made_up(), "two": made_up()}, **shape})
    file.write_text(text[:start] + content + text[text.index("</script>", start) :], encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium.started(tmp_path_factory.mktemp("profile")) as started:
        yield started


STATE = """
const part = document.querySelector("#boards .player"), cells = [...part.querySelectorAll("td")];
return {
  text: cells.map(cell => cell.querySelector("span").textContent).join(""),
  wrong: cells.flatMap((cell, place) => cell.classList.contains("wrong") ? [place] : []),
  correct: cells.map(cell => cell.querySelector("small").textContent).join(""),
  given: cells.flatMap((cell, place) => cell.classList.contains("given") ? [place] : []),
  changed: cells.flatMap((cell, place) => cell.classList.contains("changed") ? [place] : []),
  status: part.querySelector(".status").textContent,
  slider: part.querySelector("input").value,
  play: part.querySelector(".play").textContent,
  pressed: [...part.querySelectorAll("[aria-pressed=true]")].map(one => one.textContent),
};
"""


def state(browser: Any) -> dict[str, Any]:
    return browser.execute_script(STATE)


def test_boards_are_played_by_keys(browser: Any, page_file: Path) -> None:
    """A segment would be skipped, a wrong digit would be shown as right, or the page would need a mouse."""
    from selenium.webdriver.common.keys import Keys

    chromium.show(browser, page_file, 1280)
    assert browser.get_log("browser") == []
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
    begin = state(browser)
    assert begin["text"] == "141141"  # the clues alone
    assert begin["given"] == [0, 3, 6, 9, 12, 15]
    assert begin["status"].startswith("The puzzle: 6 clues, 10 blank cells, 3 backtracks")
    assert begin["pressed"] == ["one", "1 ✓"]
    player = browser.find_element("css selector", "#boards .player")
    player.send_keys(Keys.ARROW_RIGHT)
    first = state(browser)
    assert (first["text"], first["wrong"], first["correct"]) == ("1344441221434321", [1, 2, 4], "233")
    assert first["changed"] == [cell for cell in range(16) if cell % 3]
    assert first["status"].startswith("Segment 1 of 3: 7 of 10 blank cells right. Probability of halting 1.2")
    player.send_keys(Keys.ARROW_RIGHT)
    assert (state(browser)["wrong"], state(browser)["changed"]) == ([2], [1, 4])
    player.send_keys(Keys.END)
    last = state(browser)
    assert last["text"] == "1234341221434321"
    assert "10 of 10 blank cells right, solved" in last["status"]
    assert last["slider"] == "3"
    player.send_keys(Keys.ARROW_RIGHT)
    assert state(browser) == last
    player.send_keys(Keys.ARROW_DOWN, Keys.END)
    failed = state(browser)
    assert failed["pressed"] == ["one", "2 ✗"]
    assert "9 of 10 blank cells right, not solved" in failed["status"]
    assert failed["wrong"] == [2]
    player.send_keys(Keys.HOME)
    assert state(browser)["text"] == begin["text"]
    player.send_keys(Keys.ARROW_UP)
    assert state(browser)["pressed"] == ["one", "1 ✓"]


def test_boards_are_played_by_mouse_and_clock(browser: Any, page_file: Path) -> None:
    """The boards would not stop at the last segment, or would go on after a press on Pause."""
    from selenium.webdriver.support.ui import WebDriverWait

    chromium.show(browser, page_file, 768)
    play = browser.find_element("css selector", "#boards .play")
    play.click()
    assert state(browser)["play"] == "Pause"
    play.click()
    assert state(browser)["play"] == "Play"
    assert state(browser)["slider"] in "01"
    play.click()
    WebDriverWait(browser, 60).until(lambda _: state(browser)["play"] == "Play")
    assert "solved" in state(browser)["status"]
    browser.find_elements("css selector", "#boards .puzzles button")[1].click()
    assert state(browser)["pressed"] == ["one", "2 ✗"]
    browser.find_elements("css selector", "#boards .members button")[1].click()
    assert state(browser)["pressed"] == ["two", "1 ✓"]
    assert state(browser)["slider"] == "0"
    browser.find_element("css selector", "#boards .forward").click()
    assert state(browser)["slider"] == "1"
    slider = browser.find_element("css selector", "#boards input")
    browser.execute_script("arguments[0].value = 2; arguments[0].dispatchEvent(new Event('input'))", slider)
    assert state(browser)["status"].startswith("Segment 2 of 3")


CELLS = """
const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
const rgb = colours => {
  colours.forEach(colour => { canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); });
  return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3).map(v => v / 255);
};
const light = parts => {
  const [r, g, b] = parts.map(v => v <= .04 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
  return .2126 * r + .7152 * g + .0722 * b;
};
const paper = getComputedStyle(document.body).backgroundColor;
return [...document.querySelectorAll("#boards td")].map(cell => {
  const ink = light(rgb([getComputedStyle(cell.querySelector("span")).color]));
  const back = light(rgb([paper, getComputedStyle(cell).backgroundColor]));
  return [(Math.max(ink, back) + .05) / (Math.min(ink, back) + .05), back, getComputedStyle(cell).boxShadow];
});
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_confidence_is_seen_and_digits_are_read(browser: Any, page_file: Path, width: int, scheme: str) -> None:
    """A sure digit would look like a guess, or a digit would vanish on its colour (WCAG AA asks for 4.5)."""
    chromium.show(browser, page_file, width, scheme)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    forward = browser.find_element("css selector", "#boards .forward")
    lightness = []
    for _ in range(3):
        browser.execute_script("arguments[0].click()", forward)
        cells = browser.execute_script(CELLS)
        assert min(contrast for contrast, _, _ in cells) > 4.5
        lightness.append(cells[1][1])  # a cell that is not given, of the segment's confidence
        wrong = state(browser)["wrong"]
        assert [place for place, (_, _, shadow) in enumerate(cells) if shadow != "none"] == wrong
    paper = browser.execute_script(
        CELLS.replace('"#boards td"', '"#boards .quiet"').replace('querySelector("span")', "parentNode")
    )
    away = [abs(one - paper[0][1]) for one in lightness]
    assert away == sorted(away)
    assert away[0] < away[1] < away[2]
    sizes = browser.execute_script(
        "return [...document.querySelectorAll('#boards td')].map(cell => [cell.offsetWidth, cell.offsetHeight])"
    )
    assert all(abs(one - other) <= 4 and one > 40 for one, other in sizes)  # squares, large enough for a finger
    buttons = browser.execute_script("return [...document.querySelectorAll('#boards button')].map(one => one.offsetHeight)")
    assert min(buttons) >= 32


def test_the_command_names_both_sources_of_one_name() -> None:
    """The command of the page would have no source= if the file of the test split has the same name in another folder."""
    files = [{"name": name} for name in ("a.csv", "test.csv", "test.csv")]
    words = page.prepare_words({"config": {"side": 9, "test_source": ["test.csv"]}, "sources": files})
    assert words == ['source=["a.csv", "test.csv"]', 'test_source=["test.csv"]', "side=9"]
    assert page.prepare_words({"config": {}, "sources": files[:1]}) == ['source=["a.csv"]']
    assert page.prepare_words({"config": {"side": 4}, "sources": []}) == ["side=4"]
