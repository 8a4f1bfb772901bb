"""Adds DeepSpeed's command-line arguments to a script's parser."""

from __future__ import annotations

import argparse


def _add_core_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    group = parser.add_argument_group("DeepSpeed", "DeepSpeed configurations")
    group.add_argument("--deepspeed", default=False, action="store_true", help="Train with deepspeed.initialize")
    group.add_argument("--deepspeed_config", default=None, type=str, help="DeepSpeed's configuration, a JSON file")
    group.add_argument("--deepscale", default=False, action="store_true", help="An old name of --deepspeed")
    group.add_argument("--deepscale_config", default=None, type=str, help="An old name of --deepspeed_config")
    return parser


def add_config_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Adds ``--deepspeed``, ``--deepspeed_config`` and their old names to ``parser``, and returns ``parser``."""
    return _add_core_arguments(parser)
