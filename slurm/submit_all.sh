#!/bin/bash
# Submit the jobs of a fit, as scripts/fit.py makes it with the same arguments and time_limit=0, and print the job ids:
# prepare -> (copies of tree members -> tree members | neural member) -> fit, which combines and reports.
#
#     slurm/submit_all.sh runs/people train_single_gpu.slurm 'source=[people.csv]' target=income      # to runs/people
#     slurm/submit_all.sh runs/demo train_cpu.slurm --recipe hot_sellers raw=runs/demo/raw            # without GPUs
#
# The second argument is the train_*.slurm of the neural member; that job ends at once if no neural member is planned. The
# copies (members × folds) are divided among the tasks of an array: with COPIES='--array=0-99 --cpus-per-task=4' in the
# environment there are 100 tasks, each with four copies at a time. If a job fails, those that depend on it are cancelled; once
# the others have ended, the same command continues with the results that exist. Options for every job: SBATCH_… in the
# environment.

set -eo pipefail
[ -f slurm/site.sh ] || { # paths among the arguments are relative to the current folder, and jobs run in the project's
  echo "error: there is no slurm/site.sh here: call submit_all.sh in the project's folder" >&2
  exit 2
}
source slurm/site.sh # which may name variables that only a job has
set -u
[ $# -gt 2 ] || {
  echo "error: give a folder, a train_*.slurm for the neural member, and arguments of scripts/fit.py: see the top of $0" >&2
  exit 2
}
folder=$1 neural=$2
[[ $neural == train_[!t]*.slurm && -f slurm/$neural ]] || { # not train_tree_models.slurm
  echo "error: '$neural' is none of $(cd slurm && echo train_[!t]*.slurm): name one of them, without a folder" >&2
  exit 2
}
shift 2
for word in "$@"; do
  case $word in
    time_limit=0) ;;
    time_limit=* | out=*)
      echo "error: $word would have no effect: leave it out; the first argument names the folder, and the jobs have Slurm's --time" >&2
      exit 2
      ;;
  esac
done
read -ra array <<<"${COPIES:---array=0-23 --cpus-per-task=1}"
words=("$@" "out=$folder")

queue() { sbatch --parsable --kill-on-invalid-dep=yes "$@"; }
stage() {
  local name=$1
  shift
  queue --job-name="fit_$name" "$@" slurm/fit.slurm --stage "$name" "${words[@]}"
}

prepare='' network='' copies='' members=''
# If Slurm refuses a job, such as one with more GPUs than a node has, those before it are cancelled
trap '[ -z "$prepare" ] || scancel $prepare $network $copies $members' ERR
prepare=$(stage prepare)
network=$(queue --dependency="afterok:$prepare" "slurm/$neural" "fit=$folder")
copies=$(stage copies --dependency="afterok:$prepare" "${array[@]}")
members=$(stage members --dependency="afterok:$copies" --array=0-2)
fit=$(queue --dependency="afterok:$network:$members" slurm/fit.slurm "${words[@]}")
echo "prepare $prepare  neural $network  copies $copies  members $members  fit $fit"
echo "$folder/report.html will exist when job $fit is done; the logs of all jobs are in ${SBATCH_OUTPUT:-slurm/logs/}"
