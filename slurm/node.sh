#!/bin/bash
# Runs a command on one node of a job, started by srun; determines rank, number of threads and network interface.
#
#     srun --ntasks-per-node=1 bash slurm/node.sh accelerate_configs/multi_node.yaml scripts/train.py …   # the YAML's ranks
#     srun --ntasks-per-node=1 bash slurm/node.sh scripts/train_trees.py …                                # one process
#
# MASTER_ADDR and MASTER_PORT come from job.sh. The number of ranks on the node is RANKS_PER_NODE, else with a YAML for GPUs the
# number of allocated GPUs, else that of the YAML.

set -euo pipefail

fail() {
  echo "error: $(hostname): $*" >&2
  exit 2
}

# A host's own name is often a loopback address, with which Gloo fails: use the interface with a route to the other nodes
if [ "$SLURM_STEP_NUM_NODES" -gt 1 ]; then
  if [ "$SLURM_NODEID" = 0 ]; then
    interface=$(ip -oneline -4 address | awk -v head="$MASTER_ADDR" '{split($4, part, "/")} part[1] == head && !n++ {print $2}')
  else
    interface=$(ip route get "$MASTER_ADDR" | sed -n 's/.* dev \([^ ]*\).*/\1/p')
  fi
fi
if [[ $1 != *.@(yaml|yml) ]] && [ "$SLURM_STEP_NUM_NODES" = 1 ]; then # one process does not communicate
  unset GLOO_SOCKET_IFNAME NCCL_SOCKET_IFNAME
fi
for variable in GLOO_SOCKET_IFNAME NCCL_SOCKET_IFNAME; do
  name=${!variable:-${interface-}}
  [ -n "$name" ] || continue
  command -v ip >/dev/null || fail "there is no program \`ip\`, which lists the network interfaces: install iproute2"
  known=$(ip -brief link | sed 's/[@ ].*//')
  if [ "$variable" = GLOO_SOCKET_IFNAME ]; then pattern="^$name\$"; else pattern="^$name"; fi
  # NCCL accepts the beginning of a name, and also lists and patterns
  [[ $name == *[=^,]* ]] || grep -q "$pattern" <<<"$known" ||
    fail "slurm/site.sh: there is no interface $variable=$name: this host has ${known//$'\n'/ }"
  export "$variable=$name"
done

export MASTER_ADDR MASTER_PORT
# Slurm signals all processes of a step: the launcher must stay alive while its ranks save
export PET_SIGNALS_TO_HANDLE=SIGTERM,SIGINT,SIGUSR1
# The launcher kills ranks that have not ended so many seconds after a signal; --signal comes 120 s before the time limit
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=${TORCH_ELASTIC_SHUTDOWN_TIMEOUT:-110}

if [[ $1 != *.@(yaml|yml) ]]; then
  export RANK=$SLURM_NODEID WORLD_SIZE=$SLURM_STEP_NUM_NODES
  export OMP_NUM_THREADS=${OMP_NUM_THREADS:-${SLURM_CPUS_PER_TASK:-1}}
  exec python "$@"
fi

config=$1
shift
[ -f "$config" ] || fail "the file $config of Accelerate's settings does not exist: check ACCELERATE_CONFIG"
yaml_value() { # the value of a key of the YAML, without comment and quotes, in lower case; empty for null
  local value
  value=$(sed -n "/^$1:/ {s/^[^:]*://; s/[[:space:]]#.*//; s/[\"'[:space:]]//g; p}" "$config")
  case ${value,,} in null | "~") ;; *) echo "${value,,}" ;; esac
}
processes=$(yaml_value num_processes) machines=$(yaml_value num_machines)
ranks=$((${processes:-1} / ${machines:-1}))
[ "$(yaml_value use_cpu)" = true ] || ranks=${SLURM_GPUS_ON_NODE:-$ranks}
ranks=${RANKS_PER_NODE:-$ranks}
[[ $ranks =~ ^[1-9][0-9]*$ ]] ||
  fail "there must be at least 1 rank on a node, not $ranks: correct RANKS_PER_NODE, or num_processes in $config"
if [ "$(yaml_value distributed_type)" = no ] && [ "$SLURM_STEP_NUM_NODES" = 1 ] && [ "$ranks" -gt 1 ]; then
  [ "${RANKS_PER_NODE:-1}" = 1 ] ||
    fail "$config starts one process, not RANKS_PER_NODE=$RANKS_PER_NODE: choose multi_gpu.yaml or multi_cpu.yaml"
  echo "warning: $config starts one process, which uses one of the $ranks GPUs: choose multi_gpu.yaml for all" >&2
  ranks=1
fi
# accelerate would use one thread for a GPU rank, and all cores of the machine for a CPU rank
cores=${SLURM_CPUS_PER_TASK:-1}
[ "$ranks" -le "$cores" ] || echo "warning: $ranks ranks share $cores cores of this node: give --cpus-per-task=$ranks or more" >&2
threads=$((ranks < cores ? cores / ranks : 1))
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$threads}
[[ $OMP_NUM_THREADS =~ ^[1-9][0-9]*$ ]] || fail "OMP_NUM_THREADS=$OMP_NUM_THREADS is not a number of threads: unset this variable"
[ "$OMP_NUM_THREADS" = "$threads" ] ||
  echo "warning: each rank has $threads cores, and OMP_NUM_THREADS=$OMP_NUM_THREADS: unset this variable to use a thread per core" >&2

machine_options=()
if [ "$SLURM_STEP_NUM_NODES" -gt 1 ] || [ "$(yaml_value distributed_type)" != no ]; then
  machine_options=(--num_machines "$SLURM_STEP_NUM_NODES" --num_processes "$((SLURM_STEP_NUM_NODES * ranks))"
    --machine_rank "$SLURM_NODEID" --main_process_ip "$MASTER_ADDR" --main_process_port "$MASTER_PORT" --same_network)
fi
[ "$(yaml_value distributed_type)" != no ] || trap '' USR1 TERM # they would kill this launcher; its rank has its own handlers
# `accelerate launch` does the same, but imports all its other commands first
exec accelerate-launch --quiet --config_file "$config" "${machine_options[@]}" "$@"
