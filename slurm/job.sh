# shellcheck shell=bash
# Functions shared by the .slurm files; sourced on the first node of a job, in the project's folder.
#
#     "${on_nodes[@]}" COMMAND…  run a command on each node of the job
#     run FILE.sh ARGUMENTS…     run a script of this folder on each node; if it fails, the job ends with its exit code
#     stage ARGUMENTS…           copy the prepared data to the local disks of the nodes; sets `words` to the arguments with
#                                the new data=…
#     no_gaps                    end the job with an error if its --array has gaps
#     one_node                   end the job with an error if it has several nodes
#     train FOLDER SCRIPT…       run a script that can resume and that writes its `status` to FOLDER; forward Slurm's warning
#                                signal to it, and requeue the job if the run can continue
#
# The argument fit=FOLDER is replaced by the arguments that `scripts/fit.py --stage prepare` wrote there for the neural member.
# %a in an argument is replaced by the array index, as in --output: --array=0-4 … data=P/folds/%a out=BAG/%a trains a bag.
# Not in fit.slurm and prepare_data.slurm, whose arguments may contain names of columns.
# Exit codes of a job: 0 done, 1 failed, 2 user error, 75 preempted.

set -uo pipefail
[ -n "${SLURM_JOB_ID:-}" ] || {
  echo "error: $0 is the script of a job: submit it by sbatch" >&2
  exit 2
}
source slurm/site.sh
export GLOO_SOCKET_IFNAME NCCL_SOCKET_IFNAME
# The shell of another job, or --export=NONE, may have set these, which would override the resources of this job
unset SLURM_EXPORT_ENV SLURM_CPU_BIND SLURM_GPUS SLURM_GPUS_PER_NODE SLURM_GPUS_PER_TASK \
  SLURM_MEM_PER_CPU SLURM_MEM_PER_GPU SLURM_MEM_PER_NODE
# A job that a task of an array submitted has inherited the variables of that task
if [ -n "${SLURM_ARRAY_JOB_ID:-}" ] && facts=$(scontrol show job "$SLURM_JOB_ID") && [[ $facts != *ArrayJobId=* ]]; then
  unset "${!SLURM_ARRAY_@}"
fi
# For an array, the id of this task: the plain job id may denote all tasks
job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
job=${job:-$SLURM_JOB_ID}

[ -z "${SLURM_ARRAY_TASK_ID:-}" ] || set -- "${@//%a/$SLURM_ARRAY_TASK_ID}"

say() { echo "$SLURM_JOB_NAME $SLURM_JOB_ID: $*" >&2; }

fail() {
  say "error: $*"
  exit 2
}

[[ ${ACCELERATE_CONFIG:-.yaml} == *.@(yaml|yml) ]] ||
  fail "ACCELERATE_CONFIG=$ACCELERATE_CONFIG must end in .yaml or .yml: name a file of accelerate_configs/"
[[ $MAX_RESTARTS =~ ^[0-9]+$ ]] || fail "slurm/site.sh: MAX_RESTARTS=$MAX_RESTARTS is not a whole number of 0 or more"

step= # the process id of the srun that runs the training
signalled=
finished= # a member that was finished after the warning signal
requeued= # not empty once Slurm ends or has requeued the job: it accepts no further steps then
# Slurm sends its warning before the time limit (USR1) to this shell only, and SIGTERM (requeue, cancel) to the ranks too
trap 'signalled=USR1; [ -z "$step" ] || warn' USR1
trap 'signalled=TERM' TERM

for variable in PYTHON_ENVIRONMENT SCRATCH_FOLDER; do
  [[ ${!variable} != \~* ]] ||
    fail "slurm/site.sh: $variable=${!variable} begins with ~, which is not expanded in quotes: write \$HOME"
done
if [ -n "$MODULES" ]; then
  # shellcheck disable=SC2086  # several words
  module load $MODULES || fail "slurm/site.sh: MODULES='$MODULES' cannot be loaded: \`module avail\` lists the available ones"
fi
PATH="$(realpath "$PYTHON_ENVIRONMENT")/bin:$PATH:/usr/sbin:/sbin"
# Otherwise the environment that was activated at the submission would be used. Importing accelerate would take seconds
(
  trap "" TERM # or a job that Slurm ends in this moment would have a wrong error as its last line
  [ -x "$PYTHON_ENVIRONMENT/bin/python" ] && python -c 'import ensemble, importlib.metadata; importlib.metadata.version("accelerate")'
) ||
  fail "slurm/site.sh: PYTHON_ENVIRONMENT=$PYTHON_ENVIRONMENT has no Python with this project:" \
    "\`make VENV=$PYTHON_ENVIRONMENT $PYTHON_ENVIRONMENT/installed\` creates it"

# Since Slurm 22.05, srun does not inherit this from sbatch, and a task with many threads would get one core
export SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK:-1}"

# Ranks meet on this node, at the address from which it reaches the second node. The port is the first unused one from a number
# that depends on the job id, below the range of the kernel's ephemeral ports
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
MASTER_ADDR=127.0.0.1
if [ "${#nodes[@]}" -gt 1 ]; then
  command -v ip >/dev/null || fail "$(hostname) has no program \`ip\`, which finds the address of this node: install iproute2"
  second=$(getent ahostsv4 "${nodes[1]}" | awk 'NR == 1 {print $1}')
  [ -n "$second" ] || fail "$(hostname) cannot resolve ${nodes[1]}: add the names of all nodes to DNS or /etc/hosts"
  MASTER_ADDR=$(ip route get "$second" | sed -n 's/.* src \([^ ]*\).*/\1/p')
fi
MASTER_PORT=$((10000 + SLURM_JOB_ID * 64 % 20000))
while (: <"/dev/tcp/$MASTER_ADDR/$MASTER_PORT") 2>/dev/null; do MASTER_PORT=$((MASTER_PORT + 1)); done
export MASTER_ADDR MASTER_PORT

# An array, not a function: in the background srun itself must receive signals
on_nodes=(srun --kill-on-bad-exit=1 --ntasks="${#nodes[@]}" --ntasks-per-node=1)

run() {
  local code=0
  "${on_nodes[@]}" bash "$@" || code=$?
  [ "$code" = 0 ] || {
    [ "$signalled" != TERM ] || {
      requeue "ended by SIGTERM"
      exit 75
    }
    [ "$code" != 143 ] || [ "${SLURM_RESTART_COUNT:-0}" -ge "$MAX_RESTARTS" ] || requeue "a process was ended by SIGTERM"
    say "failed with exit code $code: see the lines above"
    exit "$code"
  }
}

# The value of an argument such as out=FOLDER; the last one if there are several
value() {
  local name=$1 result='' word
  shift
  for word in "$@"; do
    case $word in "$name="*) result=${word#*=} ;; esac
  done
  echo "$result"
}

no_gaps() {
  [ -n "${SLURM_ARRAY_TASK_ID:-}" ] || fail "there is no SLURM_ARRAY_TASK_ID, which only sbatch sets: submit this job by sbatch"
  # shellcheck disable=SC2153  # set by Slurm
  [ "$((SLURM_ARRAY_TASK_MAX - SLURM_ARRAY_TASK_MIN))" -lt "$SLURM_ARRAY_TASK_COUNT" ] ||
    fail "--array must have no gaps, since its tasks divide the work: give --array=0-N"
}

one_node() {
  [ "${#nodes[@]}" = 1 ] || fail "this job works on one node, and others would do the same work again: leave --nodes out"
}

if [ -n "$(value fit "$@")" ]; then
  planned=$(value fit "$@")/network.words
  [ -f "$planned" ] || fail "$planned does not exist: submit slurm/fit.slurm --stage prepare first"
  mapfile -t words <"$planned"
  [ "${#words[@]}" -gt 0 ] || {
    say "done: no neural member is planned"
    exit 0
  }
  for word in "$@"; do [[ $word == fit=* ]] || words+=("$word"); done
  set -- "${words[@]}"
fi

# Sets `recipe` to the option --recipe NAME among the arguments, or to nothing, and `words` to the other arguments, of which
# --config FILE becomes one word
# shellcheck disable=SC2034  # used by the .slurm files
take_recipe() {
  recipe=() words=()
  while [ $# -gt 0 ]; do
    case $1 in
      --recipe | --config)
        [ $# -gt 1 ] || fail "$1 needs a value after it"
        if [ "$1" = --recipe ]; then recipe=(--recipe "$2"); else words+=("--config=$2"); fi
        shift
        ;;
      --recipe=*) recipe=("$1") ;;
      *) words+=("$1") ;;
    esac
    shift
  done
}

stage() {
  local staging
  words=("$@")
  [ -n "$SCRATCH_FOLDER" ] || return 0
  [ -n "$(value data "$@")" ] || fail "with SCRATCH_FOLDER, data=FOLDER must be an argument of the job, not in a file of settings"
  staging="$SCRATCH_FOLDER/accelerate-ensemble-$(id -un)"
  # shellcheck disable=SC2064  # expand the folder now
  trap "[ -n \"\$requeued\" ] || ${on_nodes[*]} rm -rf '$staging/$SLURM_JOB_ID'" EXIT
  run slurm/stage.sh "$SCRATCH_FOLDER" "$staging" "$(value data "$@")"
  words+=("data=$staging/$SLURM_JOB_ID/data")
}

# SIGTERM is ignored in the commands that determine the outcome: when Slurm ends a job, it sends it to all of its processes

# The inode and time of the file `status`. Each write creates a new inode, so clocks do not matter
stamp() { (trap "" TERM; stat --format="%i %y" "$status_folder/status" 2>/dev/null); }
# Whether the run has written its `status` since the stamp `before`
written() {
  local now
  now=$(stamp) && [ "$now" != "$before" ]
}

# What the run at out=… has saved: checkpoints, finished members and, of a search, the record of its trials
saved() {
  local out
  trap "" TERM # in a subshell, as all callers
  out=$(realpath -m "$1") # a link to the folder would not be searched
  find "$out" "$out".* \( -name manifest.json -o -name trials.journal \) -printf '%p %T@\n' 2>/dev/null | sort | sha256sum
}

# Forward the signal once the status is `running`: from then on the ranks handle it
warn() {
  until written || ! kill -0 "$step" 2>/dev/null; do sleep 1; done
  kill -USR1 "$step" 2>/dev/null
}

# The last line with this pattern that was logged since `train` started: the log of a requeued job also has older lines
logged() { [ ! -f "$log" ] || (trap "" TERM; tail -c "+$((log_size + 1))" "$log" | grep -aE "$1" | tail -n 1); }

train() {
  local status_folder=$1 log log_size=0 before saved_before code again status=failed reason second losses
  shift
  [ -n "$(value out "$@")" ] || fail "there is no argument out=FOLDER, which names where to write"
  [[ $(value out "$@") != \~* ]] || fail "out=$(value out "$@") begins with ~, which only shells expand: write the full path"
  case " $* " in # of two --resume the last one, of this script, would count
    *" --resume auto "* | *" --resume=auto "*) ;;
    *" --resume "* | *" --resume="*) fail "a job resumes by itself, from the newest checkpoint of out=: leave --resume out" ;;
  esac
  { mkdir -p "$(dirname "$status_folder")" && [ -w "$(dirname "$status_folder")" ]; } ||
    fail "$status_folder cannot be written: name another out=FOLDER"
  before=$(stamp)
  saved_before=$(saved "$(value out "$@")")
  log=$(readlink /proc/$$/fd/2) # the log file, whatever --output and --error are
  [ ! -f "$log" ] || log_size=$(wc -c <"$log")
  "${on_nodes[@]}" bash slurm/node.sh "$@" --resume auto &
  step=$!
  [ "$signalled" != USR1 ] || warn
  while :; do # a signal interrupts `wait`
    wait "$step"
    code=$?
    kill -0 "$step" 2>/dev/null || break
  done
  wait "$step"
  again=$?
  [ "$again" = 127 ] || code=$again # 127: the previous `wait` returned the exit code
  step=
  reason=$(logged '^(error|failed): ')
  if [ "$code" = 0 ]; then
    status="done"
  elif written; then
    status='' second=''
    { read -r status; read -r second; } <"$status_folder/status"
    reason=${second:-$reason}
    [ "$status" != running ] || [ -z "$(logged '^error: ')" ] || status=failed # of another command, or the disk was full
    [ "$status" != "done" ] || status=failed # what came after the training failed, such as the predictions of --predict
    if [ "$signalled" = USR1 ] && { [ "$status" = running ] || { [ "$status" = failed ] && [ -z "$(logged '^error: ')" ]; }; }; then
      status=lost reason="the warning signal came when nothing could be saved, before or after the training"
    fi
  elif [ "$signalled" = USR1 ]; then
    status=lost reason="the warning signal came before the training started"
  elif [ "$signalled" != TERM ] && [ -z "$(logged '^error: ')" ] &&
    { [ "$code" = 137 ] || [ "${SLURM_RESTART_COUNT:-0}" -gt 0 ] || [ -n "$(logged 'exitcode *: -9|Signal 9')" ]; }; then
    status=lost reason=${reason:-a process was killed before the training started}
  fi
  # Slurm has ended all processes, before the ranks handle signals: this is no loss, which would count for MAX_RESTARTS
  [ "$status" != failed ] || [ "$signalled" != TERM ] || [ -n "$(logged '^error: ')" ] || {
    requeue "ended by SIGTERM"
    exit 75
  }
  # Slurm may end the step of a job that it has just restarted after a node failure
  [ "$status" != failed ] || [ "$code" != 143 ] || status=lost reason="a process was ended by SIGTERM"
  case $status in
    "done") return ;;
    preempted)
      if [ "$signalled" = USR1 ] && [ -z "$finished" ] && [ "$(saved "$(value out "$@")")" = "$saved_before" ]; then
        say "failed: nothing new could be saved before the job's time limit, and a requeued job would get no further:" \
          "submit the same command with a longer --time"
        exit 1
      fi
      requeue "preempted by a signal, saved"
      exit 75
      ;;
    lost | running) # running: no rank was alive to set the status
      reason=${reason:-a process ended without a message, as when it runs out of memory}
      losses=${SLURM_RESTART_COUNT:-0} # without a log file, or if each start has another or empties it
      [ "$log_size" = 0 ] || losses=$(trap "" TERM; grep -acFe "$SLURM_JOB_NAME $SLURM_JOB_ID: lost" "$log")
      if [ "$losses" -ge "$MAX_RESTARTS" ]; then
        say "failed: lost again after the MAX_RESTARTS=$MAX_RESTARTS restarts: $reason"
      else
        requeue "lost: $reason"
      fi
      ;;
    *)
      [ -z "$(logged '^error: ')" ] || code=2 # the exit code of a launcher is 1 for any error of its ranks
      say "failed with exit code $code: ${reason:-see the lines above}"
      [ "$code" != 2 ] || exit 2
      ;;
  esac
  exit 1
}

# Requeue the job, which then continues from the last checkpoint by --resume auto; returns if it cannot be requeued
requeue() {
  if [ "$signalled" = TERM ]; then
    say "$*; Slurm ended the job, and restarts it unless it was cancelled or reached its time limit"
    requeued=yes
  # The answer may come after Slurm has sent SIGTERM to all processes of the job, scontrol among them
  elif (trap "" TERM; scontrol requeue "$job"); then
    say "$*: requeued"
    requeued=yes
    exit 75
  else
    say "$*, and this cluster does not requeue: submit the same command again to continue"
  fi
}
