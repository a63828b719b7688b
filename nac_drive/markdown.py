"""Tables in Markdown, and numbers in text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]], align: str = "l") -> str:
    """Return a table in GitHub's Markdown, without a line end.

    Args:
        headings: Texts of the first line.
        rows: Texts of the other lines. Names of others must have gone through `storage.names.markdown`.
        align: One letter a column: l for text, r for numbers. Columns without a letter are numbers.
    """
    rule = "|".join({"l": "---", "r": "---:"}[letter] for letter in align.ljust(len(headings), "r"))
    lines = [f"| {' | '.join(cells)} |" for cells in (headings, *rows)]
    return "\n".join([lines[0], f"|{rule}|", *lines[1:]])


def number_text(value: float, spec: str) -> str:
    """Return a number as text, and zero without a sign.

    Args:
        value: The number.
        spec: Its format, such as "+.0f".
    """
    text = f"{value:{spec}}"
    return text.lstrip("+-") if float(text.replace(",", "")) == 0 else text
