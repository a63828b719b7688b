"""Output that cannot be written and interruptions: results stay, one line at most is said, no process is left."""

from __future__ import annotations

import errno
import io
import os
import signal
import subprocess
import sys
import time
import warnings
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

import nac_drive
from nac_drive.__main__ import main as start
from nac_drive.cli.datasets import DatasetInfo
from nac_drive.cli.output import Output
from nac_drive.memory import NO_MEMORY
from nac_drive.parallel.signals import Interrupted, Terminated, signals_raised
from nac_drive.policies import Driver, DriverConfig, save_driver
from tests.commands import call

REPOSITORY = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def driver(tmp_path_factory) -> str:
    """A driver whose episodes have three frames."""
    path = tmp_path_factory.mktemp("driver") / "cnn"
    env = {"control": "discrete", "mask_bar": False, "max_steps": 3}
    return str(save_driver(path, Driver(DriverConfig(core="cnn")), env=env))


@pytest.fixture
def closed() -> Iterator[io.TextIOBase]:
    """A pipe whose reader has gone, as of `| head`."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stream:
        yield stream


@pytest.fixture
def full() -> Iterator[io.TextIOBase]:
    """A file on a full disk."""
    with open("/dev/full", "w") as stream:
        yield stream


COMMANDS = {
    "evaluate": ("evaluate", "--baseline", "none", "--tracks", "5", "--out", "new"),
    "watch": ("watch", "--track", "5", "--video", "new.mp4"),
    "completion": ("completion",),
    "help": ("evaluate", "--help"),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("stdout", ["closed", "full"])
def test_a_stdout_that_cannot_be_written_costs_no_work(command, stdout, driver, tmp_path, request, monkeypatch, capsys):
    if stdout == "full" and not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full here")
    monkeypatch.chdir(tmp_path)
    words = COMMANDS[command]
    words += {"evaluate": ("--driver", driver, "--workers", "1"), "watch": ("--driver", driver)}.get(command, ())
    monkeypatch.setattr(sys, "stdout", request.getfixturevalue(stdout))
    status = call(*words)
    sys.stdout.flush()  # Python flushes it once more when it ends
    message = capsys.readouterr().err
    if stdout == "closed":
        assert (status, message) == (0, "")
    else:
        assert status == 2
        assert message.startswith("nac-drive: stdout cannot be written: No space left on device")
        assert message.count("\n") == 1
    if command == "evaluate":
        names = {path.name for path in (tmp_path / "new").iterdir()}
        assert names >= {"rows.jsonl", "summary.json", "report.html", "figure.png", "conditions.json"}
    if command == "watch":
        assert (tmp_path / "new.mp4").stat().st_size > 1000


def test_a_process_without_stdout_and_stderr_works(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    assert call("--version") == 0
    assert call("evalute") == 2


def test_a_character_that_stdout_lacks_becomes_a_question_mark():
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    output = Output(stream)
    output.write("903 ± 12")
    output.flush()
    assert stream.buffer.getvalue() == b"903 ? 12"  # type: ignore[attr-defined]
    assert output.error is None


def test_a_message_shows_no_control_characters(capsys):
    assert call("dataset", "info", "no\x1b[2Jne") == 2
    assert "no?[2Jne" in capsys.readouterr().err


def test_a_warning_is_one_line_and_the_process_keeps_its_own_form_of_warnings(monkeypatch, capsys):
    before = warnings.showwarning, warnings.formatwarning, warnings.filters[:]
    monkeypatch.setattr(DatasetInfo, "run", lambda *_: warnings.warn("a line\nof two\x1b[2J", stacklevel=1))
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert call("dataset", "info", "data") == 0
    assert capsys.readouterr().err == "nac-drive: warning: a line of two?[2J\n"
    assert (warnings.showwarning, warnings.formatwarning, warnings.filters) == before
    assert call("dataset", "info", "none") == 0
    assert (warnings.showwarning, warnings.formatwarning, warnings.filters) == before


SCRIPT = """
import signal, sys
from pathlib import Path
import nac_drive
from nac_drive.cli.main import main
from nac_drive.parallel.processes import worker_pool
from tests.parallel.work import meet_and_stay

def stay(out, *arguments, **keywords):
    out.mkdir()
    with worker_pool(2) as pool:
        list(pool.imap(meet_and_stay, [(Path(f"ready {i}"), Path("never")) for i in range(2)]))

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    nac_drive.collect = stay
    sys.exit(main(["collect", "--out", "new", "--driver", "controller"]))
"""


@pytest.mark.timeout(1200)  # ends a hang
@pytest.mark.parametrize(
    ("number", "status", "message"),
    [
        (signal.SIGINT, 130, "nac-drive: stopped; go on with --resume\n"),
        pytest.param(signal.SIGTERM, 143, "nac-drive: terminated; go on with --resume\n", marks=pytest.mark.slow),
    ],
)
def test_an_interruption_is_one_line_and_leaves_no_process(number, status, message, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    for name in ("ready 0", "ready 1", "never"):
        os.mkfifo(tmp_path / name)
    command = subprocess.Popen(
        [sys.executable, "script.py"], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        start_new_session=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    for worker in range(2):
        (tmp_path / f"ready {worker}").read_bytes()  # until it works
    if number == signal.SIGINT:
        os.killpg(command.pid, number)  # as the terminal does
    else:
        command.send_signal(number)
    assert command.communicate()[0] == message  # ends when the workers have ended, too
    assert command.returncode == status


@pytest.mark.parametrize("out", [True, False])
def test_only_what_exists_is_gone_on_with(out, tmp_path, monkeypatch, capsys):
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(nac_drive, "evaluate_with_baseline", interrupted)
    words = ("--out", str(tmp_path)) if out else ("--out", str(tmp_path / "new"))
    assert call("evaluate", "--driver", "controller", "--workers", "1", *words) == 130
    assert capsys.readouterr().err == f"nac-drive: stopped{'; go on with --resume' if out else ''}\n"


def test_a_challenge_goes_on_with_its_folder(tmp_path, monkeypatch, capsys):
    def interrupted(*_: object, **__: object) -> None:
        (tmp_path / "result").mkdir(exist_ok=True)
        raise KeyboardInterrupt

    monkeypatch.setattr("nac_drive.experiments.challenge.challenge", interrupted)
    words = ("challenge", "--driver", "controller", "--workers", "1", "--out", str(tmp_path / "result.json"))
    assert call(*words) == 130
    assert capsys.readouterr().err == "nac-drive: stopped; go on with --resume\n"


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_termination_has_the_exit_status_of_its_signal(number, status, tmp_path, monkeypatch, capsys):
    def terminated(*_: object, **__: object) -> None:
        signal.raise_signal(number)

    monkeypatch.setattr(nac_drive, "evaluate_with_baseline", terminated)
    before = signal.signal(number, signal.SIG_DFL)  # the tests may run under nohup
    try:
        assert call("evaluate", "--driver", "controller", "--workers", "1", "--out", str(tmp_path)) == status
    finally:
        signal.signal(number, before)
    assert capsys.readouterr().err == "nac-drive: terminated; go on with --resume\n"


@pytest.mark.parametrize(("name", "status", "word"), [("SIGINT", 130, "stopped"), ("SIGTERM", 143, "terminated")])
def test_a_signal_that_comes_while_modules_or_plugins_are_loaded_is_one_line(
    name, status, word, tmp_path, monkeypatch, capsys
):
    plugin = tmp_path / f"ended_by_{name.lower()}.py"
    plugin.write_text(f"import signal\nsignal.raise_signal(signal.{name})\n")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # the tests may run in the background
    try:
        assert call("--plugin", str(plugin), "--version") == status
        monkeypatch.delitem(sys.modules, "nac_drive.cli.main")
        monkeypatch.setattr(sys, "meta_path", [Raises(getattr(signal, name))])
        assert start() == status
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err == f"nac-drive: {word}\n" * 2


class Raises:
    """A signal comes while a module is looked for."""

    def __init__(self, number: int):
        self.number = number

    def find_spec(self, *_: object) -> None:
        signal.raise_signal(self.number)


@pytest.mark.parametrize(("number", "raised"), [(signal.SIGINT, Interrupted), (signal.SIGTERM, Terminated)])
def test_a_signal_that_comes_in_the_callback_of_a_weak_reference_is_raised(number, raised, capsys):
    """Python prints what a callback raises, and goes on."""

    def work() -> None:
        referred = Raises(number)
        reference = weakref.ref(referred, lambda _: signal.raise_signal(number))
        del referred
        while reference() is None:
            time.sleep(1)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # the tests may run in the background
    try:
        with pytest.raises(raised), signals_raised():
            work()
    finally:
        signal.signal(signal.SIGINT, before)
    assert not capsys.readouterr().err


def test_an_interruption_of_code_that_exec_runs_ends_with_its_status():
    """Such as the methods that `dataclass` makes."""
    program = """
import signal, sys
from nac_drive.parallel.signals import signals_raised
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    with signals_raised():
        exec("import signal; signal.raise_signal(signal.SIGINT); 1 + 1")
except KeyboardInterrupt as end:
    sys.exit(end.exit_status)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 130


def test_a_signal_that_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as under nohup
    try:
        with signals_raised():
            signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        ImportError("libtorch_cpu.so: failed to map segment from shared object"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you tried ..."),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_full_memory_is_one_line(error, monkeypatch, capsys):
    def full(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(nac_drive, "evaluate_with_baseline", full)
    assert call("evaluate", "--driver", "controller", "--workers", "1") == 2
    assert capsys.readouterr().err == f"nac-drive: {NO_MEMORY}\n"


@pytest.mark.parametrize(
    "words",
    [
        ("stress", "--drivers", "controller", "--out", "{}"),
        ("watch", "--html", "{}.html"),
        ("watch", "--html", "new/{}.html"),
        ("watch", "--video", "{}.mp4"),
        ("inspect", "--out", "{}"),
        ("export", "--driver", "champion", "--out", "{}.onnx"),
        ("challenge", "drive", "--driver", "champion", "--out", "{}.json"),
        ("collect", "--out", "{}"),
    ],
    ids=" ".join,
)
def test_a_name_that_is_too_long_says_so_before_anything_is_driven(words, tmp_path, monkeypatch, capsys):
    def too_late(*_: object, **__: object) -> None:
        raise AssertionError("the work began")

    analysis = (
        "nac_drive.analysis.watch.record",
        "nac_drive.analysis.watch.record_video",
        "nac_drive.analysis.inspect.record",
    )
    for work in (*analysis, "nac_drive.experiments.challenge.run", "torch.export.export"):
        monkeypatch.setattr(work, too_late)
    monkeypatch.chdir(tmp_path)
    name = 300 * "z"
    assert call(*(word.format(name) for word in words)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert name in line
    assert line.endswith(": File name too long; choose a shorter name.")
    assert "Errno" not in line
    assert not [*tmp_path.iterdir()]


def test_modules_that_do_not_fit_into_the_memory_are_one_line(monkeypatch, capsys):
    class Full:
        """Finds no module: there is no memory for its libraries."""

        def find_spec(self, name: str, *_: object) -> None:
            raise ImportError(f"{name}.so: failed to map segment from shared object")

    monkeypatch.delitem(sys.modules, "nac_drive.cli.main")
    monkeypatch.setattr(sys, "meta_path", [Full()])
    assert start() == 2
    assert capsys.readouterr().err == f"nac-drive: {NO_MEMORY}\n"


@pytest.mark.parametrize("error", [ImportError("cannot import name 'x'"), RuntimeError("a bug"), KeyError("a bug")])
def test_a_bug_is_no_full_memory(error, monkeypatch):
    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(nac_drive, "evaluate_with_baseline", fails)
    with pytest.raises(type(error)):
        call("evaluate", "--driver", "controller", "--workers", "1")
