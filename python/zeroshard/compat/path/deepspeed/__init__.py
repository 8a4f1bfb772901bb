"""``deepspeed``, by zeroshard: thin modules over zeroshard.compat. docs/from-deepspeed.md lists the names."""

import sys

try:
    from zeroshard.compat import alias
except ModuleNotFoundError as error:
    if error.name != "zeroshard":
        raise
    raise ModuleNotFoundError(
        f"deepspeed is provided by zeroshard here ({__path__[0]}), which {sys.executable} cannot import: install "
        "zeroshard for it, or use another DeepSpeed: zeroshard run --no-deepspeed, or a PYTHONPATH without this folder",
        name="zeroshard",
    ) from error

__zeroshard__ = True
__version__ = version = alias.VERSION
__version_major__, __version_minor__, __version_patch__ = map(int, alias.STANDS_FOR.split("."))
__git_hash__, __git_branch__ = git_hash, git_branch = alias.GIT_HASH, alias.GIT_BRANCH
dist = None  # as it is in DeepSpeed until an engine is made

__getattr__, __dir__, __all__ = alias.provide(
    __name__,
    {
        "zeroshard._C": ["DeepSpeedConfigError = ConfigError"],
        "zeroshard.compat.accelerator": ["get_accelerator"],
        "zeroshard.compat.arguments": ["add_config_arguments", "_add_core_arguments"],
        "zeroshard.compat.comm": ["init_distributed"],
        "zeroshard.compat.deepspeed": ["DeepSpeedEngine", "DeepSpeedOptimizer", "initialize"],
        "zeroshard.compat.logs": ["log_dist", "logger"],
        "zeroshard.compat.repeating": ["RepeatingLoader"],
    },
    modules=[
        "accelerator",
        "checkpoint",
        "checkpointing",
        "comm",
        "constants",
        "env_report",
        "git_version_info",
        "launcher",
        "ops",
        "runtime",
        "utils",
        "zero",
    ],
)
alias.begin()
