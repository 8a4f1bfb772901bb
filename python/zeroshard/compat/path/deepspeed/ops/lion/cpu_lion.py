"""``deepspeed.ops.lion.cpu_lion``, by zeroshard."""

from zeroshard.compat.alias import provide

__getattr__, __dir__, __all__ = provide(
    __name__,
    {
        "zeroshard.compat.ops": ["DeepSpeedCPULion"],
    },
)
