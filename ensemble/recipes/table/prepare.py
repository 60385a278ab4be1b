"""Preparation of any table: features as float32, a target, and folds without leaks.

    python scripts/prepare_data.py --recipe table 'source=[people.csv]' target=income out=runs/people

The prepared folder holds the rows with a target in `rows/train`, with `test` > 0 a part of them in `rows/test` instead, and
the rows without a target in `rows/forecast`. They are Arrow datasets that `datasets.load_from_disk` opens, with the columns

    row_id    the row's number in all files together, from 0 on
    fold      in train: the fold, see ensemble/data/cross_validation.py
    group     with ranking: a number for each `config.group`. With `time`: the number of the time slice, at most 20 in train
              and in test, increasing from split to split. Else: a random block from 0 to 9, the same for rows of one
              `config.group`. Combiners are compared on these blocks
    cluster   the number of the row's `config.group`; with groups, `names/cluster` and for ranking `names/group` have the
              texts of the numbers in these columns. Without: the row's number, or if copies of a row stay in one fold, that
              of the first copy
    time      with `time`: days since 1970-01-01, or the number
    the target, and the features (columns.py); `weight` and `id` if the settings name them
"""

import dataclasses
import datetime
import difflib
import hashlib
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from ensemble import configuration, folders
from ensemble.arrow import stored_names, write_table
from ensemble.data import cross_validation, octets, raw_files
from ensemble.data.census import Census
from ensemble.data.inputs import FORECAST
from ensemble.errors import UserError, listed
from ensemble.metrics.weighting import weight_of
from ensemble.recipes.table import cells, columns, conventions, leaks, missing, sources, trend
from ensemble.recipes.table.settings import PrepareConfig
from ensemble.recipes.table.splits import FORECAST as FORECASTED
from ensemble.recipes.table.splits import TEST, TRAIN, Splits, split_rows
from ensemble.recipes.table.target import MAX_WHOLE_CLASSES, Target, codes_as_texts, numeric, read_target
from ensemble.task import METRICS, Task

RECIPE = "table"
SPLITS = ("train", "test", FORECAST)
"""The splits in the order of their numbers in splits.py."""
ID_COLUMNS = {"row_id": pa.int64(), "group": pa.int64(), "cluster": pa.int64()}
ALONE = "the table has no other column; if a line has several fields, separate them by commas, semicolons or tabs"
TREND = "the target has a trend: the time '{}' is a feature, since a linear model with it predicts later rows better"
PANDAS_INDEX = r"__index_level_\d+__"
"""The name in Parquet of the row labels of a pandas frame, if the frame has no name for them."""
MAX_NAMED_COLUMNS = 5
"""If more columns are left out for the same reason, one line names this many of them."""
YEARS = datetime.date(1900, 1, 1), datetime.date(2100, 12, 31)
"""Numbers of a feature such as 20240131 are dates if all are between these days."""
LEAST_REPEATED = 0.05
"""Without `group`, a message is printed if at least this share of the labelled rows repeat an earlier row."""
MANY_REPEATED = 0.2
"""From this share on, copies stay in one fold, unless `time` orders the folds."""
MOST_COPIES = 10
"""Equal rows are taken for different observations, without a message, if each of their columns (but the target and `weight`)
has each value in at least this many rows on average, or has at most half as many values as there are distinct rows."""
FEW_UNLIKE = 0.05
"""So are they if more than this share of the combinations of features with several rows have different targets. Two classes,
8 rows of each of 300 products: the log loss of new rows is 0.51, and was 2.1 with equal rows of a class in one fold."""
REPEATED = (
    "{:,} of {:,} rows with a target repeat an earlier row in all columns but ids and row numbers: with a copy in another "
    "fold, scores are too good and intervals too narrow; leave copies out, or name the column that copies share as group="
)
TOGETHER = (
    "{:,} of {:,} rows with a target repeat an earlier row in all columns but ids and row numbers: copies stay in one fold, "
    "so that no score is too good; leave them out, unless rows are to count several times"
)


def prepare(config: PrepareConfig) -> dict[str, Any]:
    """Write the prepared folder and return its manifest. Raises `UserError` for settings and data that cannot be used."""
    config = stripped(config)
    _check(config)
    census = Census()
    files = raw_files.expand_sources(config.source, None)
    octets.refuse_inside(config.out, files)
    with folders.new_folder(config.out, config.overwrite, folders.PREPARED) as folder:
        table = sources.read(files, census)
        census.check(config.max_bad_fraction)
        _check_columns(config, table)
        cells_of = _read_columns(config, table)
        target = read_target(config, table, cells_of[config.target])
        time = columns.numbers_of(numeric(table, cells_of[config.time], "time")) if config.time else None
        unit, groups = units(config, table)
        unit, copies = _keep_copies_together(config, cells_of, target, unit)
        weight = _weights(config, table, cells_of[config.weight], np.isnan(target.values)) if config.weight else None
        splits = split_rows(config, target.kind, target.values, time, unit, census, weight)
        split = splits.split
        if groups is not None:  # rows to forecast without a group form one group
            unit, groups = np.where(unit < 0, len(groups), unit), groups.extend_constant("", 1)
        _refuse_missing_classes(config, target, split)
        in_train = split == TRAIN
        features, encoded, left_out, contents = _features(config, table, cells_of, in_train, with_time=False)
        trends = []
        if time is not None and target.kind == "regression" and config.time not in config.drop:
            no_columns = np.empty((in_train.sum(), 0), np.float32)
            matrix = np.column_stack([no_columns, *(encoded[feature["name"]][in_train] for feature in features)])
            known = time[in_train], target.values[in_train], splits.fold[in_train]
            if trend.has_trend(matrix, *known, config.embargo, config.seed, weight_of(weight, in_train)):
                features, encoded, left_out, contents = _features(config, table, cells_of, in_train, with_time=True)
                trends = [TREND.format(config.time)]
        if not features:
            raise UserError(_no_features(config, cells_of, left_out))
        leak_notes = copies + leaks.target_notes(cells_of, features, target, in_train) + leaks.header_notes(table, cells_of)
        leak_notes += leaks.row_number_notes(cells_of, features) + leaks.total_notes(table, cells_of, target)
        if time is not None:
            leak_notes += leaks.far_time_notes(table, cells_of[config.time], np.flatnonzero(in_train))
        print(*(f"warning: {note}" for note in leak_notes), sep="\n", end="\n" if leak_notes else "", file=sys.stderr)
        arrays = {
            "row_id": np.arange(table.height),
            "group": splits.group,
            "cluster": unit,
            "target": target.values if target.kind == "regression" else target.values.astype(np.float32),
            **({"weight": weight} if weight is not None else {}),
            **({cross_validation.TIME: time} if time is not None else {}),
        }
        arrays |= encoded
        if config.id:
            arrays["id"] = table.texts(config.id, "id").fill_null("").to_numpy()
        if groups is not None:
            write_names(folder / "names", target.kind, groups, arrays, unit, split >= 0)
        rows_of = _write_splits(folder / "rows", splits, arrays)
        split_entries = {name: _describe(config, cells_of, target, rows, unit) for name, rows in rows_of.items()}
        task = _task(config, target)
        if cells_of[config.target].kind == "date" and target.kind == "regression":
            print(f"the target '{config.target}' holds dates: days since 1970-01-01 are predicted")
        notes = _notes(config, table, cells_of, target) + trends
        notes += [note for each in features for note in missing.categories_note(each["column"], each.get("values", ()))]
        _print_summary(config, task, target, census, notes, left_out)
        return folders.write_manifest(
            folder,
            {
                **folders.first_entries(RECIPE, 2, task),
                "target": {"column": config.target, "names": list(target.names)},
                "sources": folders.sources(files),
                "config": configuration.to_dict(config, ("out", "source", "overwrite")),
                "census": census.to_dict(),
                "splits": split_entries,
                cross_validation.KEY: splits.cross_validation.to_dict(),
                "features": features,
                **({"texts": contents} if contents else {}),
                "left_out": left_out,
                "unseen": _unseen(cells_of, features, split == FORECASTED),
                "notes": [*leak_notes, *notes],
                "alike": _alike(config, target, features, contents),
            },
        )


def _check(config: PrepareConfig) -> None:
    configuration.check(
        config,
        at_least_0="embargo seed",
        fractions="max_bad_fraction",
        max_categories=(config.max_categories >= 2, "at least 2"),
        test=(0 <= config.test <= 0.9, "a part of the rows, from 0 to 0.9"),
        num_folds=(config.num_folds == 1 or config.num_folds >= 3 or not config.num_folds, "0, 1, or 3 and more"),
    )
    if not config.source:
        raise UserError("no table is given: name its files, as in 'source=[people.csv]'")
    if not config.target:
        raise UserError("target= names no column: name the column to predict, as in target=income")
    if config.embargo and not config.time:
        raise UserError(
            f"embargo={config.embargo:g} needs an order in time: name its column with time=…, or leave embargo out"
        )
    if config.num_folds == 1 and config.group and not config.time:
        raise UserError(f"num_folds=1 is impossible with group={config.group}: write 3 or more, or leave num_folds out")
    if config.task == "ranking" and not config.group:
        raise UserError(
            "task=ranking needs groups of rows that are ranked against each other: name their column with group=…"
        )


def _check_columns(config: PrepareConfig, table: sources.Table) -> None:
    """Raise `UserError` if a setting names a column that does not exist, or the target too, or if there are no rows."""
    used: dict[str, str] = {}
    named = [(key, getattr(config, key)) for key in ("target", "time", "group", "weight", "id")]
    lists = {"drop": config.drop, "categorical": config.categorical}
    for key, name in [*named, *((key, name) for key, names in lists.items() for name in names)]:
        if not name:
            continue
        if name not in table.columns:
            near = [other for other in table.columns if other.lower() == name.lower()]
            near = near or difflib.get_close_matches(name, table.columns, n=1)
            fix = f"did you mean {near[0]!r}?" if near else f"it has {listed(table.columns, 30)}"
            fix = f"write a list as {key}=[{name}]" if key in lists and set(name.split(",")) <= set(table.columns) else fix
            raise UserError(f"{key}={name}: the table has no such column; {fix}")
        if name in used and "target" in (key, used[name]):
            raise UserError(f"{key}={name} is the target too: name another column")
        if key == "categorical" and name in (config.time, config.weight):
            role = "time" if name == config.time else "weight"
            raise UserError(f"categorical={name} is the {role} too, which has no categories: leave it out of categorical")
        used[name] = key
    if not table.height:
        raise UserError(f"there are no rows in {', '.join(config.source)}: check how it was made")


def _read_columns(config: PrepareConfig, table: sources.Table) -> dict[str, cells.Cells]:
    """The cells of each column, except those of `id`, `group` and `drop`, and of lists or other nested values."""
    named = {config.target, config.time, config.weight}
    skipped = {config.id, config.group, *config.drop} - named
    for key, name in (("target", config.target), ("time", config.time), ("weight", config.weight)):
        if name in table.nested:
            fit = {"time": "numbers or dates", "weight": "numbers"}.get(key, "numbers, dates or texts")
            raise UserError(f"{key}={name} holds {table.nested[name]}: name a column of {fit}")
    names = [name for name in table.columns if name not in skipped and name not in table.nested]
    cells_of = conventions.read(table, names, config)
    if not config.decimal:
        cells.refuse_two_marks(table, cells_of, "add decimal=, or leave out the thousands separators")
        cells_of |= {name: column for name, column in cells.of_whole_numbers(table, cells_of).items() if name not in named}
    cells_of |= {name: cells.days(cells.in_range(table, cells_of[name]), *YEARS) for name in names if name not in named}
    if config.time:
        cells_of[config.time] = cells.days(cells_of[config.time])
    cells_of[config.target] = codes_as_texts(config, table, cells_of[config.target])
    return cells_of


def units(config: PrepareConfig, table: sources.Table) -> tuple[np.ndarray, pl.Series | None]:
    """The unit of each row, (num_rows,) int64, and the groups' texts in the order of their numbers; None without groups.

    No unit has rows in both train and test.
    With groups, the unit is the number of the row's group by first appearance, -1 for none; without, the row's own number.
    """
    if not config.group:
        return np.arange(table.height), None
    texts = table.texts(config.group, "group")
    groups = texts.drop_nulls().unique(maintain_order=True)
    number = texts.replace_strict(groups, range(len(groups)), default=-1, return_dtype=pl.Int64)
    return number.to_numpy(), groups


def write_names(
    folder: Path, kind: str, groups: pl.Series, arrays: dict[str, np.ndarray], unit: np.ndarray, kept: np.ndarray
) -> None:
    """Write tables of `code` and `name`: the texts of the codes in the column `cluster`, and with ranking in `group`.

    unit : index of each row's group in `groups`. kept : bool, the rows whose codes are written.
    """
    for column in ("cluster", "group") if kind == "ranking" else ("cluster",):
        code, first = np.unique(arrays[column][kept], return_index=True)
        texts = groups.gather(unit[kept][first]).to_arrow(compat_level=pl.CompatLevel.oldest())
        write_table(folder / column, pa.table({"code": code, "name": texts}))


def _refuse_missing_classes(config: PrepareConfig, target: Target, split: np.ndarray) -> None:
    """Raise `UserError` if train lacks a class, test lacks one of two classes, or a target of regression is constant."""
    all_classes = set(np.unique(target.values[(split == TRAIN) | (split == TEST)]))
    for number in (TRAIN, TEST):
        values, name = target.values[split == number], SPLITS[number]
        missing = sorted(all_classes - set(np.unique(values)))
        if values.size and missing and (target.kind == "binary" or (target.kind == "multiclass" and number == TRAIN)):
            raise UserError(
                f"the {name} split has no row with {config.target}={target.names[int(missing[0])]}: give more such rows, "
                f"{'change test' if config.time else 'choose another seed'}"
                f"{', or merge it with another class' if target.kind == 'multiclass' else ''}"
            )
        if target.kind == "regression" and number == TRAIN and np.ptp(values) == 0:
            raise UserError(f"target={config.target} is {values[0]:g} in every row of train: give more data")


def _weights(config: PrepareConfig, table: sources.Table, column: cells.Cells, has_no_target: np.ndarray) -> np.ndarray:
    """The sample weights, (num_rows,) float32; 1 for a row to forecast whose weight is empty. Raises `UserError` if another
    is empty, negative or beyond 3e38, or if all are 0.

    has_no_target : (num_rows,) bool, the rows to forecast.
    """
    if column.kind == "date":
        raise UserError(f"weight={config.weight} holds dates: name a column of numbers")
    numbers = columns.numbers_of(numeric(table, column, "weight"))
    numbers = np.where(np.isnan(numbers) & has_no_target, 1.0, numbers)
    with np.errstate(over="ignore"):
        weight = numbers.astype(np.float32)
    bad = np.flatnonzero(~(numbers >= 0) | ~np.isfinite(weight))
    if bad.size or not weight.any():
        what = f"is {'too small for a 32-bit float' if numbers.any() else '0'} in every row"
        if bad.size:
            first = numbers[bad[0]]
            what = f"is {'empty' if np.isnan(first) else f'{first:g}'} in {table.place(bad[0])}"
        raise UserError(f"weight={config.weight} {what}: weights must be from 0 to 3e38, and not all 0; correct them")
    return weight


def _features(
    config: PrepareConfig, table: sources.Table, cells_of: dict[str, cells.Cells], in_train: np.ndarray, with_time: bool
) -> tuple[list[dict[str, Any]], dict[str, np.ndarray], dict[str, str], dict[str, Any]]:
    """Features as entries of the manifest, their values, (num_rows,) float32 each, the reason for each column that is left
    out, and the topics of free text.

    with_time : whether `config.time` itself is a feature, not only its periodic parts
    """
    features: list[dict[str, Any]] = []
    left_out: dict[str, str] = {}
    contents: dict[str, Any] = {}
    no_features = {config.target, config.group, config.weight, config.id} - {config.time} | {*config.drop}
    for column in table.columns:
        if column in no_features:
            continue
        if column in table.nested:
            left_out[column] = f"holds {table.nested[column]}, not numbers, dates or texts"
            continue
        if re.fullmatch(PANDAS_INDEX, column) and cells_of[column].kind == "number" and column != config.time:
            left_out[column] = "holds the row labels of a pandas frame"
            continue
        values, form = cells_of[column].values, cells_of[column].form
        if column == config.time and not with_time:  # new rows have later times, which no model has seen
            learned = columns.Learned(features=columns.parts_of(column, values, in_train, is_time=True))
        else:
            learned = columns.learn(column, values, in_train, config.max_categories, column == config.time)
        features += [{**feature, **({"form": form} if form else {})} for feature in learned.features]
        left_out |= {column: learned.left_out} if learned.left_out else {}
        contents |= {column: learned.content} if learned.content else {}
    reserved = [*ID_COLUMNS, "id", "weight", "target", cross_validation.TIME, cross_validation.COLUMN]
    names = stored_names([feature["meaning"] for feature in features], reserved)
    features = [{"name": name, **feature} for name, feature in zip(names, features, strict=True)]
    encoded: dict[str, np.ndarray] = {}
    for column, entries in columns.by_column(features).items():
        encoded |= columns.encode(cells_of[column].values, entries, contents)
    return features, encoded, left_out, contents


def _no_features(config: PrepareConfig, cells_of: dict[str, cells.Cells], left_out: dict[str, str]) -> str:
    """The message if no column has a feature. left_out : the reason for each column that is left out."""
    used = [f"{name}={value}" for name in ("time", "group", "weight", "id") if (value := getattr(config, name))]
    used += [f"drop=[{','.join(config.drop)}]"] if config.drop else []
    alone = f"the only other columns are those of {', '.join(used)}, which are no features: leave one out" if used else ALONE
    if used == [f"time={config.time}"]:
        alone = f"the time {config.time} alone is no feature, since new rows have later times"
    reasons: list[str] = []
    for column, why in left_out.items():
        reasons += [f"{column} {why}", *(cells_of[column].notes if column in cells_of else ())]
    return f"no column is left to predict {config.target} from: {'; '.join(reasons) or alone}"


def _unseen(cells_of: dict[str, cells.Cells], features: list[dict[str, Any]], rows: np.ndarray) -> dict[str, int]:
    """The number of cells of `rows`, (num_rows,) bool, whose text is no category of train, for features with such cells."""
    counts = {}
    for feature in features:
        if "values" in feature:
            texts = cells_of[feature["column"]].values.filter(pl.Series(rows))
            counts[feature["name"]] = int(cells.unseen(texts, feature["values"]).sum())
    return {name: count for name, count in counts.items() if count}


def stripped(config: PrepareConfig) -> PrepareConfig:
    """The settings with the names of columns as `sources.read` gives them: without surrounding blanks."""
    names: Any = {key: getattr(config, key).strip() for key in ("target", "time", "group", "weight", "id")}
    names |= {key: tuple(map(str.strip, getattr(config, key))) for key in ("drop", "categorical")}
    return dataclasses.replace(config, **names)


def _keep_copies_together(
    config: PrepareConfig, cells_of: dict[str, cells.Cells], target: Target, unit: np.ndarray
) -> tuple[np.ndarray, list[str]]:
    """The units of `units`, or with many copies and random folds one unit for all copies of a row; and messages."""
    if config.group:
        return unit, []
    is_labelled = ~np.isnan(target.values)
    not_compared = {config.target, config.weight}
    not_compared |= {name for name, column in cells_of.items() if name != config.time and leaks.numbers_rows(name, column)}
    values = [cells_of[name].values.filter(pl.Series(is_labelled)) for name in cells_of if name not in not_compared]
    values = [each for each in values if not columns.is_id(each.drop_nulls())]  # copies may have ids of their own
    columns_of_row = [*values, pl.Series(target.values[is_labelled])]
    frame = pl.DataFrame([value.alias(str(number)) for number, value in enumerate(columns_of_row)])
    num_distinct = frame.hash_rows().n_unique()
    num_repeated = len(frame) - num_distinct
    if num_repeated < max(LEAST_REPEATED * len(frame), 1):
        return unit, []
    # If no column tells most of the distinct rows apart, rows of different observations may be equal by chance
    if max((value.n_unique() for value in values), default=0) <= max(num_distinct / 2, len(frame) / MOST_COPIES):
        return unit, []
    # A unit has all rows with its features: if it had only those with its target, the other copies would be fitted on those
    # with another target, and would learn the opposite of what is true
    key = frame[:, : len(values)].hash_rows().to_numpy()
    _, first, inverse, counts = np.unique(key, return_index=True, return_inverse=True, return_counts=True)
    if num_distinct - len(first) > FEW_UNLIKE * np.count_nonzero(counts > 1):
        return unit, []
    if config.time or num_repeated < MANY_REPEATED * len(key):
        return unit, [REPEATED.format(num_repeated, len(key))]
    unit = unit.copy()
    unit[is_labelled] = np.flatnonzero(is_labelled)[first][inverse]
    return unit, [TOGETHER.format(num_repeated, len(key))]


def _write_splits(folder: Path, splits: Splits, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Write the rows of each split that has any, and return their numbers in the order in which they are stored."""
    rows_of = {}
    for number, name in enumerate(SPLITS):
        rows = np.flatnonzero(splits.split == number)
        if rows.size:
            rows_of[name] = rows = rows[np.lexsort((rows, arrays["group"][rows]))]  # the rows of a group are consecutive
            stored = {**arrays, cross_validation.COLUMN: splits.fold} if number == TRAIN else arrays
            write_rows(folder / name, {column: values[rows] for column, values in stored.items()})
    return rows_of


def _task(config: PrepareConfig, target: Target) -> Task:
    return Task(
        kind=target.kind,
        target="target",
        metric=config.metric or METRICS[target.kind][0],
        group="group",
        cluster="cluster",
        weight="weight" if config.weight else "",
        classes=target.names if target.kind == "multiclass" else (),
    )


def _alike(
    config: PrepareConfig, target: Target, features: list[dict[str, Any]], contents: dict[str, Any]
) -> dict[str, Any]:
    """The entry `alike` of the manifest: what must be equal in data that members predict."""
    categories: dict[str, Any] = {feature["name"]: feature["values"] for feature in features if "values" in feature}
    return {
        "recipe": RECIPE,
        "features": [[feature["name"], feature["unit"]] for feature in features],
        "categories": hashlib.sha256(json.dumps({**categories, **contents}).encode()).hexdigest()[:16],
        "target": [config.target, target.kind, *target.names],
    }


def write_rows(folder: Path, arrays: dict[str, np.ndarray]) -> None:
    kinds = {**ID_COLUMNS, "id": pa.large_string()}
    write_table(folder, pa.table({name: pa.array(values, kinds.get(name)) for name, values in arrays.items()}))


def _describe(
    config: PrepareConfig, cells_of: dict[str, cells.Cells], target: Target, rows: np.ndarray, unit: np.ndarray
) -> dict[str, Any]:
    """The entry of a split in the manifest."""
    described: dict[str, Any] = {"rows": int(rows.size)}
    values = target.values[rows]
    if config.group:
        described["groups"] = len(np.unique(unit[rows]))
    if config.time and len(times := cells_of[config.time].values.gather(rows).drop_nulls()):
        described |= {"from": columns.name_of(times.min()), "to": columns.name_of(times.max())}
    if np.isnan(values).all():
        return described
    if target.kind == "binary":
        described["positives"] = int(values.sum())
    elif target.kind == "multiclass":
        described["classes"] = len(np.unique(values))
    else:
        described["mean"] = float(f"{values.mean():.6g}")
    return described


def _notes(config: PrepareConfig, table: sources.Table, cells_of: dict[str, cells.Cells], target: Target) -> list[str]:
    """Messages about how the cells were read."""
    notes = [*table.notes, *(note for column in cells_of.values() for note in column.notes), *target.notes]
    if config.embargo and cells_of[config.time].kind == "number":
        times = cells_of[config.time].values
        notes.append(
            f"embargo={config.embargo:g} is in the unit of time={config.time}, which holds numbers from "
            f"{columns.name_of(times.min())} to {columns.name_of(times.max())}"
        )
    texts = {text for column in cells_of.values() for text in column.marks}
    used = {re.sub(r"\.0+$", "", text) for text in texts}
    if unused := [text for text in config.missing if re.sub(r"\.0+$", "", text) not in used]:  # -999.0 is -999
        notes.append(
            f"missing= names {', '.join(map(repr, unused))}, which no cell of a feature has; write a list as [NA,none]"
        )
    return notes


def _print_summary(
    config: PrepareConfig, task: Task, target: Target, census: Census, notes: list[str], left_out: dict[str, str]
) -> None:
    print(census.table())
    print(*notes, sep="\n", end="\n" if notes else "")
    columns_by_reason: dict[str, list[str]] = {}
    for column, why in left_out.items():
        columns_by_reason.setdefault(why, []).append(f"'{column}'")
    for why, named in columns_by_reason.items():
        if len(named) > MAX_NAMED_COLUMNS:
            print(f"left out: {len(named):,} columns, each of which {why}: {listed(named, MAX_NAMED_COLUMNS)}")
        else:
            print(*(f"left out: the column {name} {why}" for name in named), sep="\n")
    names = ""
    if task.kind == "binary":
        names = f", positive class {target.names[-1]}"
    elif task.kind == "multiclass":
        names = f", {len(target.names)} classes ({listed(target.names, MAX_WHOLE_CLASSES)})"
    origin = "its values and metric" if config.metric else "its values"
    inferred = "" if config.task else f" (inferred from {origin}; override it with task=…: {', '.join(METRICS)})"
    print(f"target: {config.target}, {task.kind}{names}{inferred}, by {task.metric}")
