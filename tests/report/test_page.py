"""The report: what stands on the page, what it refuses, and how a real browser shows it."""

import html
import json
import re
import shlex
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import chromium
import numpy as np
import pyarrow.parquet as pq
import pytest
from benchmarks.scaling import Launch, Training, table

from ensemble import configuration, folders, predictions
from ensemble.arrow import open_table
from ensemble.errors import UserError
from ensemble.predictions import Predictions
from ensemble.predictor import fit as predictor
from ensemble.recipes.hot_sellers import baselines, features
from ensemble.recipes.hot_sellers import page as hot_page
from ensemble.recipes.hot_sellers.settings import PanelConfig, PrepareConfig
from ensemble.report import forecast
from ensemble.report import page as report
from ensemble.report import words as report_words

ATTACK = "<script>alert('title')</script> & <b>Fox</b>"
PANEL = PanelConfig(horizon_weeks=4, top_fraction=0.1)
SUMMARY = {"recipe": "hot_sellers", "seconds": 83.4, "validation_average_precision": 0.31}


@pytest.fixture(scope="module")
def run(raw_market: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run in one folder: prepared, members, predictions, ensemble. Every other product's title is an attack."""
    from ensemble.recipes.hot_sellers import prepare as panel

    folder = tmp_path_factory.mktemp("run")
    review_file, product_file = raw_market
    lines = [json.loads(line) for line in product_file.read_text(encoding="utf-8").splitlines()]
    for line in lines[::2]:
        line["title"] = ATTACK
    (folder / "meta.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    shutil.copyfile(review_file, folder / "reviews.jsonl")
    with open(folder / "reviews.jsonl", "a", encoding="utf-8") as stream:
        stream.write("{a line <i>cut</i>\n")
    source, metadata = (str(folder / "reviews.jsonl"),), (str(folder / "meta.jsonl"),)
    panel.prepare(PrepareConfig(out=str(folder / "prepared"), source=source, metadata=metadata, panel=PANEL))

    generator = np.random.default_rng(0)
    for split in ("blend", "test", "forecast"):
        result = baselines.predict(folder / "prepared", split)
        write_predictions(folder, split, "momentum", **result)
        for name, noise, kind in (("net", 1.5, "neural"), ("trees", 1.0, "xgboost")):
            logit = 2 * np.nan_to_num(result["target"]) - 3 + generator.normal(0, noise, len(result["target"]))
            result |= {
                "prediction": 1 / (1 + np.exp(-logit)),
                "config": {"kind": kind, "folder": str(folder / "members" / name)},
            }
            if split == "forecast" and kind == "xgboost":
                result["reasons"] = [
                    [{"feature": "share_4w_of_52w", "value": 0.0167, "contribution": 0.6}] for _ in result["target"]
                ]
            write_predictions(folder, split, name, **result)
    history = [{"kind": "val", "step": step, "average_precision": 0.3 - 1 / step} for step in range(5, 40)]
    losses = [{"kind": "train", "step": step, "loss": 1 / step} for step in range(5, 40)]
    write_member(folder / "members" / "net", {**SUMMARY, "kind": "neural", "parameters": 12345}, [*losses, *history])
    write_member(folder / "members" / "trees", {**SUMMARY, "kind": "xgboost", "trees": 39}, history)
    folders.write_json(folder / "members" / "trees" / "importance.json", {"age": 3.0, "growth_4w": 1.0})
    predictor.fit(folder / "predictions", folder / "prepared", folder / "ensemble", num_draws=20)
    return folder


def write_predictions(folder: Path, split: str, member: str, **result: Any) -> None:
    path = folder / "predictions" / f"{member}.{split}.parquet"
    predictions.write(path, Predictions(**result, split=split, member=member))


def write_member(folder: Path, summary: dict[str, Any], history: list[dict[str, Any]]) -> None:
    folder.mkdir(parents=True)
    folders.write_json(folder / "summary.json", summary)
    folders.write_json(folder / "config.json", {"data": "x", "seed": 7, "recipe": {"width": 32, "text_encoder": ""}})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in history), encoding="utf-8")


def write(folder: Path, out: Path, scaling: Sequence[Path] = ()) -> str:
    report.write(folder / "ensemble", folder / "prepared", folder / "predictions", out, scaling)
    return out.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page_file(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("page") / "report.html"
    write(run, file)
    return file


@pytest.fixture(scope="module")
def page(page_file: Path) -> str:
    return page_file.read_text(encoding="utf-8")


def write_scaling(file: Path, device: str, speeds: dict[int, tuple[float, ...]], price: float = 0.0) -> Path:
    """What the benchmark writes, from speeds of each round by ranks, on trainings of 100,000 samples."""
    runs = {
        ranks: [
            Training(ranks=ranks, device=device, seconds=1e5 / speed, samples_per_s=speed, data_wait=0.0123)
            for speed in measured
        ]
        for ranks, measured in speeds.items()
    }
    launches = [Launch(ranks=ranks, nodes=-(-ranks // 4), words=[]) for ranks in speeds]
    folders.write_json(
        file,
        {
            "environment": {"processor": "Some <i>CPU</i>", "cores": 2, "date": "2026-11-20"},
            "batch_size": 4096,
            "rounds": len(speeds[1]),
            "price_per_gpu_hour": price or None,
            "by_ranks": table(launches, runs, price),
        },
    )
    return file


@pytest.fixture(scope="module")
def scaling(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A measurement on CPUs, and one on GPUs."""
    folder = tmp_path_factory.mktemp("scaling")
    gpus = {
        1: (1000.0, 1020.0, 980.0),
        2: (1900.0, 1980.0, 1800.0),
        4: (3600.0, 3800.0, 3200.0),
        8: (6400.0, 7000.0, 6000.0),
    }
    return [
        write_scaling(folder / "cpu.json", "cpu", {1: (100.0, 101.0, 99.0), 2: (160.0, 172.0, 150.0)}),
        write_scaling(folder / "gpu.json", "NVIDIA A100-SXM4-80GB", gpus, price=3.6),
    ]


@pytest.fixture(scope="module")
def scaled_page_file(run: Path, scaling: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("scaled") / "report.html"
    write(run, file, scaling)
    return file


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    """A copy of the run of one's own, to damage."""
    return Path(shutil.copytree(run, tmp_path / "run"))


def seal(folder: Path) -> None:
    """Write the manifest of an ensemble anew, as if its files had been written like this."""
    ensemble = folder / "ensemble"
    (ensemble / folders.NAME).unlink()
    folders.write_manifest(ensemble, {"kind": predictor.ENSEMBLE})


def text(page: str) -> str:
    """What a person reads: without tags and styles, spaces made plain."""
    body = re.sub(r"<style.*?</style>", "", page, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", body)).replace(report_words.THIN, " ").split())


def test_the_page_has_the_scores(run: Path, page: str) -> None:
    """The first sentence would not be that of the scores, or a part of the page would be lost."""
    words, scores = text(page), folders.read_json(run / "ensemble" / "scores.json")
    ensemble = scores["scores"]["ensemble"]
    precision, base_rate = (
        report_words.percent(value).replace(report_words.THIN, " ")
        for value in (ensemble["precision_at_5pct"]["value"], scores["base_rate"])
    )
    lift = f"{ensemble['lift_at_5pct']['value']:.1f}"
    assert f"top 5 %, {precision} became hot sellers, {lift} times the base rate of {base_rate}" in words
    assert f"{ensemble['average_precision']['value']:.3f} {ensemble['average_precision']['low']:.3f} to" in words
    manifest = folders.read_manifest(run / "prepared")
    for part in (
        f"Forecast from the week of {report_words.day(manifest['last_week'])} for the 4 weeks after it",
        "share of 52 weeks’ reviews in the last 4: 1.7 %",  # the reason, in words
        "“not hot” for every row",
        "members added one by one",  # how the combiners were compared
        "1 min 23 s",
        "12,345 weights",
        "best 0.274 at tree 39",
        "weeks since its first review 75.0 % trees",  # importance, as a part of the whole
        "dropped: malformed line 1",
        "{a line <i>cut</i>",
        manifest["sources"][0]["sha256"],
        manifest["fingerprint"],
    ):
        assert part in words, part


def test_lists_the_forecast_in_its_order(run: Path, page: str) -> None:
    """A product would be missing, or stand at another rank than in forecast.csv."""
    table = pq.read_table(run / "ensemble" / "forecast.parquet").slice(0, forecast.NUM_ROWS).to_pylist()
    listed = [page.index(row["product_id"]) for row in table]
    assert listed == sorted(listed)
    assert page.count('class="track"') == len(table) > 10


def test_titles_are_text(page: str) -> None:
    """A product's title could run a script in the reader's browser."""
    assert "&lt;script&gt;alert(&#39;title&#39;)&lt;/script&gt; &amp; &lt;b&gt;Fox&lt;/b&gt;" in page
    assert "<script" not in page
    assert "<b>Fox" not in page


def test_needs_no_network(page: str) -> None:
    """The page would look different, or tell someone that it was opened, on a machine with a network."""
    assert not re.findall(r'(?:src|srcset|href|action|data)="(?!#|data:,)[^"]*"', page)
    assert not re.findall(r"url\((?!#)|@import|<iframe|<object|<embed|https?://", page)
    assert len(page) < 1_500_000


def test_pictures_are_apart_and_follow_the_colours(scaled_page_file: Path) -> None:
    """Clip paths of one picture would cut another, or black lines would stand on the dark page."""
    page = scaled_page_file.read_text(encoding="utf-8")
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', page)) <= set(ids)
    pictures = re.findall(r'<svg viewBox.*?role="img".*?</svg>', page, flags=re.DOTALL)
    assert len(pictures) == 8  # three curves, two of the net's learning, one of the trees', two of scaling
    for picture in pictures:
        assert not re.findall(r"(?:fill|stroke): #|font-family|<style", picture)
        assert "var(--series-" in picture


def test_the_page_has_the_measured_scaling(scaled_page_file: Path, page: str, scaling: list[Path]) -> None:
    """A figure of the measurement would be lost, or the planning table be taken for one."""
    scaled = scaled_page_file.read_text(encoding="utf-8")
    words = text(scaled)
    for part in (
        "measured: Some <i>CPU</i>, 2 cores measured: NVIDIA A100-SXM4-80GB",
        "ideal the project’s planning table, not measured Speed-up",
        f"3 trainings on each number of ranks, global batch 4,096, 20 November 2026, from {scaling[0]}",
        "on each number of ranks, global batch 4,096, 3.6 a GPU-hour",
        "2 1 cpu 160 155 to 166 1.60 1.56 to 1.65 80 % 78 % to 83 % 0.347 1.2 %",  # rank-hours: 2 × 100,000 ÷ 160 ÷ 3600
        "8 2 NVIDIA A100-SXM4-80GB 6,400 6,200 to 6,700 6.40 6.26 to 6.63 80 % 78 % to 83 % 0.0347 1.25 1.2 %",
        "rank-hours a training waits for data",
        "GPU-hours a training cost a million samples waits for data",
        "was not measured: 1.85 × on 2 (92 %), 3.43 × on 4 (86 %), 6.0 × on 8 (75 %) GPUs.",
    ):
        assert part in words, part
    assert "Training on more ranks" not in text(page)
    assert 'id="scaling"' not in page
    last = re.findall(r"<code>(python .*?)</code>", scaled)[-1]
    assert f"scaling=[{scaling[0]},{scaling[1]}]" in shlex.split(html.unescape(last))


def test_draws_only_measured_points(scaled_page_file: Path) -> None:
    """A number that nobody measured would look as if it had been."""
    page = scaled_page_file.read_text(encoding="utf-8")
    pictures = re.findall(r'<svg viewBox[^>]*aria-label="(?:Speed-up|Efficiency) .*?</svg>', page, flags=re.DOTALL)
    assert len(pictures) == 2
    for picture in pictures:
        marks = re.findall(r'<use [^>]*style="fill: var\(--([\w-]+)\)', picture)
        assert sorted(marks) == ["series-1"] * 3 * 2 + ["series-2"] * 3 * 4  # a dot, and the two ends of its bar
        grey = re.findall(r'style="fill: none;([^"]*); stroke: var\(--muted\); stroke-width: 1.2', picture)
        assert ["dasharray" in style for style in grey] == [True]  # planned


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "cpu.json does not exist"),
        ("{", "cpu.json is damaged"),
        ({"efficiency": {"median": 0.8}}, "cpu.json lacks 'environment'"),
        ({"by_ranks": [{"ranks": 1}]}, "cpu.json lacks 'nodes'"),
    ],
)
def test_refuses_a_measurement_of_another_version(
    run: Path, scaling: list[Path], tmp_path: Path, content: Any, sentence: str
) -> None:
    """The person would see a traceback, or a page without the part."""
    file = tmp_path / "cpu.json"
    if isinstance(content, str):
        file.write_text(content)
    elif content:
        whole = folders.read_json(scaling[0])
        folders.write_json(file, {**whole, **content} if "by_ranks" in content else content)
    with pytest.raises(UserError, match=re.escape(sentence)):
        write(run, tmp_path / "report.html", [file])
    assert not (tmp_path / "report.html").exists()


def test_replaces_an_older_page_whole(run: Path, tmp_path: Path) -> None:
    """A second run would fail, or leave its scratch file behind."""
    out = tmp_path / "deep" / "report.html"
    out.parent.mkdir()
    out.write_text(f"an old page, {folders.MARK}")
    assert write(run, out).endswith("</html>")
    assert [file.name for file in out.parent.iterdir()] == ["report.html"]
    assert write(run, out).endswith("</html>"), "a page has the mark of one"
    out.write_text('{"review": "precious"}')
    with pytest.raises(UserError, match=r"report.html exists and is not a report that this project wrote, so it is"):
        write(run, out)
    assert out.read_text() == '{"review": "precious"}'
    with pytest.raises(UserError, match=r"lies inside .*prepared, which is prepared data"):
        write(run, run / "prepared/report.html")


@pytest.mark.parametrize(
    "lost",
    [
        "ensemble/ensemble.json",
        "ensemble/scores.json",
        "ensemble/forecast.parquet",
        "ensemble/test.parquet",
        "prepared",
        "prepared/rows/test/data-00000-of-00001.arrow",
        "predictions/net.test.parquet",
        "predictions/trees.forecast.parquet",
        "members/net",
        "members/net/summary.json",
        "members/net/config.json",
        "members/trees/metrics.jsonl",
        "members/trees/importance.json",
    ],
)
def test_names_what_is_missing(copy: Path, tmp_path: Path, lost: str) -> None:
    """The person would see a traceback, or a page without the part."""
    path = copy / lost
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    with pytest.raises(UserError, match=re.escape(path.name)) as caught:
        write(copy, tmp_path / "report.html")
    assert re.search("does not exist|is missing|is not at|there is no", str(caught.value))
    assert not (tmp_path / "report.html").exists()


def damage_lines(folder: Path) -> str:
    (folder / "members" / "net" / "metrics.jsonl").write_text('{"kind": "val"\n')
    return "metrics.jsonl is damaged"


def damage_parquet(folder: Path) -> str:
    (folder / "ensemble" / "forecast.parquet").write_bytes(b"PAR1 no")
    seal(folder)
    return "forecast.parquet is not a valid Parquet file"


def change_fingerprint(folder: Path) -> str:
    path = folder / "ensemble" / "ensemble.json"
    folders.write_json(path, {**folders.read_json(path), "fingerprint": "0123456789abcdef"})
    seal(folder)
    return "was fitted on data 0123456789abcdef"


def drop_key(folder: Path) -> str:
    folders.write_json(folder / "ensemble" / "scores.json", {"scores": {}})
    seal(folder)
    return "scores.json lacks 'members'"


def rename_column(folder: Path) -> str:
    path = folder / "ensemble" / "forecast.parquet"
    pq.write_table(pq.read_table(path).rename_columns({"net": "other"}), path)
    seal(folder)
    return "forecast.parquet lacks 'net'"


def edit_ensemble(folder: Path) -> str:
    path = folder / "ensemble" / "ensemble.json"
    path.write_text(path.read_text().replace('"platt"', '"PLATT"').replace('"equal"', '"eQual"'))
    return r"ensemble.json was changed after it was written"


def edit_member(folder: Path) -> str:
    member = folder / "members" / "trees"
    folders.write_manifest(member, {"kind": "tree member"})
    path = member / "config.json"
    path.write_text(path.read_text().replace('"seed": 7', '"seed": 8'))
    return r"config.json was changed after it was written"


@pytest.mark.parametrize(
    "damage", [damage_lines, damage_parquet, change_fingerprint, drop_key, rename_column, edit_ensemble, edit_member]
)
def test_refuses_what_is_damaged_or_foreign(copy: Path, tmp_path: Path, damage: Callable[[Path], str]) -> None:
    """The page would mix two runs, or the person see a traceback."""
    with pytest.raises(UserError, match=damage(copy)):
        write(copy, tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_refuses_a_folder_as_its_file(run: Path, tmp_path: Path) -> None:
    """The person would see the rename's traceback."""
    with pytest.raises(UserError, match="is a folder: name the file"):
        write(run, tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        write(run, tmp_path / "file" / "report.html")


def test_a_member_from_elsewhere_needs_no_folder(copy: Path, tmp_path: Path) -> None:
    """Prediction files of another program join the ensemble, but the report would demand its training logs."""
    for name in ("net", "trees"):
        for split in ("blend", "test", "forecast"):
            result = predictions.read(copy / "predictions" / f"{name}.{split}.parquet")
            fields = {field: getattr(result, field) for field in predictions.COLUMNS}
            write_predictions(copy, split, name, **fields, recipe=result.recipe, fingerprint=result.fingerprint)
    predictor.fit(copy / "predictions", copy / "prepared", copy / "ensemble", num_draws=2, overwrite=True)
    words = text(write(copy, tmp_path / "report.html"))
    assert "Scores Curves" in words
    assert "Learning curves" not in words
    assert "Why accuracy is not in the table" in words
    assert "strongest first" not in words  # nobody gave reasons


def test_an_undefined_score_is_explained(copy: Path, tmp_path: Path) -> None:
    """Real data can have a test split without one hot seller: the first sentence would fail on None."""
    path = copy / "ensemble" / "scores.json"
    scores = folders.read_json(path)
    for intervals in [*scores["scores"].values(), scores["gain_over_best_member"]]:
        for name in ("average_precision", "lift_at_5pct"):
            intervals[name] = {"value": None, "low": None, "high": None}
    folders.write_json(path, {**scores, "undefined": "There is no positive among these rows."})
    seal(copy)
    assert "The forecast has no score: There is no positive among these rows." in text(write(copy, tmp_path / "report.html"))


def test_every_feature_has_a_label() -> None:
    """A reason would read n(t−4, t] ÷ n(t−52, t], or two features would read alike."""
    words = [hot_page.feature_label({"name": feature.name, "meaning": "(t"}) for feature in features.FEATURES]
    assert not [line for line in words if re.search(r"[(\[]t|\{|_", line)]
    assert len(set(words)) == len(words)
    assert hot_page.feature_label({"name": "growth_1w", "meaning": ""}) == "growth in reviews over 1 week"
    assert hot_page.feature_label({"name": "of_tomorrow", "meaning": "what it means"}) == "what it means"


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (0.0167, "share", "1.7 %"),
        (0.4, "share", "40 %"),
        (0.0809, "ratio", "0.08 ×"),
        (-1.25, "ratio", "−1.25 ×"),
        (1234.0, "reviews", "1,234"),
        (7.327, "reviews/week", "7.33"),
        (32.04, "reviews/week", "32"),
        (100.0, "reviews", "100"),
        (4.5, "stars", "4.5 ★"),
        (12.5, "dollars", "$12.50"),
        (1.0, "0 or 1", "yes"),
        (1.0, "code", "Toys"),
        (0.0, "code", "unknown"),
        (float("nan"), "stars", "unknown"),
    ],
)
def test_values_are_for_people(value: float, unit: str, shown: str) -> None:
    """A reason would read 0.01666667 or nan."""
    assert report_words.feature_value(value, unit, ["", "Toys"]).replace(report_words.THIN, " ") == shown


def test_the_commands_carry_the_settings(page: str) -> None:
    """Who follows the page's last lines would get other data or other members."""
    lines = [shlex.split(html.unescape(line)) for line in re.findall(r"<code>((?:python|accelerate) .*?)</code>", page)]
    scripts = [next(word for word in line if word.startswith("scripts/")) for line in lines]
    assert [Path(script).stem for script in scripts] == [
        "prepare_data", "train", "train_trees", "predict", "predict", "predict", "ensemble_predictor", "report"
    ]  # fmt: skip
    assert all((Path(__file__).parents[2] / script).is_file() for script in scripts)
    prepare = configuration.load(PrepareConfig, None, lines[0][2:])
    assert prepare.panel == PANEL
    assert (prepare.source, prepare.metadata) == (("reviews.jsonl",), ("meta.jsonl",))
    assert {"seed=7", "recipe.width=32", "recipe.text_encoder="} < set(lines[1])
    assert "accelerate_configs/single_cpu.yaml" in lines[1]


# In a real browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium.started(tmp_path_factory.mktemp("profile")) as started:
        yield started


SIZES = """
const boxes = [...document.querySelectorAll(arguments[0])].map(e => e.getBoundingClientRect());
return boxes.map(box => [box.width, box.height]);
"""


@pytest.mark.parametrize("width", [360, 390, 768, 1280])
def test_a_browser_shows_it_all(browser: Any, scaled_page_file: Path, run: Path, width: int) -> None:
    """The page would scroll sideways on a phone, complain on the console, or show empty boxes."""
    chromium.show(browser, scaled_page_file, width)
    assert browser.get_log("browser") == []
    browser.execute_script("document.querySelectorAll('details').forEach(part => part.open = true)")
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert all(shown[0] > 150 for shown in browser.execute_script(SIZES, ".facts dd, td.words"))  # no column is squeezed
    pictures = browser.execute_script(SIZES, 'svg[role="img"]')
    assert len(pictures) == 8
    assert all(shown[0] > 250 and shown[1] > 150 for shown in pictures)
    products = browser.execute_script(SIZES, ".products > li")
    table = open_table(run / "prepared" / "rows" / "forecast")
    assert len(products) == min(forecast.NUM_ROWS, table.num_rows)
    assert all(shown[0] > 250 and shown[1] > 40 for shown in products)


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
