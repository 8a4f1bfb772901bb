"""``deepspeed.runtime.zero``, by zeroshard."""

from zeroshard.compat.alias import provide

__getattr__, __dir__, __all__ = provide(
    __name__,
    {
        "zeroshard.compat.zero": [
            "Init",
            "GatheredParameters",
            "register_external_parameter",
            "unregister_external_parameter",
            "ZeroParamStatus",
            "ZeroParamType",
        ],
    },
    modules=["muon", "partition_parameters", "stage3", "stage_1_and_2"],
)
