"""``deepspeed.runtime.utils``, by zeroshard."""

from zeroshard.compat.alias import provide

__getattr__, __dir__, __all__ = provide(
    __name__,
    {
        "zeroshard.compat.runtime_utils": ["see_memory_usage", "move_to_device", "set_random_seed"],
    },
)
