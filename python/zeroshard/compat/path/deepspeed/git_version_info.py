"""``deepspeed.git_version_info``, by zeroshard."""

from zeroshard.compat.alias import provide

__getattr__, __dir__, __all__ = provide(
    __name__,
    {
        "zeroshard.compat.alias": ["version = VERSION", "git_hash = GIT_HASH", "git_branch = GIT_BRANCH"],
    },
)
