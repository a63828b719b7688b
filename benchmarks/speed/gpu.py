"""Measure everything on a GPU by one command.

python benchmarks/speed/gpu.py --out gpu.json                          # 25 minutes at most
python benchmarks/speed/gpu.py --out tiny.json --rehearse --device cpu   # every part at a tiny size

The most valuable part comes first. A part that is in the file is not measured again, so the same command goes on after
an interruption. A part that fails is tried again, and one that would begin too late is named. After every part the
tables of docs/gpu.md and docs/gpu_results.md are written anew.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGE, DETAILS = ROOT / "docs" / "gpu.md", ROOT / "docs" / "gpu_results.md"
BEGIN, END = "<!-- gpu.py -->", "<!-- end of gpu.py -->"
MINUTES = 25
UNMEASURED = "not measured"
TIMED_OUT = 124


@dataclass(frozen=True)
class Part:
    """A command, and its size in a rehearsal."""

    name: str
    goal: str
    """What the page says of it."""
    command: tuple[str, ...]
    full: tuple[str, ...]
    """Arguments on a GPU."""
    tiny: tuple[str, ...]
    """Arguments in a rehearsal."""
    seconds: int
    """Budget of the part."""
    aim: str = ""
    figure: str = ""
    """Pattern of the number in the output that belongs to the aim."""
    on_device: bool = True
    """Whether the command takes `--device`."""


PARTS = (
    Part(
        "kernels", "the kernels of pairwise NAC equal the naive layer",
        ("-m", "pytest", "--gpu", "-q"), ("tests/policies/nac/test_fused.py", "-n", "auto"),
        ("tests/policies/nac/test_fused.py", "-k", "failed_launch"), 150,
        "all pass", r"(\d+ (?:passed|failed).*) in ", on_device=False,
    ),
    Part(
        "pairwise", "pairwise NAC and torch's fused MHA, forward and training step",
        ("benchmarks/layer/nac_layer.py", "nac-pw", "mha"), ("-T", "1024"), ("-T", "16"), 60,
        "0.2 ms forward at T = 1024", r"\| 1024 \| nac-pw \| [\d,]+ \| ([\d.]+) \|",
    ),
    Part(
        "training", "the NAC paper's training of 43,000 frames and 100 epochs, estimated from one epoch",
        ("benchmarks/speed/training.py",), ("--batches", "84"), ("--batches", "1"), 60,
        "90 s", r"([\d.]+ s) for 100 epochs",
    ),
    Part(
        "samples", "frames/s of training with the data on the device",
        ("benchmarks/speed/training.py", "--cores"), ("nac-pw", "lstm", "cfc", "ltc", "--batches", "84"),
        ("cnn", "--batches", "1"), 120,
    ),
    Part(
        "cores", "run time and memory of every core, beside the paper's Table 5",
        ("benchmarks/layer/cores.py",), (), ("cnn", "lstm"), 220,
    ),
    Part(
        "window", "the same with attention over all 1024 steps",
        ("benchmarks/layer/cores.py", "--window", "1024"), (), ("mha",), 120,
    ),
    Part(
        "ppo", "driving and learning of PPO on the device, beside the CPU",
        ("benchmarks/speed/ppo.py", "--rollouts"), ("3",),
        ("1", "--actions", "64", "--n-envs", "4", "--repeats", "4"), 150,
        "10,000 frames/s with repeat 4 (float32)", r"\| 4 \| nac-drive ppo, .*\| ([\d,]+) \|$",
    ),
    Part(
        "loops", "loops over time, step by step and as CUDA graphs",
        ("benchmarks/speed/loops.py",), (), ("--cores", "cfc", "--lengths", "8"), 90,
        "a shorter training step (CfC, T = 16)", r"`cfc` \| 16 \| CUDA graph \| [\d.]+ \| ([\d.]+) \|",
    ),
    Part(
        "policies", "the contract of every core",
        ("-m", "pytest", "--gpu", "-q"), ("tests/policies", "-k", "cuda", "-n", "auto"),
        ("tests/policies/ops/test_weight_cache.py",), 240,
        "all pass", r"(\d+ (?:passed|failed).*) in ", on_device=False,
    ),
    Part(
        "compile", "an update of training by torch.compile",
        ("benchmarks/speed/compile.py", "--cores"), ("cnn", "nac-exact"), ("cnn",), 80,
    ),
)  # fmt: skip
"""The most valuable one comes first. Their budgets fit the 25 minutes."""


def measured(part: Part, device: str, rehearse: bool, limit: float) -> dict[str, Any]:
    """Run a part. Return its output, exit status and seconds."""
    command = [sys.executable, *part.command, *(part.tiny if rehearse else part.full)]
    if part.on_device:
        command += ["--device", device]
    search = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    started = time.perf_counter()
    # the files have the lines so far when the time is over
    with tempfile.TemporaryFile("w+") as file, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=file, stderr=errors, start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(search), "PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
        try:
            status = process.wait(min(part.seconds, limit))
        except subprocess.TimeoutExpired:
            status = TIMED_OUT
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # its own processes, too
            process.wait()
        output: list[str] = []
        for each in (file,) if status in (0, TIMED_OUT) else (file, errors):
            each.seek(0)
            output += each.read().splitlines()
    return {
        "command": " ".join(["python", *command[1:]]), "status": status, "output": output[-120:],
        "seconds": round(time.perf_counter() - started, 1),
    }  # fmt: skip


def overview(results: dict[str, Any]) -> Iterator[str]:
    """Yield the table of all parts."""
    yield f"{results['machine']}:"
    yield ""
    yield "| part | aim | result | seconds |"
    yield "|:--|:--|:--|--:|"
    for part in PARTS:
        result = results["parts"].get(part.name)
        yield f"| {part.goal} | {part.aim} | {summary(part, result)} | {result['seconds'] if result else ''} |"


def details(results: dict[str, Any]) -> Iterator[str]:
    """Yield the output of every part."""
    yield f"{results['machine']}."
    for part in PARTS:
        result = results["parts"].get(part.name)
        yield ""
        yield f"## {part.goal[0].upper()}{part.goal[1:]}"
        yield ""
        if result is None or not shown(result):
            yield f"{summary(part, result).capitalize()}."
            continue
        yield f"`{result['command']}`, {result['seconds']} s"
        for is_table, group in groupby(shown(result), key=lambda line: line.startswith("|")):
            lines = list(group)
            yield from ["", *lines] if is_table else ["", "```text", *lines, "```"]


def summary(part: Part, result: dict[str, Any] | None) -> str:
    """Return the result of a part in a few words."""
    if result is None:
        return UNMEASURED
    ending = {0: "", TIMED_OUT: "; it took too long"}.get(result["status"], f"; it failed (status {result['status']})")
    if not part.figure:
        return f"{'measured' if shown(result) else UNMEASURED}{ending}"
    figures = [found[1] for line in result["output"] if (found := re.search(part.figure, line))]
    return f"{figures[-1] if figures else UNMEASURED}{ending}"


def shown(result: dict[str, Any]) -> list[str]:
    """Return the lines of an output that belong on the page: results, not a traceback."""
    if result["status"] not in (0, TIMED_OUT):
        return []
    return [line for line in result["output"] if line.strip() and not re.match(r"[.sFEx]+( +\[ *\d+%\])?$|```", line)]


def fill(page: str, lines: Iterable[str]) -> str:
    """Return the page with lines between its two marks."""
    text = "\n".join([BEGIN, "", *lines, "", END])
    return re.sub(f"{re.escape(BEGIN)}.*{re.escape(END)}", lambda _: text, page, flags=re.DOTALL)


def write_pages(results: dict[str, Any]) -> None:
    """Write the results into the pages."""
    for path, lines in ((PAGE, overview(results)), (DETAILS, details(results))):
        path.write_text(fill(path.read_text(), lines))


def machine(device: str) -> str:
    """Return the card and the version of torch."""
    import torch

    name = torch.cuda.get_device_name() if device == "cuda" else "a rehearsal on the CPU"
    return f"{name}, torch {torch.__version__}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="file of the results")
    parser.add_argument("--device", default="cuda", choices=["cpu", "cuda"])
    parser.add_argument("--rehearse", action="store_true", help="tiny sizes; the page is left as it is")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="for all parts; one that is cut keeps its lines")
    parser.add_argument("--parts", nargs="+", choices=[part.name for part in PARTS], help="only these")
    options = parser.parse_args()
    if options.device == "cpu" and not options.rehearse:
        parser.error("device: a CPU can only rehearse; pass --rehearse.")
    started = time.monotonic()
    here = machine(options.device)
    results: dict[str, Any] = {"machine": here, "parts": {}}
    if options.out.exists():
        results = json.loads(options.out.read_text())
        if results["machine"] != here:
            parser.error(f"out: {options.out} has results of another machine ({results['machine']}); name a new file.")
    for part in PARTS:
        left = 60 * options.minutes - (time.monotonic() - started)
        finished = results["parts"].get(part.name, {}).get("status") == 0
        if finished or (options.parts and part.name not in options.parts):
            continue
        if left < 10:
            print(f"{part.name}: left out, the {options.minutes:g} minutes are over; run the command again")
            continue
        result = measured(part, options.device, options.rehearse, left)
        results["parts"][part.name] = result
        written = options.out.with_suffix(".part")
        written.write_text(json.dumps(results, indent=1) + "\n")
        written.replace(options.out)
        if not options.rehearse:
            write_pages(results)
        print(f"{part.name}: status {result['status']}, {result['seconds']} s", flush=True)


if __name__ == "__main__":
    main()
