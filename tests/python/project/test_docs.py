"""Pages of the documentation: links lead somewhere, configurations are read, commands have the options named there."""

import json
import os
import re
import shutil
import subprocess

import pytest
import zeroshard
from built import REPOSITORY, ZEROSHARD, needs
from zeroshard.configuration import parse_config

READMES = [REPOSITORY / folder / "README.md" for folder in ("bench", "tests")]
PAGES = sorted([*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md"), *READMES])
NAMES = [str(page.relative_to(REPOSITORY)) for page in PAGES]
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")  # and pictures
_SETTINGS = ("zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size", "optimizer")


def text_of(name):
    return (REPOSITORY / name).read_text()


def blocks_of(name, *languages):
    return [body for language, body in _FENCE.findall(text_of(name)) if language in languages]


def anchors_of(path):
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ +(.*)$", _FENCE.sub("", path.read_text()), re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings]
    return {heading.replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_somewhere(name):
    page = REPOSITORY / name
    for link in _LINK.findall(_FENCE.sub("", text_of(name))):
        target, _, anchor = link.partition("#")
        if re.match(r"\w+:", target):
            continue
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), link
        if anchor and path.suffix == ".md":
            assert anchor in anchors_of(path), link


@pytest.mark.parametrize("name", [name for name in NAMES if re.fullmatch(r"docs/[\w-]+\.md", name)])
def test_a_page_says_what_it_is_for_and_shows_code_at_once(name):
    lines = [line for line in text_of(name).splitlines()[1:] if line.strip()]
    before = next(at for at, line in enumerate(lines) if line.startswith(("```", "    ")))
    assert 1 <= before <= 3, lines[:4]


def configurations():
    for name in NAMES:
        for body in blocks_of(name, "json"):
            found = re.sub(r"^\s*//.*$", "", body, flags=re.MULTILINE)
            if any(key in found for key in _SETTINGS) and found.lstrip().startswith("{"):
                yield pytest.param(found, id=name)


@pytest.mark.parametrize("text", list(configurations()))
def test_configurations_are_read(text):
    settings = json.loads(text)
    settings.pop("train", None)  # the block of `zeroshard train`: test_train_command.py
    settings.setdefault("train_micro_batch_size_per_gpu", 1)
    try:
        parse_config(json.dumps(settings), world_size=2, model=None)
    except zeroshard.ConfigError as error:
        pytest.fail(str(error))


def commands():
    """Lines of `zeroshard SUBCOMMAND ...` in code, each with its page."""
    for name in NAMES:
        bodies = blocks_of(name, "", "sh", "bash")
        bodies += ["\n".join(re.findall(r"^    (\S.*)$", _FENCE.sub("", text_of(name)), re.MULTILINE))]
        for line in "\n".join(bodies).replace("\\\n", " ").splitlines():
            found = re.match(
                r"(?:\.venv/bin/)?(zeroshard (?:plan|run|config|checkpoint|train|generate|tokenize)\b.*)", line.strip()
            )
            if found:
                yield name, found[1].partition("#")[0]


def help_of(words):
    done = subprocess.run([ZEROSHARD, *words, "--help"], capture_output=True, text=True, timeout=60, check=False)
    return done.stdout + done.stderr


@needs(ZEROSHARD)
def test_commands_have_the_options_that_pages_name():
    known, seen = {}, 0
    for page, line in commands():
        words = re.sub(r"[<>|;&].*", "", line).split()[1:]
        subcommand = tuple(words[: 2 if words[0] in ("config", "checkpoint") and len(words) > 1 else 1])
        if words[0] == "run":  # what follows the script is the script's
            script = next(
                (i for i, word in enumerate(words) if word.endswith(".py") or word.startswith("./") or word == "-m"),
                len(words),
            )
            words = words[:script]
        text = known.setdefault(subcommand, help_of(subcommand))
        for option in (word.partition("=")[0] for word in words if word.startswith("--") and word != "--"):
            seen += 1
            assert option in text, f"{page}: {line}"
    assert seen > 20


MKDOCS = REPOSITORY / ".venv-docs" / "bin" / "mkdocs"


def build_site(repository, site):
    """In a copy of what the site is made of. Returns the exit code and the output."""
    command = [MKDOCS, "build", "--strict", "--config-file", repository / "mkdocs.yml", "--site-dir", site]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def links_of(page):
    return re.findall(r'<a [^>]*href="([^"#:]+)[#"]', page.read_text())


@pytest.mark.skipif(not MKDOCS.exists(), reason="`make docs` installs mkdocs-material in .venv-docs")
def test_the_site_has_every_page_and_no_broken_link(tmp_path):
    repository, site = tmp_path / "repository", tmp_path / "site"
    tracked = subprocess.check_output(["git", "ls-files"], cwd=REPOSITORY, text=True).splitlines()
    for name in tracked:
        if (REPOSITORY / name).exists():
            (repository / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPOSITORY / name, repository / name)
    code, output = build_site(repository, site)
    assert code == 0, output
    for page in repository.glob("docs/**/*.md"):
        assert (site / page.relative_to(repository / "docs")).with_suffix(".html").exists()
    pages = list(site.glob("**/*.html"))
    for page in pages:
        if page.name != "404.html":
            for link in links_of(page):
                assert (page.parent / link).exists(), f"{page.relative_to(site)}: {link}"
    for link in ("../src/gone.h", "gone.md", "config.md#gone"):
        shutil.copy(REPOSITORY / "docs" / "plan.md", repository / "docs" / "plan.md")
        with open(repository / "docs" / "plan.md", "a") as file:
            file.write(f"\n[gone]({link})\n")
        code, output = build_site(repository, site)
        assert code != 0
        assert "plan.md" in output and "gone" in output
