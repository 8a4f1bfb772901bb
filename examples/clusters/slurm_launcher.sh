#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --no-kill
#SBATCH --gpus-per-node=8
# zeroshard starts the ranks of all nodes: one report, one exit code, and restarts without nodes that are lost. The
# first node, on which this script runs, must not be lost. Without --no-kill, Slurm ends the job with any node.
# `sbatch slurm_launcher.sh train.py --config ds.json`
scontrol show hostnames "$SLURM_JOB_NODELIST" | sed 's/$/ slots=8/' >"hosts.$SLURM_JOB_ID"
exec zeroshard run --hostfile "hosts.$SLURM_JOB_ID" --launcher slurm --max-restarts 3 --min-ranks 8 "$@"
