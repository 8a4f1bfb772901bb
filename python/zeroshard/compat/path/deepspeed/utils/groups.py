"""``deepspeed.utils.groups``, by zeroshard."""

from zeroshard.compat.alias import provide

__getattr__, __dir__, __all__ = provide(
    __name__,
    {
        "zeroshard.compat.groups": [
            "_get_data_parallel_group",
            "_get_data_parallel_rank",
            "_get_data_parallel_world_size",
            "_get_sequence_data_parallel_group",
            "_get_sequence_data_parallel_rank",
            "_get_sequence_data_parallel_world_size",
            "_get_sequence_parallel_group",
            "_get_sequence_parallel_rank",
            "_get_sequence_parallel_world_size",
            "_get_model_parallel_world_size",
            "get_data_parallel_group",
            "get_data_parallel_rank",
            "get_data_parallel_world_size",
            "get_model_parallel_rank",
            "get_model_parallel_world_size",
            "get_tensor_model_parallel_rank",
            "get_tensor_model_parallel_world_size",
        ],
    },
)
