"""Reads points of sea ice from NetCDF files of any size: checks, conversion to the units of sea_ice.py, and filters.

A file has the target with the dimensions (time, row, column) or (row, column), the inputs with the same dimensions in the
same order, and latitudes, longitudes and the mask with the last two of them. Latitudes may also have the row alone, and
longitudes the column alone. A piece that is read at once is a few rows of the grid for one time. Sea points (mask 1; without
a mask, points with a latitude) are used if they are beyond `min_latitude` in either hemisphere and have a concentration
above `min_concentration` and at most 1. A point with the latitude and longitude of an earlier one is left out, since global
grids repeat points at their seam and fold. Errors are, among others: an input that is missing or impossible at a used point;
a concentration that is missing at a sea point beyond `min_latitude`, or far outside 0 to 1; a missing variable; another
order of dimensions; another grid or other units than in the previous files; a file without a used point; and a file that
ends early.
"""

import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np

from ensemble.errors import UserError
from ensemble.recipes.emulator import sea_ice
from ensemble.recipes.emulator.settings import PrepareConfig

ENGINE = "netcdf4"
UNREADABLE = (OSError, ValueError, TypeError, RuntimeError)
"""The exceptions of xarray and of the NetCDF library for a file that they cannot open."""
LEAST_CONCENTRATION, MOST_CONCENTRATION = -0.1, 1.5
"""Values outside these limits are an error. A concentration is between 0 and 1, apart from rounding. A larger value is
probably a percentage. A smaller value probably marks a missing one."""
ROUNDING = 1e-6
"""A concentration that exceeds 1 by at most this counts as 1: means of 32-bit floats exceed 1 by some 1e-7. An input may
exceed its limits by this share of their distance."""
SAME_PLACE = 0.01
"""The largest allowed difference of the latitude or longitude of a point between two files, in degrees. 359 and -1 are
equal."""
SAME_POINT = 1e-3
"""Points of a grid whose latitudes and longitudes are equal after rounding to a multiple of this, in degrees (110 m of
latitude), are one point."""
CLASSIC = {b"CDF\x01": 4, b"CDF\x02": 4, b"CDF\x05": 8}
"""For the first bytes of a file in a classic format of NetCDF, the number of bytes of a count in its header."""
TYPE_BYTES = (0, 1, 1, 2, 4, 4, 8, 1, 2, 4, 8, 8)
"""For each type of the classic formats, the number of bytes of a value."""
EQUAL, KELVIN = (1.0, 0.0), (1.0, -273.15)
"""Factor and summand of the conversion from an equal unit, and from kelvin to degrees Celsius."""
KNOWN_UNITS: dict[str, dict[str, tuple[float, float]]] = {
    "degC": {
        **dict.fromkeys(("degc", "c", "celsius", "deg_c", "degree_c", "degrees_c", "°c", "deg c", "degrees c"), EQUAL),
        **dict.fromkeys(("degree_celsius", "degrees_celsius", "degrees celsius"), EQUAL),
        **dict.fromkeys(("k", "kelvin", "degk"), KELVIN),
    },
    "psu": dict.fromkeys(("psu", "ppt", "g/kg", "g kg-1", "1e-3", "0.001", "1", "pss-78"), EQUAL),
    "m": {**dict.fromkeys(("m", "meter", "meters", "metre", "metres"), EQUAL), "cm": (0.01, 0.0)},
    "1": {**dict.fromkeys(("1", "fraction", "none", "dimensionless"), EQUAL), "%": (0.01, 0.0), "percent": (0.01, 0.0)},
    "m/s": {**dict.fromkeys(("m/s", "m s-1", "m s^-1", "m s**-1"), EQUAL), "cm/s": (0.01, 0.0)},
    "kg/kg": {**dict.fromkeys(("kg/kg", "kg kg-1", "kg kg**-1", "1"), EQUAL), "g/kg": (1e-3, 0.0)},
    "W/m2": dict.fromkeys(("w/m2", "w/m^2", "w m-2", "w m^-2", "w m**-2"), EQUAL),
}  # fmt: skip
"""For each unit of sea_ice.py, the units in files that can be converted to it, in lower case, with factor and summand."""
POSSIBLE = {
    "degC": (-120.0, 60.0), "psu": (0.0, 60.0), "hs": (0.0, 10.0), "hi": (0.0, 50.0), "m/s": (-150.0, 150.0),
    "kg/kg": (0.0, 0.1), "W/m2": (0.0, 2000.0),
}  # fmt: skip
"""For each unit or input, the smallest and the largest value of an input; others are an error."""


class Points(NamedTuple):
    """The used points of a piece of a file, sorted by `row` and then `column`. These two are int64, other arrays float32."""

    inputs: np.ndarray
    """(n, inputs); all other arrays are (n,)."""
    target: np.ndarray
    latitude: np.ndarray
    """In degrees, as the longitude."""
    longitude: np.ndarray
    row: np.ndarray
    column: np.ndarray

    def take(self, rows: np.ndarray) -> "Points":
        return Points(*(values[rows] for values in self))


class _Place(NamedTuple):
    """The file, the time and the first row of a piece, for error messages."""

    path: Path
    time: int
    first_row: int


def library() -> Any:
    """xarray; `UserError` if it or its NetCDF library is not installed."""
    try:
        import netCDF4  # noqa: F401
        import xarray
    except ImportError as error:
        raise UserError(
            f"{error.name or 'netCDF4'}, which is needed to read and write NetCDF, is not installed: "
            "pip install 'accelerate-ensemble[emulator]'"
        ) from None
    return xarray


def input_names(num_inputs: int) -> tuple[str, ...]:
    """The names of the inputs of sea ice in their order: 7, or 14 with ocean and atmosphere."""
    return sea_ice.INPUTS if num_inputs == len(sea_ice.INPUTS) else sea_ice.INPUTS + sea_ice.EXTRA


class Reader:
    """Reads files one after the other, and checks that they have the same grid and units."""

    def __init__(self, config: PrepareConfig):
        self.config = config
        self.names = input_names(config.inputs)
        self.shape: tuple[int, int] | None = None
        """Rows and columns of the grid."""
        self.counts = {"points": 0, "land": 0, "low latitude": 0, "concentration": 0}
        """Points read, and points dropped by each rule, in this order; and `repeated`, if a point repeats an earlier one."""
        self._coordinates: dict[str, np.ndarray] = {}
        self._units: dict[str, tuple[tuple[float, float], str, Path]] = {}

    def read(self, path: Path) -> Iterator[tuple[int, Points]]:
        """The number of the time and the used points of each piece that has any. Raises `UserError` for an invalid file."""
        xarray = library()
        try:
            dataset = xarray.open_dataset(path, engine=ENGINE, decode_times=False, cache=False)
        except UNREADABLE as error:
            raise UserError(f"{path} cannot be read as NetCDF ({' '.join(str(error).split())}): give another file") from None
        with dataset:
            _refuse_early_end(path)
            try:
                yield from self._pieces(dataset, path)
            except (RuntimeError, OSError) as error:  # of the NetCDF library
                raise UserError(f"{path} cannot be read ({error}): it is damaged, get the file again") from None

    def _pieces(self, dataset: Any, path: Path) -> Iterator[tuple[int, Points]]:
        stored = {name: getattr(self.config.names, name) for name in (sea_ice.OUTPUT, *self.names)}
        fields = [_variable(dataset, path, variable, f"names.{name}") for name, variable in stored.items()]
        target, dims = fields[0], fields[0].dims
        if len(dims) not in (2, 3):
            raise UserError(
                f"{path}: {target.name} has the dimensions {_listed(dims)}, not time, row and column: select one level of it"
            )
        if not target.size:
            raise UserError(f"{path}: {target.name} has no values ({dict(target.sizes)}): get the file again")
        for field in fields[1:]:
            if field.dims != dims:
                _refuse_dimensions(path, field, dims, target.name)
        latitude, longitude, is_sea = self._grid(dataset, path, target)
        self._warn_without_units(path, fields[1:])
        scales = [self._scale(path, field, name) for field, name in zip(fields, stored, strict=True)]
        is_polar = np.abs(latitude) > self.config.min_latitude
        is_repeated = _repeated(latitude, longitude, is_sea & is_polar)
        is_point = is_sea & is_polar & ~is_repeated
        num_points = 0
        rows_at_once = max(1, self.config.chunk_points // latitude.shape[1])
        for time in range(target.sizes[dims[0]] if len(dims) == 3 else 1):
            for first in range(0, latitude.shape[0], rows_at_once):
                rows = slice(first, min(first + rows_at_once, latitude.shape[0]))
                where = {dims[-2]: rows, **({dims[0]: time} if len(dims) == 3 else {})}
                self.counts["points"] += is_sea[rows].size
                self.counts["land"] += int((~is_sea[rows]).sum())
                self.counts["low latitude"] += int((is_sea[rows] & ~is_polar[rows]).sum())
                if num_repeated := int(is_repeated[rows].sum()):
                    self.counts["repeated"] = self.counts.get("repeated", 0) + num_repeated
                place = _Place(path, time, first)
                ice, is_ice = self._ice(place, target.isel(where), scales[0], is_point[rows])
                row, column = np.nonzero(is_ice)
                if len(row):
                    num_points += len(row)
                    points = Points(
                        inputs=self._inputs(place, [field.isel(where) for field in fields[1:]], scales[1:], is_ice),
                        target=ice[is_ice].astype(np.float32),
                        latitude=latitude[rows][is_ice].astype(np.float32),
                        longitude=longitude[rows][is_ice].astype(np.float32),
                        row=row.astype(np.int64) + first,
                        column=column.astype(np.int64),
                    )
                    yield time, points
        if not num_points:
            self._refuse_empty(path, target.name, is_sea, is_polar)

    def _grid(self, dataset: Any, path: Path, target: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Latitude, longitude and whether a point is sea, (rows, columns) each.

        Raises `UserError` if the coordinates differ between files.
        """
        names = self.config.names
        latitude, longitude = (self._grid_variable(dataset, path, kind, target) for kind in ("latitude", "longitude"))
        is_sea = self._grid_variable(dataset, path, "mask", target) == 1 if names.mask else np.isfinite(latitude)
        for name, values in ((names.latitude, latitude), (names.longitude, longitude)):
            _refuse_missing(_Place(path, 0, 0), name, values, is_sea)
            first = self._coordinates.setdefault(name, values)
            if first.shape != values.shape or (is_sea & (np.abs((values - first + 180) % 360 - 180) > SAME_PLACE)).any():
                raise UserError(
                    f"{path}: {name} of {values.shape} points differs from that in the previous files, of {first.shape}: "
                    "give files of one grid"
                )
        self.shape = latitude.shape
        return latitude, longitude, is_sea

    def _inputs(self, place: _Place, fields: list[Any], scales: list[tuple[float, float]], is_ice: np.ndarray) -> np.ndarray:
        """The inputs at the used points of a piece, (n, inputs) float32. `UserError` for missing or impossible values."""
        inputs = np.empty((int(is_ice.sum()), len(fields)), np.float32)
        for number, (field, scale) in enumerate(zip(fields, scales, strict=True)):
            values, half_step = _converted(field, scale)
            _refuse_missing(place, field.name, values, is_ice)
            inputs[:, number] = values[is_ice]
            name = self.names[number]
            unit = sea_ice.UNITS[name]
            least, most = POSSIBLE[name if name in POSSIBLE else unit]
            margin = max(half_step, ROUNDING * (most - least))
            bad = inputs[(inputs[:, number] < least - margin) | (inputs[:, number] > most + margin), number]
            if len(bad):
                raise UserError(
                    f"{place.path}: {field.name} is {bad[0]:g} {unit} at a point to keep, outside {least:g} to {most:g}: "
                    "correct the units in the file"
                )
        return inputs

    def _ice(
        self, place: _Place, target: Any, scale: tuple[float, float], is_point: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The concentrations of a piece, and whether each point is used, (rows, columns) each.

        is_point : whether each point is sea, beyond `min_latitude` and not repeated
        """
        if not is_point.any():
            return np.zeros(is_point.shape), is_point
        ice, half_step = _converted(target, scale)
        _refuse_missing(place, target.name, ice, is_point)
        largest = np.max(ice, where=is_point, initial=-np.inf)
        if largest > MOST_CONCENTRATION:
            raise UserError(
                f"{place.path}: {target.name} reaches {largest:g}, but a concentration is at most 1: write the right units "
                "into the file, such as %"
            )
        least = np.min(ice, where=is_point, initial=np.inf)
        if least < LEAST_CONCENTRATION:
            raise UserError(
                f"{place.path}: {target.name} is {least:g} at a sea point, but a concentration is at least 0: if this marks "
                "missing values, write it into the attribute _FillValue"
            )
        ice[np.abs(ice) <= half_step] = 0
        ice[(ice > 1) & (ice <= 1 + max(ROUNDING, half_step))] = 1
        is_ice = is_point & (ice > self.config.min_concentration) & (ice <= 1)
        self.counts["concentration"] += int(is_point.sum() - is_ice.sum())
        return ice, is_ice

    def _grid_variable(self, dataset: Any, path: Path, kind: str, target: Any) -> np.ndarray:
        """The latitude, longitude or mask of the points of the grid, (rows, columns) float64."""
        name, setting = getattr(self.config.names, kind), f"names.{kind}"
        variable = _variable(dataset, path, name, setting)
        unit = str(variable.attrs.get("units", "")).strip() or "degree"
        if kind != "mask" and not unit.startswith("degree"):
            raise UserError(f"{path}: {name} has the units {unit!r}, and {setting} needs degrees: convert it")
        grid = target.dims[-2:]
        if len(target.dims) == 3 and variable.dims == target.dims[:2]:
            raise UserError(
                f"{path}: {target.name} has the dimensions {_listed(target.dims)}, and the time must be the first: "
                "transpose all variables with a time"
            )
        shape = tuple(target.sizes[dim] for dim in grid)
        values = np.asarray(variable.values, np.float64)
        if variable.dims == grid:
            return values
        if kind == "latitude" and variable.dims == grid[:1]:
            return np.broadcast_to(values[:, None], shape)
        if kind == "longitude" and variable.dims == grid[1:]:
            return np.broadcast_to(values, shape)
        _refuse_dimensions(path, variable, grid, target.name)

    def _scale(self, path: Path, field: Any, name: str) -> tuple[float, float]:
        """Factor and summand of the conversion to the unit of sea_ice.py; `UserError` for an unknown unit, or if they differ
        between files."""
        expected, unit = sea_ice.UNITS[name], str(field.attrs.get("units", "")).strip()
        scale = KNOWN_UNITS[expected].get(unit.lower()) if unit else EQUAL
        if scale is None:
            raise UserError(
                f"{path}: {field.name} has the units {unit!r}, which are not understood: convert it to {expected}, or "
                f"name another variable with names.{name}="
            )
        before, unit_before, first = self._units.setdefault(name, (scale, unit, path))
        if scale != before:
            raise UserError(
                f"{path}: {field.name} has the units {unit or 'none'!r}, but {unit_before or 'none'!r} in {first}: convert "
                "one of the files, so that all have the same units"
            )
        return scale

    def _warn_without_units(self, path: Path, fields: list[Any]) -> None:
        """Print which inputs of the first file have no units."""
        if self._units:
            return
        unit_of = {
            field.name: sea_ice.UNITS[name]
            for name, field in zip(self.names, fields, strict=True)
            if not str(field.attrs.get("units", "")).strip()
        }
        if unit_of:
            print(
                f"warning: {path} has no units for {', '.join(unit_of)}, which are read in {', '.join(unit_of.values())}: "
                "write the attribute units into the file if this is wrong",
                file=sys.stderr,
            )

    def _refuse_empty(self, path: Path, target: str, is_sea: np.ndarray, is_polar: np.ndarray) -> None:
        config, mask = self.config, self.config.names.mask
        if not is_sea.any():
            why = f"{mask} is 1 at no point" if mask else f"{config.names.latitude} has no value at any point"
        elif not (is_sea & is_polar).any():
            why = f"no sea point lies beyond {config.min_latitude:g} degrees of latitude"
        else:
            why = (
                f"no sea point beyond {config.min_latitude:g} degrees of latitude has {target} above "
                f"{config.min_concentration:g} and at most 1"
            )
        raise UserError(
            f"{path} has no point to keep: {why}; check the file, names.mask, min_latitude and min_concentration"
        )


def _variable(dataset: Any, path: Path, name: str, setting: str) -> Any:
    if name not in dataset.variables:
        listed = ", ".join(sorted(map(str, dataset.variables)))
        raise UserError(f"{path} has no variable {name}, it has {listed}: name the right one with {setting}=")
    for attribute in ("scale_factor", "add_offset"):
        value = dataset[name].encoding.get(attribute, 0)
        if isinstance(value, str):
            raise UserError(f"{path}: {attribute} of {name} is {value!r}, not a number: write it as a number")
    if dataset[name].dtype.kind not in "fiub":
        raise UserError(f"{path}: {name} is not numeric ({dataset[name].dtype}): name another variable with {setting}=")
    return dataset[name]


def _refuse_early_end(path: Path) -> None:
    """Raise `UserError` for a classic file that ends before its last value, where the NetCDF library reads zeros.

    The sizes follow from the header. Source: https://docs.unidata.ucar.edu/netcdf-c/current/file_format_specifications.html
    """
    with path.open("rb") as file:
        magic = file.read(4)
        if magic not in CLASSIC:
            return

        def number(num_bytes: int = CLASSIC[magic]) -> int:
            return int.from_bytes(file.read(num_bytes), "big")

        def skip(num_bytes: int) -> None:
            file.seek(num_bytes + -num_bytes % 4, 1)

        def skip_attributes() -> None:
            number(4)
            for _ in range(number()):
                skip(number())
                kind = number(4)
                skip(number() * TYPE_BYTES[kind])

        num_records, _, num_dimensions = number(), number(4), number()
        lengths = []  # 0 for the dimension of the records
        for _ in range(num_dimensions):
            skip(number())
            lengths.append(number())
        skip_attributes()
        _, num_variables = number(4), number()
        ends, records = [0], []
        for _ in range(num_variables):
            skip(number())
            shape = [lengths[number()] for _ in range(number())]
            skip_attributes()
            kind, _, begin = number(4), number(), number(4 if magic == b"CDF\x01" else 8)
            if shape[:1] == [0]:
                records.append((begin, TYPE_BYTES[kind] * math.prod(shape[1:])))
            else:
                ends.append(begin + TYPE_BYTES[kind] * math.prod(shape))
        is_padded = len(records) > 1
        record = sum(size + is_padded * (-size % 4) for _, size in records)
        ends += [begin + (num_records - 1) * record + size for begin, size in records if num_records]
    if path.stat().st_size < max(ends):
        raise UserError(f"{path} ends before its last value, as after an interrupted copy: get the file again")


def _repeated(latitude: np.ndarray, longitude: np.ndarray, is_point: np.ndarray) -> np.ndarray:
    """Which of the points have the latitude and the longitude of an earlier one, (rows, columns) each."""
    east, north = (np.rint(values[is_point] / SAME_POINT) for values in (longitude, latitude))
    circle = round(360 / SAME_POINT)
    _, first = np.unique(north * circle + east % circle, return_index=True)
    is_repeated = is_point.copy()
    is_repeated.flat[np.flatnonzero(is_point)[first]] = False
    return is_repeated


def _refuse_dimensions(path: Path, variable: Any, dims: Sequence[str], target: str) -> NoReturn:
    raise UserError(
        f"{path}: {variable.name} has the dimensions {_listed(variable.dims)}, but {target} needs {_listed(dims)} in this "
        "order: transpose it, or name another variable"
    )


def _listed(dims: Sequence[str]) -> str:
    return f"({', '.join(map(str, dims))})"


def _converted(field: Any, scale: tuple[float, float]) -> tuple[np.ndarray, float]:
    """Values in the unit of sea_ice.py, float64, and the largest rounding error: half a step of packed integers, or 0."""
    is_packed = np.issubdtype(field.encoding.get("dtype", field.dtype), np.integer)
    half_step = abs(field.encoding.get("scale_factor", 0.0) * scale[0]) / 2 if is_packed else 0.0
    return np.asarray(field.values, np.float64) * scale[0] + scale[1], half_step


def _refuse_missing(place: _Place, name: str, values: np.ndarray, is_needed: np.ndarray) -> None:
    missing = np.argwhere(is_needed & ~np.isfinite(values))
    if len(missing):
        row, column = missing[0]
        raise UserError(
            f"{place.path}: {name} has no finite value (NaN or infinity) at {len(missing):,} of "
            f"{int(is_needed.sum()):,} points where it is needed (time {place.time}), the first at row "
            f"{row + place.first_row} and column {column}: correct the file, or its mask"
        )
