"""Reading puzzles from plain or gzip files. The first line that is not ignored determines the format:

    000000010400000000020000000000050407008000300001090000300400200050100000000806000     one puzzle; 0 or . is a blank
    ..............3.85..1.2.......5.7.....4...1...9.......5......73..2.1........4...9
    0043000209005009001…,864371259325849761…    a puzzle and its solution, after a comma, blank, tab or semicolon
    question,answer                             CSV with a header; other columns are ignored
    source,question,answer,rating               Sudoku-Extreme; its rating is the number of backtracks of another solver
    quizzes,solutions                           columns with other names, see `COLUMNS`

Digits above 9 are the letters A to G. Blank lines and lines that begin with # are ignored. Every other line that is not a
puzzle is malformed, also one with both 0 and . in the puzzle; the census counts these lines and names the first ones.
"""

import codecs
import csv
import itertools
import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ensemble.data import records
from ensemble.data.census import MALFORMED, Census, Example
from ensemble.data.octets import Bytes, refuse_foreign
from ensemble.errors import UserError
from ensemble.recipes.sudoku.boards import BOARDS, Board

COLUMNS = {
    "question": ("question", "puzzle", "quiz", "quizzes", "sudoku"),
    "answer": ("answer", "answers", "solution", "solutions"),
    "rating": ("rating", "difficulty"),
}
"""Accepted names of the columns of a CSV file."""
NO_RATING, MOST_RATING = -1, 1e30
"""Stands for a missing rating; ratings from `MOST_RATING` on, or below 0, count as missing."""
BLOCK_BYTES = 16 << 20
LONGEST_LINE_BYTES = 1 << 16
_INVALID = 255
_MARKS = "0123456789ABCDEFG"
_DIGIT_OF = {".": 0} | {mark: digit for digit, mark in enumerate(_MARKS)}
_SEPARATORS = bytes.maketrans(b',;"', b"   ")
"""Replaces the marks between fields, and quotation marks, by blanks."""
_DIGITS = bytes(_DIGIT_OF.get(chr(octet).upper(), _INVALID) for octet in range(256))


class Raw(NamedTuple):
    """Puzzles as they were read, before rows, columns and boxes are checked."""

    puzzles: np.ndarray
    """(n, cells) uint8, 0 for a blank."""
    answers: np.ndarray
    """(n, cells) uint8; all 0 if the file has none."""
    ratings: np.ndarray
    """(n,) float32, `NO_RATING` if the line has no valid rating."""
    file: np.ndarray
    """(n,) object, the path of the file."""
    line: np.ndarray
    """(n,) int64, from 1."""

    def example(self, row: int) -> Example:
        """The file and line of a puzzle, and the puzzle."""
        text = "".join(_MARKS[digit] for digit in self.puzzles[row])
        return Example(self.file[row], int(self.line[row]), text)


def read(files: Sequence[Path], board: Board, census: Census) -> Raw:
    """All puzzles of `files`, in their order. Raises `UserError` for a file that cannot be read or has no puzzle."""
    blocks: list[Raw] = []
    for path in files:
        of_file = list(_blocks(path, board, census))
        if not any(len(block.puzzles) for block in of_file):
            _refuse_other_side(path, board, census)
        blocks += of_file
    return Raw(*(np.concatenate(column) for column in zip(*blocks, strict=True)))


def _blocks(path: Path, board: Board, census: Census) -> Iterator[Raw]:
    """The puzzles of each block of a file."""
    with Bytes(path) as stream:
        head = stream.read(BLOCK_BYTES)
        _refuse_foreign(path, head)
        head = head.removeprefix(codecs.BOM_UTF8)
        ignored = re.match(rb"(?:[ \t\r]*(?:#.*)?\n)*", head)
        begin = ignored.end() if ignored else 0
        first_line, end, after = head[begin:].partition(b"\n")
        layout, description = _layout(first_line)
        census.files.append({"file": str(path), "format": description})
        line_number, rest = 0, b""
        if layout is not None and end:
            head, line_number = after, head.count(b"\n", 0, begin) + 1
        for block in itertools.chain([head], iter(partial(stream.read, BLOCK_BYTES), b"")):
            *lines, rest = (rest + block).split(b"\n")  # the block may end within a line
            if len(rest) > LONGEST_LINE_BYTES:
                raise UserError(
                    f"line {line_number + len(lines) + 1} of {path} has more than {LONGEST_LINE_BYTES:,} bytes: "
                    "a file of puzzles has one on each line"
                )
            yield _parsed(path, lines, line_number + 1, layout, board, census)
            line_number += len(lines)
        yield _parsed(path, [rest], line_number + 1, layout, board, census)


def _layout(first_line: bytes) -> tuple[dict[str, int] | None, str]:
    """The positions of a CSV file's columns, None without a header; and a description of the format."""
    header = [field.strip().strip('"').lower() for field in first_line.decode("utf-8", "replace").split(",")]
    columns = {
        key: next(number for number, name in enumerate(header) if name in names)
        for key, names in COLUMNS.items()
        if set(names) & set(header)
    }
    if "question" not in columns:
        return None, "puzzles, one on each line"
    return columns, f"CSV with the columns {', '.join(header[number] for number in columns.values())}"


def _parsed(
    path: Path, lines: list[bytes], first_line: int, layout: dict[str, int] | None, board: Board, census: Census
) -> Raw:
    """The puzzles of the valid lines of a block; other lines are counted in `census`."""
    puzzles, answers, ratings, numbers, examples = [], [], [], [], []
    blank = b"0" * board.cells
    for number, line in enumerate(lines, first_line):
        line = line.strip()
        if not line or line.startswith(b"#"):
            continue
        fields = _fields(line) if layout is None else _csv_fields(line, layout)
        is_complete = fields is not None and len(fields[0]) == board.cells and len(fields[1]) in (0, board.cells)
        if fields is not None and is_complete and not _has_two_blanks(fields[0]):
            puzzles.append(fields[0])
            answers.append(fields[1] or blank)
            ratings.append(fields[2])
            numbers.append(number)
        else:
            examples.append((number, line, fields))
    census.read(len(numbers) + len(examples))
    arrays = [
        np.frombuffer(b"".join(part).translate(_DIGITS), np.uint8).reshape(-1, board.cells) for part in (puzzles, answers)
    ]
    is_valid = (arrays[0] <= board.side).all(axis=1) & (arrays[1] <= board.side).all(axis=1)
    is_valid &= (arrays[1] == 0).all(axis=1) | (arrays[1] > 0).all(axis=1)
    is_valid &= (arrays[0] == 0).any(axis=1)  # a puzzle without a blank is a solution
    examples += [(numbers[row], puzzles[row], (puzzles[row], answers[row], 0.0)) for row in np.flatnonzero(~is_valid)]
    named = (
        Example(str(path), number, f"{records.excerpt(line)} ({_problem(fields, board)})")
        for number, line, fields in sorted(examples, key=lambda example: example[0])
    )
    census.drop(MALFORMED, len(examples), named)
    places = np.full(len(numbers), str(path), object), np.array(numbers, np.int64)
    columns: list[np.ndarray] = [*arrays, np.array(ratings, np.float32), *places]
    return Raw(*(column[is_valid] for column in columns))


def _has_two_blanks(puzzle: bytes) -> bool:
    """Whether a puzzle has 0 and dots. Then 0 is a digit, as in 16 × 16 puzzles with the digits 0 to F."""
    return b"0" in puzzle and b"." in puzzle


def _problem(fields: tuple[bytes, bytes, float] | None, board: Board) -> str:
    """Why a line holds no puzzle, or no solution of it."""
    if fields is None:
        return "it lacks columns"
    puzzle, answer, _ = fields
    if len(puzzle) != board.cells:
        is_cut = puzzle.isdigit() and board.cells - board.side <= len(puzzle) < board.cells
        zeros = "; were zeros at the beginning lost?" if is_cut else ""
        return f"{len(puzzle)} cells instead of {board.cells}{zeros}"
    if _has_two_blanks(puzzle):
        return "it has both 0 and ., and only one can mean a blank; digits begin at 1"
    wrong = [octet for octet in puzzle + answer if _DIGITS[octet] > board.side]
    if wrong:
        return f"'{records.excerpt(bytes(wrong[:1]))}' is no digit up to {board.side}; a blank is 0 or ."
    if answer and len(answer) != board.cells:
        return f"its solution has {len(answer)} cells instead of {board.cells}"
    return "its solution has blanks" if b"0" in puzzle or b"." in puzzle else "it has no blank"


def _fields(line: bytes) -> tuple[bytes, bytes, float]:
    """Puzzle, solution (empty if there is none) and rating of a line of a file without a header."""
    parts = line.translate(_SEPARATORS).split(None, 2) or [b""]
    # A second word may be a comment
    is_answer = len(parts) > 1 and (
        len(parts[1]) == len(parts[0]) or (_INVALID not in parts[1].translate(_DIGITS) and 2 * len(parts[1]) > len(parts[0]))
    )
    return parts[0], parts[1] if is_answer else b"", NO_RATING


def _csv_fields(line: bytes, layout: dict[str, int]) -> tuple[bytes, bytes, float] | None:
    """Puzzle, solution and rating of a line of a CSV file, by the columns of the header; None for too few columns."""
    parts = line.split(b",")
    if b'"' in line:
        # csv raises an error for a carriage return between fields
        parts = [part.encode() for part in next(csv.reader([line.decode("utf-8", "replace").replace("\r", " ")]))]
    if len(parts) <= max(layout.values()):
        return None
    answer = parts[layout["answer"]].strip() if "answer" in layout else b""
    rating: float = NO_RATING
    if "rating" in layout and records.is_number(text := parts[layout["rating"]].decode("utf-8", "replace")):
        rating = float(text) if 0 <= float(text) < MOST_RATING else NO_RATING
    return parts[layout["question"]].strip(), answer, rating


def _refuse_foreign(path: Path, head: bytes) -> None:
    if not head:
        raise UserError(f"{path} is empty: give a file with a puzzle on each line")
    if head.startswith(records.PARQUET):
        raise UserError(f"{path} is Parquet: convert it to plain text or gzip")
    refuse_foreign(path, head, "plain text or gzip")


def _refuse_other_side(path: Path, board: Board, census: Census) -> None:
    """Raise `UserError` for a file without a puzzle of this side, and name the side that its lines fit."""
    first = next((example for example in census.examples.get(MALFORMED, ()) if example.file == str(path)), None)
    shown = f"; the first invalid line is {first.line}: {first.excerpt}" if first else ""
    with Bytes(path) as stream:
        words = stream.read(LONGEST_LINE_BYTES).translate(_SEPARATORS).split()
    largest: dict[int, int] = {}  # the largest digit of the words of each length
    for word in (word.translate(_DIGITS) for word in words):
        if _INVALID not in word:
            largest[len(word)] = max(*word, largest.get(len(word), 0))
    sides = (side for side, other in BOARDS.items() if other is not board and largest.get(other.cells, _INVALID) <= side)
    side = next(sides, None)
    advice = f"give side={side}" if side else "ensemble/recipes/sudoku/readers.py lists the formats"
    raise UserError(f"{path} has no valid puzzle of {board.cells} cells (side={board.side}){shown}: {advice}")
