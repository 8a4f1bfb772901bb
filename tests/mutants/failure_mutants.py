"""What a backward that failed, or that needs other units than other ranks' do, could leave behind."""

from mutant import Mutant

_BACKWARD, _EXECUTOR, _BUCKET = (
    "src/engine/engine_backward.cpp",
    "src/engine/executor.cpp",
    "src/reduce/grad_bucket.cpp",
)
_AGAIN, _CLEARED = "FailedBackward.TheStepBeginsAgainWithTheSameBits", "FailedBackward.WhatWasClearedIsInNoStep"

MUTANTS = [
    Mutant(name, file, old, new, "world", test)
    for name, file, old, new, test in [
        ("failed-backward-untold", _BACKWARD, "if (words[0] > 0) {", "if (!failure.empty()) {", _AGAIN),
        ("failed-pass-left-early", _EXECUTOR, "  begin_backward();\n  let_all_others_pass();", "", _AGAIN),
        ("failed-local-sum-kept", _BUCKET, "  local_used_ = false;\n", "", _AGAIN),
        ("failed-gradients-kept", _BUCKET, "  end_step();\n  return slot;", "  return slot;", _CLEARED),
        ("norm-of-the-step-before", _BUCKET, "= false;\n  squares_ = ExactSum();", "= false;", _CLEARED),
        (
            "other-ranks-units-not-gathered",
            _EXECUTOR,
            "while (!order_->upcoming().empty()) skip(order_->upcoming().front());",
            "",
            _AGAIN,
        ),
        (
            "next-unit-not-agreed",
            _EXECUTOR,
            "while (units_[index]->is_sharded() && agree_on_next(index) != index) {\n  }",
            "",
            _AGAIN,
        ),
    ]
]
