"""Measure everything on a GPU by one command.

python benchmarks/speed/gpu.py --out gpu.json                          # 25 minutes at most
python benchmarks/speed/gpu.py --out tiny.json --rehearse --device cpu   # every part at a tiny size

The most valuable part comes first. A part that is in the file is not measured again, so the same command goes on after
an interruption. A part that fails is tried again, and one that would begin too late is named. In the end the tables of
docs/gpu.md are written anew.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "gpu.md"
BEGIN, END = "<!-- gpu.py -->", "<!-- end of gpu.py -->"
MINUTES = 25


@dataclass(frozen=True)
class Part:
    """A command, and its size in a rehearsal."""

    name: str
    goal: str
    """What the page says of it."""
    command: tuple[str, ...]
    tiny: tuple[str, ...]
    """Arguments in a rehearsal."""
    full: tuple[str, ...] = ()
    """Arguments on a GPU."""
    seconds: int = 300
    """Limit of the part."""
    on_device: bool = True
    """Whether the command takes `--device`."""


PARTS = (
    Part(
        "kernels", "the kernels of pairwise NAC equal the naive layer on the card",
        ("-m", "pytest", "-q", "tests/policies/nac/test_fused.py"), ("-k", "failed_launch"), on_device=False,
    ),
    Part(
        "pairwise", "pairwise NAC and torch's MHA, forward and training step; aim: 0.2 ms forward at T = 1024",
        ("benchmarks/layer/nac_layer.py", "nac-pw", "mha"), ("-T", "16"), ("-T", "1024"), seconds=120,
    ),
    Part(
        "training", "the NAC paper's training of 43,000 frames and 100 epochs; aim: 90 s",
        ("benchmarks/speed/training.py",), ("--batches", "1"), seconds=400,
    ),
    Part(
        "cores", "run time and memory of every core, beside the paper's Table 5",
        ("benchmarks/layer/cores.py",), ("cnn", "lstm"),
    ),
    Part(
        "window", "the same with attention over all 1024 steps",
        ("benchmarks/layer/cores.py", "--window", "1024"), ("mha",), ("nac-exact", "nac-pw", "mha"), seconds=120,
    ),
    Part(
        "policies", "the contract of every core on the card",
        ("-m", "pytest", "-q", "tests/policies"), ("tests/policies/ops/test_weight_cache.py",), seconds=400,
        on_device=False,
    ),
)  # fmt: skip


def measured(part: Part, device: str, rehearse: bool, limit: float) -> dict[str, Any]:
    """Run a part. Return its output, exit status and seconds."""
    command = [sys.executable, *part.command, *(part.tiny if rehearse else part.full)]
    if rehearse and part.name == "policies":
        command = [sys.executable, *part.command[:3], *part.tiny]
    if part.on_device:
        command += ["--device", device]
    started = time.perf_counter()
    try:
        ended = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=min(part.seconds, limit),
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        output, status = ended.stdout if ended.returncode == 0 else ended.stdout + ended.stderr, ended.returncode
    except subprocess.TimeoutExpired:
        output, status = "", 124
    return {
        "command": " ".join(["python", *command[1:]]), "status": status, "output": output.splitlines()[-120:],
        "seconds": round(time.perf_counter() - started, 1),
    }  # fmt: skip


def lines_of(results: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the page."""
    yield f"{results['machine']}, by `python benchmarks/speed/gpu.py --out gpu.json`:"
    for part in PARTS:
        if part.name in results["parts"]:
            result = results["parts"][part.name]
            yield ""
            yield f"**{part.goal[0].upper()}{part.goal[1:]}.** `{result['command']}`, {result['seconds']} s"
            yield ""
            if result["status"] == 0:
                yield from (line for line in result["output"] if line.strip() and not line.startswith("."))
            else:
                yield f"It failed (status {result['status']}); the file has its output."


def fill(page: str, results: dict[str, Any]) -> str:
    """Return the page with the results between its two marks."""
    text = "\n".join([BEGIN, *lines_of(results), END])
    return re.sub(f"{re.escape(BEGIN)}.*{re.escape(END)}", lambda _: text, page, flags=re.DOTALL)


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
    parser.add_argument("--parts", nargs="+", choices=[part.name for part in PARTS], help="only these")
    options = parser.parse_args()
    if options.device == "cpu" and not options.rehearse:
        parser.error("device: a CPU can only rehearse; pass --rehearse.")
    started = time.monotonic()
    results: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {"parts": {}}
    results["machine"] = machine(options.device)
    for part in PARTS:
        left = 60 * MINUTES - (time.monotonic() - started)
        finished = results["parts"].get(part.name, {}).get("status") == 0
        if finished or (options.parts and part.name not in options.parts):
            continue
        if left < 10:
            print(f"{part.name}: left out, the {MINUTES} minutes are over; run the command again")
            continue
        result = measured(part, options.device, options.rehearse, left)
        results["parts"][part.name] = result
        options.out.write_text(json.dumps(results, indent=1) + "\n")
        print(f"{part.name}: status {result['status']}, {result['seconds']} s", flush=True)
    if not options.rehearse:
        PAGE.write_text(fill(PAGE.read_text(), results))


if __name__ == "__main__":
    main()
