# Your cluster, in one place: fill in what is commented out, and leave the sbatch files as they are.
# `source slurm/site.sh` also before sbatch: it takes its options from variables SBATCH_..., unless they are given to it.

# export SBATCH_ACCOUNT=my_account
# export SBATCH_PARTITION=gpu
# export SBATCH_GPUS_PER_NODE=4
# module load python/3.11
# export MPIPFL_DATA=/scratch/data

# The environment that jobs/setup.sh made
source "${MPIPFL_VENV:-.venv}/bin/activate"
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}

# How ranks are started, dealt out to the nodes in turn. Open MPI takes pmix, MPICH pmi2 (`srun --mpi=list` tells what
# there is), and where neither works:    mpirun --map-by node -n {ranks}
export MPIPFL_LAUNCH=${MPIPFL_LAUNCH:-srun --mpi=pmix --distribution=cyclic --kill-on-bad-exit=1 -n {ranks\}}
