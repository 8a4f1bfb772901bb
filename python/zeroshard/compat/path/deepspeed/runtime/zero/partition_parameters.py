"""``deepspeed.runtime.zero.partition_parameters`` is zeroshard.compat.zero, because scripts replace its functions."""

from zeroshard.compat.alias import become

become(__name__, "zeroshard.compat.zero")
