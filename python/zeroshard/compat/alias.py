"""Provides the name ``deepspeed``: the contents of its modules, and the error for every name that they lack."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.metadata
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any

from .. import _C
from ..messages import log

STANDS_FOR = "0.19.8"  # the release of DeepSpeed whose interface zeroshard provides
VERSION = f"{STANDS_FOR}+zeroshard.{_C.__version__}"
PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "path")  # has the package deepspeed and its metadata
BIN = os.path.join(os.path.dirname(PATH), "bin")
GIT_HASH = GIT_BRANCH = "[none]"  # the values in a release of DeepSpeed
_TOLD = "ZEROSHARD_TOLD_PROVIDER"  # environment variable: set once begin() has logged, also for child processes

_PIPELINE = "zeroshard has no pipeline parallelism: train the model as one module at stage 3"
_INFERENCE = "zeroshard has no inference kernels: call the module, or engine.module.generate(...)"
_TENSOR = "zeroshard has no tensor parallelism: leave tensor_parallel.autotp_size at 1; stage 3 shards over all ranks"
_SEQUENCE = (
    "zeroshard exchanges heads around the attention of transformers' models, by "
    "deepspeed.runtime.sequence_parallel.ulysses_sp, and has no layer for other models"
)
_KERNELS = "zeroshard builds no operators; deepspeed.ops has adam, adagrad and lion"
_OPTIMIZER = "ask the engine instead: engine.optimizer, engine.zero_optimization_stage()"
# The reason why a name and all names below it are missing.
REFUSED = {
    "deepspeed.moe": "zeroshard has no expert parallelism; a model's own mixture-of-experts layers train as they are, "
    "see deepspeed.utils.set_z3_leaf_modules",
    "deepspeed.pipe": _PIPELINE,
    "deepspeed.PipelineModule": _PIPELINE,
    "deepspeed.PipelineEngine": _PIPELINE,
    "deepspeed.runtime.pipe": _PIPELINE,
    "deepspeed.init_inference": _INFERENCE,
    "deepspeed.default_inference_config": _INFERENCE,
    "deepspeed.InferenceEngine": _INFERENCE,
    "deepspeed.DeepSpeedInferenceConfig": _INFERENCE,
    "deepspeed.inference": _INFERENCE,
    "deepspeed.model_implementations": _INFERENCE,
    "deepspeed.module_inject": _INFERENCE,
    "deepspeed.replace_transformer_layer": _INFERENCE,
    "deepspeed.DeepSpeedHybridEngine": _INFERENCE,
    "deepspeed.runtime.hybrid_engine": _INFERENCE,
    "deepspeed.tp_model_init": _TENSOR,
    "deepspeed.set_autotp_mode": _TENSOR,
    "deepspeed.runtime.tensor_parallel": _TENSOR,
    "deepspeed.sequence": _SEQUENCE,
    "deepspeed.ops": _KERNELS,
    "deepspeed.DeepSpeedTransformerLayer": _KERNELS,
    "deepspeed.DeepSpeedTransformerConfig": _KERNELS,
    "deepspeed.autotuning": "zeroshard plans memory instead: zeroshard plan",
    "deepspeed.compression": "zeroshard has no compression",
    "deepspeed.elasticity": "zeroshard run --max-restarts and --min-ranks restart a job with fewer ranks",
    "deepspeed.monitor": "zeroshard writes metrics itself: the configuration's blocks tensorboard, csv_monitor, wandb",
    "deepspeed.profiling": "zeroshard has no profiler: use torch.profiler",
    "deepspeed.nvme": 'zeroshard reads and writes NVMe itself: zero_optimization.offload_optimizer.device = "nvme"',
    "deepspeed.linear": "zeroshard has no layers for LoRA: use PEFT",
    "deepspeed.OnDevice": "use torch.device('meta') as a context",
    "deepspeed.DeepSpeedConfig": "pass the path, the JSON text or the dict to deepspeed.initialize(config=...)",
    "deepspeed.runtime.config": "pass the path, the JSON text or the dict to deepspeed.initialize(config=...)",
    "deepspeed.runtime.fp16": "zeroshard chooses the precision by the blocks fp16 and bf16 of the configuration",
    "deepspeed.runtime.bf16_optimizer": _OPTIMIZER,
    "deepspeed.runtime.zero.stage3": _OPTIMIZER,
    "deepspeed.runtime.zero.stage_1_and_2": _OPTIMIZER,
    "deepspeed.zero.TiledLinear": "zeroshard has no tiled layers: it shards each module of a unit by itself",
}


def _reason(name: str) -> str:
    """Returns why a name is missing, or "" if no reason is known."""
    parts = name.split(".")
    found = (REFUSED.get(".".join(parts[:length])) for length in range(len(parts), 1, -1))
    return next(filter(None, found), "")


def _missing(name: str, known: Iterable[str] = ()) -> str:
    parent = name.rpartition(".")[0]
    names = [each for each in known if not each.startswith("_")]
    has = f"{parent} has " + ", ".join(sorted(names)) if 0 < len(names) <= 40 else f"dir({parent}) lists what there is"
    return (
        f"'{name}' is missing: deepspeed is provided by zeroshard {_C.__version__} here. {_reason(name) or has}. "
        "For another DeepSpeed run without this one: zeroshard run --no-deepspeed, or a PYTHONPATH without "
        f"{PATH}, or no zeroshard.as_deepspeed()"
    )


def provide(
    module: str, names: Mapping[str, Iterable[str]], modules: Iterable[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Returns ``__getattr__``, ``__dir__`` and ``__all__`` of a module that imports its names when they are first used.

    Args:
        module: the module's own name.
        names: for each module of zeroshard, the names that come from it. "new = old": ``new`` is ``old`` there.
        modules: the module's submodules.
    """
    places: dict[str, tuple[str, str]] = {}
    for place, listed in names.items():
        for entry in listed:
            name, _, original = entry.partition(" = ")
            places[name] = (place, original or name)
    submodules = frozenset(modules)
    # With a __path__, Python asks the finders also for missing names of the module, and the finders can say why a name
    # is missing.
    vars(sys.modules[module]).setdefault("__path__", [])
    known = [*places, *submodules]

    def __getattr__(name: str) -> Any:
        if name in submodules:
            return importlib.import_module(f"{module}.{name}")
        if name not in places:
            raise AttributeError(_missing(f"{module}.{name}", known), name=name, obj=sys.modules.get(module))
        place, original = places[name]
        value = getattr(importlib.import_module(place), original)
        setattr(sys.modules[module], name, value)  # later uses find the name directly, and scripts may assign to it
        return value

    def __dir__() -> list[str]:
        return sorted({*vars(sys.modules[module]), *known})

    return __getattr__, __dir__, [name for name in known if not name.startswith("_")]


def become(module: str, place: str) -> ModuleType:
    """Replaces ``module`` by the module ``place`` and returns that, so that assignments to its names have effect."""
    found = importlib.import_module(place)
    sys.modules[module] = found
    return found


class _Refusals:
    """The last finder of modules. It raises an error that says why a module below ``deepspeed`` does not exist."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> None:
        if name.startswith("deepspeed.") and hasattr(sys.modules.get("deepspeed"), "__zeroshard__"):
            parent = sys.modules.get(name.rpartition(".")[0])
            # Does not give the error the module's name, because `from deepspeed import x` would then replace the error
            # by one that says less.
            raise ModuleNotFoundError(_missing(name, getattr(parent, "__all__", ())))


def begin() -> None:
    """Installs ``_Refusals``. Runs when ``deepspeed`` is imported, so it uses no device and no file.

    On rank 0, logs who provides ``deepspeed``. Child processes do not log it again.
    """
    if not any(finder is _Refusals for finder in sys.meta_path):
        sys.meta_path.append(_Refusals)
    if _TOLD in os.environ:
        return
    try:
        rank = _C.rank_environment().rank
    except ValueError:  # init_distributed raises the same error later
        return
    os.environ[_TOLD] = "1"
    if rank == 0:
        other = next(
            (entry for entry in sys.path if entry != PATH and os.path.isdir(os.path.join(entry, "deepspeed"))), ""
        )
        unused = f"; the DeepSpeed in {other} is not used. To use it" if other else ". To use another DeepSpeed"
        log(
            f"deepspeed is provided by zeroshard {_C.__version__}, as release {STANDS_FOR}{unused}: "
            f"zeroshard run --no-deepspeed, or a PYTHONPATH without {PATH}"
        )


class _Finder:
    """Finds the package ``deepspeed`` and its metadata in ``PATH``, before any other one that is installed."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.PathFinder.find_spec(name, [PATH]) if name == "deepspeed" else None

    @staticmethod
    def find_distributions(
        context: importlib.metadata.DistributionFinder.Context = importlib.metadata.DistributionFinder.Context(),  # noqa: B008
    ) -> Iterable[importlib.metadata.Distribution]:
        if context.name is not None and context.name.lower() != "deepspeed":
            return iter(())
        own = importlib.metadata.DistributionFinder.Context(name="deepspeed", path=[PATH])
        return importlib.metadata.MetadataPathFinder.find_distributions(own)


def as_deepspeed() -> None:
    """Makes ``import deepspeed`` import zeroshard in this process. It is for notebooks; scripts use ``zeroshard run``.

    The caller must call it before anything imports deepspeed, accelerate or transformers, because these look for
    DeepSpeed when they are imported. Raises ``StateError`` if one of them is already imported. Does nothing if
    zeroshard already provides ``deepspeed``.

    >>> zeroshard.as_deepspeed()
    >>> import deepspeed
    """
    if any(finder is _Finder for finder in sys.meta_path):
        return
    deepspeed = sys.modules.get("deepspeed")
    early = [name for name in ("deepspeed", "accelerate", "transformers") if name in sys.modules]
    if hasattr(deepspeed, "__zeroshard__"):
        return
    if early:
        raise _C.StateError(
            f"zeroshard.as_deepspeed: {' and '.join(early)} {'is' if len(early) == 1 else 'are'} imported already, and "
            "looked for DeepSpeed then: restart the process, and call it before these imports"
        )
    sys.meta_path.insert(0, _Finder)
