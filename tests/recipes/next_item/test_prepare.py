"""Sequences divided into splits: the targets, the events before them, and that no target is in training."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ensemble import folders
from ensemble.arrow import open_table
from ensemble.errors import UserError
from ensemble.recipes.next_item import prepare as sequences
from ensemble.recipes.next_item.settings import PrepareConfig

RATINGS = [
    ("a", "x", 10), ("a", "y", 20), ("a", "z", 20), ("a", "w", 40),
    ("b", "y", 15), ("b", "x", 35), ("b", "z", 45),
    ("c", "x", 5), ("c", "y", 50),
    ("d", "w", 30),
]  # fmt: skip


def prepare(tmp_path: Path, interactions: list[tuple[str, str, int]] = RATINGS, **settings: Any) -> Path:
    file, out = tmp_path / "ratings.dat", tmp_path / "prepared"
    file.write_text("".join(f"{user}::{item}::3::{1_000_000_000 + time}\n" for user, item, time in interactions))
    sequences.prepare(PrepareConfig(**{"source": (str(file),), "out": str(out), "core": 1, **settings}))
    return out


def targets_of(folder: Path, split: str) -> list[tuple[str, str, str]]:
    """User, items before, and the last item of each row of a split, as one string each."""
    users, items = (open_table(folder / name)[f"{name[:-1]}_id"].to_pylist() for name in ("users", "items"))
    rows, events = open_table(folder / "rows" / split), open_table(folder / "events")
    targets = []
    for row in rows.to_pylist():
        taken = [items[item - 1] for item in events["item"].to_pylist()[row["begin"] : row["end"]]]
        targets.append((users[row["user"]], "".join(taken[:-1]), taken[-1]))
    return targets


def test_leave_one_out(tmp_path: Path) -> None:
    """The last item would be in training, or another item would be the target than in published results."""
    folder = prepare(tmp_path)
    assert targets_of(folder, "train") == [("a", "x", "y"), ("c", "x", "y")]
    assert targets_of(folder, "validation") == [("a", "xy", "z"), ("b", "y", "x")]
    assert targets_of(folder, "test") == [("a", "xyz", "w"), ("b", "yx", "z")]


def test_a_forecast_has_all_events_of_users_of_the_core(tmp_path: Path) -> None:
    """The last event would be missing from the inputs, or millions of users with one event would be ranked."""
    everyone = [("a", "xyz", "w"), ("b", "yx", "z"), ("c", "x", "y"), ("d", "", "w")]
    assert targets_of(prepare(tmp_path), "forecast") == everyone
    early = [(user, item, time) for user in "ab" for time, item in enumerate("xy")]
    later = [("a", "x", 32), ("b", "y", 42), ("c", "x", 43), ("d", "y", 44), ("d", "x", 45)]
    starts = {"validation_from": "2001-09-09 01:47:10", "test_from": "2001-09-09 01:47:20"}
    folder = prepare(tmp_path, early + later, split="time", core=2, overwrite=True, **starts)
    assert targets_of(folder, "forecast") == [("a", "xy", "x"), ("b", "xy", "y"), ("d", "y", "x")]


def test_by_time(tmp_path: Path) -> None:
    """Training events would be later than the targets."""
    folder = prepare(
        tmp_path, split="time", validation_from="2001-09-09 01:47:10", test_from="2001-09-09 01:47:20"
    )  # 30 and 40 s after a billion
    assert targets_of(folder, "train") == [("a", "xy", "z")]
    assert targets_of(folder, "validation") == [("b", "y", "x")]
    assert targets_of(folder, "test") == [("a", "xyz", "w"), ("b", "yx", "z"), ("c", "x", "y")]
    events = open_table(folder / "events")["time"].to_numpy()
    cut = 1000 * (1_000_000_000 + 30)
    for row in open_table(folder / "rows" / "train").to_pylist():
        assert (events[row["begin"] : row["end"]] < cut).all()


def test_the_core_is_that_of_the_past(tmp_path: Path) -> None:
    """Later events would decide which users are in training, or new users would not be predicted."""
    window = {"split": "time", "validation_from": "2001-09-09 01:47:10", "test_from": "2001-09-09 01:47:20"}
    early = [("a", "x", 1), ("a", "y", 2), ("b", "x", 3), ("b", "y", 4), ("c", "x", 5), ("c", "z", 6)]
    late = [("a", "x", 31), ("d", "x", 31), ("c", "y", 32), ("c", "z", 33), ("d", "z", 33), ("d", "y", 41), ("e", "z", 42)]
    folder = prepare(tmp_path, interactions=early + late, core=2, **window)
    assert targets_of(folder, "train") == [("a", "x", "y"), ("b", "x", "y")]
    assert targets_of(folder, "validation") == [("a", "xy", "x"), ("c", "x", "y")]
    assert targets_of(folder, "test") == [("d", "x", "y")]
    config = folders.read_manifest(folder)["config"]
    assert config == {"core": 2, "repeats": "keep", **window}


def test_times_with_an_offset(tmp_path: Path) -> None:
    """The hours would be dropped without a word."""
    window = {"validation_from": "2001-09-09T03:47:10+02:00", "test_from": "2001-09-09 01:47:20"}
    assert targets_of(prepare(tmp_path, split="time", **window), "validation") == [("b", "y", "x")]


def test_counts_are_of_training_events(tmp_path: Path) -> None:
    """Popularity, and negatives sampled by it, would depend on the test split."""
    table = open_table(prepare(tmp_path) / "items").to_pydict()
    assert dict(zip(table["item_id"], table["count"], strict=True)) == {"x": 2, "y": 2, "z": 0, "w": 0}


def test_row_ids_are_distinct(tmp_path: Path) -> None:
    """Rows of two splits would be joined."""
    folder = prepare(tmp_path)
    ids = np.concatenate(
        [open_table(folder / "rows" / split)["row_id"].to_numpy() for split in (*sequences.SPLITS, "forecast")]
    )
    assert len(np.unique(ids)) == len(ids)
    folders.verify(folder)


def targets_of_lines(tmp_path: Path, lines: str, split: str, **settings: Any) -> list[tuple[str, str, str]]:
    """`targets_of` a split that is prepared from these lines, without a core."""
    file, out = tmp_path / "raw", tmp_path / "out"
    file.write_text(lines)
    sequences.prepare(PrepareConfig(source=(str(file),), out=str(out), core=1, overwrite=True, **settings))
    return targets_of(out, split)


def test_an_item_taken_again_counts_once(tmp_path: Path) -> None:
    """repeats=first would do nothing, or keep the last time."""
    assert targets_of_lines(tmp_path, "1 5\n1 6\n1 5\n1 7\n1 8\n", "test", repeats="first") == [("1", "567", "8")]


def test_short_histories(tmp_path: Path) -> None:
    """A target would have no event before it, or a user with two items would be left out of training."""
    lines = "0\n1 5\n2 5 6\n3 5 6 7\n4 5 6 7 8\n"
    assert targets_of_lines(tmp_path, lines, "train") == [("2", "5", "6"), ("4", "5", "6")]
    assert targets_of_lines(tmp_path, lines, "validation") == [("3", "5", "6"), ("4", "56", "7")]
    assert targets_of_lines(tmp_path, lines, "test") == [("3", "56", "7"), ("4", "567", "8")]
    assert open_table(tmp_path / "out" / "users")["user_id"].to_pylist() == ["1", "2", "3", "4"]


def test_an_item_that_only_test_has_is_ranked(tmp_path: Path) -> None:
    """The target of a test row would be no item at all."""
    assert targets_of_lines(tmp_path, "1 5 6 5 6\n2 6 5 6 9\n", "test")[1] == ("2", "656", "9")
    table = open_table(tmp_path / "out" / "items").to_pydict()
    assert dict(zip(table["item_id"], table["count"], strict=True)) == {"5": 2, "6": 2, "9": 0}


def test_the_order_is_that_of_time_and_the_same_twice_is_two(tmp_path: Path) -> None:
    """An unsorted file gives absurdly good scores; an event that is written twice would vanish without a word."""
    lines = "".join(f"1::{item}::5::{time}\n" for item, time in (("7", 9), ("5", -20), ("6", 3), ("6", 3), ("8", 10)))
    assert targets_of_lines(tmp_path, lines, "test") == [("1", "5667", "8")]
    times = open_table(tmp_path / "out" / "events")["time"].to_pylist()
    assert times == [-20_000, 3_000, 3_000, 9_000, 10_000]
    assert targets_of_lines(tmp_path, lines, "test", repeats="first") == [("1", "567", "8")]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"core": 0}, "core=0 is impossible"),
        ({"max_bad_fraction": 1.5}, "max_bad_fraction=1.5 is impossible: it must be between 0 and 1"),
        ({"core": 10**9}, "of 10 interactions none is left with core=1000000000: core=2 is the largest that leaves any"),
        ({"split": "time", "test_from": "soon"}, "test_from=soon is not a time"),
        (
            {"split": "time", "validation_from": "1999-01-01"},
            "the train split is empty: .* are from 2001-09-09 .* to 2001-09-09",
        ),
        (
            {"split": "time", "test_from": "1999-01-01"},
            "validation_from=.* must come before test_from=1999-01-01: swap them",
        ),
        (
            {"split": "time", "validation_from": "2022-01-01", "test_from": "2022-01-01 00:00Z"},
            "must come before test_from=2022-01-01 00:00Z: choose a later test_from",
        ),
        ({"interactions": [("a", "x", 1), ("b", "x", 2)]}, "only item x is left with core=1: give data with at"),
        (
            {"interactions": [("a", "x", 1), ("b", "y", 2)]},
            "the train split is empty: .* The files were read as ratings: .* name the format with format=… .*pairs",
        ),
    ],
)
def test_mistakes(settings: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    """The user would see a traceback, or an empty folder would be left."""
    with pytest.raises(UserError, match=sentence):
        prepare(tmp_path, **settings)
    assert not (tmp_path / "prepared").exists()


def test_a_folder_that_exists_is_refused_before_files_are_read(tmp_path: Path) -> None:
    """A user would wait until millions of interactions are read, or a category is downloaded, and then lose the result."""
    (tmp_path / "prepared").mkdir()
    (tmp_path / "prepared" / "mine").touch()
    with pytest.raises(UserError, match="prepared exists already"):
        prepare(tmp_path, source=(str(tmp_path / "absent"),))


def test_time_needs_times(tmp_path: Path) -> None:
    """Line numbers would be used as times."""
    file = tmp_path / "pairs"
    file.write_text("1 5\n1 6\n1 7\n")
    with pytest.raises(UserError, match="split=time needs times since 1970"):
        sequences.prepare(PrepareConfig(source=(str(file),), out=str(tmp_path / "out"), core=1, split="time"))


def test_what_the_core_leaves_out_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two thirds of a small data set would be gone without a word."""
    many = [(user, item, time) for user in "abc" for time, item in enumerate("wxyz")]
    few = [(f"user {number}", f"item {number}", 1) for number in range(15)]
    prepare(tmp_path, interactions=many + few, core=3)
    shown = capsys.readouterr()
    assert "core=3 keeps 3 of 18 users, 4 of 19 items, 12 of 27 interactions" in shown.out
    assert "warning: core=3 leaves out more than half of the interactions" in shown.err
    prepare(tmp_path, interactions=many, core=3, overwrite=True)
    shown = capsys.readouterr()
    assert "core=3 keeps 3 of 3 users, 4 of 4 items, 12 of 12 interactions" in shown.out
    assert "warning" not in shown.err


def test_targets_that_were_taken_before_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A user would not see why no member can reach a score of 1, or how to leave repeated items out."""
    lines = "1 5 6 7 5\n2 5 6 7 8\n3 5 6 6 7\n"
    targets_of_lines(tmp_path, lines, "test")
    shown = "1 of 3 test targets were taken before by their user and score 0: repeats=first leaves repeats out"
    assert shown in capsys.readouterr().out.splitlines()
    targets_of_lines(tmp_path, lines, "test", repeats="first")
    assert "taken before" not in capsys.readouterr().out


def test_targets_at_the_time_of_the_event_before_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of events at one time, the last line of the file is the target. In a file sorted by item a member learns this, and a
    user would take its score for that of new events."""
    tied = [(user, item, 5) for item in "vwxyz" for user in "abc"]
    in_order = [("d", item, time) for time, item in enumerate("vwxyz")]
    prepare(tmp_path, interactions=tied + in_order)
    shown = "3 of 4 test targets have the same time as the event before: their order is that of the files, and scores"
    assert f"{shown} depend on it" in capsys.readouterr().out.splitlines()
    prepare(tmp_path, interactions=in_order, overwrite=True)
    assert "same time" not in capsys.readouterr().out
    targets_of_lines(tmp_path, "1 5 6 7 8\n", "test")  # without times, the order of a line is that of its events
    assert "same time" not in capsys.readouterr().out
