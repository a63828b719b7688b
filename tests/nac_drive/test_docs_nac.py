"""docs/nac.md: its snippets run, its links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import torch

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "nac.md").read_text()


def test_the_snippets_run_one_after_the_other() -> None:
    snippets = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
    assert len(snippets) >= 4
    names: dict[str, object] = {}
    torch.manual_seed(0)
    for snippet in snippets:
        exec(snippet, names)


def test_links_lead_somewhere() -> None:
    links = [link for link in re.findall(r"\]\(([^)#]+)[^)]*\)", TEXT) if "://" not in link]
    assert len(links) >= 6
    assert [link for link in links if not (DOCS / link).exists()] == []
