"""A Sphinx extension: pages from outside docs/, and links that lead there.

A page that is nothing but an `{include}` shows a Markdown file of the repository, whose links and pictures are relative
to that file. An `{include}` with `:start-at:` and `:end-before:` shows the lines between two headings of such a file. A
`{source}` shows any other file, or the names of the files in a directory, below the heading before it. A link to what a
page shows leads there. A link to anything else leads to the repository, if it has an address, and is a warning otherwise:
a reader of the site would see dead text.
"""

import os
import re
import tomllib
from pathlib import Path

from docutils import nodes
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

ROOT = Path(__file__).parent.parent.parent
URLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
# The address is a placeholder until there is a repository (release/address.py).
REPOSITORY = None if ".invalid/" in URLS["Repository"] else URLS["Repository"]
INCLUDE = re.compile(r"```\{include\} (\S+)\n```\n")
PART = re.compile(r"```\{include\} (\S+)\n:start-at: \"(.*)\"\n:end-before: \"(.*)\"\n```\n")
HEADING_OR_SOURCE = re.compile(r"^#+ (?P<heading>.*)$|^```\{source\} (?P<path>\S+)$", re.MULTILINE)
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#\s:]+)(#[^)\s]*)?\)")
FENCE = re.compile(r"^```.*?^```\s*$", re.MULTILINE | re.DOTALL)
# What a command has printed looks different from what a reader types.
OUTPUT = re.compile(r"^```text output.*\n")
AS_OUTPUT = "```{code-block} text\n:class: output\n\n"
LANGUAGES = {".py": "python", ".rs": "rust", ".toml": "toml", ".yml": "yaml", ".json": "json"}

log = logging.getLogger(__name__)


def setup(app):
    app.add_directive("source", Source)
    app.connect("builder-inited", find_shown)
    app.connect("source-read", resolve)
    return {"parallel_read_safe": True, "version": "1"}


class Source(SphinxDirective):
    """Shows a file of the repository, or lists the files in a directory."""

    required_arguments = 1

    def run(self):
        path = Path(self.env.doc2path(self.env.docname)).parent.joinpath(self.arguments[0]).resolve()
        if path.is_dir():
            text = "\n".join(sorted(each.name for each in path.iterdir() if not each.name.startswith("__pycache__")))
        else:
            text = path.read_text()
            self.env.note_dependency(path)
        block = nodes.literal_block(text, text)
        block["language"] = LANGUAGES.get(path.suffix, "text")
        return [block]


def find_shown(app):
    """Finds what the pages show from outside docs/: (page, anchor) of each path."""
    shown = {}
    for page in Path(app.srcdir).rglob("*.md"):
        text, anchor = page.read_text(), ""
        if found := INCLUDE.fullmatch(text):
            shown[(page.parent / found[1]).resolve()] = page, ""
        for found in HEADING_OR_SOURCE.finditer(text):
            if found["path"]:
                shown[(page.parent / found["path"]).resolve()] = page, anchor
            else:
                # GitHub's rule, which MyST follows.
                anchor = "#" + re.sub(r"[^\w\- ]", "", found["heading"].lower()).replace(" ", "-")
    app.env.files_shown = shown


def resolve(app, name, source):
    page = Path(app.env.doc2path(name)).resolve()

    def included(path, start=None, end=None):
        file = (page.parent / path).resolve()
        app.env.note_dependency(file)
        text = file.read_text()
        if start is not None:
            lines = text.splitlines(keepends=True)
            try:
                first = lines.index(f"{start}\n")
                text = "".join(lines[first : lines.index(f"{end}\n", first)])
            except ValueError as error:
                log.warning("%s: %s", path, error, location=name)
        return with_links(app, name, page, file, text)

    if found := INCLUDE.fullmatch(source[0]):
        source[0] = included(found[1])
        return
    pieces, at = [], 0
    for found in PART.finditer(source[0]):
        pieces += [with_links(app, name, page, page, source[0][at : found.start()]), included(*found.groups())]
        at = found.end()
    source[0] = "".join([*pieces, with_links(app, name, page, page, source[0][at:])])


def with_links(app, name, page, file, text):
    """The text of a file with links that are right on a page, and with the class of what commands print."""

    def replace(link):
        image, label, target, anchor = link[1], link[2], link[3], link[4] or ""
        leads_to = (file.parent / target).resolve()
        if not leads_to.exists():
            log.warning("broken link: %s", target, location=name)
        leads_to, section = app.env.files_shown.get(leads_to, (leads_to, ""))
        if image or leads_to.is_relative_to(app.srcdir) and leads_to.is_file():
            return f"{image}[{label}]({os.path.relpath(leads_to, page.parent)}{anchor or section})"
        if REPOSITORY is None:
            log.warning("no page shows %s", target, location=name)
            return label
        kind = "tree" if leads_to.is_dir() else "blob"
        return f"[{label}]({REPOSITORY}/{kind}/main/{leads_to.relative_to(ROOT)}{anchor})"

    pieces, end = [], 0
    for block in FENCE.finditer(text):
        pieces += [LINK.sub(replace, text[end : block.start()]), OUTPUT.sub(AS_OUTPUT, block[0])]
        end = block.end()
    return "".join([*pieces, LINK.sub(replace, text[end:])])
