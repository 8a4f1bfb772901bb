"""``deepspeed.runtime.zero.muon``, by zeroshard."""

from zeroshard.compat.alias import provide

__getattr__, __dir__, __all__ = provide(__name__, {}, modules=["muon_optimizer"])
