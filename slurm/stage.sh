#!/bin/bash
# Copies prepared data to the local disk of a node, started by srun on each node.
#
#     srun --ntasks-per-node=1 bash slurm/stage.sh SCRATCH_FOLDER STAGING SOURCE
#
# SOURCE is copied to STAGING/JOB/data; STAGING is a folder in SCRATCH_FOLDER.

set -euo pipefail
scratch=$1 staging=$2 source=$3

if ! [ -d "$scratch" ] || ! [ -w "$scratch" ]; then
  echo "error: $(hostname): slurm/site.sh: SCRATCH_FOLDER=$scratch is not a writable folder on this node: name another one, or leave it empty" >&2
  exit 2
fi

# Delete what this job had not finished when it was killed and requeued, and the folders of jobs that no longer exist
rm -rf "${staging:?}/$SLURM_JOB_ID"/.data.writing-*
if jobs=$(squeue --all --noheader --user="$(id -un)" --format=%A); then
  for folder in "$staging"/*/; do
    name=$(basename "$folder")
    [[ ! $name =~ ^[0-9]+$ ]] || grep -qx "$name" <<<"$jobs" || rm -rf "${staging:?}/$name"
  done
fi

exec python scripts/stage_data.py "source=$source" "out=$staging/$SLURM_JOB_ID/data"
