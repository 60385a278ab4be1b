"""Prepared data of the recipe emulator: rows for trees, pairs for networks, and splits that share no place."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_emulators
import xarray
from small_emulators import columns

from ensemble import folders
from ensemble.arrow import open_table
from ensemble.data import prepared
from ensemble.errors import UserError
from ensemble.recipes.emulator import generator, lorenz96, prepare, sea_ice
from ensemble.recipes.emulator.settings import NamesConfig, PrepareConfig

SPLITS = ("train", "validation", "blend", "test")


@pytest.fixture(scope="module")
def ice(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_emulators.sea_ice(tmp_path_factory.mktemp("ice"), num_times=2, num_files=2)


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_emulators.lorenz96(tmp_path_factory.mktemp("ring"))


@pytest.mark.parametrize("system", ["ice", "ring"])
def test_both_tables_hold_the_same_examples(system: str, request: pytest.FixtureRequest) -> None:
    """Predictions of networks would be matched with other rows than those of trees."""
    folder: Path = request.getfixturevalue(system)
    manifest = folders.verify(folder)
    prepared.check("emulator", folder, manifest)
    for split in SPLITS:
        rows, pairs = columns(folder, "rows", split), columns(folder, "pairs", split)
        assert manifest["splits"][split]["rows"] == len(rows["row_id"]) > 50
        assert np.array_equal(rows[manifest["task"]["target"]], pairs["outputs"][rows["pair"], rows["output"]])
        for feature in manifest["features"]:
            name = feature["name"]
            if system == "ice":
                place = manifest["emulator"]["inputs"].index(name)
            else:
                place = (rows["output"] + int(name.replace("x_minus_", "-").replace("x_plus_", "").replace("x", "0"))) % 8
            assert np.array_equal(rows[name], pairs["inputs"][rows["pair"], place]), name


def test_tiles_of_the_ice_are_in_one_split(ice: Path) -> None:
    """A test point would be the neighbour of a training point, at the same or at another time."""
    tiles = [set(columns(ice, "rows", split)["tile"].tolist()) for split in SPLITS]
    assert sum(map(len, tiles)) == len(set.union(*tiles)) > 30
    rows = {split: columns(ice, "rows", split) for split in SPLITS}
    places = [set(zip(stored["latitude"].tolist(), stored["longitude"].tolist(), strict=True)) for stored in rows.values()]
    assert sum(map(len, places)) == len(set.union(*places))


def test_the_noise_is_centred_and_the_formula_is_the_truth(ice: Path) -> None:
    """The ceiling of the scores would be wrong, or the Jacobian that of other inputs."""
    pairs = columns(ice, "pairs", "train")
    clean = sea_ice.concentration(pairs["inputs"])
    scaled = (pairs["outputs"][:, 0] - clean) / (4 * clean * (1 - clean))
    is_clear = (clean > 0.05) & (clean < 0.95)
    assert abs(scaled[is_clear].mean()) < 5 * 0.05 / np.sqrt(is_clear.sum())
    assert scaled[is_clear].std() == pytest.approx(0.05, rel=0.1)
    assert np.allclose(pairs["jacobian"], sea_ice.jacobian(pairs["inputs"]), rtol=1e-5, atol=1e-7)


def test_files_without_the_formula_have_no_jacobian(tmp_path: Path) -> None:
    """Real ice would be compared with an invented formula."""
    config = PrepareConfig(out=str(tmp_path / "out"), **small_emulators.SMALL)
    (file,) = generator.write(tmp_path, config)
    with xarray.open_dataset(file) as dataset:
        dataset.load().drop_attrs(deep=False).to_netcdf(tmp_path / "real.nc")
    manifest = prepare.prepare(PrepareConfig(out=config.out, tile=config.tile, source=(str(tmp_path / "real.nc"),)))
    assert manifest["emulator"]["formula"] == ""
    assert open_table(tmp_path / "out" / "pairs" / "train").column_names == ["inputs", "outputs"]
    with pytest.raises(UserError, match="prepare generated files and other files separately"):
        prepare.prepare(PrepareConfig(out=str(tmp_path / "both"), source=(str(tmp_path / "*.nc"),)))


def test_a_part_of_the_points_does_not_depend_on_the_pieces(tmp_path: Path) -> None:
    """`keep` would draw other points with another `chunk_points`."""
    folders_of = [small_emulators.sea_ice(tmp_path / str(size), keep=0.5, chunk_points=size) for size in (60, 10_000)]
    whole = columns(small_emulators.sea_ice(tmp_path / "whole"), "rows", "train")
    one, other = (columns(folder, "rows", "train") for folder in folders_of)
    assert all(np.array_equal(one[name], other[name]) for name in one)
    assert len(one["row_id"]) == pytest.approx(0.5 * len(whole["row_id"]), rel=0.15)


def test_generated_files_without_a_mask(tmp_path: Path) -> None:
    """Generated points of land would be read as sea points without a concentration."""
    data = small_emulators.sea_ice(tmp_path, names=NamesConfig(mask=""))
    points = folders.read_manifest(data)["points"]
    assert points["land"] == 0
    assert points["points"] == 48 * 48


def test_pairs_of_the_ring_are_steps_of_the_model(ring: Path) -> None:
    """The target would be another state than the next."""
    for split in SPLITS:
        pairs = columns(ring, "pairs", split)
        expected = lorenz96.step(pairs["inputs"].astype(np.float64))
        assert np.allclose(pairs["outputs"], expected, atol=2e-5), split
        assert pairs["inputs"].std() == pytest.approx(3.6, abs=0.6), "not on the attractor"


def test_clusters_of_the_ring_are_trajectories(ring: Path) -> None:
    """Intervals of scores would be too narrow: the states of a trajectory are alike."""
    assert folders.read_manifest(ring)["task"]["cluster"] == "trajectory"
    rows, states = columns(ring, "rows", "train"), columns(ring, "pairs", "train")["inputs"].astype(np.float64)
    assert len(set(rows["trajectory"].tolist())) == prepare.NUM_STARTS
    assert len(set(rows["group"].tolist())) == prepare.NUM_GROUPS
    for trajectory in set(rows["trajectory"].tolist()):
        chosen = rows["trajectory"] == trajectory
        assert len(set(rows["group"][chosen].tolist())) == 1
        path = states[np.unique(rows["pair"][chosen])]
        later = path[:-1]
        for _ in range(PrepareConfig().every):
            later = lorenz96.step(later)
        assert len(later) >= 3
        assert np.allclose(later, path[1:], atol=1e-2)
    others = [set(columns(ring, "rows", split)["trajectory"].tolist()) for split in SPLITS]
    assert len(set.union(*others)) == len(SPLITS) * prepare.NUM_STARTS


def test_trajectories_of_splits_differ(ring: Path) -> None:
    """A test state would be a training state, or its neighbour in time."""
    states = [columns(ring, "pairs", split)["inputs"] for split in SPLITS]
    for number, one in enumerate(states):
        for other in states[number + 1 :]:
            assert np.abs(one[:, None] - other[None]).max(axis=2).min() > 0.1


FAULTS: dict[str, dict[str, Any]] = {
    r"shares=\[0.5, 0.5\] is impossible: it must be 4 parts": {"shares": (0.5, 0.5)},
    "inputs=9 is impossible: it must be 7 or 14": {"inputs": 9},
    "noise=0.5 is impossible": {"noise": 0.5},
    "source= is for system=sea_ice": {"system": "lorenz96", "source": ("a.nc",)},
    "raw= is the folder for generated files": {"raw": "raw", "source": ("a.nc",)},
    "stencil=20 is impossible": {"system": "lorenz96", "stencil": 20},
    "no file matches 'nothing": {"source": ("nothing*.nc",)},
    "hub:All_Beauty names reviews of products, which are not read here": {"source": ("hub:All_Beauty",)},
    "the split .* has no row: .* lower tile": {**small_emulators.SMALL, "tile": 24},
    "the split .* has no row: .* raise keep, lower tile": {**small_emulators.SMALL, "keep": 0.001},
    r"of 1 × 1 points\), but .* need two groups: raise the share of blend": {"num_rows": 8, "num_columns": 8, "tile": 1},
    "the split blend has rows of one group of tiles .* lower tile": {
        **small_emulators.SMALL,
        "tile": 8,
        "shares": (0.6, 0.1, 0.1, 0.2),
    },
    "names.hi and names.hs are both hs_h": {"names": NamesConfig(hi="hs_h")},
    "names.sst=a/b is no name in NetCDF: begin it with a letter": {"names": NamesConfig(sst="a/b")},
    "names.mask=%m is no name in NetCDF": {"names": NamesConfig(mask="%m")},
    "the setting 'names.sst' is empty": {"names": NamesConfig(sst="")},
    "num_files= is for generated files, and source= names files": {"source": ("a.nc",), "num_files": 3},
    "num_states= is for system=lorenz96": {"num_states": 60},
    "chunk_points= is for system=sea_ice": {"system": "lorenz96", "chunk_points": 60},
    "^names= is for system=sea_ice": {"system": "lorenz96", "names": NamesConfig(sst="SST")},
    "raw=.* must be two folders, neither inside the other": {"raw": "OUT/raw"},
}


@pytest.mark.parametrize("sentence", FAULTS)
def test_impossible_settings_are_refused(tmp_path: Path, sentence: str) -> None:
    """Wrong settings would fail later with a traceback, and leave an incomplete folder."""
    changed = dict(FAULTS[sentence])
    if changed.get("raw") == "OUT/raw":
        changed["raw"] = str(tmp_path / "out/raw")
    with pytest.raises(UserError, match=sentence):
        prepare.prepare(PrepareConfig(out=str(tmp_path / "out"), **changed))
    assert not list(tmp_path.iterdir())
