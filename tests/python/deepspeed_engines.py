"""Engines of deepspeed.initialize."""

import models
from zeroshard.compat.deepspeed import initialize


def make(stage=3, accumulation=1, model=None, dtype="fp32", **blocks):
    model = models.stack() if model is None else model
    blocks = {"optimizer": models.adamw(eps=1e-3), **blocks}
    return initialize(
        model=model, config_params=models.configuration(stage, dtype, accumulation=accumulation, **blocks)
    )[0]
