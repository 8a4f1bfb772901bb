"""``deepspeed.runtime.lr_schedules``, by zeroshard."""

from zeroshard.compat.alias import provide

__getattr__, __dir__, __all__ = provide(
    __name__,
    {
        "zeroshard.compat.lr_schedules": [
            "VALID_LR_SCHEDULES",
            "LRRangeTest",
            "OneCycle",
            "WarmupLR",
            "WarmupDecayLR",
            "WarmupCosineLR",
            "LR_RANGE_TEST",
            "ONE_CYCLE",
            "WARMUP_LR",
            "WARMUP_DECAY_LR",
            "WARMUP_COSINE_LR",
        ],
    },
)
