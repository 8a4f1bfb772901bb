"""``deepspeed.runtime``, by zeroshard."""

from zeroshard.compat.alias import provide

__getattr__, __dir__, __all__ = provide(
    __name__,
    {},
    modules=[
        "activation_checkpointing",
        "base_optimizer",
        "config",
        "dataloader",
        "engine",
        "lr_schedules",
        "sequence_parallel",
        "utils",
        "zero",
    ],
)
