"""Mistakes in the commands of all scripts: each ends with one sentence, exit code 2, and no new file.

Each script is started as a process of its own for some cases. Most run in forked children of one process, which is faster.
"""

import ast
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from script_server import ScriptServer
from scripts_run import NETWORKS

from ensemble import configuration, folders, recipe
from ensemble.predictor import members

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted(path.stem for path in (ROOT / "scripts").glob("*.py"))
TIMEOUT_S = 120


def environment() -> dict[str, str]:
    """One thread, no network, and no variables of a launcher."""
    launcher = {"WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"}
    clean = {name: value for name, value in os.environ.items() if name not in launcher and "ACCELERATE" not in name}
    return {**clean, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"}


def run(script: str, *words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A script in a process of its own, with `folder` as working directory."""
    return subprocess.run(
        [sys.executable, str(ROOT / f"scripts/{script}.py"), *words],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def snapshot(folder: Path) -> dict[Path, tuple[int, int]]:
    """Every path under a folder, with its size and time of change."""
    return {path: (path.lstat().st_size, path.lstat().st_mtime_ns) for path in folder.rglob("*")}


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptServer]:
    running = ScriptServer(environment())
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="module")
def torch_server() -> Iterator[ScriptServer]:
    """Its children need not import torch for seconds each."""
    running = ScriptServer(environment(), *NETWORKS)
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="module")
def desk(prepared: Path, raw_market: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory with prepared data, raw reviews, and damaged, incomplete and foreign files."""
    folder = tmp_path_factory.mktemp("desk")
    (folder / "prepared").symlink_to(prepared)
    (folder / "reviews.jsonl").symlink_to(raw_market[0])
    damaged = Path(shutil.copytree(prepared, folder / "damaged"))
    (damaged / "manifest.json").write_text("{", encoding="utf-8")
    shorter = Path(shutil.copytree(prepared, folder / "shorter"))
    with open(shorter / "rows/train/data-00000-of-00001.arrow", "r+b") as stream:
        stream.truncate(1000)
    (folder / "taken").mkdir()
    (folder / "taken/thesis.txt").write_text("irreplaceable", encoding="utf-8")
    (folder / "file").write_text("a file, no folder", encoding="utf-8")
    (folder / "binary.jsonl").write_bytes(bytes(range(256)) * 40)
    (folder / "empty.jsonl").write_text("", encoding="utf-8")
    (folder / "list.yaml").write_text("- 1\n- 2\n", encoding="utf-8")
    (folder / "broken.yaml").write_text("a: [1\nb: }", encoding="utf-8")
    (folder / "unknown.yaml").write_text("batchsize: 3\n", encoding="utf-8")
    (folder / "two.yaml").write_text("num_processes: 2\n", encoding="utf-8")
    (folder / "none.yaml").write_text("num_processes: 0\n", encoding="utf-8")
    (folder / "nodes.yaml").write_text("num_machines: 2\nnum_processes: 4\n", encoding="utf-8")
    (folder / "text.yaml").write_text("num_processes: '2'\n", encoding="utf-8")
    (folder / "member").mkdir()
    (folder / "member/summary.json").write_text('{"kind": "forest"}', encoding="utf-8")
    (folder / "begun/best").mkdir(parents=True)
    (folder / "begun/status").write_text("lost\nrank 1 died\n", encoding="utf-8")
    (folder / "unfinished").mkdir()
    (folder / "unfinished/summary.json").write_text('{"kind": "neural"}', encoding="utf-8")
    manifest = folders.read_manifest(prepared)
    momentum = members.load_baseline("momentum", manifest)
    list(members.write_splits(momentum, "new", "baseline", ["blend"], prepared, manifest, folder / "predicted"))
    (folder / "ensemble").mkdir()
    (folder / "ensemble/ensemble.json").write_text("[]", encoding="utf-8")
    return folder


PREPARE, TRAIN, TREES = "prepare_data out=new", "train data=prepared out=new", "train_trees data=prepared out=new"
ELASTIC = "train_elastic data=prepared out=new"
PREDICT = "predict data=prepared out=new member=momentum"
COMPARE = "compare_rankings rankings=files data=prepared out=new"
FIT = "ensemble_predictor fit data=prepared out=new predictions=files"
SERVE, PUSH, EXPORT = "serve port=0", "push_to_hub repository=me/mine", "export_model out=new.onnx"
FORECAST = "ensemble_predictor predict ensemble=ensemble out=new source=[reviews.jsonl]"

CASES = {
    # prepare_data
    "prepare_data": "the setting 'out' has no default: add out=…",
    f"{PREPARE} source": "'source' is not a setting: write key=value",
    f"{PREPARE} panel.horizon=3": "there is no setting 'panel.horizon'; did you mean 'panel.horizon_weeks'?",
    f"{PREPARE} panel.horizon_weeks=soon": "panel.horizon_weeks=soon does not fit: write a whole number",
    f"{PREPARE} panel.shares=[1,2]": "panel.shares=[1, 2] does not fit: write a list of 4",
    f"{PREPARE} panel.horizon_weeks=0": "panel.horizon_weeks=0 is impossible: it must be between 1 and 520 weeks",
    f"{PREPARE} panel.top_fraction=5": "panel.top_fraction=5.0 is impossible: it must be more than 0 and below 1",
    f"{PREPARE} panel.num_tokens=-1": "panel.num_tokens=-1 is impossible",
    f"{PREPARE} market.num_products=0": "market.num_products=0 is impossible: it must be at least 1",
    f"{PREPARE} metadata=[reviews.jsonl]": "metadata is given without source",
    f"{PREPARE} source=[nowhere.jsonl]": "nowhere.jsonl",
    f"{PREPARE} source=[no*thing.jsonl]": "no*thing.jsonl",
    f"{PREPARE} source=[taken]": "taken",
    f"{PREPARE} source=[binary.jsonl]": "binary.jsonl",
    f"{PREPARE} source=[empty.jsonl]": "empty.jsonl",
    f"{PREPARE} source=[reviews.jsonl] until=yesterday": "until=yesterday is not a date: write it as in 2023-09-30",
    f"{PREPARE} source=[reviews.jsonl] panel.tokenizer=/nowhere": (
        "the text encoder '/nowhere' cannot be read as a folder or downloaded"
    ),
    "prepare_data out=taken source=[reviews.jsonl]": "taken exists already: choose another folder, or add overwrite=true",
    "prepare_data out=taken source=[reviews.jsonl] overwrite=true": "so it is not replaced: choose another folder",
    "prepare_data out=file/new source=[reviews.jsonl]": "the folder file/new cannot be created: Not a directory",
    f"{PREPARE} --config nowhere.yaml": "the configuration file nowhere.yaml does not exist: check the path",
    f"{PREPARE} --config broken.yaml": "the configuration file broken.yaml cannot be read",
    f"{PREPARE} --config list.yaml": "the configuration file list.yaml must hold `key: value` lines",
    f"{PREPARE} --recipe chess": "there is no recipe 'chess': known are hot_sellers, next_item, candidates, table",
    # benchmark
    "benchmark help_times results=file": "file/help_times.json cannot be written, since ",
    "benchmark help_times results=file/new": "/file is a file: choose another folder",
    # train_elastic
    "train_elastic": "the setting 'data' has no default: add data=…",
    ELASTIC: "--config_file is missing: give a file of accelerate_configs/",
    f"{ELASTIC} --config_file nowhere.yaml": "the configuration file nowhere.yaml does not exist: check the path",
    f"{ELASTIC} --config_file nodes.yaml": "nodes.yaml is for 2 machines: this command supports one; under Slurm",
    f"{ELASTIC} --config_file empty.jsonl": "empty.jsonl has no `key: value` lines: give a file of accelerate_configs/",
    f"{ELASTIC} --config_file text.yaml": "text.yaml: num_processes='2' is not a whole number: write one without quotes",
    f"{ELASTIC} --config_file two.yaml batch_size=7": "batch_size=7 must be a positive multiple of 2 ranks: "
    "the nearest one is 8",
    f"{ELASTIC} --config_file two.yaml micro_batch_size=-1": "micro_batch_size=-1 is impossible: it must be 0 or more",
    f"{ELASTIC} --config_file two.yaml --num_processes 0": "--num_processes 0 is impossible: it must be at least 1",
    f"{ELASTIC} --config_file none.yaml": "none.yaml: num_processes=0 is impossible: it must be at least 1",
    f"{ELASTIC} --config_file two.yaml --max_losses -1": "--max_losses -1 is impossible: it must be at least 0",
    f"{ELASTIC} --config_file two.yaml learning_rate=0": "learning_rate=0.0 is impossible: it must be more than 0",
    # train
    "train": "the setting 'data' has no default: add data=…",
    "train data=prepared": "the setting 'out' has no default: add out=…",
    f"{TRAIN} batchsize=64": "there is no setting 'batchsize'; did you mean 'batch_size'?",
    f"{TRAIN} recipe.widht=64": "there is no setting 'recipe.widht'; did you mean 'recipe.width'?",
    f"{TRAIN} batch_size=many": "batch_size=many does not fit: write a whole number",
    f"{TRAIN} recipe.loss=mse": "recipe.loss=mse does not fit: write one of bce, focal",
    f"{TRAIN} --config unknown.yaml": "unknown.yaml: there is no setting 'batchsize'; did you mean 'batch_size'?",
    f"{TRAIN} --recipe chess": "there is no recipe 'chess': known are hot_sellers, next_item, candidates, table",
    f"{TRAIN} --resume last": "there is no checkpoint to resume from in new: start without --resume",
    f"{TRAIN} --resume elsewhere": "elsewhere/manifest.json does not exist",
    f"{TRAIN} precision=fp8": "precision=fp8 needs a GPU of compute capability 8.9 or more",
    f"{TRAIN} trackers=[wandb]": "wandb, which is not installed: pip install 'accelerate-ensemble[tracking]'",
    f"{TRAIN} batch_size=-64": "batch_size=-64 is impossible: it must be 0 or more",
    f"{TRAIN} learning_rate=inf": "learning_rate=inf is impossible: it must be more than 0, and finite",
    f"{TRAIN} weight_decay=1e400": "weight_decay=inf is impossible: it must be finite",
    f"{TRAIN} bucket_batches=4": "this recipe's rows have no lengths",
    f"{TRAIN} batch_size=64 micro_batch_size=48": "the nearest that does is micro_batch_size=32",
    f"{TRAIN} recipe.width=30 recipe.num_heads=4": "recipe.width=30 must be a positive multiple of recipe.num_heads=4",
    f"{TRAIN} --predict two.yaml": "two.yaml/new.parquet cannot be written, since ",
    f"{TRAIN} --predict prepared": "prepared/new.parquet lies inside ",
    f"{TRAIN} --predict new": "in which the training is written: choose a place outside of it",
    f"{TRAIN} --predict predicted": "predicted/new.blend.parquet has predictions of the baseline new: choose another",
    "train data=nowhere out=new": "there is no prepared data at nowhere: run scripts/prepare_data.py first",
    "train data=damaged out=new": "damaged/manifest.json is damaged",
    "train data=prepared out=taken": "taken exists already: choose another out=…, or delete it",
    # train_trees
    "train_trees": "the setting 'data' has no default: add data=…",
    f"{TREES} num_round=3": "there is no setting 'num_round'; did you mean 'num_rounds'?",
    f"{TREES} library=linear memory=low": "memory=low does not support library=linear: leave memory=low out",
    f"{TREES} l2=inf": "l2=inf is impossible: it must be finite",
    f"{TREES} threads=-2": "threads=-2 is impossible: give a number of cores, or 0",
    f"{TREES} row_fraction=0": "row_fraction=0.0 is impossible: it must be above 0 and at most 1",
    "train_trees data=nowhere out=new": "there is no prepared data at nowhere: run scripts/prepare_data.py first",
    "train_trees data=shorter out=new": "data-00000-of-00001.arrow has 1000 bytes, not",
    f"{TREES} seed=999999999999999999999": "it must be a whole number from 0 to 4294967295",
    f"{TREES} library=XGBoost": "did you mean 'xgboost'? Write one of xgboost, lightgbm, catboost",
    f"{TREES} out=prepared/member": "which is prepared data: choose a place outside of it",
    f"{TREES} out={'x' * 300}": "is too long: a file's name may have 255 bytes",
    "train data=prepared out=prepared/run": "which is prepared data: choose a place outside of it",
    "train_trees data=taken out=new": "taken/manifest.json does not exist: check the path",
    "train_trees data=prepared out=taken": "taken exists already: choose another folder, or add overwrite=true",
    # predict
    "predict": "the setting 'member' has no default: add member=…",
    f"{PREDICT} contributions=true": "contributions=true is for one tree or linear member, which momentum is not",
    f"{PREDICT} split=[test]": "there is no setting 'split'; did you mean 'splits'?",
    f"{PREDICT} splits=[test": "'splits=[test' cannot be read",
    f"{PREDICT} splits=[blend,tset]": "prepared has no split 'tset' to predict: it has train, validation, blend, test",
    "predict data=prepared out=new member=nobody": "nobody/summary.json does not exist: check the path",
    "predict data=prepared out=new member=member": "member is of kind 'forest', not one of neural, xgboost, lightgbm",
    "predict data=prepared out=new member=unfinished": "unfinished/best does not exist",
    "predict data=prepared out=new member=member/best": "member/best is a part of a member: give its folder, member",
    "predict data=prepared out=new member=member/checkpoints/step-00000016": "a part of a member: give its folder, member",
    "predict data=prepared out=new member=begun": "the training of begun is not complete, its status is lost",
    "predict data=prepared out=new member=begun/best": "begun/best is a part of a member: give its folder, begun",
    "predict data=nowhere out=new member=momentum": "there is no prepared data at nowhere",
    "predict data=prepared out=file member=momentum": "the prediction file file/momentum.blend.parquet cannot be written",
    "predict data=prepared out=new member=popularity": "or name a baseline of the recipe hot_sellers: momentum",
    f"{PREDICT} name=ensemble": "name=ensemble is a name that the ensemble uses itself: give another name=",
    f"{PREDICT} name=rank": "name=rank is a name that the ensemble uses itself",
    f"{PREDICT} member=": "the setting 'member' is empty: write member=…",
    f"{PREDICT} out=prepared/predictions": "which is prepared data: choose a place outside of it",
    f"{PREDICT} name={'x' * 300}": "cannot be written: File name too long",
    f"{PREDICT} --recipe hot_seller": "there is no recipe 'hot_seller': did you mean 'hot_sellers'? Known are",
    # compare_rankings
    "compare_rankings": "the setting 'rankings' has no default: add rankings=…",
    f"{COMPARE} spilt=test": "there is no setting 'spilt'; did you mean 'split'?",
    f"{COMPARE} num_draws=0": "num_draws=0 is impossible: it must be at least 1",
    f"{COMPARE} candidates=prepared": "candidates=… needs predictions=… or ensemble=…",
    COMPARE: "prepared was prepared for the recipe hot_sellers, which ranks no items",
    # ensemble_predictor
    "ensemble_predictor": "the following arguments are required: command",
    "ensemble_predictor guess": "argument command: invalid choice: 'guess'",
    "ensemble_predictor fit": "has no default: add",
    f"{FIT} member=[a]": "there is no setting 'member'; did you mean 'members'?",
    f"{FIT} num_draws=0": "num_draws=0 is impossible: it must be at least 1",
    FIT: "there are no prediction files of blend in files: write them with scripts/predict.py",
    f"{FIT} members=[nobody]": "the prediction file files/nobody.blend.parquet does not exist",
    FORECAST: "ensemble/like.json does not exist",
    f"{FORECAST} ensemble=nowhere": "nowhere/ensemble.json does not exist: check the path",
    f"{FORECAST} sources=[x]": "there is no setting 'sources'; did you mean 'source'?",
    # serve
    "serve": "the setting 'ensemble' has no default: add ensemble=…",
    f"{SERVE} ensemble=nowhere": "nowhere/ensemble.json does not exist: check the path",
    f"{SERVE} ensemble=ensemble": "ensemble/like.json does not exist: check the path",
    f"{SERVE} ensemble=nowhere threads=-1": "threads=-1 is impossible: give a number of cores, or 0",
    f"{SERVE} ensemble=nowhere max_reviews=0": "max_reviews=0 is impossible: it must be at least 1",
    f"{SERVE} ensemble=nowhere max_byte=1": "there is no setting 'max_byte'; did you mean 'max_bytes'?",
    f"{SERVE} ensemble=nowhere host=": "host='' is impossible: it must be an address, such as 127.0.0.1",
    f"{SERVE} ensemble=nowhere host={'ü' * 64}": "is not available (encoding of hostname failed): choose another, or port=0",
    "serve ensemble=nowhere port=99999": "host=127.0.0.1 port=99999 is not available",
    # push_to_hub
    "push_to_hub ensemble=ensemble": "the setting 'repository' has no default: add repository=…",
    f"{PUSH} ensemble=nowhere": "nowhere/manifest.json does not exist: check the path",
    f"{PUSH} ensemble=damaged": "damaged/manifest.json is damaged",
    f"{PUSH} ensemble=prepared": "prepared has no model card README.md",
    f"{PUSH} ensemble=prepared public=true": "there is no setting 'public'",
    # export_model
    "export_model": "the setting 'member' has no default: add member=…",
    f"{EXPORT} member=nobody": "nobody/summary.json does not exist: check the path",
    f"{EXPORT} member=member": "member is of kind 'forest', which cannot be exported: name another member",
    f"{EXPORT} member=unfinished": "unfinished is a neural member: give data=…",
    f"{EXPORT} member=nobody format=pmml": "there is no setting 'format'",
}

AS_PROCESSES = {
    "benchmark help_times results=file",
    f"{PREPARE} source=[empty.jsonl]",
    "prepare_data out=taken source=[reviews.jsonl]",
    ELASTIC,
    f"{TRAIN} batchsize=64",
    f"{TRAIN} --resume last",
    "train data=nowhere out=new",
    f"{TREES} library=linear memory=low",
    "train_trees data=prepared out=taken",
    f"{PREDICT} splits=[test",
    "predict data=prepared out=file member=momentum",
    COMPARE,
    "ensemble_predictor guess",
    FIT,
    FORECAST,
    "serve ensemble=nowhere port=99999",
    f"{PUSH} ensemble=prepared",
    f"{EXPORT} member=unfinished",
}
"""Cases that run as a user starts them, at least one of each script; the others run in children of the script servers."""
WITH_TORCH = ("train", "predict", "export_model")


@pytest.mark.parametrize("command", CASES)
def test_a_mistake_gets_one_sentence_and_leaves_nothing(
    command: str, desk: Path, server: ScriptServer, torch_server: ScriptServer
) -> None:
    """A user would get a traceback, an exit code that means success, or an incomplete folder."""
    script, *words = command.split()
    before = snapshot(desk)
    in_a_child = (torch_server if script in WITH_TORCH else server).run
    done = (run if command in AS_PROCESSES else in_a_child)(script, *words, folder=desk)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("error: ") == 1, done.stderr
    assert CASES[command] in done.stderr.splitlines()[-1], done.stderr
    assert snapshot(desk) == before


def test_each_script_of_the_cases_is_started_as_a_process() -> None:
    """A script could behave differently in its own process than in a forked child, without a failing test."""
    assert set(CASES) >= AS_PROCESSES
    assert {command.split()[0] for command in AS_PROCESSES} == {command.split()[0] for command in CASES}


SCRIPT = """
import os, sys
from pathlib import Path
print("arguments", sys.argv[1:], "folder", os.getcwd(), "name", __name__)
print("beside the script", sys.path[0] == str(Path(__file__).parent))
print("torch", "torch" in sys.modules, "xgboost", "xgboost" in sys.modules)
{end}
"""


@pytest.mark.parametrize(
    "end",
    [
        "",
        "sys.exit()",
        "sys.exit(75)",
        "sys.exit('error: a sentence')",
        "raise KeyError(3)",
        "os._exit(4)",
        "os.kill(os.getpid(), 9)",
        "from ensemble import errors; errors.run(lambda: [][0])",
        "import argparse; argparse.ArgumentParser().parse_args()",
    ],
)
def test_a_forked_child_ends_as_a_process_does(end: str, server: ScriptServer, tmp_path: Path) -> None:
    """The cases above would be true in forked children only: users would get another exit code or message."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(end=end))
    expected = subprocess.run(
        [sys.executable, str(script), "a", "b=1"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    result = server.run(str(script.with_suffix("")), "a", "b=1", folder=tmp_path)
    assert (result.returncode, result.stdout) == (expected.returncode, expected.stdout)
    # A traceback in the child has the frames of the server too
    assert result.stderr.splitlines()[-1:] == expected.stderr.splitlines()[-1:]
    assert len(result.stderr.splitlines()) >= len(expected.stderr.splitlines())


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_script_refuses_what_it_does_not_know(script: str, tmp_path: Path) -> None:
    """A script would ignore a misspelt setting and use its default."""
    command = {"ensemble_predictor": ["fit"], "benchmark": ["panel"]}.get(script, [])
    done = run(script, *command, "no_such_setting=1", folder=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert "there is no setting 'no_such_setting'" in done.stderr.splitlines()[-1], done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_script_runs_from_any_folder(desk: Path, tmp_path: Path) -> None:
    """Relative paths would be relative to the project's folder, or a script would work in that folder only."""
    done = run("predict", f"data={desk / 'prepared'}", "member=momentum", "out=mine", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in (tmp_path / "mine").iterdir()) == [
        "momentum.blend.parquet",
        "momentum.forecast.parquet",
        "momentum.test.parquet",
    ]


def test_the_help_of_prepare_data_has_an_example_of_each_recipe() -> None:
    """A person would find no example of the recipe, or one with settings that it does not have."""
    text = ast.get_docstring(ast.parse((ROOT / "scripts/prepare_data.py").read_text())) or ""
    shown = set()
    for line in text.replace("\\\n", "").splitlines()[2:]:
        words = shlex.split(line, comments=True)[2:]
        name = words[1] if words[0] == "--recipe" else recipe.DEFAULT
        configuration.load(recipe.prepare_config(name), None, [word for word in words if "=" in word])
        shown.add(name)
    assert shown == set(recipe.BUILT_IN)
