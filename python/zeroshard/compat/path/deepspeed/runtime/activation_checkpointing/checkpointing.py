"""``deepspeed.runtime.activation_checkpointing.checkpointing`` is ``deepspeed.checkpointing``."""

from zeroshard.compat.alias import become

become(__name__, "deepspeed.checkpointing")
