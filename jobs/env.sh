# To be sourced: the project's virtual environment, and what Open MPI's mpirun needs to start more ranks than there are
# cores, also as root. MPICH's mpirun needs none of it.      source jobs/env.sh; mpirun -np 9 python -m mpipfl.run ...
source "${MPIPFL_VENV:-$(cd "$(dirname "${BASH_SOURCE[0]:-$0}")/.." && pwd)/.venv}/bin/activate"
export PRTE_MCA_rmaps_default_mapping_policy=${PRTE_MCA_rmaps_default_mapping_policy:-:oversubscribe}
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_mpi_yield_when_idle=1
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
