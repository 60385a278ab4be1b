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

# sbatch with the site's partition, account and kind of GPU; words on its command line go over them
sbatch() {
  local file='' word partition=${PARTITION-} known
  for word in "$@"; do
    case $word in *.slurm) file=$word && break ;; esac
  done
  if [ -n "$file" ] && ! grep -q '^#SBATCH --gpus-per-node' "$file"; then
    partition=${CPU_PARTITION:-$partition}
  fi
  if [ -n "$partition" ]; then
    known=$(sinfo --noheader --format=%R | sort -u | paste -sd ' ' -)
    for word in $(printf %s "$partition" | tr ',' ' '); do
      case " $known " in *" $word "*) continue ;; esac
      echo "error: slurm/site.sh names the partition '$word', which this cluster does not have: choose from $known" >&2
      return 2
    done
  fi
  (
    [ -z "$partition" ] || export SBATCH_PARTITION="$partition"
    [ -z "${ACCOUNT-}" ] || export SBATCH_ACCOUNT="$ACCOUNT"
    if [ -n "${GPU_KIND-}" ] && [ -n "$file" ]; then
      word=$(sed -n 's/^#SBATCH --gpus-per-node=//p' "$file")
      [ -z "$word" ] || export SBATCH_GPUS_PER_NODE="$GPU_KIND:$word"
    fi
    command sbatch "$@"
  )
}
