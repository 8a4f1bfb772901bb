"""``deepspeed.ops.lion``, by zeroshard."""

from zeroshard.compat.alias import provide

__getattr__, __dir__, __all__ = provide(
    __name__,
    {
        "zeroshard.compat.ops": ["DeepSpeedCPULion", "FusedLion"],
    },
    modules=["cpu_lion", "fused_lion"],
)
