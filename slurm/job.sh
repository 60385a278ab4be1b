# shellcheck shell=bash
# What the .slurm files share; sourced on a job's first node, in the project's folder.
#
#     "${on_nodes[@]}" COMMAND…  run a command on each node of the job
#     run FILE.sh WORDS…         a script of this folder on each node; the job ends with its code if it fails
#     stage WORDS…               copy the prepared data to the nodes' own disks; `words` are then those with the new data=…
#     train FOLDER SCRIPT…       run a script that resumes, with `status` in FOLDER: forward warnings, requeue what can go on
#
# The word fit=FOLDER stands for the words that `scripts/fit.py --stage prepare` wrote there for the neural member.
# A %a in a word is the number of the array's task, as in --output: --array=0-4 … data=P/folds/%a out=BAG/%a trains a bag.
# Exit codes of a job: 0 done, 1 failed, 2 a mistake that you can mend, 75 preempted.

set -uo pipefail
source slurm/site.sh
export GLOO_SOCKET_IFNAME NCCL_SOCKET_IFNAME
# Left by the shell of another job, or by --export=NONE, they would go over what this job was granted
unset SLURM_EXPORT_ENV SLURM_CPU_BIND SLURM_GPUS SLURM_GPUS_PER_NODE SLURM_GPUS_PER_TASK \
  SLURM_MEM_PER_CPU SLURM_MEM_PER_GPU SLURM_MEM_PER_NODE
# One task of an array: its bare id may mean all of them
job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
job=${job:-$SLURM_JOB_ID}

[ -z "${SLURM_ARRAY_TASK_ID:-}" ] || set -- "${@//%a/$SLURM_ARRAY_TASK_ID}"

say() { echo "$SLURM_JOB_NAME $SLURM_JOB_ID: $*" >&2; }

fail() {
  say "error: $*"
  exit 2
}

step= # the process id of the srun that trains
signalled=
# Slurm's warning, some time before the limit, comes to this shell only; SIGTERM (requeued, cancelled) comes to the ranks too
trap 'signalled=USR1; [ -z "$step" ] || warn' USR1
trap 'signalled=TERM' TERM

if [ -n "$MODULES" ]; then
  # shellcheck disable=SC2086  # several words
  module load $MODULES || fail "slurm/site.sh: MODULES='$MODULES' cannot be loaded: \`module avail\` lists what there is"
fi
PATH="$(realpath "$PYTHON_ENVIRONMENT")/bin:$PATH:/usr/sbin:/sbin"
python -c 'import ensemble, importlib.metadata; importlib.metadata.version("accelerate")' || # to load it takes seconds
  fail "slurm/site.sh: PYTHON_ENVIRONMENT=$PYTHON_ENVIRONMENT holds no Python with this project: \`make $PYTHON_ENVIRONMENT/installed\` makes it"

# Since Slurm 22.05, srun does not take this from sbatch by itself, and a task of many threads would get one core
export SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK:-1}"

# The head is this node, under the address by which it reaches the second. The port: one that nobody listens on, searched
# from a place of this job's own, below the range that the kernel takes ports from
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
MASTER_ADDR=127.0.0.1
if [ "${#nodes[@]}" -gt 1 ]; then
  second=$(getent ahostsv4 "${nodes[1]}" | awk 'NR == 1 {print $1}')
  [ -n "$second" ] || fail "$(hostname) cannot resolve ${nodes[1]}: the nodes need each other's names in DNS or /etc/hosts"
  MASTER_ADDR=$(ip route get "$second" | sed -n 's/.* src \([^ ]*\).*/\1/p')
fi
MASTER_PORT=$((10000 + SLURM_JOB_ID * 64 % 20000))
while (: <"/dev/tcp/$MASTER_ADDR/$MASTER_PORT") 2>/dev/null; do MASTER_PORT=$((MASTER_PORT + 1)); done
export MASTER_ADDR MASTER_PORT

# A command's words, not a function: in the background it must be srun itself that gets signals
on_nodes=(srun --kill-on-bad-exit=1 --ntasks="${#nodes[@]}" --ntasks-per-node=1)

run() {
  local code=0
  "${on_nodes[@]}" bash "$@" || code=$?
  [ "$code" = 0 ] || {
    say "failed with exit code $code: see the lines above"
    exit "$code"
  }
}

# The value of a word like out=FOLDER; the last one counts
value() {
  local name=$1 found='' word
  shift
  for word in "$@"; do
    case $word in "$name="*) found=${word#*=} ;; esac
  done
  echo "$found"
}

if [ -n "$(value fit "$@")" ]; then
  planned=$(value fit "$@")/network.words
  [ -f "$planned" ] || fail "$planned does not exist: submit slurm/fit.slurm --stage prepare first"
  mapfile -t words <"$planned"
  set -- "${words[@]}"
  [ $# -gt 0 ] || {
    say "done: no neural member is planned"
    exit 0
  }
fi

# `recipe` is then the option --recipe NAME of a job's words, or nothing, and `words` are the others
# shellcheck disable=SC2034  # the jobs use it
take_recipe() {
  recipe=() words=()
  while [ $# -gt 0 ]; do
    case $1 in
      --recipe)
        [ $# -gt 1 ] || fail "--recipe needs a name after it"
        recipe=(--recipe "$2")
        shift
        ;;
      --recipe=*) recipe=("$1") ;;
      *) words+=("$1") ;;
    esac
    shift
  done
}

stage() {
  local ours
  words=("$@")
  [ -n "$SCRATCH_FOLDER" ] || return 0
  ours="$SCRATCH_FOLDER/accelerate-ensemble-$(id -un)"
  # shellcheck disable=SC2064  # the folder of now
  trap "${on_nodes[*]} rm -rf '$ours/$SLURM_JOB_ID'" EXIT
  run slurm/stage.sh "$SCRATCH_FOLDER" "$ours" "$(value data "$@")"
  words+=("data=$ours/$SLURM_JOB_ID/data")
}

# Whether the run has written its `status` since `before`. Each writing is a new file, whatever the clocks of disk and node say
stamp() { stat --format="%i %y" "$about/status" 2>/dev/null; }
written() {
  local now
  now=$(stamp) && [ "$now" != "$before" ]
}

# The ranks hear a signal once the run has said that it is running
warn() {
  until written || ! kill -0 "$step" 2>/dev/null; do sleep 1; done
  kill -USR1 "$step" 2>/dev/null
}

# The last line of that beginning since `train` began: a job that was requeued has a longer log
said() { [ ! -f "$log" ] || tail -c "+$((log_size + 1))" "$log" | grep -aE "^($1): " | tail -n 1; }

train() {
  local about=$1 log log_size=0 before code again status=failed reason second losses
  shift
  [ -n "$(value out "$@")" ] || fail "there is no word out=FOLDER, which names where to write"
  { mkdir -p "$(dirname "$about")" && [ -w "$(dirname "$about")" ]; } ||
    fail "$about cannot be written: name another out=FOLDER"
  before=$(stamp)
  log=$(readlink /proc/$$/fd/2) # whatever --output and --error say
  [ ! -f "$log" ] || log_size=$(wc -c <"$log")
  "${on_nodes[@]}" bash slurm/node.sh "$@" --resume auto &
  step=$!
  [ "$signalled" != USR1 ] || warn
  while :; do # a signal ends `wait` before its time
    wait "$step"
    code=$?
    kill -0 "$step" 2>/dev/null || break
  done
  wait "$step"
  again=$?
  [ "$again" = 127 ] || code=$again # 127: its code was told already
  step=
  reason=$(said 'error|failed')
  if [ "$code" = 0 ]; then
    status="done"
  elif written; then
    status=$(head -n 1 "$about/status")
    second=$(sed -n 2p "$about/status")
    reason=${second:-$reason}
  elif [ "$signalled" = USR1 ]; then
    status=lost reason="the warning came before training began"
  fi
  # Slurm may end the step of a job that it has just begun again after a node failed
  [ "$status" != failed ] || [ "$code" != 143 ] || status=lost reason="a process was ended by SIGTERM"
  case $status in
    "done") return ;;
    preempted)
      requeue "preempted by a signal, saved"
      exit 75
      ;;
    lost | running) # running: no rank was left to say that one was lost
      reason=${reason:-a process ended without a word, as when memory is short}
      losses=$MAX_RESTARTS
      [ ! -f "$log" ] || losses=$(grep -acF "$SLURM_JOB_NAME $SLURM_JOB_ID: lost" "$log")
      if [ "$losses" -ge "$MAX_RESTARTS" ]; then
        say "failed: lost again after MAX_RESTARTS=$MAX_RESTARTS: $reason"
      else
        requeue "lost: $reason"
      fi
      ;;
    *)
      [ -z "$(said error)" ] || code=2 # a launcher leaves with 1 whatever its ranks left with
      say "failed with exit code $code: ${reason:-see the lines above}"
      [ "$code" != 2 ] || exit 2
      ;;
  esac
  exit 1
}

# The job begins again, and --resume auto goes on from the last checkpoint; returns if it does not
requeue() {
  if [ "$signalled" = TERM ]; then
    say "$*; Slurm ended the job, and begins it again unless it was cancelled or its time was up"
  elif scontrol requeue "$job"; then
    say "$*: requeued"
    exit 75
  else
    say "$*, and this cluster does not requeue: submit the same line again, and it goes on"
  fi
}
