"""Commands of `nac-drive`, run in this process."""

from __future__ import annotations

from nac_drive import cli


def call(*arguments: str) -> int:
    """The exit status of a command."""
    try:
        return cli.main(list(arguments))
    except SystemExit as end:  # tyro's own refusals
        return int(end.code or 0)


def refused(capsys, *arguments: str) -> str:
    """The one line of a refusal."""
    capsys.readouterr()
    assert call(*arguments) == 2, arguments
    message = capsys.readouterr().err
    assert message.startswith("nac-drive: ")
    assert message.endswith("\n")
    assert message.count("\n") == 1, message
    assert "Traceback" not in message
    return message
