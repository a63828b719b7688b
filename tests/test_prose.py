"""Prose of pages, docstrings and comments: the noun is repeated, drivers score, first sentences are short.

`python -m tests.test_prose [FOLDER]` prints the violations of a checkout, and how often its words occur.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CODE = ("nac_drive", "tests", "benchmarks")
QUOTES = {"log.md", "CHANGELOG.md"}
"""Pages that quote what others or earlier versions wrote."""
MOST_WORDS = 10
DEFINITIONS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)

THAT_OF = re.compile(r"\b(?:that|those) of\b", re.IGNORECASE)
MAKES = re.compile(
    r"\b(?:makes?|made|making|comes? to|came to|coming to)\s+(?:\w+ly |only |still |some |about |over |at least )?\**"
    r"[-+]?\d{1,3}(?:\.\d+)?\**(?![\d,.]*\s*(?:%|frames|ms|s\b|seconds|minutes|steps|decisions|times|episodes|tracks|MB|points))"
)
"""A return, or a range of returns, after a word that is for manufacturers."""
SUSPECT = re.compile(f"{THAT_OF.pattern}|{MAKES.pattern.partition('(?!')[0]}", re.IGNORECASE)
"""What a file holds, on one line and without the marks of comments, if a text of it breaks a rule."""
WORDS = {
    "that of / those of": THAT_OF,
    "whose": re.compile(r"\bwhose\b", re.IGNORECASE),
    "beside; of its own; in place of": re.compile(
        r"\b(?:beside|of (?:its|their|one's|your) own|in place of)\b", re.IGNORECASE
    ),
}
"""What the vocabulary counts in 10,000 words."""

MOST: dict[str, dict[str, int]] = {
    "docs": {"that of": 0, "makes": 0},
    "code": {"that of": 0, "makes": 0},
    "first sentences": {"nac_drive": 335, "benchmarks": 210, "tests": 530},
}
"""Violations that are left, by rule. These numbers may only fall."""

Place = tuple[str, str]
"""Where a text stands, and the text."""


def pages(root: Path = ROOT) -> Iterator[Place]:
    """Yield the prose of README and docs: no code, no tables, no addresses."""
    for path in (root / "README.md", *sorted((root / "docs").glob("*.md"))):
        if path.name not in QUOTES:
            for line, text in paragraphs(path.read_text()):
                yield f"{path.relative_to(root)}:{line}", text


def paragraphs(page: str) -> Iterator[tuple[int, str]]:
    """Yield every paragraph of a page with the number of its first line."""
    page = re.sub(r"^(```|:::).*?^\1$", lambda block: "\n" * block[0].count("\n"), page, flags=re.MULTILINE | re.DOTALL)
    lines = ["" if re.match(r"    |\||!\[|- {4}", line) else line for line in page.split("\n")]
    first, kept = 1, []
    for number, line in enumerate([*lines, ""], start=1):
        if line.strip():
            first = first if kept else number
            kept.append(line.strip())
        elif kept:
            yield first, re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`]*`", "x", " ".join(kept)))
            kept = []


def modules(root: Path = ROOT) -> Iterator[Path]:
    for folder in CODE:
        yield from sorted(path for path in (root / folder).rglob("*.py") if "__pycache__" not in path.parts)


def statements(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield a module and its statements.

    Most nodes of a tree are in their expressions.
    """
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            waiting += getattr(node, name, [])


@cache
def strings(path: Path) -> list[tuple[int, str, bool]]:
    """Return the docstrings of a module, and the strings under its fields and constants.

    Beside each: its line, and whether a module, a class or a function begins with it. The tree is not kept, as Python
    would look through all trees for garbage again and again.
    """
    return [
        (child.lineno, child.value.value, number == 0 and isinstance(node, DEFINITIONS))
        for node in statements(ast.parse(path.read_text()))
        for number, child in enumerate(getattr(node, "body", []))
        if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant) and isinstance(child.value.value, str)
    ]


def comments(path: Path, root: Path = ROOT) -> Iterator[Place]:
    """Yield every comment of a module; neighbouring lines are one comment."""
    last = -1
    block: list[str] = []
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type == tokenize.COMMENT:
            if block and token.start[0] != last + 1:
                yield f"{path.relative_to(root)}:{last}", " ".join(block)
                block = []
            last = token.start[0]
            block.append(token.string.lstrip("# "))
    if block:
        yield f"{path.relative_to(root)}:{last}", " ".join(block)


def code(root: Path = ROOT, holding: re.Pattern[str] | None = None) -> Iterator[Place]:
    """Yield the docstrings and comments of all modules, or of those that hold a pattern on one line."""
    for path in modules(root):
        if holding is None or holding.search(re.sub(r"[\s#]+", " ", path.read_text())):
            yield from ((f"{path.relative_to(root)}:{line}", text) for line, text, _ in strings(path))
            yield from comments(path, root)


def first_sentence(text: str) -> str:
    """Return the first sentence of a docstring, which a colon does not end."""
    paragraph = " ".join(text.strip().split("\n\n")[0].split())
    return re.split(r"(?<=[^.][.!?])\s+(?=[A-Z`\"(])", paragraph)[0]


def number_of_words(text: str) -> int:
    """Return the number of words; a code span is one, and so is a shape such as (B, T, d)."""
    text = re.sub(r"`[^`]*`|\((?:[\w.*/+ -]*,)+[\w.*/+ -]*\)", "x", text)
    return len(re.findall(r"\S*\w\S*", text))


def first_sentences(root: Path = ROOT) -> Iterator[Place]:
    """Yield the first sentence of every docstring of a module, a class or a function."""
    for path in modules(root):
        for line, text, first in strings(path):
            if first:
                yield f"{path.relative_to(root)}:{line}", first_sentence(text)


def violations(root: Path = ROOT) -> dict[str, dict[str, list[Place]]]:
    """Return the violations: kind of text -> rule -> places."""
    docs, sources = list(pages(root)), list(code(root, SUSPECT))
    long = [(place, text) for place, text in first_sentences(root) if number_of_words(text) > MOST_WORDS]
    return {
        "docs": {"that of": matching(THAT_OF, docs), "makes": matching(MAKES, docs)},
        "code": {"that of": matching(THAT_OF, sources), "makes": matching(MAKES, sources)},
        "first sentences": {folder: [item for item in long if item[0].startswith(f"{folder}/")] for folder in CODE},
    }


def matching(pattern: re.Pattern[str], texts: list[Place]) -> list[Place]:
    found = ((place, match, text) for place, text in texts for match in pattern.finditer(" ".join(text.split())))
    return [
        (place, " ".join(text.split())[max(0, match.start() - 50) : match.end() + 40]) for place, match, text in found
    ]


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, list[Place]]]:
    return violations()


@pytest.mark.parametrize(("kind", "rule"), [(kind, rule) for kind, rules in MOST.items() for rule in rules])
def test_prose_keeps_its_rules(kind, rule, found):
    places = found[kind][rule]
    listed = "\n".join(f"{place}: {text}" for place, text in places)
    assert len(places) <= MOST[kind][rule], f"{rule}: {len(places)}, at most {MOST[kind][rule]}\n{listed}"


def test_the_readme_is_one_screen_with_few_numbers():
    page = (ROOT / "README.md").read_text()
    assert len(page.splitlines()) <= 100
    assert numbers_per_100_words(page) <= 4


def test_a_how_to_page_is_short():
    index = (ROOT / "docs/index.md").read_text()
    names = index.partition(":caption: How to")[2].partition(":::")[0].split("\n\n")[1].split()
    lengths = {name: len((ROOT / f"docs/{name}.md").read_text().splitlines()) for name in names}
    assert len(lengths) > 8
    assert not {name: length for name, length in lengths.items() if length > 100}


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("with two pedals NAC makes 779", True),
        ("the LSTM came to **591** in one run", True),
        ("NAC makes about 93.5 and more", True),
        ("it scores 779", False),
        ("a machine of the same kind makes 6,300 frames/s", False),
        ("an episode makes 20 steps", False),
        ("this makes 3 % of the frames", False),
    ],
)
def test_a_driver_scores(text, is_one):
    assert bool(MAKES.search(text)) == is_one


def test_first_sentences_are_counted_as_they_are_read():
    assert first_sentence("Return it, e.g. one.\n\nMore. And more.") == "Return it, e.g. one."
    assert first_sentence("Return it. It\nis more.") == "Return it."
    assert number_of_words("Return `a + b` of x: (B, T) -> y.") == 6


def test_pages_are_read_without_code_and_tables():
    code, table = "    that of code", "| that of | tables |\n\n```python\nthat of\n```"
    page = f"One `that of` two,\nthree.\n\n{code}\n\n{table}\n\n[Four](five)."
    assert [*paragraphs(page)] == [(1, "One x two, three."), (12, "[Four].")]


def numbers_per_100_words(page: str) -> float:
    """Return how many numbers the prose of a page has in 100 words."""
    text = " ".join(text for _, text in paragraphs(page))
    return 100 * len(re.findall(r"(?<![\w.-])[-+]?\d[\d.,]*", text)) / number_of_words(text)


def report(root: Path) -> None:
    """Print the violations, and the words of the vocabulary in 10,000."""
    for kind, rules in violations(root).items():
        for rule, places in rules.items():
            print(*(f"{kind}, {rule}: {place}: {text}" for place, text in places), sep="\n")
            print(f"{kind}, {rule}: {len(places)}\n")
    sentences = [number_of_words(text) for _, text in first_sentences(root)]
    for kind, places in (("docs", [*pages(root)]), ("code", [*code(root)])):
        texts = [" ".join(text.split()) for _, text in places]
        words = sum(map(number_of_words, texts))
        counts = {name: sum(len(pattern.findall(text)) for text in texts) for name, pattern in WORDS.items()}
        print(kind, words, {name: round(1e4 * count / words, 1) for name, count in counts.items()})
    print(f"README: {numbers_per_100_words((root / 'README.md').read_text()):.1f} numbers in 100 words")
    print(f"first sentence: {sum(sentences) / len(sentences):.1f} words")


if __name__ == "__main__":
    report(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
