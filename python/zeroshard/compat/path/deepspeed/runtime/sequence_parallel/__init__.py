"""``deepspeed.runtime.sequence_parallel``, by zeroshard."""

from zeroshard.compat.alias import provide

__getattr__, __dir__, __all__ = provide(__name__, {}, modules=["parallel_state_sp", "ulysses_sp"])
