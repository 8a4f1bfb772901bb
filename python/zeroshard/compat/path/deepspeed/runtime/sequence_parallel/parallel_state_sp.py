"""``deepspeed.runtime.sequence_parallel.parallel_state_sp``, by zeroshard."""

from zeroshard.compat.alias import provide

__getattr__, __dir__, __all__ = provide(
    __name__,
    {
        "zeroshard.compat.parallel_state": [
            "initialize_sequence_parallel",
            "get_sequence_parallel_group",
            "get_sequence_parallel_world_size",
            "get_sequence_parallel_rank",
            "get_sequence_data_parallel_group",
            "get_sequence_data_parallel_world_size",
            "get_sequence_data_parallel_rank",
            "get_model_parallel_group = get_sequence_parallel_group",
            "get_model_parallel_world_size = get_sequence_parallel_world_size",
            "get_model_parallel_rank = get_sequence_parallel_rank",
            "stands_for_sequence_groups",
        ],
    },
)
