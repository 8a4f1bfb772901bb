"""What sums over replicas of the states could get wrong."""

from mutant import Mutant

_SUM, _BUCKET, _REDUCER = "src/reduce/replica_sum.cpp", "src/reduce/grad_bucket.cpp", "src/reduce/reducer.cpp"
_SAME, _DIFFER = "*Replicas.GiveTheBitsOfOneReplicaInThePlanned*", "*Replicas.GiveTheBitsOfOneReplicaInPasses*"

MUTANTS = [
    Mutant(name, file, old, new, "world", test)
    for name, file, old, new, test in [
        ("replicas-keep-their-own-sums", _BUCKET, "  take(pieces, DType::kFloat32, sum_elsewhere());\n", "", _SAME),
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
            _REDUCER,
            "{&comm, options_.all}",
            "{&comm}",
            _DIFFER,
        ),
        (
            "replicas-lose-late-gradients",
            _REDUCER,
            "    bucket.add_late(place.index, grad, ledger_);\n",
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
    ]
]
