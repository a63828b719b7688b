"""The docs site: `make docs` builds it into docs/_build/html, and fails on every warning."""

from __future__ import annotations

import re
from inspect import ismodule
from pathlib import Path
from typing import Any

from sphinx.util import logging

import nac_drive

project = "nac-drive"
version = release = nac_drive.__version__
author = "the authors of nac-drive"
copyright = f"2026, {author}"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build", "runs"]

html_theme = "furo"
html_title = f"nac-drive {version}"
html_show_sourcelink = False
html_static_path = ["_static"]
html_css_files = ["tables.css"]

myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3

default_role = "code"
"""Docstrings write code as in Markdown, between single backticks."""
add_module_names = False
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
napoleon_numpy_docstring = False
napoleon_use_rtype = False


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", escape_bars)
    app.connect("builder-inited", check_names)
    app.connect("source-read", name_files)


def check_names(app: Any) -> None:
    """Warn of public names that no page of the API reference has."""
    pages = "".join(page.read_text() for page in Path(app.srcdir, "api").glob("*.md"))
    documented = set(re.findall(r"^\.\. auto\w+:: (?:\w+\.)*(\w+)$", pages, re.MULTILINE))
    names = {name for name in nac_drive.__all__ if not ismodule(getattr(nac_drive, name))}  # type: ignore[attr-defined]
    if missing := sorted(names - documented):
        logging.getLogger(__name__).warning("docs/api has no entry for %s", ", ".join(missing))


def escape_bars(app: Any, kind: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Show |x| as it is written; reStructuredText would take it for a substitution."""
    lines[:] = [line.replace("|", "\\|") for line in lines]


def name_files(app: Any, page: str, text: list[str]) -> None:
    """Name the files of the repository that a page links to; the site does not hold them."""
    if "/" not in page:
        text[0] = re.sub(r"\[([^\]]+)\]\(\.\./([^)]+)\)", r"\1 (`\2`)", text[0])
