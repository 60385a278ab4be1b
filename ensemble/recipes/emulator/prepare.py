"""Data of the recipe emulator: points of sea ice from NetCDF files, or states of Lorenz-96, each with its output.

    python scripts/prepare_data.py --recipe emulator out=runs/emulator/prepared                       # generated sea ice
    python scripts/prepare_data.py --recipe emulator out=runs/emulator/prepared 'source=[iceh.*.nc]'   # files
    python scripts/prepare_data.py --recipe emulator out=runs/lorenz96/prepared system=lorenz96

OUT/rows/SPLIT has one row for each output with flat features, for trees and for scores: a point of sea ice, or a point of
the ring with `stencil` neighbours on each side. OUT/pairs/SPLIT has the arrays that networks are trained on: `inputs`,
`outputs` and, for sea ice whose formula is known, the true `jacobian` (outputs × inputs). The columns `pair` and `output` of
a row are its row and its column in `outputs`.

All points of a tile of the sea ice grid, at all times, are in one split, since neighbouring points are alike. The splits of
Lorenz-96 are independent trajectories. The files are read, and rows are collected and written, `chunk_points` at a time.
"""

import dataclasses
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa

from ensemble import configuration, folders
from ensemble.arrow import TableWriter, array, write_table
from ensemble.data import reviews
from ensemble.errors import UserError
from ensemble.recipes.emulator import generator, lorenz96, netcdf, sea_ice
from ensemble.recipes.emulator.settings import PrepareConfig
from ensemble.task import Task

KIND = "prepared data"
SPLITS = ("train", "validation", "blend", "test")
NUM_GROUPS = 10
"""The number of groups of rows, on which combiners are compared."""
ROUNDING = 0.02
"""The largest difference from the formula's concentration that packed values in a file can cause."""
NUM_STARTS = 50
"""Trajectories of a split of Lorenz-96, which are computed together."""
OF_SEA_ICE = ("shares", "inputs", "names", "min_latitude", "min_concentration", "tile", "keep")
GENERATED = ("noise", "num_files", "num_times", "num_rows", "num_columns")
OF_LORENZ96 = ("num_states", "num_scored", "every", "num_points", "stencil", "points_of_state")
"""The settings of each system that the manifest records. Those in `GENERATED` are recorded only without `source`."""


def prepare(config: PrepareConfig) -> dict[str, Any]:
    """Write the prepared folder and return its manifest; `UserError` for what the user can fix."""
    _check(config)
    with ExitStack() as stack:
        folder = stack.enter_context(folders.new_folder(config.out, config.overwrite, KIND))
        manifest = _sea_ice(config, folder, stack) if config.system == "sea_ice" else _lorenz96(config, folder)
        return folders.write_manifest(folder, {"kind": KIND, "recipe": "emulator", "schema_version": 1, **manifest})


def _check(config: PrepareConfig) -> None:
    configuration.check(
        config,
        at_least_0="seed",
        at_least_1="tile chunk_points num_files num_times every",
        inputs=(config.inputs in (7, 14), "7 or 14"),
        min_latitude=(0 <= config.min_latitude < 90, "0 or more and below 90"),
        min_concentration=(0 <= config.min_concentration < 1, "0 or more and below 1"),
        keep=(0 < config.keep <= 1, "more than 0 and at most 1"),
        noise=(0 <= config.noise <= generator.LARGEST_NOISE, f"0 to {generator.LARGEST_NOISE}"),
        stencil=(1 <= config.stencil <= (config.num_points - 1) // 2, "at least 1, and less than half of num_points"),
        points_of_state=(1 <= config.points_of_state <= config.num_points, "1 to num_points"),
        num_points=(config.num_points >= 4, "at least 4"),
        num_rows=(config.num_rows >= 8, "at least 8"),
        num_columns=(config.num_columns >= 8, "at least 8"),
        num_states=(config.num_states >= NUM_STARTS, f"at least {NUM_STARTS}"),
        num_scored=(config.num_scored >= NUM_STARTS, f"at least {NUM_STARTS}"),
    )
    shares = config.shares
    if len(shares) != len(SPLITS) or min(shares, default=0) <= 0 or abs(sum(shares) - 1) > 1e-9:
        raise UserError(f"shares={list(shares)} must be {len(SPLITS)} parts above 0 with the sum 1: of {', '.join(SPLITS)}")
    if config.system == lorenz96.NAME and (config.source or config.raw):
        given = "source" if config.source else "raw"
        raise UserError(f"{given}= is for system=sea_ice, and states of Lorenz-96 are computed: leave it out")
    if config.source and config.raw:
        raise UserError("raw= is the folder for generated files, and source= names files: leave one of them out")
    _refuse_unused(config)
    names: dict[str, str] = {}
    for name in (*netcdf.input_names(config.inputs), sea_ice.OUTPUT, "latitude", "longitude", "mask"):
        stored = getattr(config.names, name)
        if not stored and name != "mask":
            raise UserError(f"the setting 'names.{name}' is empty: write names.{name}=…")
        if stored in names:
            raise UserError(
                f"names.{name} and names.{names[stored]} are both {stored}: name another variable for one of them"
            )
        names[stored] = name
    raw, out = Path(config.raw).resolve(), Path(config.out).resolve()
    if config.raw and (raw.is_relative_to(out) or out.is_relative_to(raw)):
        raise UserError(f"raw={config.raw} and out={config.out} must be two folders, neither inside the other: change one")


def _refuse_unused(config: PrepareConfig) -> None:
    """Raise `UserError` for a setting that has no effect on the system or the source."""
    unused = [(name, "system=lorenz96") for name in OF_LORENZ96]
    if config.system == lorenz96.NAME:
        unused = [(name, "system=sea_ice") for name in (*OF_SEA_ICE, *GENERATED)]
    elif config.source:
        unused += [(name, "generated files, and source= names files") for name in GENERATED]
    for name, use in unused:
        if getattr(config, name) != getattr(PrepareConfig(), name):
            raise UserError(f"{name}={getattr(config, name)} is for {use}: leave it out")


# ------------------------------------------------------------------------------------------------------------- sea ice


def _sea_ice(config: PrepareConfig, folder: Path, stack: ExitStack) -> dict[str, Any]:
    if config.source:
        files = reviews.expand_sources(config.source, Path("."))
    elif config.raw:
        raw = stack.enter_context(folders.new_folder(config.raw, config.overwrite, "generated sea ice"))
        files = generator.write(raw, config)
        folders.write_manifest(raw, {"kind": "generated sea ice", "seed": config.seed})
    else:
        files = generator.write(Path(stack.enter_context(TemporaryDirectory())), config)
    reader = netcdf.Reader(config)
    names = reader.names
    formula = _formula(files)
    tables = {
        split: [_Collected(folder / kind / split, int(share * config.chunk_points)) for kind in ("rows", "pairs")]
        for split, share in zip(SPLITS, config.shares, strict=True)
    }
    tiles: dict[str, set[int]] = {split: set() for split in SPLITS}
    num_rows = 0
    for file_number, file in enumerate(files):
        for time, points in reader.read(file):
            assert reader.shape is not None
            if formula:
                _refuse_other_values(file, points)
            points = _sample(points, config, file_number, time)
            tile, split_of, group = _tiles(points, config, reader.shape)
            for number, (split, (rows, pairs)) in enumerate(tables.items()):
                chosen = np.flatnonzero(split_of == number)
                if len(chosen):
                    tiles[split].update(np.unique(tile[chosen]).tolist())
                    ids = {"row_id": num_rows + chosen, "group": group[chosen], "tile": tile[chosen]}
                    ids["pair"] = pairs.num_rows + np.arange(len(chosen))
                    columns = _sea_ice_columns(points.take(chosen), names, ids, bool(formula))
                    rows.add(columns[0])
                    pairs.add(columns[1])
            num_rows += len(tile)
    for split, (rows, pairs) in tables.items():
        if not rows.num_rows:
            raise UserError(
                f"the split {split} has no row: {num_rows:,} points in tiles of {config.tile} × {config.tile} are too few: "
                "lower tile, or give more data"
            )
        rows.close()
        pairs.close()
    emulator = {
        "system": "sea_ice",
        "inputs": list(names),
        "outputs": [sea_ice.OUTPUT],
        "formula": formula,
        "units": {name: sea_ice.UNITS[name] for name in (*names, sea_ice.OUTPUT)},
    }
    return {
        "task": _task(sea_ice.OUTPUT, "tile"),
        "sources": folders.sources(files) if config.source else [],
        "config": _config(config, *OF_SEA_ICE, *(() if config.source else GENERATED)),
        "splits": {split: {"rows": tables[split][0].num_rows, "tiles": len(tiles[split])} for split in SPLITS},
        "features": [_feature(name, sea_ice.MEANINGS[name], sea_ice.UNITS[name]) for name in names],
        "points": reader.counts,
        "emulator": emulator,
        "alike": {"emulator": emulator},
    }


def _formula(files: list[Path]) -> str:
    """The formula of all files, or '' if they have none; `UserError` if only some have it."""
    xarray = netcdf.library()
    file_with: dict[str, Path] = {}
    for file in files:
        try:
            with xarray.open_dataset(file, engine=netcdf.ENGINE, decode_times=False) as dataset:
                file_with.setdefault(str(dataset.attrs.get("formula", "")), file)
        except (OSError, ValueError, TypeError):
            continue  # the reader raises the error
    if len(file_with) > 1:
        (formula, first), (other, second), *_ = file_with.items()
        raise UserError(
            f"{first} names the formula {formula!r}, and {second} {other!r}: prepare generated files and other files "
            "separately"
        )
    return sea_ice.FORMULA if sea_ice.FORMULA in file_with else ""


def _refuse_other_values(file: Path, points: netcdf.Points) -> None:
    """Raise `UserError` for values that cannot be those of the formula with noise, whose derivatives would be wrong."""
    clean = sea_ice.concentration(points.inputs)
    difference = np.abs(points.target - clean) - generator.most_noise(clean)
    worst = int(difference.argmax())
    if difference[worst] > ROUNDING:
        raise UserError(
            f"{file} names the formula of generated files, which gives {sea_ice.OUTPUT}={clean[worst]:.3f}, but it is "
            f"{points.target[worst]:.3f} at row {points.row[worst]} and column {points.column[worst]}: give inputs= as when "
            "the file was generated, or remove the attribute formula from an edited file"
        )


def _sample(points: netcdf.Points, config: PrepareConfig, file: int, time: int) -> netcdf.Points:
    """A share `keep` of the points, which is drawn independently of the pieces of the file."""
    if config.keep >= 1:
        return points
    is_used = np.empty(len(points.row), bool)
    for row in np.unique(points.row).tolist():
        in_row = points.row == row
        drawn = np.random.default_rng([config.seed, 3, file, time, row]).random(int(points.column[in_row].max()) + 1)
        is_used[in_row] = drawn[points.column[in_row]] < config.keep
    return points.take(is_used)


def _tiles(points: netcdf.Points, config: PrepareConfig, shape: tuple[int, int]) -> tuple[np.ndarray, ...]:
    """For each point its tile, the number of its split, and its group."""
    tiles_in_row = -(-shape[1] // config.tile)
    num_tiles = tiles_in_row * -(-shape[0] // config.tile)
    random = np.random.default_rng([config.seed, 2])
    split_of = np.searchsorted(np.cumsum(config.shares)[:-1], random.random(num_tiles), side="right")
    group = random.integers(0, NUM_GROUPS, num_tiles)
    tile = points.row // config.tile * tiles_in_row + points.column // config.tile
    return tile, split_of[tile], group[tile]


def _sea_ice_columns(
    points: netcdf.Points, names: tuple[str, ...], ids: dict[str, np.ndarray], has_jacobian: bool
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    rows = {
        **ids,
        "output": np.zeros(len(points.target), np.int64),
        "latitude": points.latitude,
        "longitude": points.longitude,
        **dict(zip(names, points.inputs.T, strict=True)),
        sea_ice.OUTPUT: points.target,
    }
    pairs = {"inputs": points.inputs, "outputs": points.target[:, None]}
    if has_jacobian:
        pairs["jacobian"] = sea_ice.jacobian(points.inputs).astype(np.float32)
    return rows, pairs


# ------------------------------------------------------------------------------------------------------------- Lorenz-96


def _lorenz96(config: PrepareConfig, folder: Path) -> dict[str, Any]:
    offset_of = {
        f"x_{'minus' if offset < 0 else 'plus'}_{abs(offset)}" if offset else "x": offset
        for offset in range(-config.stencil, config.stencil + 1)
    }
    facts, first_state = {}, 0
    for number, split in enumerate(SPLITS):
        num_states = config.num_states if split == "train" else config.num_scored
        states, after = _trajectories(config, number, num_states)
        random = np.random.default_rng([config.seed, 4, number])
        num_shown = config.points_of_state if split == "train" else config.num_points
        orders = random.permuted(np.tile(np.arange(config.num_points), (num_states, 1)), axis=1)
        point = np.sort(orders[:, :num_shown], axis=1).ravel()
        state = np.repeat(np.arange(num_states), num_shown)
        stencil = (point[:, None] + np.array(list(offset_of.values()))) % config.num_points
        rows = {
            "row_id": (first_state + state) * config.num_points + point,
            "group": state * NUM_GROUPS // num_states,
            "state": first_state + state,
            "pair": state,
            "output": point,
            **dict(zip(offset_of, states[state[:, None], stencil].T, strict=True)),
            "next": after[state, point],
        }
        write_table(folder / "rows" / split, _table(rows))
        write_table(folder / "pairs" / split, _table({"inputs": states, "outputs": after}))
        facts[split] = {"rows": len(state), "states": num_states}
        first_state += num_states
    points = [f"x_{point}" for point in range(config.num_points)]
    emulator = {
        "system": lorenz96.NAME,
        "inputs": points,
        "outputs": points,
        "formula": f"ensemble.recipes.emulator.lorenz96, F={lorenz96.FORCING:g}, step {lorenz96.STEP:g}",
        "units": {},
    }
    return {
        "task": _task("next", "state"),
        "sources": [],
        "config": _config(config, *OF_LORENZ96),
        "splits": facts,
        "features": [
            _feature(name, f"the point {offset:+d} places from this one", "") for name, offset in offset_of.items()
        ],
        "emulator": emulator,
        "alike": {"emulator": emulator, "stencil": config.stencil},
    }


def _trajectories(config: PrepareConfig, number: int, num_states: int) -> tuple[np.ndarray, np.ndarray]:
    """States of NUM_STARTS trajectories, each on the attractor, and the states one step later, (num_states, N) float32."""
    shape = (NUM_STARTS, config.num_points)
    states = lorenz96.trajectory(-(-num_states // NUM_STARTS), [config.seed, 5, number], config.every, shape)
    after = np.stack([lorenz96.step(state) for state in states])
    before, after = (part.reshape(-1, config.num_points)[:num_states].astype(np.float32) for part in (states, after))
    return before, after


# ------------------------------------------------------------------------------------------------------------- shared


class _Collected:
    """Writes a table. At least `at_once` rows are collected before they are written, so that chunks are few and long."""

    def __init__(self, folder: Path, at_once: int):
        self.folder, self.at_once, self.num_rows = folder, at_once, 0
        self._collected: list[pa.Table] = []
        self._writer: TableWriter | None = None

    def add(self, columns: dict[str, np.ndarray]) -> None:
        self._collected.append(_table(columns))
        self.num_rows += self._collected[-1].num_rows
        if sum(table.num_rows for table in self._collected) >= self.at_once:
            self._write()

    def close(self) -> None:
        """Write the remaining rows, and close the file; there must be at least one row."""
        self._write()
        assert self._writer
        self._writer.__exit__(None, None, None)

    def _write(self) -> None:
        if self._collected:
            table = pa.concat_tables(self._collected)
            self._writer = self._writer or TableWriter(self.folder, table.schema)
            self._writer.write(table)
            self._collected.clear()


def _table(columns: dict[str, np.ndarray]) -> pa.Table:
    return pa.table({name: array(values) for name, values in columns.items()})


def _task(target: str, cluster: str) -> dict[str, Any]:
    task = Task(kind="regression", target=target, metric="root_mean_squared_error", group="group", cluster=cluster)
    return dataclasses.asdict(task)


def _feature(name: str, meaning: str, unit: str) -> dict[str, Any]:
    return {"name": name, "meaning": meaning, "unit": unit, "source": "emulator"}


def _config(config: PrepareConfig, *names: str) -> dict[str, Any]:
    """The settings that determine the data."""
    settings = configuration.to_dict(config)
    return {name: settings[name] for name in ("system", "seed", *names)}
