#!/bin/bash
# One node's part of staging, started there by srun: prepared data to the disk of its own.
#
#     srun --ntasks-per-node=1 bash slurm/stage.sh SCRATCH_FOLDER SOURCE OUT

set -euo pipefail
scratch=$1 source=$2 out=$3

if ! [ -d "$scratch" ] || ! [ -w "$scratch" ]; then
  echo "error: $(hostname): slurm/site.sh: SCRATCH_FOLDER=$scratch is no folder that can be written there: name one, or none" >&2
  exit 2
fi

# What jobs left that were killed
if jobs=$(squeue --noheader --user="$(id -un)" --format=%A); then
  for left in "$scratch/$(id -un)"-*; do
    grep -qx "${left##*-}" <<<"$jobs" || rm -rf "$left"
  done
fi

exec python scripts/stage_data.py "source=$source" "out=$out"
