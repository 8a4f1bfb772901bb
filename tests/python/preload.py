"""What the server of world.py loads once for all ranks."""

import gc

import models
import pytest
import torch
import transformers
import zeroshard

assert zeroshard.__version__ and pytest.__version__
torch.set_num_threads(1)
transformers.logging.set_verbosity_error()
models.tiny_llama()  # transformers imports a model's module when it is first used
models.tiny_gpt2()
gc.freeze()  # the garbage collector of a rank need not look at, and so copy, any of this
