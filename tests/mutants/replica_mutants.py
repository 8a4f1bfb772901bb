"""What sums over replicas of the states could get wrong."""

from mutant import Mutant

_SUM, _BUCKET, _REDUCER = "src/reduce/replica_sum.cpp", "src/reduce/grad_bucket.cpp", "src/reduce/reducer.cpp"
_SAME, _DIFFER = "*Replicas.GiveTheBitsOfOneReplicaInThePlanned*", "*Replicas.GiveTheBitsOfOneReplicaInPasses*"
_SHARED = "*Replicas.ThatShareStatesGiveTheBits*"

MUTANTS = [
    Mutant(name, file, old, new, "world", test)
    for name, file, old, new, test in [
        (
            "replicas-keep-their-own-sums",
            _BUCKET,
            "  reduced_.add(pieces, DType::kFloat32, reduced_.begin_sum());\n",
            "",
            _SAME,
        ),
        (
            "replicas-each-count-in-the-norm",
            "src/engine/step.cpp",
            "ranks_.is_in_first_replica() ? reducer_.squares() : ExactSum()",
            "reducer_.squares()",
            _SAME,
        ),
        (
            "replicas-average-over-their-own-ranks",
            "src/engine/engine_build.cpp",
            "reduce_options(options, ranks.all.world_size())",
            "reduce_options(options, ranks.reduce.world_size())",
            _SAME,
        ),
        (
            "replicas-order-their-own-buckets",
            "src/reduce/launch_order.cpp",
            "{&comm, all_}",
            "{&comm}",
            _DIFFER,
        ),
        (
            "replicas-lose-late-gradients",
            _REDUCER,
            "    bucket.add_late(place.index, grad);\n",
            "",
            _DIFFER,
        ),
        (
            "replicas-hide-an-overflow",
            _SUM,
            "  to.scales.add_(at::maximum(blocks.amax({1}), blocks.amin({1}).neg_()).mul_(0));\n",
            "",
            "Replicas.SumsInEightBitsThatAreNotFinite*",
        ),
        (
            "replicas-take-an-exact-piece-of-their-own",
            _SUM,
            "++piece) decode(sent_piece(piece), piece);\n",
            "++piece)\n    if (piece != replicas_.rank()) decode(sent_piece(piece), piece);\n",
            "Replicas.SumsInEightBitsAreTheSame*",
        ),
        (
            "replicas-that-share-states-count-once-each",
            "src/engine/ranks.h",
            "return !has_replicas_of_states() || replicas->rank() == 0;",
            "return replicas == nullptr || replicas->rank() == 0;",
            _SHARED,
        ),
        (
            "parts-are-not-gathered",
            "src/unit/unit.cpp",
            "comms_.parts != nullptr ? gather_parts() : gather_shards();",
            "gather_shards();",
            _SHARED,
        ),
        (
            "whole-units-gather-incomplete-shards",
            "src/unit/unit.cpp",
            "    gather_shards();\n    end_gathers_in_place();\n",
            "",
            _SHARED,
        ),
        (
            "pieces-of-matrices-come-in-the-order-of-ranks",
            "src/plan/matrix_plan.cpp",
            "  std::ranges::sort(found, {}, [&](size_t i) { return pieces[i].positions.begin; });\n",
            "",
            "Muon.GroupsThatShareStates*",
        ),
        (
            "owners-keep-exact-parameters",
            "src/unit/coded_refresh.cpp",
            "    for (int part = 0; part < parts; ++part) {\n",
            "    for (int part = 0; part < parts; ++part) {\n      if (part == parts_.rank()) continue;\n",
            "Replicas.ParametersInEightBitsAreEqual*",
        ),
    ]
]
