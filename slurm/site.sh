# shellcheck shell=bash
# Settings of your cluster: the only file here to edit. Every job reads it. An empty partition, account or GPU kind means
# Slurm's default.
#
#     source slurm/site.sh      # in a shell (bash, zsh): from then on sbatch uses partition, account and kind of GPU
#     sbatch slurm/train_multi_node.slurm data=runs/demo/prepared out=runs/demo/members/transformer
#
# An environment variable overrides the value below:  PARTITION=debug sbatch …
# Two example profiles follow. `python scripts/doctor.py` lists the interfaces, GPUs and cores of a machine.

: "${PARTITION=}"           # jobs with GPUs; `sinfo -s` lists the partitions
: "${CPU_PARTITION=}"       # jobs without GPUs; empty: PARTITION
: "${ACCOUNT=}"             # the account to charge; `sacctmgr show associations user=$USER format=account`
: "${GPU_KIND=}"            # a100, h100, …, if a partition has several; `sinfo -o '%P %G'`
: "${MODULES=}"             # for `module load`; PyTorch's wheels contain CUDA and NCCL, so a module with Python is enough
: "${PYTHON_ENVIRONMENT=.venv}" # the virtual environment with the packages, on a shared file system
: "${SCRATCH_FOLDER=}"      # a folder on the node's local disk, to which prepared data are copied first; empty: no copy
: "${GPU_HOUR_PRICE=0}"     # the price of a GPU hour, for the table of `scaling`; 0: no cost in the table
: "${MAX_RESTARTS=3}"       # how often a job is requeued after the loss of a rank or node; preemptions do not count

# The network interface between nodes. Empty: the one with the route to the other nodes, which is right unless the names of
# nodes resolve to a slow network. A job of several processes ends with an error if a node has no interface of this name.
: "${GLOO_SOCKET_IFNAME=}"  # CPU ranks
: "${NCCL_SOCKET_IFNAME=}"  # GPU ranks: for the set-up of connections; with InfiniBand, NCCL then uses RDMA

# Profile: A100 nodes, InfiniBand            Profile: a laptop or workstation with Slurm on one node
#   PARTITION=gpu                              PARTITION=
#   CPU_PARTITION=cpu                          CPU_PARTITION=
#   ACCOUNT=my_project                         ACCOUNT=
#   GPU_KIND=a100                              GPU_KIND=
#   MODULES="python/3.11"                      MODULES=
#   SCRATCH_FOLDER=/local/scratch              SCRATCH_FOLDER=       (the disk is local already)
#   NCCL_SOCKET_IFNAME=ib0                     NCCL_SOCKET_IFNAME=   (one node uses shared memory and NVLink)
#   GLOO_SOCKET_IFNAME=ib0                     GLOO_SOCKET_IFNAME=

# ---- nothing to edit below ----

# sbatch for the .slurm files here, with the partition, account and kind of GPU above; options on the command line override
# them. It runs in a new bash, which reads the present version of this file
sbatch() {
  if [ -f slurm/site.sh ]; then
    bash -c 'source slurm/site.sh >&2 && submit "$@"' sbatch "$@" # only the job's id is output
  else
    echo "error: there is no slurm/site.sh here: call sbatch in the project's folder" >&2
    return 2
  fi
}

submit() {
  local word file='' gpus='' output=${SBATCH_OUTPUT:-} partition known words=() options=() untyped='' option='' moved=''
  for word in "$@"; do
    if [ -n "$option" ]; then
      word="$option=$word" option=''
    elif [[ -z $file && $word =~ ^(-G|--gres|--gpus|--gpus-per-(node|task|socket))$ ]]; then # its value is the next word
      option=${word/#-G/--gpus}
      continue
    fi
    case $word in
      *.slurm) [ -n "$file" ] || file=$word ;;
      --gpus* | --gres* | -G*) [ -n "$file" ] || gpus=$word ;;
      --chdir* | -D*) [ -n "$file" ] || moved=$word ;;
      --output* | -o*) [ -n "$file" ] || output=$word ;;
    esac
    if [ -n "$GPU_KIND" ] && [ -z "$file" ]; then
      case $word in
        --gres=gpu:*:* | --gpus*=*:* | -G*:* | --gres=gpu:0 | --gpus*=0 | -G0) ;;
        --gpus-per-node=*) word="--gpus-per-node=$GPU_KIND:${word#*=}" ;;
        --gres=gpu* | --gpus* | -G*) untyped=$word ;;
      esac
    fi
    words+=("$word")
  done
  if [ -z "$file" ]; then # no .slurm file
    command sbatch "$@"
    return
  fi
  if [ -n "$moved" ]; then
    echo "error: $moved: the job must run in the project's folder: leave this option out" >&2
    return 2
  fi
  if [ -n "$untyped" ]; then
    echo "error: $untyped does not name a kind of GPU: write --gpus-per-node=N (the kind is added), or $GPU_KIND:N for N" >&2
    return 2
  fi
  if [ -z "$output" ] && ! { mkdir -p slurm/logs && [ -w slurm/logs ]; } 2>/dev/null; then
    echo "error: slurm/logs cannot be written, and Slurm would end the job without a log: give --output=FOLDER/%x-%A_%a.out" \
      "or the variable SBATCH_OUTPUT" >&2
    return 2
  fi
  output=${output#--output=} output=${output#-o}
  if [[ ${output%/*} != *%* && $output == [!/]*/* && ! -d ${output%/*} ]]; then # an absolute one may exist on the nodes only
    echo "error: there is no folder ${output%/*}, and Slurm would end the job without a log: create it" >&2
    return 2
  fi
  partition=$PARTITION
  if grep -q '^#SBATCH --gpus-per-node' "$file"; then
    gpus=$(sed -n 's/^#SBATCH --gpus-per-node=//p' "$file")
    [ -z "$GPU_KIND" ] || options+=("--gpus-per-node=$GPU_KIND:$gpus")
  elif [ -z "$gpus" ]; then
    partition=${CPU_PARTITION:-$PARTITION}
  fi
  if [ -n "$partition" ]; then
    known=$(sinfo --all --noheader --format=%R | sort -u | paste -sd ' ' -)
    for word in ${known:+${partition//,/ }}; do # none if sinfo fails: then sbatch fails too
      case " $known " in *" $word "*) continue ;; esac
      echo "error: slurm/site.sh names the partition '$word', which this cluster does not have: choose from $known" >&2
      return 2
    done
    options+=("--partition=$partition")
  fi
  [ -z "$ACCOUNT" ] || options+=("--account=$ACCOUNT")
  command sbatch "${options[@]}" "${words[@]}" # not by SBATCH_… variables, which the job would pass on to jobs that it submits
}
