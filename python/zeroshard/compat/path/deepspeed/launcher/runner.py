"""``deepspeed.launcher.runner``, by zeroshard."""

from zeroshard.compat.alias import provide

__getattr__, __dir__, __all__ = provide(
    __name__,
    {
        "zeroshard.compat.launching": ["DEEPSPEED_ENVIRONMENT_NAME", "DEEPSPEED_ENVIRONMENT_PATHS", "main"],
    },
)

if __name__ == "__main__":
    __getattr__("main")()
