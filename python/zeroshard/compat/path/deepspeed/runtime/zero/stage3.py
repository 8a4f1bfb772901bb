"""``deepspeed.runtime.zero.stage3``, by zeroshard."""

from zeroshard.compat.alias import provide

__getattr__, __dir__, __all__ = provide(
    __name__,
    {
        "zeroshard.compat.generation": ["unwrap_model_for_generation"],
        "zeroshard.compat.optimizer": ["DeepSpeedZeroOptimizer_Stage3"],
    },
)
