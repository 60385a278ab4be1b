#!/bin/bash
# Copies prepared data to the local disk of a node, started by srun on each node.
#
#     srun --ntasks-per-node=1 bash slurm/stage.sh SCRATCH_FOLDER OURS SOURCE      # to OURS/JOB/data; OURS is in SCRATCH_FOLDER

set -euo pipefail
scratch=$1 ours=$2 source=$3

if ! [ -d "$scratch" ] || ! [ -w "$scratch" ]; then
  echo "error: $(hostname): slurm/site.sh: SCRATCH_FOLDER=$scratch is no folder that can be written there: name one, or none" >&2
  exit 2
fi

# Delete the folders of jobs that no longer exist
if jobs=$(squeue --all --noheader --user="$(id -un)" --format=%A); then
  for left in "$ours"/*/; do
    left=$(basename "$left")
    [[ ! $left =~ ^[0-9]+$ ]] || grep -qx "$left" <<<"$jobs" || rm -rf "${ours:?}/$left"
  done
fi

exec python scripts/stage_data.py "source=$source" "out=$ours/$SLURM_JOB_ID/data"
