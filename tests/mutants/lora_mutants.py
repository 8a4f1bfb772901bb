"""What adapters of language models could get wrong."""

from mutant import Mutant

_LAYERS, _LORA, _EXPORT = "lm/train/models/layers.cpp", "lm/train/models/lora.cpp", "lm/train/lora_export.cpp"
_MERGE_TEST = "Lora.MergesAnyStretchOfAWeight"

_TABLE = [
    (
        "lora-trains-everything",
        _LORA,
        "parameter.set_requires_grad(false);",
        "parameter.set_requires_grad(true);",
        "Lora.TargetsAreMatchedAsPeftDoes",
    ),
    (
        "lora-ends-within-a-name",
        _LORA,
        "path.substr(0, path.size() - target.size()).ends_with('.')",
        "true",
        "Lora.WrongOptionsAreNamed",
    ),
    (
        "lora-dropout-in-evaluation",
        _LAYERS,
        "at::dropout(x, dropout_, is_training())",
        "at::dropout(x, dropout_, true)",
        "Lora.DropoutIsForTrainingAlone",
    ),
    (
        "lora-rank-stabilised-always",
        _LORA,
        "(use_rslora ? std::sqrt(rank) : rank)",
        "std::sqrt(rank)",
        "LoraRun.GoesOnFromAnAdapterOrACheckpoint",
    ),
    (
        "lora-merge-without-scale",
        _EXPORT,
        " * found->second.scale;",
        ";",
        _MERGE_TEST,
    ),
    (
        "lora-merge-from-the-begin-of-a-row",
        _EXPORT,
        " + (begin - first * columns);",
        ";",
        _MERGE_TEST,
    ),
    (
        "lora-merge-of-the-module-before",
        _EXPORT,
        "if (name != loaded_) load(",
        "if (loaded_.empty()) load(",
        "LoraRun.TheMergedModelIsTheAdaptedOne",
    ),
    (
        "lora-goes-on-with-new-adapters",
        "lm/train/made_model.cpp",
        "options.lora_adapter.empty() ? initial_values",
        "true ? initial_values",
        "LoraRun.GoesOnFromAnAdapterOrACheckpoint",
    ),
    (
        "lora-resumed-at-any-scale",
        "lm/train/trainer.cpp",
        "ZS_CHECK(scale == adapter_scale(), ",
        "ZS_CHECK(true, ",
        "LoraRun.GoesOnFromAnAdapterOrACheckpoint",
    ),
    (
        "lora-exports-the-model-too",
        _EXPORT,
        "concat(kPeftPrefix, name) : std::string();",
        "concat(kPeftPrefix, name) : name;",
        "LoraRun.StagesAndRecomputationGiveTheSameAdaptersAndLeaveTheRest",
    ),
]

MUTANTS = [Mutant(name, file, old, new, "train", test) for name, file, old, new, test in _TABLE]
