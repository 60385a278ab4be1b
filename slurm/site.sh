# shellcheck shell=bash
# Your cluster: the only file here that you edit. Every script in slurm/ reads it; what is left empty is Slurm's own default.
#
#     source slurm/site.sh      # in a shell (bash, zsh): from then on sbatch knows partition, account and kind of GPU
#     sbatch slurm/train_multi_node.slurm data=runs/demo/prepared out=runs/demo/members/transformer
#
# A variable that is set already goes over the value below:  PARTITION=debug sbatch …
# Two profiles are at the end. `python scripts/doctor.py` says which interfaces, GPUs and cores a machine has.

: "${PARTITION=}"           # jobs with GPUs; `sinfo -s` lists the partitions
: "${CPU_PARTITION=}"       # jobs without; empty: the same one
: "${ACCOUNT=}"             # who pays; `sacctmgr show associations user=$USER format=account`
: "${GPU_KIND=}"            # a100, h100 …, where a partition has several; `sinfo -o '%P %G'`
: "${MODULES=}"             # for `module load`; PyTorch's wheels carry CUDA and NCCL, so a Python is all they need
: "${PYTHON_ENVIRONMENT=.venv}" # the virtual environment with the packages, on a file system that the nodes share
: "${SCRATCH_FOLDER=}"      # a disk of the node's own, to which prepared data is copied first; empty: read where it lies
: "${GPU_HOUR_PRICE=0}"     # what a GPU costs an hour, for the table of scaling; 0: cost is not told
: "${MAX_RESTARTS=3}"       # how often a job whose rank or node was lost begins again; preemptions do not count

# The network between nodes. Empty: the interface that has the route to the other nodes, which is right unless the nodes
# know each other by a slow one. A name that does not exist on a node is refused before anything starts.
: "${GLOO_SOCKET_IFNAME=}"  # CPU ranks
: "${NCCL_SOCKET_IFNAME=}"  # GPU ranks: how they find each other; over InfiniBand, data then goes by RDMA by itself

# Profile: A100 nodes, InfiniBand            Profile: a laptop or workstation with Slurm on one node
#   PARTITION=gpu                              PARTITION=
#   CPU_PARTITION=cpu                          CPU_PARTITION=
#   ACCOUNT=my_project                         ACCOUNT=
#   GPU_KIND=a100                              GPU_KIND=
#   MODULES="python/3.11"                      MODULES=
#   SCRATCH_FOLDER=/local/scratch              SCRATCH_FOLDER=       (the disk is the node's own already)
#   NCCL_SOCKET_IFNAME=ib0                     NCCL_SOCKET_IFNAME=   (one node talks over shared memory and NVLink)
#   GLOO_SOCKET_IFNAME=ib0                     GLOO_SOCKET_IFNAME=

# ---- nothing to edit below ----

# sbatch for the .slurm files here, with the site's partition, account and kind of GPU; its own words go over them. In a
# bash of its own, which reads this file as it is now, and not as it was when the shell sourced it
sbatch() {
  if [ -f slurm/site.sh ]; then
    bash -c 'source slurm/site.sh && submit "$@"' sbatch "$@"
  else
    echo "error: there is no slurm/site.sh here: call sbatch in the project's folder" >&2
    return 2
  fi
}

submit() {
  local word file='' gpus='' partition known words=()
  for word in "$@"; do
    case $word in
      *.slurm) [ -n "$file" ] || file=$word ;;
      --gpus* | --gres* | -G*) [ -n "$file" ] || gpus=$word ;;
    esac
    if [ -n "$GPU_KIND" ] && [[ -z $file && $word =~ ^--gpus-per-node=[0-9]+$ ]]; then
      word="--gpus-per-node=$GPU_KIND:${word#*=}"
    fi
    words+=("$word")
  done
  if [ -z "$file" ]; then # not one of ours
    command sbatch "$@"
    return
  fi
  partition=$PARTITION
  if grep -q '^#SBATCH --gpus-per-node' "$file"; then
    gpus=$(sed -n 's/^#SBATCH --gpus-per-node=//p' "$file")
    [ -z "$GPU_KIND" ] || export SBATCH_GPUS_PER_NODE="$GPU_KIND:$gpus"
  elif [ -z "$gpus" ]; then
    partition=${CPU_PARTITION:-$PARTITION}
  fi
  if [ -n "$partition" ]; then
    known=$(sinfo --all --noheader --format=%R | sort -u | paste -sd ' ' -)
    for word in ${partition//,/ }; do
      case " $known " in *" $word "*) continue ;; esac
      echo "error: slurm/site.sh names the partition '$word', which this cluster does not have: choose from $known" >&2
      return 2
    done
    export SBATCH_PARTITION="$partition"
  fi
  [ -z "$ACCOUNT" ] || export SBATCH_ACCOUNT="$ACCOUNT"
  command sbatch "${words[@]}"
}
