"""``deepspeed.accelerator.real_accelerator``, by zeroshard."""

from zeroshard.compat.alias import provide

__getattr__, __dir__, __all__ = provide(
    __name__,
    {
        "zeroshard.compat.accelerator": ["get_accelerator", "is_current_accelerator_supported"],
    },
)
