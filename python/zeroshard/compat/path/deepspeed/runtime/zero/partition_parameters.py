"""``deepspeed.runtime.zero.partition_parameters``: scripts replace its functions, and ``zero.Init`` uses theirs."""

from zeroshard.compat.alias import become

become(__name__, "zeroshard.compat.zero")
