"""Every .slurm file, submitted as in the README, does its work on a real cluster; errors in site.sh are one line."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import guide
import pytest
from conftest import ROOT, Job, Login

from ensemble import folders
from ensemble.predictor import bag

SHORT = ("batch_size=64", "max_epochs=0.2", "evaluations_per_epoch=1")
TRAININGS = {
    "train_single_gpu": ("single_cpu", 1),
    "train_multi_gpu": ("multi_cpu", 2),
    "train_multi_node": ("multi_node_cpu", 4),
    "train_cpu": ("", 1),
    "train_multi_node_cpu": ("", 4),
}
"""Each file's YAML for CPUs ("" for its own), and the number of ranks that must start."""
OTHERS = ("prepare_data", "train_tree_models", "fit", "ensemble", "report", "scaling", "doctor")


def test_every_file_is_tried() -> None:
    """A new job could fail at its first user."""
    assert {file.stem for file in (ROOT / "slurm").glob("*.slurm")} == {*TRAININGS, *OTHERS}


@pytest.fixture(scope="module")
def submitted(login: Login, prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Job, Path]]:
    """Each kind of training, all submitted at once: they wait for nodes, and share them."""
    jobs = {}
    for name, (yaml, _) in TRAININGS.items():
        out = tmp_path_factory.mktemp(name) / "run"
        variables = {"ACCELERATE_CONFIG": f"accelerate_configs/{yaml}.yaml"} if yaml else {}
        jobs[name] = login.sbatch(f"slurm/{name}.slurm", f"data={prepared}", f"out={out}", *SHORT, **variables), out
    return jobs


@pytest.mark.parametrize("name", TRAININGS)
def test_a_training(name: str, submitted: dict[str, tuple[Job, Path]]) -> None:
    """A job would train on another number of ranks than it says, or its log would not end with the outcome."""
    job, out = submitted[name]
    log = job.completed().log()
    assert json.loads((out / "summary.json").read_text())["ranks"] == TRAININGS[name][1]
    assert (out / "status").read_text() == "done\n"
    assert log.rstrip().endswith(f"{name} {job.id}: done: {out}"), log


def test_the_ensemble_and_the_report(
    login: Login, prepared: Path, submitted: dict[str, tuple[Job, Path]], tmp_path: Path
) -> None:
    """A member and the baselines become an ensemble and a page; files that the job did not write stay."""
    training, member = submitted["train_cpu"]
    training.completed()
    (tmp_path / "predictions").mkdir()
    (tmp_path / "predictions/notes.txt").write_text("mine")
    job = login.sbatch("slurm/ensemble.slurm", f"data={prepared}", f"out={tmp_path}", member)
    words = ("slurm/report.slurm", f"data={prepared}", f"out={tmp_path}")
    login.sbatch(*words, options=f"--dependency=afterok:{job.id}").completed()
    assert "run" in json.loads((tmp_path / "ensemble/ensemble.json").read_text())["members"]
    assert "<html" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert (tmp_path / "predictions/notes.txt").read_text() == "mine"


def test_a_fit_of_a_recipe_of_ones_own(login: Login, tmp_path: Path) -> None:
    """Jobs would only know the recipes of this project, or the network would be trained on fewer ranks."""
    folder = tmp_path / "fit"
    guide.write_files(tmp_path)
    variables = {
        "ACCELERATE_CONFIG": "accelerate_configs/multi_node_cpu.yaml",
        "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]),
    }
    jobs = login.submit_all(folder, "train_multi_node.slurm", "--recipe", guide.NAME, "num_customers=1000", **variables)
    for job in jobs.values():
        job.completed()
    members = json.loads((folder / "ensemble" / "ensemble.json").read_text())["members"]
    assert set(members) == {"network", "xgboost", "lightgbm"}
    assert json.loads((folder / "members/network/summary.json").read_text())["ranks"] == 4
    assert "generated customers leaves" in (folder / "report.html").read_text(encoding="utf-8")


def test_a_chain_that_breaks(login: Login, tmp_path: Path) -> None:
    """A job that would wait for ever for a failed one is cancelled."""
    words = ("--recipe", "hot_sellers", "raw=nowhere", "market.num_products=0")
    jobs = login.submit_all(tmp_path / "chain", "train_cpu.slurm", *words)
    assert jobs["prepare"].wait().facts()["JobState"] == "FAILED"
    assert jobs["fit"].wait(60).facts()["JobState"] == "CANCELLED"


def test_a_wrong_file_submits_nothing(login: Login, tmp_path: Path) -> None:
    """The first job would be submitted without the others, and compete with that of the corrected command."""
    for file in ("slurm/train_cpu.slurm", "train_gpu.slurm", "report.slurm"):
        done = login.shell(f"slurm/submit_all.sh {tmp_path}/fit {file} target=y")
        assert (done.returncode, done.stdout) == (2, "")
        assert f"error: '{file}' is none of " in done.stderr


def test_a_refused_job_leaves_no_others(login: Login, tmp_path: Path) -> None:
    """The jobs before the refused one would run alone, and compete with those of the corrected command."""
    done = login.shell(f"slurm/submit_all.sh {tmp_path}/fit train_multi_gpu.slurm target=y", GPU_KIND="nosuch")
    assert done.returncode != 0
    assert done.stdout == ""
    assert "configuration is not available" in done.stderr
    assert login.cluster.slurm("squeue", "--noheader", "--name=fit_prepare", "--states=PENDING,RUNNING") == ""


def test_a_setting_without_effect_submits_nothing(login: Login, tmp_path: Path) -> None:
    """A fit would ignore its limit of time, or be in another folder than the one named."""
    for word in ("time_limit=60", "out=elsewhere"):
        done = login.shell(f"slurm/submit_all.sh {tmp_path}/fit train_cpu.slurm target=y {word}")
        assert (done.returncode, done.stdout) == (2, "")
        assert f"error: {word} would have no effect" in done.stderr


def test_categories_over_an_array(login: Login, raw_market: tuple[Path, Path], tmp_path: Path) -> None:
    """Three categories on an array of two tasks: every one is prepared, once, with the metadata beside it.

    The comma in their names would divide each name.
    """
    reviews, products = raw_market
    names = [f"toys, {number}" for number in range(3)]
    for name in names:
        (tmp_path / f"{name}.jsonl").symlink_to(reviews)
        (tmp_path / f"meta_{name}.jsonl").symlink_to(products)
    files = [tmp_path / f"{name}.jsonl" for name in names]
    words = ("slurm/prepare_data.slurm", *files, "panel.top_fraction=0.1")
    array = login.sbatch(*words, options="--array=0-1", RUNS=str(tmp_path))
    for task in range(2):
        Job(login.cluster, f"{array.id}_{task}").completed()
    manifests = [folders.read_manifest(tmp_path / name / "prepared") for name in names]
    assert all(len(manifest["sources"]) == 2 for manifest in manifests), manifests[0]["sources"]


def test_scaling(login: Login, prepared: Path, tmp_path: Path) -> None:
    """The benchmark launches each number of ranks by srun, within its job; the report draws what it wrote."""
    words = (f"data={prepared}", "rounds=2", "training=[batch_size=64,max_epochs=0.5]", f"results={tmp_path}")
    variables = {"ACCELERATE_CONFIG": "accelerate_configs/multi_node_cpu.yaml", "RANKS_PER_NODE": "2"}
    login.sbatch(
        "slurm/scaling.slurm", *words, f"folder={tmp_path}/runs", options="--gpus-per-node=0", **variables
    ).completed()
    rows = json.loads((tmp_path / "scaling.json").read_text())["by_ranks"]
    assert [(row["ranks"], row["nodes"]) for row in rows] == [(1, 1), (2, 1), (4, 2)]


def test_the_doctor(login: Login) -> None:
    """Both nodes connect, and the all-reduce between them works, since node.sh names the interface."""
    log = login.sbatch("slurm/doctor.slurm").wait().log()
    assert re.search(r"^ok +all-reduce +all 2 nodes", log, re.MULTILINE), log
    assert "doctor" in log.splitlines()[-1], "the last line is no outcome"
    assert "own name" not in log or re.search(r"^ok +own name", log, re.MULTILINE), log


def test_two_jobs_on_the_same_nodes(login: Login, prepared: Path, tmp_path: Path) -> None:
    """Two trainings over both nodes at once: neither takes the other's port."""
    runs = [tmp_path / "first", tmp_path / "second"]
    words = (f"data={prepared}", "batch_size=64", "max_epochs=1")
    jobs = [login.sbatch("slurm/train_multi_node_cpu.slurm", *words, f"out={out}", RANKS_PER_NODE="1") for out in runs]
    for job, out in zip(jobs, runs, strict=True):
        job.until_step(out, 1)
    assert [job.facts()["JobState"] for job in jobs] == ["RUNNING", "RUNNING"], "they did not run at the same time"
    for job in jobs:
        job.completed()


def test_staged_to_each_node(login: Login, prepared: Path, tmp_path: Path) -> None:
    """The data are read from the node's own disk; the copies of a dead job, and at the end of this job, are removed."""
    scratch = tmp_path / "scratch"
    ours = scratch / "accelerate-ensemble-root"
    (ours / "99999999").mkdir(parents=True)
    (scratch / "root-2024").mkdir()
    job = login.sbatch(
        "slurm/train_cpu.slurm", f"data={prepared}", f"out={tmp_path}/run", *SHORT, SCRATCH_FOLDER=str(scratch)
    )
    log = job.completed().log()
    assert json.loads((tmp_path / "run/config.json").read_text())["data"] == f"{ours}/{job.id}/data"
    assert "copied and checked" in log
    assert not list(ours.iterdir())
    assert (scratch / "root-2024").exists(), "folders of others stay"


# ------------------------------------------------------------------------------------------------ mistakes


def test_an_unknown_partition(login: Login) -> None:
    """Slurm would only say that the partition is invalid, not where it is set and which ones exist."""
    done = login.shell("sbatch slurm/train_multi_node.slurm", PARTITION="nosuch")
    assert done.returncode == 2
    assert "slurm/site.sh names the partition 'nosuch', which this cluster does not have: choose from cpu gpu" in done.stderr


WRONG_SITES = {
    "SCRATCH_FOLDER": (
        "/no/such/disk",
        "slurm/site.sh: SCRATCH_FOLDER=/no/such/disk is not a writable folder on this node: name another",
    ),
    "PYTHON_ENVIRONMENT": ("/no/such/venv", "PYTHON_ENVIRONMENT=/no/such/venv has no Python with this project"),
    "MODULES": ("nosuch/1.0", "MODULES='nosuch/1.0' cannot be loaded"),
}
"""Variables of slurm/site.sh, each with a wrong value and the sentence of its error."""


@pytest.fixture(scope="module")
def wrong_sites(login: Login, prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Job]:
    """A job for each, all submitted at once."""
    folder = tmp_path_factory.mktemp("wrong_sites")
    words = ("slurm/train_multi_node_cpu.slurm", f"data={prepared}")
    return {
        variable: login.sbatch(*words, f"out={folder}/{variable}", **{variable: value})
        for variable, (value, _) in WRONG_SITES.items()
    }


@pytest.mark.parametrize("variable", WRONG_SITES)
def test_a_wrong_site(variable: str, wrong_sites: dict[str, Job]) -> None:
    """The job would hang, or end without a sentence on the mistake."""
    job = wrong_sites[variable]
    began = time.monotonic()
    facts = job.wait(60).facts()
    print(f"{variable}: {time.monotonic() - began:.0f} s")
    assert facts["JobState"] == "FAILED"
    log = job.log()
    assert WRONG_SITES[variable][1] in log, log
    assert log.splitlines()[-1].startswith(f"train_multi_node_cpu {job.id}: "), log


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The project with a slurm/site.sh of its own."""
    folder = tmp_path / "project"
    folder.mkdir()
    for entry in ROOT.iterdir():
        if entry.name != "slurm":
            (folder / entry.name).symlink_to(entry)
    shutil.copytree(ROOT / "slurm", folder / "slurm")
    return folder


def edit(project: Path, before: str, after: str) -> None:
    file = project / "slurm" / "site.sh"
    text = file.read_text()
    assert text.count(before) == 1
    file.write_text(text.replace(before, after))


def test_an_edited_site(login: Login, prepared: Path, project: Path, tmp_path: Path) -> None:
    """A change of the file takes effect at once, in a shell that sourced it before, and in the job."""
    edit(project, "{GLOO_SOCKET_IFNAME=}", "{GLOO_SOCKET_IFNAME=ib7}")
    there = Login(login.cluster, login.logs, project)
    command = "sed -i 's/{CPU_PARTITION=}/{CPU_PARTITION=nosuch}/' slurm/site.sh"
    assert "names the partition 'nosuch'" in there.shell(f"{command}; sbatch slurm/train_cpu.slurm").stderr
    edit(project, "=nosuch}", "=cpu}")
    job = there.sbatch("slurm/train_multi_node_cpu.slurm", f"data={prepared}", f"out={tmp_path}/run").wait(60)
    assert (job.facts()["JobState"], job.facts()["Partition"]) == ("FAILED", "cpu")
    assert "slurm/site.sh: there is no interface GLOO_SOCKET_IFNAME=ib7: this host has lo eth0" in job.log(), job.log()


def test_a_site_with_variables_of_jobs(login: Login, project: Path, tmp_path: Path) -> None:
    """A folder of the job, as many clusters have on their nodes, is unknown where a fit is submitted."""
    edit(project, "{SCRATCH_FOLDER=}", f"{{SCRATCH_FOLDER={tmp_path}/$SLURM_JOB_ID}}")
    done = Login(login.cluster, login.logs, project).shell(f"slurm/submit_all.sh {tmp_path}/fit train_gpu.slurm target=y")
    assert "error: 'train_gpu.slurm' is none of " in done.stderr, done.stderr


def test_jobs_from_within_a_job(login: Login, project: Path, tmp_path: Path) -> None:
    """Variables of the first job, a task of an array, would override those of the others, and --export=NONE our own."""
    edit(project, "{PYTHON_ENVIRONMENT=.venv}", f"{{PYTHON_ENVIRONMENT={sys.prefix}}}")
    report = f"slurm/report.slurm data={tmp_path} out={tmp_path}/nowhere"
    submissions = [
        f"sbatch --parsable --cpus-per-task=2 --output={login.logs}/%x-%A.out {words}"
        for words in (report, f"--export=NONE {report}", f"slurm/train_cpu.slurm data={tmp_path}")
    ]
    there = Login(login.cluster, login.logs, project)
    command = "; ".join(["source slurm/site.sh", *submissions])
    first = there.sbatch("--wrap", f"bash -c '{command}'", options="--gpus-per-node=2 --array=7")
    jobs = [Job(login.cluster, number) for number in first.completed().log().split()]
    sentences = ["nowhere/ensemble/ensemble.json does not exist"] * 2 + ["there is no argument out=FOLDER"]
    for job, sentence in zip(jobs, sentences, strict=True):
        assert job.wait(60).facts()["ExitCode"] == "2:0", job.log()
        assert sentence in job.log()


def test_several_nodes(login: Login, tmp_path: Path) -> None:
    """Each node would do all of the work: a fit would be stopped by its own second process, and be requeued for ever."""
    names = ("prepare_data", "fit", "ensemble", "report")
    jobs = [login.sbatch(f"slurm/{name}.slurm", "data=x", f"out={tmp_path}", options="--nodes=2") for name in names]
    for job in jobs:
        assert job.wait(60).facts()["ExitCode"] == "2:0", job.log()
        assert "error: this job works on one node" in job.log().splitlines()[-1], job.log()


def test_from_another_folder(login: Login, tmp_path: Path) -> None:
    """Slurm would accept the job, and end it without a log."""
    done = login.shell(f"cd {tmp_path}; sbatch {ROOT}/slurm/train_cpu.slurm")
    assert done.returncode == 2
    assert "call sbatch in the project's folder" in done.stderr


def test_a_kind_of_gpu_and_a_partition(login: Login) -> None:
    """GPU_KIND is added to the number of GPUs, also to that of the command; a job with GPUs is not sent to CPU_PARTITION."""
    variables = {"GPU_KIND": "nosuch", "CPU_PARTITION": "cpu", "PARTITION": "gpu"}
    for words in ("", "--gpus-per-node=1", "--gpus-per-node 1"):
        done = login.shell(f"sbatch {words} slurm/train_multi_gpu.slurm", **variables)
        assert done.returncode != 0, "this cluster has no such GPU"
        assert "configuration is not available" in done.stderr, done.stderr
    for words in ("--gres=gpu:1", "--gpus 1", "-G1"):
        done = login.shell(f"sbatch --hold {words} slurm/train_multi_gpu.slurm", **variables)
        assert done.returncode == 2
        assert "does not name a kind of GPU: write --gpus-per-node=N" in done.stderr, done.stderr
    for words, partition in (("", "cpu"), ("--gpus-per-node=2", "gpu")):
        kept = {name: variables[name] for name in ("CPU_PARTITION", "PARTITION")}
        job = login.sbatch("slurm/doctor.slurm", options=f"--hold {words}", **kept)
        assert job.facts()["Partition"] == partition
        login.cluster.slurm("scancel", job.id)


def test_one_copy_of_a_bag_is_preempted(login: Login, folded: Path, tmp_path: Path) -> None:
    """The other copy continues, although the id of one task is also that of the array; each learns from its own fold."""
    words = ("slurm/train_cpu.slurm", f"data={folded}/folds/%a", f"out={tmp_path}/bag/%a", "max_epochs=6", "batch_size=64")
    array = login.sbatch(*words, options=f"--array=0-1 --requeue --output={login.logs}/array-%a.out")
    tasks = [Job(login.cluster, f"{array.id}_{number}") for number in range(2)]
    tasks[1].until_step(tmp_path / "bag" / "1", 5)
    login.cluster.slurm("scancel", "--signal=USR1", "--batch", tasks[1].id)
    for task in tasks:
        task.completed()
    assert [task.facts()["Restarts"] for task in tasks] == ["0", "1"]
    learned = [folders.read_json(copy / "summary.json")["fingerprint"] for copy in bag.copies(tmp_path / "bag")]
    assert learned == [fold["fingerprint"] for fold in folders.read_manifest(folded)["folds"][:2]]


def test_a_users_mistake(login: Login, prepared: Path, tmp_path: Path) -> None:
    """A mistake before or after the start of the run is in the last line of any log, and the job is not requeued."""
    mistakes = {
        "batchsize=64": "batch_size",
        "learning_rate=1e30": "lower learning_rate",
        "--predict=/proc/x": "/proc/x",  # after the training, whose status is `done`
        "--resume=last": "leave --resume out",  # a new run would start instead
    }
    options = f"--output={login.logs}/[%x]-%N-%j.out"
    words = ("slurm/train_cpu.slurm", f"data={prepared}", *SHORT)
    jobs = [login.sbatch(*words, f"out={tmp_path}/{number}", word, options=options) for number, word in enumerate(mistakes)]
    for job, sentence in zip(jobs, mistakes.values(), strict=True):
        facts = job.wait(120).facts()
        assert (facts["JobState"], facts["ExitCode"], facts["Restarts"]) == ("FAILED", "2:0", "0"), job.log()
        assert sentence in job.log().splitlines()[-1], job.log()


def test_the_scripts_are_clean() -> None:
    """shellcheck, with what each script sources."""
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed: apt install shellcheck")
    scripts = [str(file) for pattern in ("*.slurm", "*.sh") for file in sorted((ROOT / "slurm").glob(pattern))]
    done = subprocess.run(["shellcheck", "-x", *scripts], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout
