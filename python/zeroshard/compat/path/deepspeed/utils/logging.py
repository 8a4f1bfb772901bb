"""``deepspeed.utils.logging``, by zeroshard."""

from zeroshard.compat.alias import provide

__getattr__, __dir__, __all__ = provide(
    __name__,
    {
        "zeroshard.compat.logs": ["logger", "log_dist", "log_dist_once", "print_dist", "set_log_level_from_string"],
    },
)
