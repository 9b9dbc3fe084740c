#!/usr/bin/env bash
# Four machines as one program under SLURM: sbatch slurm.sh EXPORT_DIR "the text to continue"
#SBATCH --job-name=tracewright
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --time=00:30:00
set -euo pipefail
# SLURM_NTASKS and SLURM_PROCID say how many processes there are and which each one is; the first node carries the group.
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun --kill-on-bad-exit python -m tracewright_xla run "$1" -p "$2" --coordinator "$first:8476"
