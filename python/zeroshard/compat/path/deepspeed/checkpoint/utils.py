"""``deepspeed.checkpoint.utils``, by zeroshard."""

from zeroshard.compat.alias import provide

__getattr__, __dir__, __all__ = provide(
    __name__,
    {
        "zeroshard.compat.checkpoint": ["clone_tensors_for_torch_save"],
    },
)
