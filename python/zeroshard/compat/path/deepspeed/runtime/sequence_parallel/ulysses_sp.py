"""``deepspeed.runtime.sequence_parallel.ulysses_sp``, by zeroshard."""

from zeroshard.compat.alias import provide

__getattr__, __dir__, __all__ = provide(
    __name__,
    {
        "zeroshard.compat.ulysses": ["UlyssesSPAttentionHF", "UlyssesSPDataLoaderAdapter"],
        "zeroshard.compat.tiles": [
            "sequence_tiled_compute",
            "SequenceTiledCompute",
            "TiledMLP",
            "TiledFusedLogitsLoss",
        ],
    },
)
