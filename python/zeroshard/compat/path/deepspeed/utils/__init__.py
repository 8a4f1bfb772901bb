"""``deepspeed.utils``, by zeroshard."""

from zeroshard.compat.alias import provide

__getattr__, __dir__, __all__ = provide(
    __name__,
    {
        "zeroshard.compat.logs": ["logger", "log_dist", "log_dist_once", "print_dist", "set_log_level_from_string"],
        "zeroshard.compat.repeating": ["RepeatingLoader"],
        "zeroshard.compat.leaf_modules": [
            "set_z3_leaf_modules",
            "unset_z3_leaf_modules",
            "get_z3_leaf_modules",
            "z3_leaf_module",
            "set_z3_leaf_module",
            "set_z3_leaf_modules_by_name",
            "set_z3_leaf_modules_by_suffix",
        ],
        "zeroshard.compat.fragments": [
            "safe_get_full_fp32_param",
            "safe_get_full_grad",
            "safe_get_full_optimizer_state",
            "safe_set_full_fp32_param",
            "safe_set_full_grad",
            "safe_set_full_optimizer_state",
            "safe_get_local_fp32_param",
            "safe_get_local_grad",
            "safe_get_local_optimizer_state",
            "safe_set_local_fp32_param",
            "safe_set_local_grad",
            "safe_set_local_optimizer_state",
            "safe_update_full_grad_vectorized",
        ],
    },
    modules=["groups", "logging", "tensor_fragment", "zero_to_fp32"],
)
