"""Pages of the documentation: the snippets of docs/nac.md run, and links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

DOCS = Path(__file__).parents[2] / "docs"


def test_the_snippets_run_one_after_the_other() -> None:
    snippets = re.findall(r"```python\n(.*?)```", (DOCS / "nac.md").read_text(), flags=re.DOTALL)
    assert len(snippets) >= 4
    names: dict[str, object] = {}
    torch.manual_seed(0)
    for snippet in snippets:
        exec(snippet, names)


@pytest.mark.parametrize(("page", "least"), [("nac.md", 6), ("metrics.md", 1), ("attention.md", 0)])
def test_links_lead_somewhere(page: str, least: int) -> None:
    prose = re.sub(r"```.*?```|`[^`]*`", "", (DOCS / page).read_text(), flags=re.DOTALL)
    links = [link for link in re.findall(r"\]\(([^)#]+)[^)]*\)", prose) if "://" not in link]
    assert len(links) >= least
    assert [link for link in links if not (DOCS / link).exists()] == []
