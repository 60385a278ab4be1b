"""Mistakes in slurm/site.sh, in options of sbatch and in arguments of jobs: one sentence, before any work. No cluster."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from batch_scripts import ROOT, STARTED, array_of, as_a_job, on_a_node, submitted


@pytest.mark.parametrize("number", ["", "three", "-1"])
def test_a_wrong_number_of_restarts_is_refused(number: str, tmp_path: Path) -> None:
    """A job that runs out of memory at each start would be requeued for ever."""
    words = ("train_cpu.slurm", "data=prepared", f"out={tmp_path}/run")
    done = as_a_job(tmp_path, *words, srun="exit 137", MAX_RESTARTS=number)
    assert done.returncode == 2, done.stderr
    assert f"slurm/site.sh: MAX_RESTARTS={number} is not a whole number of 0 or more" in done.stderr


def test_losses_count_if_each_start_empties_the_log(tmp_path: Path) -> None:
    """With --open-mode=truncate, or %N in the name of the log, a job that runs out of memory would be requeued for ever."""
    words, srun = ("train_cpu.slurm", "data=prepared", f"out={tmp_path}/run"), STARTED.format(out=tmp_path / "run")
    with (tmp_path / "job.log").open("a+", encoding="utf-8") as log:
        done = as_a_job(tmp_path, *words, srun=srun, log=log, MAX_RESTARTS="3", SLURM_RESTART_COUNT="3")
    assert (done.returncode, "failed: lost again after" in (tmp_path / "job.log").read_text()) == (1, True)


@pytest.mark.parametrize("option", ["--chdir=/tmp", "--chdir /tmp", "-D /tmp", "-D/tmp"])
def test_another_folder_for_a_job_is_refused(option: str, tmp_path: Path) -> None:
    """Slurm would accept the job, and end it without a log: its scripts and the folder of its log are in the project."""
    done = submitted(tmp_path, f"{option} slurm/train_cpu.slurm out=runs/x", ROOT)
    assert (done.returncode, done.stdout) == (2, ""), done.stdout
    assert "the job must run in the project's folder: leave this option out" in done.stderr
    done = submitted(tmp_path, f"{option} --wrap hostname", ROOT)
    assert (done.returncode, done.stdout) == (0, f"{option} --wrap hostname\n"), "no job of this project"


def test_a_partition_is_not_blamed_while_the_controller_does_not_answer(tmp_path: Path) -> None:
    """The error would say that this cluster has no such partition, and name no other one."""
    done = submitted(tmp_path, "slurm/doctor.slurm", ROOT, sinfo="exit 1", PARTITION="gpu")
    assert (done.returncode, done.stdout) == (0, "--partition=gpu slurm/doctor.slurm\n"), done.stderr


def test_a_file_of_settings_is_no_category_and_no_member(tmp_path: Path) -> None:
    """The jobs would take --config and FILE for raw files to prepare, or for members to predict with."""
    words = ("--recipe", "table", "--config", "my.yaml", "out=prepared")
    done = as_a_job(tmp_path, "prepare_data.slurm", *words, **array_of(1))
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(" overwrite=true --recipe table --config=my.yaml out=prepared\n")
    for script in ("ensemble", "report"):
        (tmp_path / script).mkdir()
        done = as_a_job(tmp_path / script, f"{script}.slurm", "--config", "my.yaml", "data=prepared", f"out={tmp_path}")
        assert "member=--config" not in done.stdout
        assert " --config=my.yaml" in done.stdout.splitlines()[-1], done.stderr
    (tmp_path / "again").mkdir()
    done = as_a_job(tmp_path / "again", "prepare_data.slurm", "--config", **array_of(1))
    assert (done.returncode, "error: --config needs a value after it" in done.stderr) == (2, True), done.stderr


def test_no_folder_named_tilde_is_created(tmp_path: Path) -> None:
    """`rm -r ~` would delete the user's home instead of it. zsh does not expand out=~/run, and no shell does in quotes."""
    done = as_a_job(tmp_path, "train_cpu.slurm", "data=prepared", "out=~/ensemble-test/run")
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert "out=~/ensemble-test/run begins with ~, which only shells expand: write the full path" in done.stderr
    assert not os.path.lexists(ROOT / "~")


@pytest.mark.parametrize("variable", ["PYTHON_ENVIRONMENT", "SCRATCH_FOLDER"])
def test_a_tilde_in_the_site_is_named(variable: str, tmp_path: Path) -> None:
    """The error would propose a command that creates the environment in the home folder, where no job would find it."""
    words = ("train_cpu.slurm", "data=prepared", f"out={tmp_path}/run")
    done = as_a_job(tmp_path, *words, **{variable: "~/folder"})
    assert (done.returncode, done.stdout) == (2, "")
    assert f"slurm/site.sh: {variable}=~/folder begins with ~, which is not expanded in quotes: write $HOME" in done.stderr


def test_gloo_needs_the_whole_name_of_an_interface(tmp_path: Path) -> None:
    """All ranks would fail with a traceback of Gloo, and the job would be requeued, as if ranks had been lost."""
    for name, body in {"ip": "echo eth0 UP", "accelerate-launch": "echo $NCCL_SOCKET_IFNAME"}.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    words = (tmp_path, "accelerate_configs/multi_cpu.yaml", "scripts/train.py")
    done = on_a_node(*words, GLOO_SOCKET_IFNAME="eth", SLURM_CPUS_PER_TASK="2")
    assert (done.returncode, "there is no interface GLOO_SOCKET_IFNAME=eth: this host has eth0" in done.stderr) == (2, True)
    for program in ("bash", "hostname", "sed", "grep", "python"):
        (tmp_path / program).unlink()
    done = on_a_node(*words, NCCL_SOCKET_IFNAME="eth", GLOO_SOCKET_IFNAME="eth0", SLURM_CPUS_PER_TASK="2")
    assert (done.returncode, done.stdout) == (0, "eth\n"), "NCCL accepts the beginning of a name"


@pytest.mark.parametrize("script", ["train_cpu.slurm", "fit.slurm", "doctor.slurm"])
def test_a_job_that_was_not_submitted_is_one_sentence(script: str) -> None:
    """The only message would be that of bash, on a variable that is not set."""
    outside = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    command = ["bash", ROOT / "slurm" / script, "out=runs/x"]
    done = subprocess.run(command, env=outside, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert f"error: {ROOT}/slurm/{script} is the script of a job: submit it by sbatch" in done.stderr


@pytest.mark.parametrize("file", ["accelerate_configs/multi_cpu", "my.json"])
def test_a_configuration_that_is_no_yaml_is_not_run_by_python(file: str, tmp_path: Path) -> None:
    """The job would end with a NameError, or a message that Python cannot open the file, whose name lacks .yaml."""
    words = ("train_cpu.slurm", "data=prepared", f"out={tmp_path}/run")
    done = as_a_job(tmp_path, *words, ACCELERATE_CONFIG=file)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"error: ACCELERATE_CONFIG={file} must end in .yaml or .yml: name a file of accelerate_configs/" in done.stderr


def test_a_site_that_prints_changes_no_job_id(tmp_path: Path) -> None:
    """submit_all.sh would take what `module load` prints for a part of the id, and submit the first job alone."""
    shutil.copytree(ROOT / "slurm", tmp_path / "slurm", ignore=shutil.ignore_patterns("results"))
    site = tmp_path / "slurm/site.sh"
    site.write_text(f"echo Loading python/3.11\n{site.read_text()}")
    done = submitted(tmp_path, "--parsable slurm/doctor.slurm 2>&1 >ids; cat ids", tmp_path)
    assert done.stdout.splitlines()[-1] == (tmp_path / "ids").read_text().strip() == "--parsable slurm/doctor.slurm"


def test_a_whole_fit_is_submitted_in_the_folder_of_the_project(tmp_path: Path) -> None:
    """Relative paths, which mean files of the current folder, would be searched and written in the project's."""
    command = ["bash", ROOT / "slurm/submit_all.sh", "runs/fit", "train_cpu.slurm", "source=[people.csv]"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "error: there is no slurm/site.sh here: call submit_all.sh in the project's folder" in done.stderr


def test_a_pattern_that_also_matches_metadata_prepares_the_reviews(tmp_path: Path) -> None:
    """With raw/*.jsonl, the metadata of a category would be another category, with which the job fails."""
    for name in ("toys", "meta_toys", "meta_books"):
        (tmp_path / f"{name}.jsonl").touch()
    files = sorted(str(file) for file in tmp_path.glob("*.jsonl"))
    done = as_a_job(tmp_path, "prepare_data.slurm", *files, **array_of(1))
    assert done.returncode == 0, done.stderr
    books, toys = done.stdout.splitlines()
    assert f" source={tmp_path}/meta_books.jsonl out=" in books, "without a file books.jsonl, it may be reviews"
    assert f" source={tmp_path}/toys.jsonl metadata={tmp_path}/meta_toys.jsonl out=" in toys


@pytest.mark.parametrize("script", ["fit.slurm", "prepare_data.slurm"])
def test_the_script_of_an_array_in_an_interactive_job_is_one_sentence(script: str, tmp_path: Path) -> None:
    """Run by bash in the shell of salloc, its only message would be that of bash, on a variable that is not set."""
    done = as_a_job(tmp_path, script, f"out={tmp_path}/out")
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert "error: there is no SLURM_ARRAY_TASK_ID, which only sbatch sets: submit this job by sbatch" in done.stderr


def test_the_place_of_the_logs_is_that_of_the_variable(tmp_path: Path) -> None:
    """A user would search the logs of a whole fit in a folder where Slurm has not written them."""
    (tmp_path / "sbatch").write_text("#!/bin/bash\necho 7\n")
    (tmp_path / "sbatch").chmod(0o755)
    command = ["bash", "slurm/submit_all.sh", "runs/fit", "train_cpu.slurm", "target=y"]
    variables = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SBATCH_OUTPUT": f"{tmp_path}/%x.out"}
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.endswith(f"the logs of all jobs are in {tmp_path}/%x.out\n"), done.stdout


@pytest.mark.parametrize("words", ["--output=absent/%x.out", "-oabsent/%x.out", "SBATCH_OUTPUT"])
def test_the_folder_of_a_log_must_exist(words: str, tmp_path: Path) -> None:
    """Slurm would accept the job, and end it without a log."""
    option, output = ("", "absent/%x.out") if words == "SBATCH_OUTPUT" else (f"{words} ", "")
    done = submitted(tmp_path, f"{option}slurm/report.slurm", ROOT, SBATCH_OUTPUT=output)
    assert (done.returncode, done.stdout) == (2, "")
    assert "error: there is no folder absent, and Slurm would end the job without a log: create it" in done.stderr
    for place in ("slurm/%x.out", "%j/%x.out", "/absent/on/this/node.out"):
        done = submitted(tmp_path, f"--output={place} slurm/report.slurm", ROOT)
        assert done.stdout == f"--output={place} slurm/report.slurm\n", done.stderr
