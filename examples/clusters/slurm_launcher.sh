#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
# zeroshard starts the ranks of all nodes: one report, one exit code, and restarts without nodes that are lost.
# `sbatch slurm_launcher.sh train.py --config ds.json`
scontrol show hostnames "$SLURM_JOB_NODELIST" | sed 's/$/ slots=8/' >"hosts.$SLURM_JOB_ID"
exec zeroshard run --hostfile "hosts.$SLURM_JOB_ID" --launcher slurm --max-restarts 3 --min-ranks 8 "$@"
