"""``deepspeed.comm.comm``, by zeroshard."""

from zeroshard.compat import comm as _comm
from zeroshard.compat.alias import provide

__getattr__, __dir__, __all__ = provide(__name__, {_comm.__name__: _comm.__all__})
