"""Any table to prepared data: one row per row, what a row can be told by as float32, and splits that cannot leak.

    python scripts/prepare_data.py --recipe table 'source=[people.csv]' target=income out=runs/people

The prepared folder holds `rows/<split>`, as Arrow that `datasets.load_from_disk` opens, with the columns

    row_id    the row's number in the sources, from 0 on
    group     with ranking: the number of the query. With `time`: the number of the time slice, about 10 to a split, rising
              from split to split. Else: a random block from 0 to 9 of the split, which keeps `config.group`'s rows together.
              Combiners are compared block by block, each forecast by what was fitted to those before it
    cluster   the number of the row's `config.group`, or the row's own
    the target, and the features (columns.py); `weight` and `id` where they were asked for

Splits are train | validation | blend | test, as splits.py says. Rows without a target are the split `forecast`; there
is none where all rows have one.
"""

import dataclasses
import datetime
import difflib
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from ensemble import configuration, folders
from ensemble.arrow import stored_names, write_table
from ensemble.data import records, reviews
from ensemble.data.census import MALFORMED, Census, Offender
from ensemble.data.inputs import FORECAST
from ensemble.errors import UserError
from ensemble.recipes.table import columns
from ensemble.recipes.table.settings import PrepareConfig
from ensemble.recipes.table.splits import ACROSS, EMBARGO, MIN_ROWS, SPLITS, group_of, split_of
from ensemble.task import Task

RECIPE = "table"
KIND = "prepared data"
MAX_WHOLE_CLASSES = 10
MAX_CLASSES = 100
MAX_RELEVANCE = 30  # LightGBM has gains for no more
METRICS = {
    "binary": ("average_precision", "log_loss", "roc_auc"),
    "multiclass": ("multiclass_log_loss", "accuracy"),
    "regression": ("root_mean_squared_error", "mean_absolute_error"),
    "ranking": ("ndcg_at_10",),
}
"""By kind of task, the metrics that members can stop by; the first is the default."""
OURS = {"row_id": pa.int64(), "group": pa.int64(), "cluster": pa.int64()}
LEAK = "warning: the column '{}' says the target, row for row: add it to drop=[…] unless it is known when you forecast"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target:
    """What is predicted: its kind, the numbers that stand for it, and what they mean."""

    kind: str
    values: np.ndarray
    """(num_rows,) float64, NaN where it is empty."""
    names: tuple[str, ...]
    """Of a class, by its number; none for numbers and relevances."""


def prepare(config: PrepareConfig) -> dict[str, Any]:
    """Write the prepared folder and return its manifest; `UserError` for what the user can mend."""
    _check(config)
    census = Census()
    files = reviews.expand_sources(config.source, "", "reviews")
    for file in files:
        if file.resolve().is_relative_to(Path(config.out).resolve()):
            raise UserError(
                f"the table {file} lies inside out={config.out}, which is replaced as a whole: choose another out"
            )
    with folders.new_folder(config.out, config.overwrite, KIND) as folder:
        table = _read(files, census)
        census.check(config.max_bad_fraction)
        _check_columns(config, table)
        target = _target(config, table[config.target])
        moment = columns.numbers_of(_numeric(table, config.time, "time")) if config.time else None
        unit = _units(config, table)
        split = split_of(config, np.isnan(target.values), moment, unit, census)
        _refuse_poor(config, target, split, census)
        in_train = split == 0
        names = stored_names([name for name in table.columns if name not in _no_features(config)],
                                     [*OURS, "id", "weight", "target"])  # fmt: skip
        features, left_out = _features(config, table, names, in_train)
        _warn_of_leaks(table, features, target, in_train)
        arrays = {
            "row_id": np.arange(table.height),
            "group": group_of(target.kind, split, moment, unit, config.seed),
            "cluster": unit,
            "target": target.values if target.kind == "regression" else target.values.astype(np.float32),
            **({"weight": _weights(config, table)} if config.weight else {}),
            **{feature["name"]: columns.encode(table[feature["column"]], feature) for feature in features},
            **({"id": table[config.id].cast(pl.String).fill_null("").to_numpy()} if config.id else {}),
        }
        splits = {}
        for number, name in enumerate((*SPLITS, FORECAST)):
            rows = np.flatnonzero(split == number)
            if rows.size:
                rows = rows[np.lexsort((rows, arrays["group"][rows]))]  # a query's rows must stand together
                _write(folder / "rows" / name, {column: values[rows] for column, values in arrays.items()})
                splits[name] = _facts(config, table, target, rows, unit)
        task = Task(
            kind=target.kind,
            target="target",
            metric=config.metric or METRICS[target.kind][0],
            group="group",
            cluster="cluster",
            weight="weight" if config.weight else "",
            classes=target.names if target.kind == "multiclass" else (),
        )
        _say(config, task, target, census, left_out)
        categories = {feature["name"]: feature["values"] for feature in features if "values" in feature}
        return folders.write_manifest(
            folder,
            {
                "kind": KIND,
                "recipe": RECIPE,
                "schema_version": 1,
                "task": dataclasses.asdict(task),
                "target": {"column": config.target, "names": list(target.names)},
                "sources": folders.sources(files),
                "config": {
                    name: value
                    for name, value in configuration.to_dict(config).items()
                    if name not in ("out", "source", "overwrite")
                },
                "census": census.to_dict(),
                "splits": splits,
                "features": features,
                "left_out": left_out,
                "alike": {
                    "recipe": RECIPE,
                    "features": [feature["name"] for feature in features],
                    "categories": hashlib.sha256(json.dumps(categories).encode()).hexdigest()[:16],
                    "target": [config.target, target.kind, *target.names],
                },
            },
        )


def _check(config: PrepareConfig) -> None:
    positive_shares = all(0 < share < np.inf for share in config.shares)
    configuration.check(
        config,
        embargo=(config.embargo >= 0, "0 or more"),
        max_categories=(config.max_categories >= 2, "at least 2"),
        shares=(positive_shares, "four positive numbers"),
        max_bad_fraction=(0 <= config.max_bad_fraction <= 1, "between 0 and 1"),
        seed=(config.seed >= 0, "0 or more"),
    )
    for source in config.source:
        if source.startswith("hub:"):
            raise UserError(f"{source} is for the recipe hot_sellers: name the files of the table")
    if config.embargo and not config.time:
        raise UserError(
            f"embargo={config.embargo:g} needs an order in time: name its column with time=…, or leave embargo out"
        )
    if config.task == "ranking" and not config.group:
        raise UserError("task=ranking needs to know which rows are ranked against each other: name a column with group=…")


def _read(files: list[Path], census: Census) -> pl.DataFrame:
    """All rows of the files, each column tidy (see `columns`)."""
    frames: list[pl.DataFrame] = []
    for path in files:
        file = records.look(path)
        names = [name or f"column {position}" for position, name in enumerate(file.names, start=1)]
        for name in names:
            if names.count(name) > 1:
                raise UserError(f"{path} has two columns '{name}': give each its own name")
        if frames and set(names) != set(frames[0].columns):
            (other, *_) = set(names) ^ set(frames[0].columns)
            raise UserError(f"{path} and {files[0]} are not of one table, only one has a column '{other}': give files alike")
        layout = "Parquet" if file.layout is None else "JSON lines"
        if isinstance(file.layout, records.Delimited):
            layout = "tab-separated" if file.layout.delimiter == "\t" else "CSV"
        census.files.append({"file": path.name, "format": f"{layout}, {len(names)} columns"})
        parts = []
        # By position, since only one of two columns of a name could be asked for by it, and `source_line` is taken
        fields = {str(position): name for position, name in enumerate(file.names)}
        for rows, malformed in records.read_blocks(file, fields, {}, records.BLOCK_BYTES):
            census.read(rows.height + len(malformed))
            offenders = (Offender(path.name, record.line, records.excerpt(record.octets)) for record in malformed)
            census.drop(MALFORMED, len(malformed), offenders)
            parts.append(rows.select(*fields))
        part = pl.concat(parts, how="vertical_relaxed")
        part.columns = names
        frames.append(part if file.layout is None else part.select(map(columns.read_text, part.iter_columns())))
    tidied = [frame.select(map(columns.tidy, frame.iter_columns())) for frame in frames]
    try:
        return pl.concat([frame.select(tidied[0].columns) for frame in tidied], how="vertical_relaxed")
    except pl.exceptions.PolarsError as error:
        raise UserError(
            f"a column is of two kinds in {len(files)} files ({' '.join(str(error).split())}): write it alike"
        ) from None


def _check_columns(config: PrepareConfig, table: pl.DataFrame) -> None:
    """Whether every column that was named is there, and none has two uses."""
    used: dict[str, str] = {}
    named = [(key, getattr(config, key)) for key in ("target", "time", "group", "weight", "id")]
    for key, name in [*named, *(("drop", name) for name in config.drop)]:
        if not name:
            continue
        if name not in table.columns:
            near = difflib.get_close_matches(name, table.columns, n=1)
            mend = f"did you mean '{near[0]}'?" if near else f"it has {', '.join(table.columns[:30])}"
            raise UserError(f"{key}={name}: the table has no such column; {mend}")
        if name in used and "target" in (key, used[name]):
            raise UserError(f"{key}={name} is the target too: name another column")
        used[name] = key
    if not table.height:
        raise UserError(f"there is not one row in {', '.join(config.source)}: check how it was made")


def _no_features(config: PrepareConfig) -> set[str]:
    return {config.target, config.time, config.group, config.weight, config.id, *config.drop}


def _numeric(table: pl.DataFrame, name: str, key: str) -> pl.Series:
    if not columns.is_number(table[name]):
        shown = table[name].drop_nulls().cast(pl.String, strict=False).head(1).to_list()
        raise UserError(
            f"{key}={name} holds neither numbers nor dates, such as '{''.join(map(str, shown))}': name another column"
        )
    return table[name]


def _target(config: PrepareConfig, values: pl.Series) -> Target:
    """The target as numbers, after seeing or checking what kind of answer it is."""
    known = values.drop_nulls()
    name, kind = config.target, config.task
    if not (columns.is_number(values) or values.dtype == pl.String):
        raise UserError(f"target={name} holds {values.dtype}: numbers, dates, texts or truth values can be predicted")
    different = known.unique().sort().to_list()
    if len(different) < 2:
        what = f"is '{columns.name_of(different[0])}' in every row" if different else "is empty in every row"
        raise UserError(f"target={name} {what}, so there is nothing to learn: name another column")
    is_text = values.dtype == pl.String
    is_whole = values.dtype == pl.Boolean or (values.dtype == pl.Float64 and (known == known.floor()).all())
    if not kind:
        few = MAX_CLASSES if is_text else MAX_WHOLE_CLASSES
        if len(different) == 2:
            kind = "binary"
        elif (is_text or is_whole) and len(different) <= few:
            kind = "multiclass"
        elif is_text:
            raise UserError(
                f"target={name} has {len(different):,} different texts, more than {MAX_CLASSES} classes: name another"
            )
        else:
            kind = "regression"
    if kind == "binary" and len(different) != 2:
        raise UserError(
            f"task=binary, but target={name} has {len(different):,} different values: leave task out, or say another"
        )
    if kind == "multiclass" and (len(different) > MAX_CLASSES or not (is_text or is_whole)):
        raise UserError(
            f"task=multiclass, but target={name} has {len(different):,} different values, which are not at most "
            f"{MAX_CLASSES} texts or whole numbers: add task=regression, or name another"
        )
    if kind in ("regression", "ranking") and is_text:
        raise UserError(f"task={kind}, but target={name} holds texts such as '{different[0]}': add task=multiclass, or none")
    if kind == "ranking" and not (is_whole and different[0] >= 0 and different[-1] <= MAX_RELEVANCE):
        raise UserError(
            f"task=ranking, but target={name} holds {columns.name_of(different[0])} to {columns.name_of(different[-1])}: "
            f"relevances are whole numbers from 0 to {MAX_RELEVANCE}"
        )
    metric = config.metric or METRICS[kind][0]
    if metric not in METRICS[kind]:
        raise UserError(f"metric={metric} does not fit a {kind} target: write one of {', '.join(METRICS[kind])}")
    if kind in ("regression", "ranking"):
        return Target(kind=kind, values=columns.numbers_of(values), names=())
    codes = values.replace_strict(different, range(len(different)), default=None, return_dtype=pl.Float64)
    return Target(kind=kind, values=columns.numbers_of(codes), names=tuple(map(columns.name_of, different)))


def _units(config: PrepareConfig, table: pl.DataFrame) -> np.ndarray:
    """For each row the number of what is never cut: of its group, -1 if that is empty, or its own: (num_rows,) int64."""
    if not config.group:
        return np.arange(table.height)
    values = table[config.group]
    _, first, number = np.unique(
        values.cast(pl.String).fill_null("").to_numpy().astype(str), return_index=True, return_inverse=True
    )
    number = np.argsort(np.argsort(first))[number]  # by first appearance
    number[values.is_null().to_numpy()] = -1
    return number


def _refuse_poor(config: PrepareConfig, target: Target, split: np.ndarray, census: Census) -> None:
    """Every split needs rows; train needs every class, and of two classes every split needs both."""
    every = set(np.unique(target.values[(split >= 0) & (split < len(SPLITS))]))
    for number, name in enumerate(SPLITS):
        here = target.values[split == number]
        if here.size < MIN_ROWS:
            lost = ", ".join(f"{count:,} for '{why}'" for why, count in census.dropped.items() if why in (EMBARGO, ACROSS))
            raise UserError(
                f"the {name} split has only {here.size} rows{f', after leaving out {lost}' if lost else ''}: give more "
                "data, or change shares"
            )
        lacking = sorted(every - set(np.unique(here)))
        if lacking and (target.kind == "binary" or (target.kind == "multiclass" and name == "train")):
            raise UserError(
                f"the {name} split has no row with {config.target}={target.names[int(lacking[0])]}: give more such rows, "
                f"{'change shares' if config.time else 'choose another seed'}"
                f"{', or merge it with another class' if target.kind == 'multiclass' else ''}"
            )
        if target.kind == "regression" and name == "train" and np.ptp(here) == 0:
            raise UserError(f"target={config.target} is {here[0]:g} in every row of train: give more data")


def _weights(config: PrepareConfig, table: pl.DataFrame) -> np.ndarray:
    weight = columns.numbers_of(_numeric(table, config.weight, "weight"))
    bad = np.flatnonzero(~(weight >= 0))
    if bad.size or not weight.any():
        what = f"is {weight[bad[0]]:g} in row {bad[0]}" if bad.size else "is 0 in every row"
        raise UserError(f"weight={config.weight} {what}: a weight is 0 or more, and not all are 0")
    return weight.astype(np.float32)


def _features(
    config: PrepareConfig, table: pl.DataFrame, names: dict[str, str], in_train: np.ndarray
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """The features, as entries of the manifest, and why each other column is left out."""
    features, left_out = [], {}
    for column, name in names.items():
        found = columns.learn(column, table[column], in_train, config.max_categories)
        if isinstance(found, str):
            left_out[column] = found
        else:
            features.append({"name": name, **found})
    if not features:
        raise UserError(
            f"no column is left to predict {config.target} from: {'; '.join(f'{c} {w}' for c, w in left_out.items())}"
        )
    return features, left_out


def _warn_of_leaks(table: pl.DataFrame, features: list[dict[str, Any]], target: Target, in_train: np.ndarray) -> None:
    """Name the features that stand for the target one to one, or are the target on another scale."""
    rows = pl.Series(in_train)
    answer = pl.Series(target.values).filter(rows)
    for feature in features:
        values = table[feature["column"]].filter(rows)
        num_pairs = pl.DataFrame({"value": values, "answer": answer}).n_unique()
        one_to_one = num_pairs == values.n_unique() == answer.n_unique() and num_pairs < len(values) / 2
        on_a_line = False
        if target.kind == "regression" and columns.is_number(values):
            x, y = columns.numbers_of(values), answer.to_numpy()
            known = np.isfinite(x)
            if known.sum() > 2 and np.ptp(x[known]) > 0 and np.ptp(y[known]) > 0:
                on_a_line = bool(abs(np.corrcoef(x[known], y[known])[0, 1]) > 1 - 1e-9)
        if one_to_one or on_a_line:
            print(LEAK.format(feature["column"]), file=sys.stderr)


def _write(folder: Path, arrays: dict[str, np.ndarray]) -> None:
    kinds = {**OURS, "id": pa.large_string()}
    write_table(folder, pa.table({name: pa.array(values, kinds.get(name)) for name, values in arrays.items()}))


def _facts(config: PrepareConfig, table: pl.DataFrame, target: Target, rows: np.ndarray, unit: np.ndarray) -> dict[str, Any]:
    """What the manifest says of a split."""
    facts: dict[str, Any] = {"rows": int(rows.size)}
    values = target.values[rows]
    if config.group:
        facts["groups"] = len(np.unique(unit[rows]))
    if config.time:
        ends = table[config.time].gather(rows)
        first, last = (_moment(end) for end in (ends.min(), ends.max()))
        facts |= {"from": first, "to": last}
    if np.isnan(values).all():
        return facts
    if target.kind == "binary":
        facts |= {"positives": int(values.sum())}
    elif target.kind == "multiclass":
        facts["classes"] = len(np.unique(values))
    else:
        facts["mean"] = float(f"{values.mean():.6g}")
    return facts


def _moment(value: Any) -> str:
    if isinstance(value, datetime.datetime):
        return value.isoformat(" ").removesuffix(" 00:00:00")
    return columns.name_of(value)


def _say(config: PrepareConfig, task: Task, target: Target, census: Census, left_out: dict[str, str]) -> None:
    print(census.table())
    for column, why in left_out.items():
        print(f"left out: the column '{column}' {why}")
    names = {"binary": f", yes is {target.names[-1:]}", "multiclass": f", {len(target.names)} classes"}.get(task.kind, "")
    seen = "" if config.task else f" (as its values are; task=… says another: {', '.join(METRICS)})"
    print(f"to predict: {config.target}, {task.kind}{names}{seen}, by {task.metric}")
