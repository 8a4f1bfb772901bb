"""``deepspeed.runtime.config``, by zeroshard."""

from zeroshard.compat.alias import provide

__getattr__, __dir__, __all__ = provide(
    __name__,
    {
        "zeroshard._C": ["DeepSpeedConfigError = ConfigError"],
    },
)
