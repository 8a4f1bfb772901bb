"""``deepspeed.utils.zero_to_fp32``, by zeroshard."""

from zeroshard.compat.alias import provide

__getattr__, __dir__, __all__ = provide(
    __name__,
    {
        "zeroshard.compat.zero_to_fp32": [
            "get_fp32_state_dict_from_zero_checkpoint",
            "convert_zero_checkpoint_to_fp32_state_dict",
            "load_state_dict_from_zero_checkpoint",
            "get_optim_files",
            "get_model_state_file",
        ],
    },
)
