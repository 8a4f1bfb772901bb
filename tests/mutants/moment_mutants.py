"""What could go wrong where moments are stored in bf16 and in 8 bits."""

from mutant import Mutant

_OPTIM, _UPDATE = "src/kernels/optim_impl.h", "src/optim/sharded_optimizer.cpp"

MUTANTS = [
    Mutant(
        "moments-to-nearest",
        _OPTIM,
        "where.store_at_random(to, value, draw >> 16);",
        "where.store_at_random(to, value, (draw & 0u) | 0x8000u);",
        "kernels",
        "*Moments.DecayAsFp32Does/*",
    ),
    Mutant(
        "moments-of-each-step-alike",
        "src/kernels/kernels.cpp",
        "return mix(mix(parameter) + static_cast<uint64_t>(step) * 0x9e3779b97f4a7c15);",
        "return mix(mix(parameter) + static_cast<uint64_t>(step & 0));",
        "optim",
        "ShardedOptimizer.DrawsDependOnParameterAndStep",
    ),
    Mutant(
        "moments-of-each-parameter-alike",
        _UPDATE,
        "kernels::random_key(hash_text(group.param(i).name()), settings.step)",
        "kernels::random_key(hash_text(group.unit().name), settings.step)",
        "optim",
        "ShardedOptimizer.DrawsDependOnParameterAndStep",
    ),
    Mutant(
        "moments-begin-anew-in-each-chunk",
        _UPDATE,
        "const int64_t first = group.updated().begin + own.begin - group.layout().param(i).begin;",
        "const int64_t first = own.begin - piece.begin;",
        "optim",
        "*AllOptimizers.StatesLentInPiecesGiveTheSameBits/*",
    ),
    Mutant(
        "moments-begin-anew-in-each-shard",
        _UPDATE,
        "const int64_t first = group.updated().begin + own.begin - group.layout().param(i).begin;",
        "const int64_t first = own.begin - group.layout().param(i).begin;",
        "optim",
        "*AllOptimizers.AnySplitIntoShardsGivesTheSameBits/*",
    ),
    Mutant(
        "moments-between-pages",
        "src/file/chunk_layout.h",
        "align_up(numel() * narrow_bytes, kSlotAlignment)",
        "numel() * narrow_bytes",
        "file",
        "ChunkLayout.EveryBlockLiesOnWholePages",
    ),
    Mutant(
        "moments-of-a-device-in-bf16",
        "src/placement/placement.cpp",
        "const DType moment_dtype = keeps_dtype ? options.moment_dtype : DType::kFloat32;",
        "const DType moment_dtype = options.moment_dtype;",
        "plan",
        "PlanOffload.MomentsInBf16",
    ),
    Mutant(
        "codes-of-loaded-values-by-their-largest",
        "src/kernels/kernels.cpp",
        "if (gives_values(most) || !is_signed || -lowest < most) return most;",
        "if (gives_values(most) || is_signed || -lowest < most) return most;",
        "kernels",
        "*Codes.ComeBackFromTheirValues/*",
    ),
    Mutant(
        "codes-between-decades",
        "src/kernels/codes_impl.h",
        "end * (1 + 0.9 / n)",
        "end",
        "kernels",
        "*Codes.AreThoseOfTheNearestValue/*",
    ),
    Mutant(
        "scales-of-codes-not-planned",
        "src/placement/placement.cpp",
        "of_scales * (numel(layout) / kScaledNumel)",
        "of_scales * 0",
        "plan",
        "PlanOffload.MomentsInEightBits",
    ),
    Mutant(
        "parameters-that-share-blocks-of-codes",
        "src/layout/unit_layout.cpp",
        "is_coded ? kScaledNumel : 1",
        "is_coded ? 1 : kScaledNumel",
        "layout",
        "UnitLayout.ParametersWithCodedMomentsHaveAnAlignedGroup",
    ),
]
