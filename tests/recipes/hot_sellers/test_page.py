"""The parts of the report that only hot_sellers has."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

from small_market import SMALL, steady_market, write_raw

from ensemble import configuration
from ensemble.recipes.hot_sellers import page, weekly
from ensemble.recipes.hot_sellers.prepare import prepare
from ensemble.recipes.hot_sellers.settings import PrepareConfig


def test_the_command_has_the_settings_of_the_raw_files(tmp_path: Path) -> None:
    """A user who runs the report's commands would get other data, with the reviews after `until`."""
    names = {"parent_asin": "item", "user_id": "who", "rating": "stars", "timestamp": "time"}
    content = [{names[key]: value for key, value in one.items() if key in names} for one in steady_market()]
    source = write_raw(tmp_path, [*content, {**content[0], "time": content[-1]["time"] + 10**9}, {**content[0], "stars": 9}])
    config = PrepareConfig(
        out=str(tmp_path / "out"),
        source=(source,),
        columns={"product_id": "item", "user_id": "who", "rating": "stars", "time": "time"},
        until="2021-05-23",
        max_bad_fraction=0.5,
        min_matched=0.1,
        panel=SMALL,
    )
    written = configuration.load(PrepareConfig, None, [*page.prepare_words(prepare(config)), f"out={config.out}"])
    assert written == dataclasses.replace(config, source=(Path(source).name,))


def test_the_axis_of_the_weekly_scores_has_the_first_and_the_last_year() -> None:
    """The label of a test split of more than two years would be a list of all years."""
    week = {"average_precision": {"ensemble": 0.3}, "positives": 1, "rows": 20}
    run: Any = SimpleNamespace(
        diversity={"by_week": {str(number): week for number in range(1400, 1520)}}, candidates=["ensemble"]
    )
    ((*_, draw),) = page.pictures(run, {"ensemble": {}})
    axes = Mock()
    draw(axes)
    years = weekly.monday(1400).year, weekly.monday(1519).year
    assert years[1] > years[0] + 1
    assert axes.set.call_args.kwargs["xlabel"] == f"test week, {years[0]}–{years[1]}"
