# What the sbatch files share; each sources slurm/site.sh before it.

export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1} # srun does not take this over from sbatch
export MPIPFL_PROGRESS=lines

# One rank a task, but one server in all: only the first node has use for its last task. One task a node: one rank each.
tasks=$SLURM_NTASKS_PER_NODE
ranks_on() { # so many nodes
  echo $((tasks > 1 ? $1 * (tasks - 1) + 1 : $1))
}
ranks=$(ranks_on "$SLURM_NNODES")
unset SLURM_NTASKS_PER_NODE # srun would take it for an order, and complain of the nodes that have one task less

# on_ranks COMMAND...      start it on all ranks. A signal while Python starts would kill a rank: until the program
# listens to them they are ignored.
on_ranks() {
  # shellcheck disable=SC2086
  exec ${MPIPFL_LAUNCH//\{ranks\}/$ranks} bash -c 'trap "" USR1 TERM; exec "$@"' rank "$@"
}

# Whether the run that the script was given is finished: launchers may end with code 0 when ranks could not start, or
# when a node died.
arguments=("$@")
finished() { python -m mpipfl.run --finished "${arguments[@]}"; }

# requeued COMMAND...      run it until it ends or Slurm's signal says that the time is over. Then the ranks finish
# their round, write a checkpoint and leave with code 75, and the job waits in the queue once more. The script sets
# `asked` by a trap from its first line on.
requeued() {
  local code=0
  "$@" &
  local running=$!
  while kill -0 "$running" 2>/dev/null; do
    if [[ ${asked:-} ]]; then kill -USR1 "$running" 2>/dev/null || true; fi # again and again: ranks may still be starting
    sleep 1
  done
  wait "$running" || code=$?
  if ((code == 0)) && ! finished; then
    code=1
    if ((${SLURM_RESTART_COUNT:-0} < 20)); then asked=yes; fi
  fi
  if ((code == 75)) || [[ ${asked:-} && $code != 0 ]]; then
    # a job that its user has cancelled is not running any more, and must not come back
    if [[ $(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%T) == RUNNING ]]; then
      echo "job $SLURM_JOB_ID: stopped with code $code before the run was finished; it waits in the queue again"
      sleep 3 # Slurm is still cleaning up: requeued at once, it may leave the ranks' PMIx socket in the next start's way
      scontrol requeue "$SLURM_JOB_ID" || echo "it cannot be requeued: submit it again, and it goes on" >&2
    fi
  fi
  return "$code"
}
