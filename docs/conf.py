"""Sphinx's configuration; `make docs` builds the site into docs/_build. docs/development.md says why Sphinx."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_site"))

import wakeloop

project = "wakeloop"
author = "the wakeloop authors"
copyright = "the wakeloop authors"
version = release = wakeloop.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton", "outside_links", "public_names", "stub_signatures"]
exclude_patterns = ["_build", "_site"]
nitpicky = True
# Types of the standard library and of other packages, the stubs' own names, and type variables. The site is built without
# a network, so nothing resolves the first.
nitpick_ignore_regex = [
    ("py:.*", r"(_?asyncio|collections|contextvars|datetime|os|socket|ssl|typing|types|weakref)\b.*"),
    ("py:.*", r"(hypothesis|opentelemetry|prometheus_client)\b.*"),
    ("py:.*", r"Buffer|FileDescriptor\w+|Open\w+Mode|wakeloop\.Opening"),
    ("py:.*", r"([\w.]+\.)?_[A-Z]\w*(\.\w+)?"),
]

myst_enable_extensions = ["colon_fence", "deflist"]
# GitHub's anchors, so that a link works there as well as on the site.
myst_heading_anchors = 4

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_use_type_comments = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
add_module_names = False
copybutton_exclude = ".linenos, .gp, .go"

html_theme = "furo"
# The sidebar and the title of each page have the version.
html_title = f"wakeloop {release}"
html_static_path = ["_static"]
# Rust's documentation, which `make docs` has put there.
html_extra_path = ["../target/docs/site"]
html_css_files = ["site.css"]
html_search_scorer = str(Path(__file__).parent / "_site" / "guides-first.js")
html_show_sphinx = False
html_copy_source = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#1a7f4b", "color-brand-content": "#1a7f4b"},
    "dark_css_variables": {"color-brand-primary": "#4fc98a", "color-brand-content": "#4fc98a"},
}
pygments_style = "default"
pygments_dark_style = "github-dark"
