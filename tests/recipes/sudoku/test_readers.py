"""Files of puzzles: each format, and what is wrong with a line or a file."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from ensemble.data.census import MALFORMED, Census
from ensemble.errors import UserError
from ensemble.recipes.sudoku import readers
from ensemble.recipes.sudoku.boards import board_of
from ensemble.recipes.sudoku.puzzles import generate

BOARD = board_of(9)
PUZZLES, SOLUTIONS = generate(BOARD, seed=0, first=0, count=5, clues=30)


def text(board: np.ndarray, blank: str = "0") -> str:
    return "".join("123456789ABCDEFG"[digit - 1] if digit else blank for digit in board)


def read(path: Path, side: int = 9) -> tuple[readers.Raw, Census]:
    census = Census()
    return readers.read([path], board_of(side), census), census


def write(folder: Path, lines: list[str], end: str = "\n") -> Path:
    path = folder / "puzzles.txt"
    path.write_bytes(end.join([*lines, ""]).encode())
    return path


PAIRS = list(zip(PUZZLES, SOLUTIONS, strict=True))
FORMATS = {
    "zeros": [text(puzzle) for puzzle in PUZZLES],
    "dots": [text(puzzle, ".") for puzzle in PUZZLES],
    "comments": ["# from a book", "", *(f"{text(puzzle)} # {number}" for number, puzzle in enumerate(PUZZLES))],
    "comma": [f"{text(puzzle)},{text(solution)}" for puzzle, solution in PAIRS],
    "blank": [f"{text(puzzle, '.')} {text(solution)}" for puzzle, solution in PAIRS],
    "tab": [f"{text(puzzle)}\t{text(solution)}\tmore" for puzzle, solution in PAIRS],
    "question,answer": ["question,answer", *(f"{text(puzzle)},{text(solution)}" for puzzle, solution in PAIRS)],
    "kaggle": ["quizzes,solutions", *(f"{text(puzzle)},{text(solution)}" for puzzle, solution in PAIRS)],
    "extreme": [
        "source,question,answer,rating",
        *(f"puzzles4,{text(puzzle, '.')},{text(solution)},{rating}" for rating, (puzzle, solution) in enumerate(PAIRS)),
    ],
    "header after comments": ["# from a book", "", "quizzes,solutions", *(f"{text(p)},{text(s)}" for p, s in PAIRS)],
    "quoted without a header": [f'"{text(puzzle)}","{text(solution)}"' for puzzle, solution in PAIRS],
    "quoted": ['"source","Puzzle"', *(f'"a, b","{text(puzzle)}"' for puzzle in PUZZLES)],
}
WITH_ANSWERS = (
    "header after comments",
    "quoted without a header",
    "comma",
    "blank",
    "tab",
    "question,answer",
    "kaggle",
    "extreme",
)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("form", ["plain", "windows", "gzip"])
def test_each_format(name: str, form: str, tmp_path: Path) -> None:
    """A file in a common format would be refused, or its answers and ratings ignored."""
    path = write(tmp_path, FORMATS[name], "\r\n" if form == "windows" else "\n")
    if form == "windows":
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    if form == "gzip":
        path.write_bytes(gzip.compress(path.read_bytes()))
    raw, census = read(path)
    assert (raw.puzzles == PUZZLES).all()
    assert (raw.answers == (SOLUTIONS if name in WITH_ANSWERS else 0)).all()
    assert raw.ratings.tolist() == ([0, 1, 2, 3, 4] if name == "extreme" else [-1] * 5)
    skipped = len(FORMATS[name]) - 5
    assert raw.line.tolist() == list(range(skipped + 1, skipped + 6))
    assert (census.rows_read, census.rows_kept, census.dropped) == (5, 5, {})


def test_other_sides(tmp_path: Path) -> None:
    """Digits above 9 would be lost."""
    for side in (4, 6, 16):
        board = board_of(side)
        puzzles, _ = generate(board, seed=0, first=0, count=3, clues=side**2 * 2 // 3)
        for lines in ([text(puzzle) for puzzle in puzzles], [text(puzzle, ".").lower() for puzzle in puzzles]):
            raw, _ = read(write(tmp_path, lines), side)
            assert (raw.puzzles == puzzles).all()


def test_blocks_do_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line at the border of two blocks would be cut, or be named with another number."""
    lines = FORMATS["extreme"].copy()
    lines[3] = "cut"
    path = write(tmp_path, lines)
    expected, whole = read(path)
    for size in (50, 161, 10_000):
        monkeypatch.setattr(readers, "BLOCK_BYTES", size)
        raw, census = read(path)
        assert all((one == other).all() for one, other in zip(raw[:3], expected[:3], strict=True))
        assert raw.line.tolist() == expected.line.tolist() == [2, 3, 5, 6]
        assert census.to_dict() == whole.to_dict()
    without_end = path.read_bytes().rstrip(b"\n")
    path.write_bytes(without_end)
    assert read(path)[0].line.tolist() == [2, 3, 5, 6]


GOOD = text(PUZZLES[0])
MALFORMED_LINES = {
    "too short": (GOOD[:-1], "80 cells instead of 81; were zeros at the beginning lost?"),
    "too long": (f"{GOOD}0", "82 cells instead of 81"),
    "a letter": (f"A{GOOD[1:]}", "'A' is no digit up to 9; a blank is 0 or ."),
    "another mark": (f"{GOOD[:-1]}?", "'?' is no digit up to 9; a blank is 0 or ."),
    "words": ("a puzzle", "1 cells instead of 81"),
    "no question": ("x", "1 cells instead of 81"),
    "separators": (",,;", "0 cells instead of 81"),
    "a blank in the answer": (f"{GOOD},{GOOD}", "its solution has blanks"),
    "a short answer": (f"{GOOD},{text(SOLUTIONS[0])[:-1]}", "its solution has 80 cells instead of 81"),
    "no blank": (text(SOLUTIONS[0]), "it has no blank"),
    "digits from 0 on": (GOOD.replace("0", ".", 1), "it has both 0 and ., and only one can mean a blank; digits begin at 1"),
    "not UTF-8": ("é" * 40, "80 cells instead of 81"),
}


@pytest.mark.parametrize("name", MALFORMED_LINES)
def test_a_malformed_line_is_counted_and_named(name: str, tmp_path: Path) -> None:
    """A line would be dropped silently, or an error would name another line."""
    malformed, problem = MALFORMED_LINES[name]
    path = write(tmp_path, ["# first", GOOD, malformed, GOOD])
    raw, census = read(path)
    assert raw.line.tolist() == [2, 4]
    assert census.dropped == {MALFORMED: 1}
    (example,) = census.examples[MALFORMED]
    assert (example.file, example.line) == (str(path), 3)
    excerpt, _, reason = example.excerpt.partition(" (")
    assert malformed.startswith(excerpt)
    assert reason == f"{problem})"
    assert census.rows_read == census.rows_kept + 1 == 3


def test_a_short_answer_with_letters_is_no_comment(tmp_path: Path) -> None:
    """A cut file of 16 × 16 boards would be read as puzzles without answers, and wrong answers would not be found."""
    (puzzle,), (solution,) = generate(board_of(16), seed=0, first=0, count=1, clues=170)
    lines = [f"{text(puzzle)},{text(solution)}", f"{text(puzzle)},{text(solution)[:-1]}", f"{text(puzzle)} easy"]
    raw, census = read(write(tmp_path, lines), 16)
    assert raw.line.tolist() == [1, 3]
    assert census.examples[MALFORMED][0].excerpt.endswith(" (its solution has 255 cells instead of 256)")


@pytest.mark.parametrize(
    "row",
    [
        "x",
        f"x,{GOOD}",
        f"x,{GOOD},{GOOD},easy",
        f"x,{text(SOLUTIONS[0])},,3",
        f"x,{GOOD},{GOOD[:-1]},1",
        f'"x",{GOOD}\r,{GOOD[:-1]},1',
    ],
)
def test_a_malformed_row_of_csv_is_counted_and_named(row: str, tmp_path: Path) -> None:
    """A puzzle without a solution, or without a blank cell, would be learned from."""
    solution = text(SOLUTIONS[0])
    path = write(tmp_path, ["source,question,answer,rating", f"x,{GOOD},{solution},3", row])
    raw, census = read(path)
    assert raw.line.tolist() == [2]
    assert [example.line for example in census.examples[MALFORMED]] == [3]


def test_ratings_are_kept_as_written(tmp_path: Path) -> None:
    """A difficulty of 1.7 would become 1, and puzzles with a word as difficulty would be malformed."""
    raw, census = read(write(tmp_path, ["puzzle,difficulty", f"{GOOD},1.7", f"{GOOD},easy", f"{GOOD},nan"]))
    assert raw.ratings.tolist() == pytest.approx([1.7, -1, -1])
    assert MALFORMED not in census.dropped


def test_files_that_hold_no_puzzles(tmp_path: Path) -> None:
    """An empty split would be written, or a traceback shown."""
    path = tmp_path / "puzzles.txt"
    six = generate(board_of(6), seed=0, first=0, count=1, clues=18)[0]
    for content, sentence in (
        (b"", "is empty"),
        (b"PK\x03\x04 and so on", "is a zip archive"),
        (b"PK\x03\x04\rand so on", "is a zip archive"),
        (b"PAR1 and so on", "is Parquet: convert it to plain text or gzip"),
        (b"<html>0123456789ab</html>\n", "readers.py lists the formats"),
        (b"\n# nothing\n", "has no valid puzzle of 81 cells"),
        (text(six[0]).encode(), "valid puzzle of 81 cells .* give side=6"),
        (f'"puzzle"\n"{text(six[0])}"\n'.encode(), "valid puzzle of 81 cells .* give side=6"),
        (b"123400000000\n1200000034000043\nFG00000000000021\n", "12 cells.*: ensemble.*readers.py lists"),  # of side 16
        (b"question,answer\n", "has no valid puzzle"),
        (b"1" * 70_000, "more than 65,536 bytes"),
        (f"{GOOD}\r{GOOD}\r".encode(), "carriage returns"),
        (gzip.compress(GOOD.encode())[:-9], "gzip stream"),
    ):
        path.write_bytes(content)
        with pytest.raises(UserError, match=sentence):
            read(path)


def test_offenders_name_their_puzzle(tmp_path: Path) -> None:
    """A puzzle without a solution could not be found in its file."""
    raw, _ = read(write(tmp_path, ["# one", *FORMATS["dots"]]))
    example = raw.example(2)
    assert example.line == 4
    assert FORMATS["zeros"][2].startswith(example.excerpt)
