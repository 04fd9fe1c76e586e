#!/usr/bin/env bash
# Sets everything up and runs the covariate-shift experiment in small, over MPI: four methods and a closing table.
#   bash jobs/quickstart.sh [key.path=value ...]        RANKS=3 by default: a server and two workers
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash jobs/setup.sh
source jobs/env.sh
output=runs runs=()
for setting in "$@"; do [[ $setting != output=* ]] || output=${setting#output=}; done
for method in local fedavg fedprox oracle; do
  mpirun -np "${RANKS:-3}" python -m mpipfl.run configs/quickstart.yaml --overwrite \
    name="quickstart_$method" algorithm="$method" "$@"
  runs+=("$output/quickstart_$method")
done
python -m mpipfl.report "${runs[@]}"
