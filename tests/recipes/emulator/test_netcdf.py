"""NetCDF files of sea ice: the points that are used, and errors that name file and variable in one sentence."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_emulators
import xarray

from ensemble.errors import UserError
from ensemble.recipes.emulator import generator, netcdf, prepare, sea_ice
from ensemble.recipes.emulator.settings import NamesConfig, PrepareConfig

Change = Callable[[xarray.Dataset], xarray.Dataset]


def config(**changed: Any) -> PrepareConfig:
    return PrepareConfig(**{"out": "unused", **small_emulators.SMALL, **changed})


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A generated file; tests change copies of it."""
    (path,) = generator.write(tmp_path_factory.mktemp("raw"), config(inputs=14))
    return path


def changed(file: Path, out: Path, change: Change, name: str = "changed.nc") -> Path:
    with xarray.open_dataset(file) as dataset:
        change(dataset.load()).to_netcdf(out / name)
    return out / name


def read(*files: Path, **settings: Any) -> netcdf.Points:
    """All points of some files."""
    reader = netcdf.Reader(config(**settings))
    pieces = [points for file in files for _, points in reader.read(file)]
    return netcdf.Points(
        **{name: np.concatenate([getattr(piece, name) for piece in pieces]) for name in netcdf.Points._fields}
    )


def multiplied(name: str, factor: float, units: str | None) -> Change:
    def change(dataset: xarray.Dataset) -> xarray.Dataset:
        dataset[name] = dataset[name] * factor
        if units is not None:
            dataset[name].attrs["units"] = units
        return dataset

    return change


def in_kelvin(dataset: xarray.Dataset) -> xarray.Dataset:
    dataset["sst_h"] = dataset["sst_h"].astype(np.float64) + 273.15
    dataset["sst_h"].attrs["units"] = "K"
    return dataset


def test_the_rules_of_mask_latitude_and_concentration(file: Path, tmp_path: Path) -> None:
    """Points on land, in the tropics or of open water would be used."""

    def change(dataset: xarray.Dataset) -> xarray.Dataset:
        dataset["aice_h"].values[0, :10:3], dataset["aice_h"].values[0, 1:10:3] = 0, 1.2
        return dataset

    path = changed(file, tmp_path, change)
    reader = netcdf.Reader(config(min_latitude=50.0))
    result = [points for _, points in reader.read(path)]
    with xarray.open_dataset(path) as dataset:
        ice, mask, latitude = (np.asarray(dataset[name].values) for name in ("aice_h", "umask", "ULAT"))
    expected = (mask == 1) & (np.abs(latitude) > 50) & (ice[0] > 0) & (ice[0] <= 1)
    assert sum(len(points.row) for points in result) == expected.sum() > 100
    assert all(expected[points.row, points.column].all() for points in result)
    assert min(points.latitude.min() for points in result) < -50
    assert reader.counts["points"] == ice.size == sum(list(reader.counts.values())[1:]) + expected.sum()


def test_pieces_have_the_points_of_the_whole(file: Path) -> None:
    """Rows at the border of two pieces would be lost or used twice."""
    whole, pieces = read(file), read(file, chunk_points=100)
    for name in whole._fields:
        assert np.array_equal(getattr(whole, name), getattr(pieces, name)), name


def test_fourteen_inputs_are_in_their_order(file: Path) -> None:
    """The column of a current would contain a wind."""
    points = read(file, inputs=14)
    with xarray.open_dataset(file) as dataset:
        for column, name in enumerate((*sea_ice.INPUTS, *sea_ice.EXTRA)):
            stored = dataset[getattr(NamesConfig(), name)].values[0, points.row, points.column]
            assert np.array_equal(stored, points.inputs[:, column]), name
        assert np.array_equal(dataset["aice_h"].values[0, points.row, points.column], points.target)


def test_units_are_converted(file: Path, tmp_path: Path) -> None:
    """A percentage would be read as a concentration of 100, and kelvin as degrees Celsius."""

    def change(dataset: xarray.Dataset) -> xarray.Dataset:
        return multiplied("aice_h", 100, "%")(multiplied("hi_h", 100, "cm")(in_kelvin(dataset)))

    expected, result = read(file), read(changed(file, tmp_path, change))
    assert np.allclose(result.inputs, expected.inputs, atol=1e-5)
    assert np.allclose(result.target, expected.target, atol=1e-6)


def test_other_names_and_one_dimensional_coordinates(file: Path, tmp_path: Path) -> None:
    """Files of a regular grid, of one time, or of other names could not be read."""

    def change(dataset: xarray.Dataset) -> xarray.Dataset:
        dataset = dataset.isel(time=0).rename({"sst_h": "SST"}).drop_vars("umask")
        dataset["ULAT"], dataset["ULON"] = dataset["ULAT"][:, 0], dataset["ULON"][0]
        return dataset.fillna(0)

    result = read(changed(file, tmp_path, change), names=NamesConfig(sst="SST", mask=""))
    expected = read(file)
    assert np.array_equal(result.inputs, expected.inputs)  # the concentration is 0 on land
    assert np.array_equal(result.longitude, expected.longitude)


def test_latitudes_with_empty_units_are_in_degrees(file: Path, tmp_path: Path) -> None:
    """A file whose units are blank would be refused, unlike one without units, with the advice to convert the latitudes."""
    points = read(changed(file, tmp_path, multiplied("ULAT", 1, " ")))
    assert np.array_equal(points.latitude, read(file).latitude)


def with_nan(dataset: xarray.Dataset) -> xarray.Dataset:
    ice = dataset["aice_h"].values[0]
    row, column = np.argwhere((dataset["umask"].values == 1) & (ice > 0))[7]
    dataset["hs_h"].values[0, row, column] = np.nan
    return dataset


def on_land_everywhere(dataset: xarray.Dataset) -> xarray.Dataset:
    dataset["umask"][:] = 0
    return dataset


def without_target(dataset: xarray.Dataset) -> xarray.Dataset:
    """The dataset without the concentration of one sea point."""
    is_sea = (dataset["umask"].values == 1) & (np.abs(dataset["ULAT"].values) > 60)
    row, column = np.argwhere(is_sea)[3]
    dataset["aice_h"].values[0, row, column] = np.nan
    return dataset


def without(dim: str) -> Change:
    def change(dataset: xarray.Dataset) -> xarray.Dataset:
        """The dataset with a record dimension of length 0."""
        dataset = dataset.isel({dim: slice(0)})
        dataset.encoding["unlimited_dims"] = [dim]
        return dataset

    return change


def set_units(name: str, units: str) -> Change:
    return multiplied(name, 1, units)


FAULTS: dict[str, tuple[Change, str]] = {
    "missing": (lambda dataset: dataset.drop_vars("sss_h"), r"has no variable sss_h, it has .*Tair_h.* names\.sss="),
    "no mask": (lambda dataset: dataset.drop_vars("umask"), r"has no variable umask, .* names\.mask="),
    "masked": (on_land_everywhere, "has no point to keep: umask is 1 at no point"),
    "tropics": (lambda dataset: dataset.isel(nj=slice(20, 28)), "no sea point lies beyond 40 degrees"),
    "no ice": (multiplied("aice_h", 0, None), "no sea point beyond 40 degrees of latitude has aice_h above 0 and at most 1"),
    "no time": (without("time"), "aice_h has no values .*'time': 0"),
    "no column": (without("ni"), "aice_h has no values .*'ni': 0"),
    "infinity": (
        lambda dataset: dataset.assign(hs_h=dataset["hs_h"].where(dataset["hs_h"] < 0.3, np.inf)),
        r"hs_h has no finite value \(NaN or infinity\)",
    ),
    "NaN": (with_nan, r"hs_h has no finite value \(NaN or infinity\) at 1 of .* the first at row \d+ and column \d+"),
    "NaN in the target": (without_target, r"aice_h has no finite value \(NaN or infinity\) at 1 of"),
    "order": (
        lambda dataset: dataset.assign(hi_h=dataset["hi_h"].transpose("time", "ni", "nj")),
        r"hi_h has the dimensions \(time, ni, nj\), but aice_h needs \(time, nj, ni\) in this order",
    ),
    "order of the grid": (lambda dataset: dataset.assign(ULAT=dataset["ULAT"].T), r"ULAT has the dimensions \(ni, nj\)"),
    "unknown unit": (set_units("sst_h", "degF"), "sst_h has the units 'degF', which are not understood"),
    "percent without a unit": (multiplied("aice_h", 100, ""), "aice_h reaches .*, but a concentration is at most 1"),
    "kelvin without a unit": (
        lambda dataset: dataset.assign(sst_h=dataset["sst_h"] + 273.15),
        "sst_h is 27.* degC at a point to keep, outside -120 to 60",
    ),
    "text": (
        lambda dataset: dataset.assign(sst_h=(dataset["sst_h"].dims, np.full(dataset["sst_h"].shape, "x"))),
        r"sst_h is not numeric .*names\.sst=",
    ),
    "no latitude": (
        lambda dataset: dataset.assign(ULAT=dataset["ULAT"].where(dataset["ULAT"] < 80)),
        r"ULAT has no finite value \(NaN or infinity\)",
    ),
    "no longitude": (
        lambda dataset: dataset.assign(ULON=dataset["ULON"].where(dataset["ULON"] > 9)),
        r"ULON has no finite value \(NaN or infinity\)",
    ),
    "radians": (set_units("ULAT", "radians"), "ULAT has the units 'radians', and names.latitude needs degrees"),
    "snow in cm without a unit": (multiplied("hs_h", 100, ""), r"hs_h is \d+.* m at a point to keep, outside 0 to 10"),
    "text for a factor": (
        lambda dataset: dataset.assign(hs_h=dataset["hs_h"].assign_attrs(scale_factor="none")),
        "scale_factor of hs_h is 'none', not a number: write it as a number",
    ),
    "text for a summand": (
        lambda dataset: dataset.assign(ULAT=dataset["ULAT"].assign_attrs(add_offset="none")),
        "add_offset of ULAT is 'none', not a number",
    ),
    "mark of a missing value": (
        lambda dataset: dataset.assign(aice_h=dataset["aice_h"].where(dataset["aice_h"] != 0, -999)),
        "aice_h is -999 at a sea point, .* _FillValue",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_one_sentence(file: Path, tmp_path: Path, fault: str) -> None:
    """A network would be trained on wrong values, or the user would see a library's traceback without the variable."""
    change, sentence = FAULTS[fault]
    path = changed(file, tmp_path, change)
    with pytest.raises(UserError, match=f"^{path}.*{sentence}") as raised:
        read(path)
    assert "\n" not in str(raised.value)


def test_latitudes_that_are_all_missing_are_named(file: Path, tmp_path: Path) -> None:
    """Without a mask, the sentence would begin with a blank instead of the name of a variable."""
    path = changed(file, tmp_path, lambda dataset: dataset.assign(ULAT=dataset["ULAT"] * np.nan))
    with pytest.raises(UserError, match=r"has no point to keep: ULAT has no value at any point; check"):
        read(path, names=NamesConfig(mask=""))


def test_edited_values_of_the_formula(file: Path, tmp_path: Path) -> None:
    """Networks would learn derivatives of a formula that the values do not follow."""
    edited = changed(file, tmp_path, multiplied("aice_h", 0.5, None))
    for source, inputs in ((edited, 14), (file, 7)):  # the file was generated with 14 inputs
        with pytest.raises(UserError, match=r"names the formula .* give inputs= .* remove the attribute formula"):
            prepare.prepare(PrepareConfig(out=str(tmp_path / "out"), source=(str(source),), inputs=inputs, tile=4))


def test_mixed_units_of_two_files(file: Path, tmp_path: Path) -> None:
    """Half of the temperatures would be 273 degrees too high."""
    path = changed(file, tmp_path, in_kelvin)
    with pytest.raises(UserError, match=f"^{path}: sst_h has the units 'K', but 'degC' in {file}: convert one"):
        read(file, path)


def test_what_is_no_netcdf_and_what_is_another_grid(file: Path, tmp_path: Path) -> None:
    """A truncated file would end in a traceback, and tiles of two grids would be different places."""
    (tmp_path / "text.nc").write_text("no NetCDF")
    with pytest.raises(UserError, match=r"text\.nc cannot be read as NetCDF"):
        read(tmp_path / "text.nc")
    smaller = changed(file, tmp_path, lambda dataset: dataset.isel(ni=slice(0, 20)))
    with pytest.raises(UserError, match=r"changed\.nc: ULAT of \(48, 20\) points differs .* of \(48, 48\): give files"):
        read(file, smaller)
    west = changed(file, tmp_path, lambda dataset: dataset.assign(ULON=dataset["ULON"] - 360), "west.nc")
    assert len(read(file, west).row) == 2 * len(read(file).row)
    north_first = changed(file, tmp_path, lambda dataset: dataset.isel(nj=slice(None, None, -1)), "north_first.nc")
    with pytest.raises(UserError, match=r"north_first\.nc: ULAT of .* give files of one grid"):
        read(file, north_first)


def test_nothing_is_left_of_a_refused_preparation(file: Path, tmp_path: Path) -> None:
    """An incomplete folder would look like prepared data."""
    bad = changed(file, tmp_path, with_nan)
    with pytest.raises(UserError, match="hs_h has no finite value"):
        prepare.prepare(PrepareConfig(out=str(tmp_path / "out"), source=(str(file), str(bad)), inputs=14, tile=4))
    assert {path.name for path in tmp_path.iterdir()} == {"changed.nc"}


def test_generated_files_are_prepared_like_files_of_a_user(file: Path, tmp_path: Path) -> None:
    """The split would differ between generated files and the same files as source=, or depend on the size of the pieces."""
    settings: dict[str, Any] = {"source": (str(file),), "inputs": 14, "tile": 4}
    one = prepare.prepare(PrepareConfig(out=str(tmp_path / "one"), **settings))
    pieces = prepare.prepare(PrepareConfig(out=str(tmp_path / "pieces"), **settings, chunk_points=150))
    generated = prepare.prepare(config(out=str(tmp_path / "generated"), inputs=14, raw=str(tmp_path / "raw")))
    assert [path.name for path in (tmp_path / "raw").glob("*.nc")] == [file.name]
    assert one["splits"] == pieces["splits"] == generated["splits"]
    assert one["emulator"] == generated["emulator"]
    for split in one["splits"]:
        names = ("one", "pieces", "generated")
        first, *others = (small_emulators.columns(tmp_path / name, "pairs", split) for name in names)
        for name, values in first.items():
            assert all(np.array_equal(values, other[name]) for other in others), (split, name)


def test_rounding_at_full_cover_and_packed_zeros(file: Path, tmp_path: Path) -> None:
    """Full cover stored as 1.0000001 would be left out, and zeros of packed integers would be ice."""

    def full(dataset: xarray.Dataset) -> xarray.Dataset:
        ice = dataset["aice_h"].values
        ice[0, :10:3] = np.nextafter(np.float32(1), np.float32(2))
        return dataset

    assert (read(changed(file, tmp_path, full)).target == 1).any()
    packed = tmp_path / "packed.nc"
    with xarray.open_dataset(file, decode_times=False) as dataset:
        dataset["aice_h"].values[0, 1:10:3] = 0
        encoding = {"dtype": "int16", "scale_factor": 1.526e-5, "add_offset": 0.5, "_FillValue": -32768}
        dataset.to_netcdf(packed, engine="netcdf4", encoding={"aice_h": encoding})
    with xarray.open_dataset(packed) as dataset:
        assert (dataset["aice_h"].values[0, 1:10:3] > 0).any()
    points = read(packed)
    assert not np.isin(points.row, np.arange(1, 10, 3)).any()
    assert points.target.min() > 1e-5


def test_rounded_zeros_of_inputs(file: Path, tmp_path: Path) -> None:
    """Files whose points without snow are rounded to -1e-9, or in packed files half a step below 0, would be refused."""
    with xarray.open_dataset(file, decode_times=False) as dataset:
        dataset["hs_h"].values[0, 1:10:3] = 0
        encoding = {"dtype": "int16", "scale_factor": 1e-4, "add_offset": 1.59996, "_FillValue": -32768}
        dataset.to_netcdf(tmp_path / "packed.nc", engine="netcdf4", encoding={"hs_h": encoding})
    assert np.allclose(read(tmp_path / "packed.nc").inputs[:, 4].min(), -4e-5, atol=1e-6)
    computed = changed(file, tmp_path, lambda dataset: dataset.assign(hs_h=dataset["hs_h"].clip(max=-1e-9)))
    assert read(computed).inputs[:, 4].max() == np.float32(-1e-9)


@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_floats_with_a_scale_factor_have_no_step(file: Path, tmp_path: Path, factor: float) -> None:
    """Concentrations of at most half the factor would be dropped as open water, and those up to 1.5 would be full cover."""

    def above_full_cover(dataset: xarray.Dataset) -> xarray.Dataset:
        dataset["aice_h"].values[0, :10:3] = 1.1
        return dataset

    plain = changed(file, tmp_path, above_full_cover)
    with xarray.open_dataset(plain, decode_times=False) as dataset:
        encoding = {"dtype": "float64", "scale_factor": factor, "add_offset": 0.0}
        dataset.to_netcdf(tmp_path / "scaled.nc", engine="netcdf4", encoding={"aice_h": encoding})
    expected, points = read(plain), read(tmp_path / "scaled.nc")
    assert expected.target.min() < factor / 2
    assert np.array_equal(points.target, expected.target)


def test_time_as_the_last_dimension_names_the_target(file: Path, tmp_path: Path) -> None:
    """The error would blame the latitudes, which are right."""
    path = changed(file, tmp_path, lambda dataset: dataset.transpose("nj", "ni", "time"))
    with pytest.raises(UserError, match=r"aice_h has the dimensions \(nj, ni, time\), and the time must be the first"):
        read(path)


@pytest.mark.parametrize("records", [("time",), ()])
@pytest.mark.parametrize("kind", ["NETCDF3_CLASSIC", "NETCDF3_64BIT", "NETCDF3_64BIT_DATA"])
def test_a_classic_file_that_ends_early_is_refused(file: Path, tmp_path: Path, kind: Any, records: tuple[str, ...]) -> None:
    """The missing values of an interrupted copy would be read as zeros."""
    with xarray.open_dataset(file, decode_times=False) as dataset:
        numbers = {"number": ("time", np.array([1, 2], np.int16)), "title": ((), "of three")}  # padded to four bytes
        two = xarray.concat([dataset.load()] * 2, "time", data_vars="minimal", coords="minimal", compat="override")
        two.assign(numbers).to_netcdf(tmp_path / "classic.nc", engine="netcdf4", format=kind, unlimited_dims=records)
    expected = read(file)
    assert np.array_equal(read(tmp_path / "classic.nc").inputs, np.concatenate([expected.inputs] * 2))
    content = (tmp_path / "classic.nc").read_bytes()
    for missing in (4, len(content) // 2):
        (tmp_path / "cut.nc").write_bytes(content[:-missing])
        with pytest.raises(UserError, match=r"^\S+cut\.nc ends before its last value, .*: get the file again$"):
            read(tmp_path / "cut.nc")


def test_a_single_record_variable_is_not_padded(file: Path, tmp_path: Path) -> None:
    """An intact file whose records have an odd number of bytes would be refused."""
    with xarray.open_dataset(file, decode_times=False) as dataset:
        odd = dataset.load().isel(time=0).assign(number=("record", np.array([1, 2, 3], np.int8)))
        odd.to_netcdf(tmp_path / "odd.nc", engine="netcdf4", format="NETCDF3_CLASSIC", unlimited_dims=["record"])
    assert len(read(tmp_path / "odd.nc").row) == len(read(file).row)


def test_a_damaged_chunk_names_the_file(file: Path, tmp_path: Path) -> None:
    """The user would see a traceback of the NetCDF library without the name of the file."""
    path = tmp_path / "damaged.nc"
    noise = np.random.default_rng(0).random((1, 48, 48)).astype(np.float32)
    with xarray.open_dataset(file, decode_times=False) as dataset:
        noisy = dataset.assign(hs_h=dataset["hs_h"].copy(data=noise))
        noisy.to_netcdf(path, engine="netcdf4", encoding={"hs_h": {"fletcher32": True}})
    content = bytearray(path.read_bytes())
    content[content.index(noise.tobytes()) + 2000] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match=f"^{path} cannot be read .*: it is damaged, get the file again") as raised:
        read(path)
    assert "\n" not in str(raised.value)


def test_a_damaged_reference_names_the_file(file: Path, tmp_path: Path) -> None:
    """Of this damage, which the NetCDF library finds when it opens the file, the user would see a traceback."""
    content, path = bytearray(file.read_bytes()), tmp_path / "damaged.nc"
    content[content.index(b"GCOL") + 33] ^= 0xB3  # in the address of a dimension, the first entry of this list
    path.write_bytes(content)
    with pytest.raises(UserError, match=f"^{path} cannot be read as NetCDF .*HDF error.*: give another file"):
        prepare.prepare(PrepareConfig(out=str(tmp_path / "out"), source=(str(path),)))


def test_repeated_points_are_used_once(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On a grid with a seam and a fold, as in NEMO, test rows would be copies of training rows."""

    def change(dataset: xarray.Dataset) -> xarray.Dataset:
        dataset["umask"].values[:, 0] = 0  # land here, and sea in the copy of the column
        dataset["umask"].values[:20, 2] = 1
        dataset["aice_h"].values[:, :, 2] = dataset["hs_h"].values[:, :, 2] = 0.5
        dataset = dataset.fillna(0).drop_attrs(deep=False)  # the formula
        seam = dataset.isel(ni=[0, 1, 2]).assign(ULON=dataset["ULON"][:, :3] + 360)
        seam["umask"].values[:, 0] = 1
        seam["aice_h"].values[:, :, 0] = 0.5
        return xarray.concat([dataset, seam, seam.isel(ni=[2])], "ni", data_vars="minimal")

    path = changed(file, tmp_path, change)
    points = read(path)
    places = np.stack([points.latitude, points.longitude % 360], axis=1)
    assert len(np.unique(places, axis=0)) == len(places)
    assert not np.isin(points.column, [0, 49, 50, 51]).any()
    assert (points.column == 48).any(), "the copy of a land point"
    with xarray.open_dataset(path) as dataset:
        is_used = (dataset["umask"].values == 1) & (np.abs(dataset["ULAT"].values) > 40)
    repeated = int(is_used[:, 49:].sum())
    manifest = prepare.prepare(PrepareConfig(out=str(tmp_path / "out"), source=(str(path),), tile=4))
    assert manifest["points"]["repeated"] == repeated > 20
    assert f"{repeated:,} repeat the latitude and longitude of an earlier point" in capsys.readouterr().out
    assert sum(list(manifest["points"].values())[1:]) + len(points.row) == manifest["points"]["points"]


def test_inputs_without_units_are_named_once(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Kelvin or cm without the attribute would be read as degrees Celsius or m, without a word."""
    read(file)
    assert capsys.readouterr().err == ""

    def change(dataset: xarray.Dataset) -> xarray.Dataset:
        for name in ("hs_h", "sst_h", "aice_h"):
            del dataset[name].attrs["units"]
        return dataset

    path = changed(file, tmp_path, change)
    read(path, path)
    assert capsys.readouterr().err == (
        f"warning: {path} has no units for sst_h, hs_h, which are read in degC, m: write the attribute units into the file "
        "if this is wrong\n"
    )


def test_a_constant_input_is_named(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A derivative with respect to it would be taken for one that was learned."""

    def change(dataset: xarray.Dataset) -> xarray.Dataset:
        del dataset.attrs["formula"]
        dataset["sice_h"][:] = 5.0
        dataset["Tair_h"].attrs["units"] = "degree_Celsius"
        return dataset

    path = changed(file, tmp_path, change)
    prepare.prepare(PrepareConfig(out=str(tmp_path / "out"), source=(str(path),), tile=4))
    warning = "warning: sice is 5 in all rows of train: the derivatives of a network with respect to it are arbitrary\n"
    assert capsys.readouterr().err == warning


def test_points_with_little_ice_are_not_counted_as_open_water(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A user would look for missing ice in the files, not for the setting that leaves points out."""
    config = PrepareConfig(out=str(tmp_path / "out"), source=(str(file),), inputs=14, tile=2, min_concentration=0.5)
    left_out = prepare.prepare(config)["points"]["concentration"]
    assert f"{left_out:,} with a concentration of at most 0.5, or above 1, are left out" in capsys.readouterr().out
