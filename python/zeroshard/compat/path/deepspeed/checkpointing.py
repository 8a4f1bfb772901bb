"""``deepspeed.checkpointing``, by zeroshard."""

from zeroshard.compat.alias import provide

__getattr__, __dir__, __all__ = provide(
    __name__,
    {
        "zeroshard.compat.checkpointing": [
            "checkpoint",
            "configure",
            "is_configured",
            "non_reentrant_checkpoint",
            "reset",
        ],
    },
)
