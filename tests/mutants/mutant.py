import dataclasses


@dataclasses.dataclass(frozen=True)
class Mutant:
    name: str
    file: str
    old: str  # occurs exactly once
    new: str
    program: str  # test_<program>, or "python"
    test: str  # gtest filter, or pytest's name, of the tests that must fail
