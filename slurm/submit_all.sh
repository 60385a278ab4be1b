#!/bin/bash
# Submit the whole chain: prepare -> (neural | trees) -> ensemble -> report, each after what it needs, and print the job ids.
#
#     slurm/submit_all.sh                                      # the generated market, in runs/demo
#     slurm/submit_all.sh runs/demo train_cpu.slurm            # the neural member by another of the train_*.slurm
#     slurm/submit_all.sh runs/toys train_multi_node.slurm raw/Toys.jsonl.gz panel.horizon_weeks=8    # words of prepare_data
#     slurm/submit_all.sh runs/churn train_cpu.slurm --recipe my_company.churn                        # every job gets --recipe
#
# A job whose predecessor failed is cancelled. Options for every job: SBATCH_… in the environment.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source slurm/site.sh
folder=${1:-runs/demo} neural=${2:-train_multi_gpu.slurm}
shift $(($# < 2 ? $# : 2))
data=$folder/prepared
recipe=()
for word in "$@"; do
  case ${previous:-}:$word in
    --recipe:*) recipe=(--recipe "$word") ;;
    *:--recipe=*) recipe=("$word") ;;
  esac
  previous=$word
done

raw=("raw=$folder/raw") member=transformer
[ "${#recipe[@]}" = 0 ] || raw=() member=network

after() { sbatch --parsable --kill-on-invalid-dep=yes "$@"; }

prepare=$(after slurm/prepare_data.slurm "$@" "out=$data" "${raw[@]}")
network=$(after --dependency="afterok:$prepare" "slurm/$neural" "data=$data" "out=$folder/members/$member" "${recipe[@]}")
trees=$(after --dependency="afterok:$prepare" slurm/train_tree_models.slurm "data=$data" "out=$folder/members" "${recipe[@]}")
ensemble=$(after --dependency="afterok:$network:$trees" slurm/ensemble.slurm "data=$data" "out=$folder" "${recipe[@]}")
report=$(after --dependency="afterok:$ensemble" slurm/report.slurm "data=$data" "out=$folder" "${recipe[@]}")
echo "prepare $prepare  neural $network  trees $trees  ensemble $ensemble  report $report"
echo "$folder/report.html will be there when $report is done; slurm/logs/ has what each says"
