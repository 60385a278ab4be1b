"""Data of the recipe emulator: points of sea ice from NetCDF files, or states of Lorenz-96, each with its output.

    python scripts/prepare_data.py --recipe emulator out=runs/emulator/prepared                       # generated sea ice
    python scripts/prepare_data.py --recipe emulator out=runs/emulator/prepared 'source=[iced.*.nc]'   # files
    python scripts/prepare_data.py --recipe emulator out=runs/lorenz96/prepared system=lorenz96

OUT/rows/SPLIT has one row for each output with flat features, for trees and for scores: a point of sea ice, or a point of
the ring with `stencil` neighbours on each side. OUT/pairs/SPLIT has the arrays that networks are trained on: `inputs`,
`outputs` and, for sea ice whose formula is known, the true `jacobian` (outputs × inputs). The columns `pair` and `output` of
a row are its row and its column in `outputs`.

All points of a tile of the sea ice grid, at all times, are in one split, since neighbouring points are alike. The splits of
Lorenz-96 are independent trajectories. The files are read, and rows are collected and written, `chunk_points` at a time.
"""

import dataclasses
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa

from ensemble import configuration, folders
from ensemble.arrow import TableWriter, array
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


LEAST = {
    "num_points": 4, "num_rows": 8, "num_columns": 8, "num_states": NUM_STARTS, "num_scored": NUM_STARTS,
    **dict.fromkeys(("tile", "chunk_points", "num_files", "num_times", "every"), 1),
}  # fmt: skip
"""The smallest values of settings."""


def _check(config: PrepareConfig) -> None:
    configuration.check(
        config,
        "",
        at_least_0="seed",
        at_least_1="",
        fractions="",
        inputs=(config.inputs in (7, 14), "7 or 14"),
        min_latitude=(0 <= config.min_latitude < 90, "0 or more and below 90"),
        min_concentration=(0 <= config.min_concentration < 1, "0 or more and below 1"),
        keep=(0 < config.keep <= 1, "more than 0 and at most 1"),
        noise=(0 <= config.noise <= generator.LARGEST_NOISE, f"0 to {generator.LARGEST_NOISE}"),
        stencil=(1 <= config.stencil <= (config.num_points - 1) // 2, "at least 1, and less than half of num_points"),
        points_of_state=(1 <= config.points_of_state <= config.num_points, "1 to num_points"),
        **{name: (getattr(config, name) >= least, f"at least {least}") for name, least in LEAST.items()},
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
    else:
        files = generator.write(stack.enter_context(_raw_folder(config)), config)
    reader = netcdf.Reader(config)
    names = reader.names
    formula = _formula(files)
    at_once = {split: max(1, int(share * config.chunk_points)) for split, share in zip(SPLITS, config.shares, strict=True)}
    writers = {split: _Writers(folder, split, rows) for split, rows in at_once.items()}
    tiles: dict[str, set[int]] = {split: set() for split in SPLITS}
    num_rows = 0
    for file_number, file in enumerate(files):
        for time, points in reader.read(file):
            assert reader.shape is not None
            if formula:
                _refuse_other_values(file, points)
            points = _sample(points, config, file_number, time)
            tile, split_of, group = _tiles(points, config, reader.shape)
            row_id = num_rows + np.arange(len(tile))
            num_rows += len(tile)
            for number, split in enumerate(SPLITS):
                chosen = np.flatnonzero(split_of == number)
                if len(chosen):
                    tiles[split].update(np.unique(tile[chosen]).tolist())
                    ids = {"row_id": row_id, "group": group, "tile": tile}
                    ids = {name: values[chosen] for name, values in ids.items()}
                    writers[split].add(*_sea_ice_columns(points.take(chosen), names, ids, bool(formula)))
    for split, writer in writers.items():
        if not writer.num_rows:
            raise UserError(
                f"the split {split} has no row: {num_rows:,} points in tiles of {config.tile} × {config.tile} are too few: "
                "lower tile, or give more data"
            )
        writer.close()
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
        "splits": {split: {"rows": writers[split].num_rows, "tiles": len(tiles[split])} for split in SPLITS},
        "features": [_feature(name, sea_ice.MEANINGS[name], sea_ice.UNITS[name]) for name in names],
        "points": reader.counts,
        "emulator": emulator,
        "alike": {"emulator": emulator},
    }


@contextmanager
def _raw_folder(config: PrepareConfig) -> Iterator[Path]:
    if config.raw:
        with folders.new_folder(config.raw, config.overwrite, "generated sea ice") as folder:
            yield folder
            folders.write_manifest(folder, {"kind": "generated sea ice", "seed": config.seed})
    else:
        with TemporaryDirectory() as name:
            yield Path(name)


def _formula(files: list[Path]) -> str:
    """The formula of all files, or '' if they have none; `UserError` if only some have it."""
    xarray = netcdf.library()
    formulas = {}
    for file in files:
        try:
            with xarray.open_dataset(file, engine=netcdf.ENGINE, decode_times=False) as dataset:
                formulas[file] = str(dataset.attrs.get("formula", ""))
        except (OSError, ValueError, TypeError):
            continue  # the reader raises the error
    if len(set(formulas.values())) > 1:
        (first, first_formula), *others = formulas.items()
        second, formula = next(pair for pair in others if pair[1] != first_formula)
        raise UserError(
            f"{first} names the formula {first_formula!r}, and {second} {formula!r}: prepare generated files and "
            "other files separately"
        )
    formula = next(iter(formulas.values()), "")
    return formula if formula == sea_ice.FORMULA else ""


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


def _tiles(
    points: netcdf.Points, config: PrepareConfig, shape: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
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
        "pair": np.arange(len(points.target)),
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
    offsets = range(-config.stencil, config.stencil + 1)
    features = [("x" if not offset else f"x_{'minus' if offset < 0 else 'plus'}_{abs(offset)}") for offset in offsets]
    facts, first_state = {}, 0
    for number, split in enumerate(SPLITS):
        num_states = config.num_states if split == "train" else config.num_scored
        states, after = _trajectories(config, number, num_states)
        random = np.random.default_rng([config.seed, 4, number])
        num_shown = config.points_of_state if split == "train" else config.num_points
        orders = random.permuted(np.tile(np.arange(config.num_points), (num_states, 1)), axis=1)
        point = np.sort(orders[:, :num_shown], axis=1)
        state = np.repeat(np.arange(num_states), num_shown)
        point = point.ravel()
        stencil = (point[:, None] + np.array(offsets)) % config.num_points
        rows = {
            "row_id": (first_state + state) * config.num_points + point,
            "group": state * NUM_GROUPS // num_states,
            "state": first_state + state,
            "pair": state,
            "output": point,
            **dict(zip(features, states[state[:, None], stencil].T, strict=True)),
            "next": after[state, point],
        }
        writer = _Writers(folder, split, config.chunk_points)
        writer.add(rows, {"inputs": states, "outputs": after})
        writer.close()
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
            _feature(name, f"the point {offset:+d} places from this one", "")
            for name, offset in zip(features, offsets, strict=True)
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


class _Writers:
    """The two tables of a split. `at_once` rows are collected before they are written, so that chunks are few and long."""

    def __init__(self, folder: Path, split: str, at_once: int):
        self.folders, self.at_once = [folder / kind / split for kind in ("rows", "pairs")], at_once
        self.writers: list[TableWriter] = []
        self.num_rows = self.num_pairs = 0
        self._collected: list[list[pa.Table]] = []

    def add(self, rows: dict[str, np.ndarray], pairs: dict[str, np.ndarray]) -> None:
        """Append rows and pairs; `pair` in rows is the number of the pair, from 0 in these pairs."""
        rows = {**rows, "pair": self.num_pairs + rows["pair"]}
        tables = [pa.table({name: array(values) for name, values in columns.items()}) for columns in (rows, pairs)]
        self._collected.append(tables)
        self.num_pairs += len(pairs["inputs"])
        self.num_rows += len(rows["pair"])
        if sum(table.num_rows for table, _ in self._collected) >= self.at_once:
            self._flush()

    def close(self) -> None:
        """Write the collected rows, and close both files."""
        self._flush()
        for writer in self.writers:
            writer.__exit__(None, None, None)

    def _flush(self) -> None:
        tables = [pa.concat_tables(collected) for collected in zip(*self._collected, strict=True)]
        if tables and not self.writers:
            self.writers = [TableWriter(folder, table.schema) for folder, table in zip(self.folders, tables, strict=True)]
        for table, writer in zip(tables, self.writers, strict=False):
            writer.write(table)
        self._collected.clear()


def _task(target: str, cluster: str) -> dict[str, Any]:
    task = Task(kind="regression", target=target, metric="root_mean_squared_error", group="group", cluster=cluster)
    return dataclasses.asdict(task)


def _feature(name: str, meaning: str, unit: str) -> dict[str, Any]:
    return {"name": name, "meaning": meaning, "unit": unit, "source": "emulator"}


def _config(config: PrepareConfig, *names: str) -> dict[str, Any]:
    """The settings that determine the data."""
    settings = configuration.to_dict(config)
    return {name: settings[name] for name in ("system", "seed", *names)}
