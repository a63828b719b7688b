"""The command lines of README and docs: found in their pages, and cut to sizes that a test can run."""

from __future__ import annotations

import re
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    path
    for pattern in (
        "*.md", "docs/*.md", "docs/api/*.md", "docs/figures/*.md", "docs/papers/*.md", "action_logs/*.md",
        "nac_drive/policies/pretrained/*/README.md",
    )
    for path in ROOT.glob(pattern)
    if path.name != "CHANGELOG.md"  # it names what was removed
)  # fmt: skip

_LINES = re.compile(
    r"^ {4}\$ (?P<asked>nac-drive .*)\n {4}(?P<answer>.*)$"
    r"|^ {4}(?P<line>(?:[A-Z_]+=\S+ )*(?:nac-drive |python (?:benchmarks/|-m )).*)$"
    r"|^ {4}(?P<variable>[A-Z]+=\S+)$"
    r"|^```python\n(?P<code>(?s:.*?))^```$"
    r"|`(?P<span>(?:nac-drive|python)\s[^`]*)`",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Line:
    """One command line of a page, or one Python block."""

    kind: Literal["nac-drive", "python", "variable", "code", "file"]
    """A command of ours, a script, the value of a shell variable, Python code, or the content of a file of the user's:
    a Python block that starts with the file's name as a comment."""
    text: str
    """The line; continuation lines are joined, a prompt and a comment are left out."""
    answer: str = ""
    """The line that the page shows below a line with a prompt."""


def lines(text: str) -> list[Line]:
    """Return the command lines of a page in their order: indented lines, code spans and Python blocks."""
    matches = _LINES.finditer(re.sub(r"\\\n\s*", " ", text))
    return [_line({name: value for name, value in match.groupdict().items() if value}) for match in matches]


def _line(match: dict[str, str]) -> Line:
    if code := match.get("code"):
        return Line("file" if re.match(r"# \w+\.py\n", code) else "code", code)
    if variable := match.get("variable"):
        return Line("variable", variable)
    text = " ".join((match.get("asked") or match.get("line") or match["span"]).split())
    text = re.sub(r" # .*", "", text)
    kind = "nac-drive" if re.match(r"([A-Z_]+=\S+ )*nac-drive\b", text) else "python"
    return Line(kind, text, match.get("answer", ""))


def commands(text: str) -> list[list[str]]:
    """Return the words of every `nac-drive` command of a page, without prompts, variables and comments."""
    found = [words(line.text) for line in lines(text) if line.kind == "nac-drive" and not line.answer]
    return [line[line.index("nac-drive") + 1 :] for line in found]


def words(text: str) -> list[str]:
    """Return the words of a command line without comment, redirection and dots, not expanded by a shell."""
    found = shlex.split(re.sub(r"\$\([^)]*\)", "1", text), comments=True)
    found = found[: found.index(">")] if ">" in found else found
    return [word for word in found if word != "..."]


def expanded(text: str, variables: list[str]) -> list[str]:
    """Return the words as bash expands them in the working folder: variables, braces, file names and commands."""
    line = re.sub(r"\s>\s.*|\s\.\.\.(?=\s|$)", " ", text)
    if not set("{}[]*$~") & set(line):
        return words(line)
    script = "\n".join((*variables, f"printf '%s\\n' {line}"))
    shell = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    return shell.stdout.splitlines()
