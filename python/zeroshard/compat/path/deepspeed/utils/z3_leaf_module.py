"""``deepspeed.utils.z3_leaf_module``, by zeroshard."""

from zeroshard.compat.alias import provide

__getattr__, __dir__, __all__ = provide(
    __name__,
    {
        "zeroshard.compat.leaf_modules": [
            "set_z3_leaf_modules",
            "unset_z3_leaf_modules",
            "get_z3_leaf_modules",
            "z3_leaf_module",
            "set_z3_leaf_module",
            "set_z3_leaf_modules_by_name",
            "set_z3_leaf_modules_by_suffix",
        ],
    },
)
