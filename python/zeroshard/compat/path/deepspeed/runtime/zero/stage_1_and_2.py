"""``deepspeed.runtime.zero.stage_1_and_2``, by zeroshard."""

from zeroshard.compat.alias import provide

__getattr__, __dir__, __all__ = provide(
    __name__,
    {
        "zeroshard.compat.optimizer": ["DeepSpeedZeroOptimizer"],
    },
)
