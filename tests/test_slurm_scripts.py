"""The scripts of slurm/ that need no cluster."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from batch_scripts import ROOT, STARTED, array_of, as_a_job, on_a_node, submitted


def test_a_job_on_one_node_needs_no_program_ip(tmp_path: Path) -> None:
    """A node without iproute2, such as a container, could not train on one GPU."""
    program = "import os; print(os.environ['WORLD_SIZE'], os.environ['RANK'], os.environ.get('GLOO_SOCKET_IFNAME'))"
    done = on_a_node(tmp_path, "-c", program, GLOO_SOCKET_IFNAME="ib0")  # that of the site, which this node lacks
    assert (done.stdout, done.stderr) == ("1 0 None\n", "")


def test_many_addresses_do_not_end_a_job(tmp_path: Path) -> None:
    """On a node with many interfaces the job would end without a message: `ip` was still writing when awk had ended."""
    address = "echo 1: eth1 inet 10.0.0.1/24; for n in {1..20000}; do echo 2: eth2 inet 10.0.1.1/24; done"
    (tmp_path / "ip").write_text(f"#!/bin/bash\nif [ $1 = -oneline ]; then {address}; else echo eth1 UP; fi\n")
    (tmp_path / "ip").chmod(0o755)
    (tmp_path / "awk").symlink_to(str(shutil.which("awk")))
    print_interface = "import os; print(os.environ['GLOO_SOCKET_IFNAME'])"
    done = on_a_node(tmp_path, "-c", print_interface, SLURM_STEP_NUM_NODES="2", MASTER_ADDR="10.0.0.1")
    assert (done.stdout, done.stderr) == ("eth1\n", "")


@pytest.mark.parametrize(
    ("yaml", "ranks", "sentence"),
    [
        ("nothing.yaml", "", "the file nothing.yaml of Accelerate's settings does not exist: check ACCELERATE_CONFIG"),
        ("accelerate_configs/multi_cpu.yaml", "0", "there must be at least 1 rank on a node, not 0: correct RANKS_PER_NODE"),
    ],
)
def test_a_wrong_yaml_or_number_of_ranks_is_one_sentence(yaml: str, ranks: str, sentence: str, tmp_path: Path) -> None:
    """The log would end with syntax errors of bash."""
    done = on_a_node(tmp_path, yaml, "scripts/train.py", RANKS_PER_NODE=ranks)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("given", "cores", "threads", "sentence"),
    [
        ("", "8", "4", ""),
        ("4", "8", "4", ""),
        ("1", "8", "1", "each rank has 4 cores, and OMP_NUM_THREADS=1: unset this variable"),
        ("64", "8", "64", "each rank has 4 cores, and OMP_NUM_THREADS=64: unset this variable"),
        ("", "1", "1", "2 ranks share 1 cores of this node: give --cpus-per-task=2 or more"),
        ("4,2", "8", "", "OMP_NUM_THREADS=4,2 is not a number of threads: unset this variable"),
    ],
)
def test_too_many_or_too_few_threads_are_reported(
    given: str, cores: str, threads: str, sentence: str, tmp_path: Path
) -> None:
    """A job of two ranks would be slow without a reason in its log, or end in a traceback of the launcher."""
    (tmp_path / "accelerate-launch").write_text("#!/bin/bash\necho $OMP_NUM_THREADS\n")
    (tmp_path / "accelerate-launch").chmod(0o755)
    variables = {"SLURM_CPUS_PER_TASK": cores, "OMP_NUM_THREADS": given}
    done = on_a_node(tmp_path, "accelerate_configs/multi_cpu.yaml", "scripts/train.py", **variables)
    assert (done.returncode, done.stdout.strip()) == (0 if threads else 2, threads)
    assert (sentence in done.stderr, done.stderr.count("\n")) == (True, 1 if sentence else 0), done.stderr


@pytest.mark.parametrize(
    ("lines", "num_ranks"),
    [
        (("distributed_type: MULTI_GPU", "num_processes: 3  # ranks", "use_cpu: True"), "3"),
        (("distributed_type: MULTI_GPU\r", "num_processes: 3\r", "use_cpu: 'true'\r"), "3"),
        (("distributed_type: MULTI_GPU", "num_processes: # of the node", "use_cpu: false"), "2"),
        (('distributed_type: "NO"  # one process', "num_processes: 1", "use_cpu: true"), ""),
    ],
)
def test_a_yaml_may_have_comments_and_other_quotes(lines: tuple[str, ...], num_ranks: str, tmp_path: Path) -> None:
    """The job would end with a syntax error of bash, or start as many ranks as there are GPUs, on CPUs."""
    (tmp_path / "accelerate-launch").write_text('#!/bin/bash\necho "$@"\n')
    (tmp_path / "accelerate-launch").chmod(0o755)
    (tmp_path / "a.yaml").write_text("\n".join(lines), newline="")
    done = on_a_node(tmp_path, tmp_path / "a.yaml", "x.py", SLURM_GPUS_ON_NODE="2", SLURM_CPUS_PER_TASK="4")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.partition("--num_processes ")[2].partition(" ")[0] == num_ranks


def test_a_yaml_may_end_in_yml(tmp_path: Path) -> None:
    """ACCELERATE_CONFIG=my.yml would be run as a Python script, which ends with a NameError."""
    (tmp_path / "accelerate-launch").write_text('#!/bin/bash\necho "$@"\n')
    (tmp_path / "accelerate-launch").chmod(0o755)
    shutil.copy(ROOT / "accelerate_configs/single_cpu.yaml", tmp_path / "my.yml")
    done = on_a_node(tmp_path, tmp_path / "my.yml", "x.py")
    assert (done.returncode, f"--config_file {tmp_path}/my.yml x.py" in done.stdout) == (0, True), done.stderr


@pytest.mark.parametrize("numbers", [(0, 1), (3, 4, 5), (7,), (1, 3), (0, 2, 4)])
def test_categories_are_divided_among_tasks_or_refused(numbers: tuple[int, ...], tmp_path: Path) -> None:
    """An array with gaps, as of tasks that failed, would prepare categories twice and others never, and end with 0."""
    names, prepared = [f"raw/c{number}.jsonl" for number in range(8)], []
    for number in numbers:
        array = {"TASK_ID": number, "TASK_COUNT": len(numbers), "TASK_MIN": min(numbers), "TASK_MAX": max(numbers)}
        (tmp_path / str(number)).mkdir()
        variables = {**array_of(1), **{f"SLURM_ARRAY_{name}": str(value) for name, value in array.items()}}
        done = as_a_job(tmp_path / str(number), "prepare_data.slurm", *names, **variables)
        if max(numbers) - min(numbers) < len(numbers):
            assert done.returncode == 0, done.stderr
            prepared += [line.partition(" source=")[2].partition(" ")[0] for line in done.stdout.splitlines()]
        else:
            assert (done.returncode, done.stdout) == (2, "")
            assert "--array must have no gaps" in done.stderr
            prepared = names
    assert sorted(prepared) == names


def test_only_the_first_task_prepares_data_without_categories(tmp_path: Path) -> None:
    """Every task of the array would write the same folder."""
    words = ("prepare_data.slurm", "--recipe", "table", "source=[a.csv]", "target=y", "out=prepared")
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        array = {**array_of(2), "SLURM_ARRAY_TASK_ID": str(number)}
        done = as_a_job(tmp_path / str(number), *words, **array)
        assert (done.returncode, len(done.stdout.splitlines())) == (0, 1 - number), done.stderr


def test_two_categories_do_not_share_a_folder(tmp_path: Path) -> None:
    """The data of one year would replace those of the year before, and the job would end with 0."""
    words = ("raw/Toys.2022.jsonl.gz", "raw/Toys.2023.jsonl.gz", "hub:Books")
    done = as_a_job(tmp_path, "prepare_data.slurm", *words, **array_of(1))
    assert (done.returncode, done.stdout) == (2, "")
    assert "several categories would be written to runs/Toys" in done.stderr


def test_an_unfinished_copy_of_a_killed_job_is_removed_when_it_starts_again(tmp_path: Path) -> None:
    """After a kill while data are copied, the disk of the node would have room for one copy, but not for both."""
    programs, scratch = tmp_path / "programs", tmp_path / "scratch"
    programs.mkdir()
    for name, body in {"squeue": "echo 7; echo 8", "id": "echo me", "python": 'echo "$@"'}.items():
        (programs / name).write_text(f"#!/bin/bash\n{body}\n")
        (programs / name).chmod(0o755)
    for name in ("6/data", "7/.data.writing-0123abcd", "7/data", "8/.data.writing-0123abcd", "notes"):
        (scratch / "ours" / name).mkdir(parents=True)
    environment = {"PATH": f"{programs}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}
    command = ["bash", ROOT / "slurm/stage.sh", scratch, scratch / "ours", "prepared"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True, cwd=ROOT)
    assert done.stdout == f"scripts/stage_data.py source=prepared out={scratch}/ours/7/data\n"
    left = {str(path.relative_to(scratch / "ours")) for path in (scratch / "ours").rglob("*")}
    assert left == {"7", "7/data", "8", "8/.data.writing-0123abcd", "notes"}


@pytest.mark.parametrize("is_signalled_early", [True, False])
def test_a_job_that_finished_a_library_is_requeued_for_the_next(is_signalled_early: bool, tmp_path: Path) -> None:
    """A job whose limit comes while XGBoost ends would fail, since LightGBM, which it starts then, saves nothing new."""
    out = tmp_path / "out"
    body = f"""
trap "" USR1 SIGUSR1 TERM
case "$*" in
  *library=xgboost*) {"kill -USR1 $PPID; sleep 1" if is_signalled_early else ":"} ;;
  *)
    mkdir -p {out}/lightgbm.checkpoint
    echo preempted >{out}/lightgbm.checkpoint/status
    kill -USR1 $PPID
    sleep 1
    exit 75
    ;;
esac
"""
    done = as_a_job(tmp_path, "train_tree_models.slurm", "data=prepared", f"out={out}", srun=body)
    assert f"done: {out}/xgboost" in done.stderr, done.stderr
    assert ("preempted by a signal, saved" in done.stderr) == is_signalled_early, done.stderr
    assert ("failed: nothing new could be saved" in done.stderr) != is_signalled_early, done.stderr


@pytest.mark.parametrize("option", ["--config", "--config="])
def test_a_library_in_a_file_of_settings_is_the_only_one(option: str, tmp_path: Path) -> None:
    """XGBoost would be trained too, with the settings that a search found for LightGBM."""
    file = tmp_path / "best.yaml"
    file.write_text("library: lightgbm\nlearning_rate: 0.1\n")
    config = (f"{option}{file}",) if option.endswith("=") else (option, str(file))
    done = as_a_job(tmp_path, "train_tree_models.slurm", *config, "data=prepared", f"out={tmp_path}/out")
    assert (done.returncode, done.stdout.count("train_trees.py")) == (0, 1), done.stderr
    assert f" library=lightgbm out={tmp_path}/out/lightgbm " in done.stdout
    (tmp_path / "again").mkdir()
    words = (*config, "data=prepared", f"out={tmp_path}/out", "library=xgboost")
    done = as_a_job(tmp_path / "again", "train_tree_models.slurm", *words)
    assert done.stdout.count(" library=xgboost out=") == done.stdout.count("train_trees.py") == 1, "the argument counts"


def test_a_job_whose_out_is_a_link_is_requeued_at_its_time_limit(tmp_path: Path) -> None:
    """With a run on a scratch disk, the job would fail, since the checkpoints behind the link were not seen."""
    run, link = tmp_path / "scratch/run", tmp_path / "run"
    run.mkdir(parents=True)
    link.symlink_to(run)
    checkpoint = link / "checkpoints/step-10"
    body = f"""
trap "" USR1
echo running >{link}/status
kill -USR1 $PPID
sleep 1
mkdir -p {checkpoint}
touch {checkpoint}/manifest.json
echo preempted >{link}/status
exit 75
"""
    done = as_a_job(tmp_path, "train_cpu.slurm", "data=prepared", f"out={link}", srun=body)
    assert (done.returncode, "preempted by a signal, saved: requeued" in done.stderr) == (75, True), done.stderr


@pytest.mark.parametrize(
    ("words", "status_folder", "saved"),
    [
        (("library=both", "out={}/run/"), "run.checkpoint", "run.checkpoint/trees-9/manifest.json"),
        (("library=both", "out={}/link"), "run.checkpoint", "run.checkpoint/trees-9/manifest.json"),
        (("--config", "{}/search.yaml", "out={}/run"), "run/xgboost/tasks/7", "run/xgboost/trials.journal"),
        (("search={{trials: 5}}", "out={}/run"), "run/xgboost/tasks/7", "run/xgboost/trials.journal"),
    ],
)
def test_the_warning_reaches_any_training_of_trees(
    words: tuple[str, ...], status_folder: str, saved: str, tmp_path: Path
) -> None:
    """The job would wait for a status in another folder until its time limit, and the trees since the last checkpoint
    would be lost."""
    (tmp_path / "run").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "run")
    (tmp_path / "search.yaml").write_text("search: {trials: 5}\n")
    body = f"""
cd {tmp_path}
mkdir -p {status_folder}
echo running >{status_folder}/status
trap "echo preempted >{status_folder}/status; mkdir -p {Path(saved).parent}; touch {saved}; exit 75" USR1
kill -USR1 $PPID
for _ in {{1..30}}; do sleep 0.1; done
exit 1
"""
    arguments = [word.format(tmp_path) for word in words]
    done = as_a_job(tmp_path, "train_tree_models.slurm", "data=prepared", *arguments, srun=body)
    assert (done.returncode, "preempted by a signal, saved: requeued" in done.stderr) == (75, True), done.stderr


def test_arguments_beside_those_of_a_fit_are_used(tmp_path: Path) -> None:
    """A setting given with fit=… would be ignored in silence."""
    (tmp_path / "network.words").write_text(f"--recipe\ntable\nseed=3\nout={tmp_path}/tabm\n")
    done = as_a_job(tmp_path, "train_cpu.slurm", f"fit={tmp_path}", "max_epochs=2", "seed=4")
    assert done.returncode == 0, done.stderr
    assert f"train.py --recipe table seed=3 out={tmp_path}/tabm max_epochs=2 seed=4 --resume auto\n" in done.stdout
    (tmp_path / "network.words").write_text("")
    (tmp_path / "empty").mkdir()
    done = as_a_job(tmp_path / "empty", "train_cpu.slurm", f"fit={tmp_path}", "max_epochs=2")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "no neural member is planned" in done.stderr


DONE_THEN_WARNED = "mkdir -p {out}; echo done >{out}/status; kill -USR1 $PPID; sleep 1; exit 1"


@pytest.mark.parametrize(
    ("srun", "restarts", "code", "words"),
    [
        ("exit 137", 0, 75, "lost: a process was killed before the training started: requeued"),
        ("exit 1", 0, 1, "failed with exit code 1"),
        ("exit 1", 1, 75, "lost: a process was killed before the training started: requeued"),
        (
            DONE_THEN_WARNED,
            0,
            75,
            "lost: the warning signal came when nothing could be saved, before or after the training: requeued",
        ),
        (STARTED, 2, 75, "lost: a process ended without a message, as when it runs out of memory: requeued"),
        (STARTED, 3, 1, "failed: lost again after the MAX_RESTARTS=3 restarts"),
    ],
)
def test_a_job_is_requeued_whenever_its_processes_end(
    srun: str, restarts: int, code: int, words: str, tmp_path: Path
) -> None:
    """A rank that is killed while it starts or predicts would end the job for good; without a log file, any lost rank."""
    out = tmp_path / "run"
    variables = {"SLURM_RESTART_COUNT": str(restarts), "MAX_RESTARTS": "3"}
    done = as_a_job(tmp_path, "train_cpu.slurm", "data=prepared", f"out={out}", srun=srun.format(out=out), **variables)
    assert (done.returncode, words in done.stderr) == (code, True), done.stderr


def test_losses_are_counted_whatever_the_name_of_the_job(tmp_path: Path) -> None:
    """A job whose name is like an option of grep would be requeued for ever."""
    words, srun = ("train_cpu.slurm", "data=prepared", f"out={tmp_path}/run"), STARTED.format(out=tmp_path / "run")
    with (tmp_path / "job.log").open("a+", encoding="utf-8") as log:
        done = as_a_job(tmp_path, *words, srun=srun, log=log, SLURM_JOB_NAME="-v", MAX_RESTARTS="0")
    assert (done.returncode, "failed: lost again after" in (tmp_path / "job.log").read_text()) == (1, True)


def test_a_user_error_is_not_requeued_when_the_status_is_running(tmp_path: Path) -> None:
    """A job whose out another job is using, or whose disk is full, would be requeued as lost, with the same error."""
    error = "error: another command is training in run: choose another out=…"
    srun, out = f"echo {error} >&2; {STARTED.format(out=tmp_path / 'run')}", f"out={tmp_path}/run"
    with (tmp_path / "job.log").open("a+", encoding="utf-8") as log:
        done = as_a_job(tmp_path, "train_cpu.slurm", "data=prepared", out, srun=srun, log=log, MAX_RESTARTS="3")
        log.seek(0)
        assert (done.returncode, log.readlines()[-1]) == (2, f"job 7: failed with exit code 2: {error}\n")


def test_a_lost_job_says_so_while_slurm_ends_it(tmp_path: Path) -> None:
    """After a node failure Slurm sends SIGTERM to all processes of the job, and its log would end with `failed`."""
    for name in ("stat", "head", "sed"):
        (tmp_path / name).write_text(f'#!/bin/bash\nkill -TERM $$\nexec {shutil.which(name)} "$@"\n')
        (tmp_path / name).chmod(0o755)
    out = tmp_path / "run"
    lost = f"mkdir -p {out}; printf 'lost\\nrank 1 died\\n' >{out}/status; exit 1"
    done = as_a_job(tmp_path, "train_cpu.slurm", "data=prepared", f"out={out}", srun=lost, MAX_RESTARTS="3")
    assert (done.returncode, "lost: rank 1 died: requeued" in done.stderr) == (75, True), done.stderr


@pytest.mark.parametrize("code", [1, 143])
def test_a_job_that_slurm_ends_before_its_training_starts_has_not_failed(code: int, tmp_path: Path) -> None:
    """Its log would end with `failed`, or early preemptions would count as losses, until the job ends for good."""
    cancelled = f'kill -TERM "$PPID"; exit {code}'
    words = ("train_cpu.slurm", "data=prepared", f"out={tmp_path}/run")
    done = as_a_job(tmp_path, *words, srun=cancelled, SLURM_RESTART_COUNT="3", MAX_RESTARTS="3")
    assert done.returncode == 75
    assert done.stderr.splitlines()[-1].startswith("job 7: ended by SIGTERM; Slurm ended the job, and restarts it unless")


def test_a_job_that_does_not_train_is_requeued_when_its_step_is_preempted(tmp_path: Path) -> None:
    """Slurm would end it for good if it sends SIGTERM to the step first, as with a GraceTime."""
    done = as_a_job(tmp_path, "report.slurm", "data=prepared", f"out={tmp_path}", srun="exit 143")
    assert done.returncode == 75
    assert "a process was ended by SIGTERM: requeued" in done.stderr
    (tmp_path / "again").mkdir()
    words = ("report.slurm", "data=prepared", f"out={tmp_path}")
    done = as_a_job(tmp_path / "again", *words, srun="exit 143", SLURM_RESTART_COUNT="3", MAX_RESTARTS="3")
    assert (done.returncode, "failed with exit code 143" in done.stderr) == (143, True), "it would be requeued for ever"
    (tmp_path / "prepare").mkdir()
    done = as_a_job(tmp_path / "prepare", "prepare_data.slurm", "a.jsonl", "b.jsonl", srun="exit 143", **array_of(1))
    assert (done.returncode, done.stderr.count("requeued")) == (75, 1), "the other category begins in a requeued job"


def test_no_argument_of_the_ensemble_or_the_report_is_ignored(tmp_path: Path) -> None:
    """A wrong combiner, or a file for the report that does not exist, would end with 0, and without any effect."""
    (member := tmp_path / "lr=0.1/mine").mkdir(parents=True)
    words = ("data=prepared", f"out={tmp_path}")
    done = as_a_job(tmp_path, "ensemble.slurm", *words, "combiner=equal", f"{member}/", f"{member.parent}/misspelt")
    first, second, *_, last = done.stdout.splitlines()
    assert f"predict.py member={member} data=prepared " in first, "a member, though its path has a ="
    assert last.endswith(f"out={tmp_path}/ensemble overwrite=true combiner=equal")
    assert f"predict.py member={member.parent}/misspelt " in second, "no setting of the fit, which would end with its error"
    assert len(done.stdout.splitlines()) == 4, "two members, the baselines, the ensemble"
    (tmp_path / "report").mkdir()
    done = as_a_job(tmp_path / "report", "report.slurm", *words, "scaling=[a.json]")
    assert done.stdout.endswith(f"out={tmp_path}/report.html scaling=[a.json]\n"), done.stderr


def test_another_environment_than_that_of_the_site_is_not_used(tmp_path: Path) -> None:
    """With a wrong PYTHON_ENVIRONMENT a job would use the environment that is active where it was submitted, or its error
    would name a command of make that does not exist."""
    words = ("train_cpu.slurm", "data=prepared", f"out={tmp_path}/run")
    done = as_a_job(tmp_path, *words, PYTHON_ENVIRONMENT=str(tmp_path / "absent"))
    assert (done.returncode, done.stdout) == (2, "")
    assert f"PYTHON_ENVIRONMENT={tmp_path}/absent has no Python with this project" in done.stderr
    advice = done.stderr.split("`")[1].split()
    made = subprocess.run([*advice, "--dry-run"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert f"-m venv {tmp_path}/absent" in made.stdout


def test_an_array_with_gaps_does_not_fit_a_part_of_the_copies(tmp_path: Path) -> None:
    """The first task would train its part of the copies for hours, and the second end with an error."""
    done = as_a_job(tmp_path, "fit.slurm", "--stage", "copies", f"out={tmp_path}/fit", **array_of(2, step=2))
    assert (done.returncode, done.stdout) == (2, "")
    assert "--array must have no gaps" in done.stderr


def test_a_time_limit_of_a_fit_is_refused(tmp_path: Path) -> None:
    """It would be ignored in silence, and the fit would take hours."""
    done = as_a_job(tmp_path, "fit.slurm", "time_limit=60", f"out={tmp_path}/fit", **array_of(1))
    assert (done.returncode, "error: time_limit=60 would have no effect" in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize("script", ["fit.slurm", "prepare_data.slurm"])
def test_a_percent_sign_in_the_name_of_a_column_is_kept(script: str, tmp_path: Path) -> None:
    """These jobs are always arrays, and `%alcohol` would become `0lcohol`, which is no column of the table."""
    words = ("--recipe", "table", "drop=[%alcohol]", f"out={tmp_path}/fit")
    done = as_a_job(tmp_path, script, *words, **array_of(1))
    assert (done.returncode, " drop=[%alcohol] " in done.stdout) == (0, True), done.stderr + done.stdout


def test_a_job_that_a_task_of_an_array_submits_is_no_task(tmp_path: Path) -> None:
    """It would requeue the task that submitted it, and itself fail."""
    words = ("train_cpu.slurm", "data=prepared", f"out={tmp_path}/%a")
    for number, (job, folder) in enumerate({"JobId=9": "%a", "JobId=9 ArrayJobId=7": "0"}.items()):
        (tmp_path / f"programs{number}").mkdir()
        done = as_a_job(tmp_path / f"programs{number}", *words, job=job, **array_of(1))
        assert f"out={tmp_path}/{folder} " in done.stdout, done.stderr


def test_data_in_a_file_of_settings_are_not_copied_to_the_nodes(tmp_path: Path) -> None:
    """The error would name a setting of another script."""
    words = ("train_cpu.slurm", f"out={tmp_path}/run", "--config", "settings.yaml")
    done = as_a_job(tmp_path, *words, SCRATCH_FOLDER=str(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    assert "with SCRATCH_FOLDER, data=FOLDER must be an argument of the job" in done.stderr


def test_a_whole_fit_needs_the_job_of_a_network() -> None:
    """Tree models would be trained in the folder of the network, and the ensemble fitted without a network."""
    command = ["bash", ROOT / "slurm/submit_all.sh", "runs/fit", "train_tree_models.slurm", "target=y"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: 'train_tree_models.slurm' is none of train_cpu.slurm train_multi_gpu.slurm ")
    assert "train_tree_models.slurm" not in done.stderr.partition(" is none of ")[2]


def test_a_job_whose_log_cannot_be_written_is_not_submitted(tmp_path: Path) -> None:
    """In a checkout of another user, or without slurm/logs, Slurm would accept the job, and end it without a log."""
    shutil.copytree(ROOT / "slurm", tmp_path / "slurm", ignore=shutil.ignore_patterns("logs", "results"))
    assert submitted(tmp_path, "slurm/report.slurm", tmp_path).stdout == "slurm/report.slurm\n"
    (tmp_path / "slurm/logs").rmdir()  # `sbatch` had created it
    (tmp_path / "slurm/logs").touch()
    for words in ("slurm/report.slurm", "slurm/report.slurm --output=no_option_of_sbatch"):
        done = submitted(tmp_path, words, tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert "error: slurm/logs cannot be written" in done.stderr
    for words, output in (("--output=a.out", ""), ("-o a.out", ""), ("", "a.out")):
        done = submitted(tmp_path, f"{words} slurm/report.slurm", tmp_path, SBATCH_OUTPUT=output)
        assert done.stdout == f"{words} slurm/report.slurm\n".lstrip(), done.stderr


@pytest.mark.parametrize(
    ("words", "given"),
    [
        ("-G a100:2", "--gpus=a100:2"),
        ("--gpus-per-node 2", "--gpus-per-node=a100:2"),
        ("--gpus-per-node h100:2", "--gpus-per-node=h100:2"),
        ("--gres gpu:a100:2", "--gres=gpu:a100:2"),
        ("--gres=gpu:0", "--gres=gpu:0"),
        ("--gres gpu:2", ""),
        ("-G2", ""),
        ("--gpus-per-task=1", ""),
    ],
)
def test_a_kind_of_gpu_is_added_or_required(words: str, given: str, tmp_path: Path) -> None:
    """A job would get GPUs of another kind than GPU_KIND, or one that names a kind would be refused."""
    done = submitted(tmp_path, f"{words} slurm/doctor.slurm -G 1", ROOT, GPU_KIND="a100")
    if given:
        assert (done.returncode, done.stdout) == (0, f"{given} slurm/doctor.slurm -G 1\n"), done.stderr
    else:
        assert (done.returncode, done.stdout) == (2, "")
        assert "does not name a kind of GPU" in done.stderr
