"""The presets of next_item: each is read, prepares the raw file that its comment names, and makes its model."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from accelerate import Accelerator
from preset_commands import commands

from ensemble import configuration
from ensemble.neural import preflight
from ensemble.neural.settings import config_class
from ensemble.recipes.next_item import prepare, training
from ensemble.recipes.next_item.settings import PrepareConfig

ROOT = Path(__file__).resolve().parents[3]
PRESETS = {file.stem: file for file in (ROOT / "ensemble/recipes/next_item/presets").glob("*.yaml")}
EVENTS = [(f"U{user}", f"I{(user + step) % 6}", 978300760 + 86400 * step) for user in range(8) for step in range(6)]
VARIANTS = [[], ["recipe.time_aware=true"], ["recipe.num_streams=4"], ["recipe.time_aware=true", "recipe.num_streams=4"]]


def reviews(**more: Any) -> bytes:
    rows = [
        {"reviewerID": user, "asin": item, "overall": 5.0, "reviewText": "Fine: a::b", "unixReviewTime": seconds, **more}
        for user, item, seconds in EVENTS
    ]
    return gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode())


def lines(form: str, header: str = "") -> bytes:
    return "".join([header, *(form.format(user, item, seconds) for user, item, seconds in EVENTS)]).encode()


def columns(user: int, item: int) -> str:
    return f"columns={{user_id: {user}, product_id: {item}, rating: 3, time: 4}}"


LAYOUTS = {
    "ratings.dat": ("ml-1m", lines("{}::{}::5::{}\n"), []),
    "u.data": ("ml-100k", lines("{}\t{}\t3\t{}\n"), []),
    "ml-100k.inter": (
        "ml-100k",
        lines("{}\t{}\t3\t{}\n", "user_id:token\titem_id:token\trating:float\ttimestamp:float\n"),
        [],
    ),
    "reviews of 2014": ("beauty", reviews(helpful=[0, 1], reviewTime="01 1, 2001", reviewerName="Ann"), []),
    "reviews of 2018": ("sports", reviews(verified=True, vote="2", style={"Size:": "M"}), []),
    "ratings of 2014": ("toys", lines("{},{},5.0,{}\n"), [columns(1, 2)]),
    "ratings of 2018": ("video_games", lines("{1},{0},5.0,{2}\n"), [columns(2, 1)]),
    "ratings with a header": ("video_games", lines("{},{},5.0,{},\n", "UserId,ProductId,Rating,Timestamp,\n"), []),
}
"""The preset, the content of a raw file, and settings in addition to those of the preset's command."""


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_preset_trains_on_the_raw_file_that_it_names(layout: str, tmp_path: Path) -> None:
    """Users with the raw file would discover that the command was never tested."""
    name, octets, more = LAYOUTS[layout]
    raw, out, preset = tmp_path / "raw", str(tmp_path / "prepared"), PRESETS[name]
    raw.write_bytes(octets)
    words = commands(preset)["scripts/prepare_data.py"]
    assert words[:2] == ["--recipe", "next_item"]
    asked = [word for word in words[2:] if not word.startswith(("source=", "out="))]
    prepare.prepare(configuration.load(PrepareConfig, None, [*asked, *more, f"source=[{raw}]", f"out={out}"]))
    for variant in VARIANTS:
        settings: Any = configuration.load(config_class("next_item"), preset, [f"data={out}", "out=run", *variant])
        recipe = training.make(settings.recipe, out)
        assert recipe.model().position_LD.shape[1] == {"ml-1m": 200, "ml-100k": 100}.get(name, 50)
        if not variant:  # what --dry-run prints
            assert "\n  8 rows, 1 steps per epoch" in preflight.describe(recipe, settings, Accelerator(cpu=True))


def test_every_preset_is_tested_and_states_its_scores() -> None:
    """A preset would become outdated, or a published score would be taken for one that was measured here."""
    assert {name for name, _, _ in LAYOUTS.values()} == set(PRESETS)
    for name, preset in PRESETS.items():
        words = commands(preset)["scripts/train.py"]
        assert words[:4] == ["--recipe", "next_item", "--config", str(preset.relative_to(ROOT))]
        assert f"data=runs/{name}/prepared" in words
        assert f"out=runs/{name}/prepared" in commands(preset)["scripts/prepare_data.py"]
        text = preset.read_text()
        assert ("not yet measured here" in text) == (name not in ("beauty", "ml-100k"))
        assert ("# Measured on test: NDCG@10 0." in text) == (name in ("beauty", "ml-100k"))
        assert all(word in text for variant in VARIANTS for word in variant)
