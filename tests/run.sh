#!/usr/bin/env bash
# Installs what the tests need and runs them all: linters, then one rank a core, then under mpirun at 2, 3 and 5 ranks.
#   bash tests/run.sh [pytest arguments]        for instance: bash tests/run.sh -k fedavg
# Real data: the folder of MPIPFL_DATA, or what lies in ../shared/data; without either, those tests are skipped.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash jobs/setup.sh test
source jobs/env.sh
if [[ -z ${MPIPFL_DATA:-} && -x ../shared/data/unpack ]]; then
  MPIPFL_DATA=$(../shared/data/unpack)
  export MPIPFL_DATA
fi

ruff check .
ruff format --check .
mypy
python -m pytest --with-mpi -n $(($(env -u OMP_NUM_THREADS nproc) + 1)) --dist worksteal "$@"
for ranks in 2 3 5; do
  echo "== $ranks ranks"
  mpirun -np "$ranks" python -m pytest --with-mpi -m mpi --color=no "$@"
done
