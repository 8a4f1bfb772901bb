"""``deepspeed.zero`` is ``deepspeed.runtime.zero``."""

from zeroshard.compat.alias import become

become(__name__, "deepspeed.runtime.zero")
