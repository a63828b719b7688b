"""README and docs hold: their links and paths exist, and their commands have the options that they use."""

from __future__ import annotations

import pkgutil
import re
from functools import cache

import pytest

from nac_drive.cli.main import COMMANDS, _parse, plugins_and_words
from nac_drive.cli.options import options as every_option
from nac_drive.cli.options import options_table, subcommands
from nac_drive.experiments.leaderboard import columns
from nac_drive.policies.checkpoint import PRETRAINED
from nac_drive.storage.read import FileError
from tests.commands import call
from tests.documented import PAGES, ROOT, commands

FOLDERS = "action_logs|benchmarks|data_collection|docs|envs|nac_drive|policies|scripts|tests"
SWITCHES = ("resume", "replay", "json", "horizontal-flip", "residual", "mask-bar", "shared-encoder")

RUNNING = dict(subcommands())
"""Every command that runs -> its dataclass."""
options = cache(every_option)
pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def named(words: list[str]) -> tuple[str, type | None]:
    """The command that the words call, such as `train` or `dataset info`, and its options; None for another word."""
    name = " ".join(words[:2]) if words[:1] == ["dataset"] else words[0]
    return name, RUNNING.get(name)


def test_commands_are_found():
    text = "    nac-drive train demos \\\n        --out new    # a comment\nand `nac-drive\nwatch --driver champion`\n"
    assert commands(text) == [["train", "demos", "--out", "new"], ["watch", "--driver", "champion"]]
    assert sum(len(commands(page.read_text())) for page in PAGES) > 40


@pages
def test_links_of_a_page_lead_somewhere(page):
    links = re.findall(r"\]\(([^)\s#]+)(?:#[^)]*)?\)", page.read_text())
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert not missing


@pages
def test_paths_that_a_page_names_exist(page):
    paths = set(
        re.findall(rf"(?<![\w./-])((?:{FOLDERS})/[\w./-]*\.(?:py|md|json|jsonl|npz|png|gif))\b", page.read_text())
    )
    assert not [path for path in sorted(paths) if not re.search("NAME|COMMAND", path) and not (ROOT / path).exists()]


@pages
def test_commands_of_a_page_have_the_options_that_they_use(page):
    for words in commands(page.read_text()):
        if words[0].isupper() or words[0].startswith("-") or words[0] == "evalute":
            continue  # `nac-drive COMMAND`, `nac-drive --help`, and the mistyped command of docs/cli.md
        name, command = named(words)
        if command is None:
            assert words[0] in COMMANDS, words
            continue
        known = {option.name for option in options(command)} | {"--help", "--plugin"}
        known |= {f"--no-{switch}" for switch in SWITCHES if f"--{switch}" in known}
        used = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert used <= known, (name, used - known)


@pages
def test_whole_commands_of_a_page_are_accepted(page, capsys):
    """Commands with all that is required; others name an option or two of a longer command."""
    for words in commands(page.read_text()):
        name, command = named(words)
        if command is None or "--help" in words:
            continue
        required = {option.name for option in options(command) if option.default == "required"}
        positional = {option for option in required if option.isupper()}
        following = words[len(name.split()) :]
        if required - positional - set(words) or (positional and (not following or following[0].startswith("--"))):
            continue
        accepted = _accepts(tuple(re.sub("^CONTROL$", "continuous", word) for word in words))
        assert accepted, (words, capsys.readouterr().err)


@cache
def _accepts(words: tuple[str, ...]) -> bool:
    try:
        _parse(plugins_and_words([*words])[1])
    except SystemExit:
        return False
    except (FileError, FileNotFoundError):  # --config and --init-from name the run of another line
        return True
    return True


def test_names_of_the_reference_exist():
    """Names of the package itself may be short; the pages set the module."""
    for page in (ROOT / "docs/api").glob("*.md"):
        module = ""
        for directive, name in re.findall(r"^\.\. (currentmodule|auto\w+):: (\S+)", page.read_text(), re.MULTILINE):
            if directive == "currentmodule":
                module = name
            else:
                pkgutil.resolve_name(name if name.startswith("nac_drive.") else f"{module}.{name}")


NOT_ON_THE_LEADERBOARD = ("rate", "interventions/episode", "steering error", "squared")
"""Of another mode, and what was not measured then."""


def test_the_leaderboard_has_the_columns_of_today():
    headings = re.findall(r"^\| (driver .*) \|$", (ROOT / "docs/leaderboard_0_1.md").read_text(), re.MULTILINE)
    assert len(headings) == 2
    for heading in headings:
        assert heading.split(" | ") == [
            column.heading for column in columns() if column.heading not in NOT_ON_THE_LEADERBOARD
        ]


def test_model_cards_and_the_readme_have_the_returns_of_the_page_of_results():
    page, readme = ((ROOT / name).read_text().replace("*", "") for name in ("docs/results.md", "README.md"))
    rows = re.findall(r"^\| ([\w-]+).*?\| (\w+) \| (.+?) \| (.+?) \|", page, re.M)
    results = {f"{name}-{control}": (mean, minimum) for name, control, mean, minimum in rows}
    on_cards = {
        name: returns
        for name, folder in PRETRAINED.items()
        for returns in re.findall(r"^\| test-100 \| (.+?) \| (.+?) \|", (folder / "README.md").read_text(), re.M)
    }
    assert len(on_cards) > 6
    assert on_cards == {name: results[name] for name in on_cards}
    ours = re.findall(r"^\| ([\w-]+)(?:,.*?)? \|.*\| (\d+ ± \d+) \| (\d+) \| \d", readme, re.M)
    assert len(ours) > 4  # the driver of others has no 1,000 tracks
    assert {name: returns for name, *returns in ours} == {name: [*results[f"{name}-continuous"]] for name, *_ in ours}


def test_the_page_of_the_command_line_holds_every_option():
    """Mended by writing the output of `nac_drive.cli.options.options_table()` into the page."""
    assert options_table() in (ROOT / "docs/cli.md").read_text()


@pytest.mark.parametrize("name", RUNNING)
def test_the_options_of_the_page_are_those_of_the_parser(name, capsys):
    assert call(*name.split(), "--help") == 0
    text = " ".join(re.sub("[│╭╮╰╯─]", " ", capsys.readouterr().out).split())
    listed = {option.name: option.meaning.replace("\\|", "|") for option in options(RUNNING[name])}
    assert not [meaning for meaning in listed.values() if meaning not in text]
    assert {option for option in listed if option.startswith("--")} <= set(re.findall(r"--[a-z][\w-]*", text))
