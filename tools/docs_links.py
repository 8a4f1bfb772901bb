"""A hook of mkdocs: README.md is the first page, and files of the repository that pages link to come along.

Pages link to each other and to files as the repository's own view does, so both views have working links.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

REPOSITORY = Path(__file__).resolve().parents[1]
_FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"(^```.*?^```$|`[^`\n]+`)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")
_TEXT_BEFORE_LIST = re.compile(r"^(?!\s|[|>]|[-*] |\d+\. )(.*\S)\n(?=(?:[-*]|\d+\.) )", re.MULTILINE)
_PICTURE_SUFFIXES = (".svg", ".png")


def placed(target, source):
    """The path in the site's sources of ``target``, a link in the page ``source``; both paths of the repository."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    if not (REPOSITORY / path).exists():
        raise PluginError(f"{source}: the link '{target}' leads nowhere")
    if path == "README.md":
        return "index.md"
    if path.startswith("docs/") and path.endswith((".md", *_PICTURE_SUFFIXES)):
        return path.removeprefix("docs/")
    if (REPOSITORY / path).is_dir():
        return None
    return f"repository/{path}" + (".txt" if path.endswith(".md") else "")  # as text, not as a page


def rewritten(text, source):
    """The page with links that hold in the site, and the files outside docs/ that it links to."""
    here, needed = posixpath.dirname("index.md" if source == "README.md" else source.removeprefix("docs/")), set()

    def link(found):
        before, target, anchor, after = found[1], found[2], found[3] or "", found[4]
        if re.match(r"\w+:", target):
            return found[0]
        path = placed(target, source)
        path = path or "index.md"  # for a folder, which the site does not show
        if path.startswith("repository/"):
            needed.add(path)
        return before + posixpath.relpath(path, here or ".") + anchor + after

    parts = _CODE.split(text)  # code at the odd places
    parts[::2] = [_LINK.sub(link, part) for part in parts[::2]]
    return with_lists("".join(parts)), needed


def with_lists(text):
    """With an empty line before each list, which this Markdown needs where the repository's view does not."""
    parts = _FENCE.split(text)  # fences at the odd places
    parts[::2] = [_TEXT_BEFORE_LIST.sub(r"\1\n\n", part) for part in parts[::2]]
    return "".join(parts)


def on_files(files, config):
    needed = set()
    pages = {f"docs/{file.src_uri}": Path(file.abs_src_path).read_text() for file in files.documentation_pages()}
    for source, text in pages.items():
        needed |= rewritten(text, source)[1]
    home, more = rewritten((REPOSITORY / "README.md").read_text(), "README.md")
    files.append(File.generated(config, "index.md", content=home))
    for path in sorted(needed | more):
        original = path.removeprefix("repository/")
        original = original if (REPOSITORY / original).exists() else original.removesuffix(".txt")
        files.append(File.generated(config, path, abs_src_path=str(REPOSITORY / original)))
    return files


def on_page_markdown(markdown, page, config, files):
    return markdown if page.file.src_uri == "index.md" else rewritten(markdown, f"docs/{page.file.src_uri}")[0]
