"""``deepspeed.constants``, by zeroshard."""

from zeroshard.compat.alias import provide

__getattr__, __dir__, __all__ = provide(
    __name__,
    {
        "zeroshard.compat.comm": ["TORCH_DISTRIBUTED_DEFAULT_PORT = PORT", "default_pg_timeout = TIMEOUT"],
    },
)
