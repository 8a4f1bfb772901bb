"""``deepspeed.env_report``, by zeroshard."""

from zeroshard.compat.alias import provide

__getattr__, __dir__, __all__ = provide(
    __name__,
    {
        "zeroshard.compat.report": ["cli_main", "main"],
    },
)

if __name__ == "__main__":
    __getattr__("main")()
