"""``deepspeed.runtime.zero.partition_parameters``. Scripts replace functions of this module."""

from zeroshard.compat.alias import become

become(__name__, "zeroshard.compat.zero")
