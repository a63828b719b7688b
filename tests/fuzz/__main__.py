"""Fuzz all readers and the command line: `python -m tests.fuzz --inputs 100000 --out docs/runs/fuzz.json`.

Every target has its own process, so that a crash of a library is found too. The folder of a failure is kept.
`--engine atheris` lets the coverage of our code guide the changes of files; it needs the extra `fuzz`.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

COMMANDS = "command-line"
SAVED_EVERY = 100
WEIGHT = 0.15
"""Share of the inputs for a slow target, where a fast one has 1."""


def main() -> None:
    """Run the targets one after another and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=100_000, help="inputs over all targets")
    parser.add_argument("--targets", nargs="+", help="all by default")
    parser.add_argument("--seed", type=int, default=0, help="seed of the engine")
    parser.add_argument("--engine", choices=("hypothesis", "atheris"), default="hypothesis")
    parser.add_argument("--out", type=Path, help="JSON file of the counts")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        alone(options)
    else:
        sys.exit(each_alone(options))


def each_alone(options: argparse.Namespace) -> int:
    """Start a process for every target. Return the number of those that failed."""
    from tests.fuzz.readers import TARGETS

    targets = options.targets or [*TARGETS, *([COMMANDS] if options.engine == "hypothesis" else [])]
    weights = {target: WEIGHT if target == COMMANDS or TARGETS[target].writes else 1.0 for target in targets}
    results, failed = {}, 0
    for target in targets:
        share = math.ceil(options.inputs * weights[target] / sum(weights.values()))
        folder, started = Path(tempfile.mkdtemp(prefix="nac-drive-fuzz-")), time.monotonic()
        words = ["--targets", target, "--inputs", share, "--seed", options.seed, "--engine", options.engine]
        process = subprocess.run(
            [sys.executable, "-m", "tests.fuzz", *map(str, words), "--inside", folder],
            stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
        results[target] = {"seconds": round(time.monotonic() - started)}
        if (folder / "outcomes.json").exists():
            results[target] |= json.loads((folder / "outcomes.json").read_text())
        if process.returncode:
            failed += 1
            results[target]["exit_status"] = process.returncode
            print(f"{process.stderr[-6_000:]}\nthe folder of the failure: {folder}", file=sys.stderr)
        else:
            shutil.rmtree(folder)
        print(f"{target:>24}  {results[target]}", flush=True)
        if options.out:
            document = {"engine": options.engine, "seed": options.seed, "targets": results}
            options.out.write_text(json.dumps(document, indent=2) + "\n")
    return failed


def alone(options: argparse.Namespace) -> None:
    """Fuzz one target in this process. Its counts go to `outcomes.json`."""
    (target,) = options.targets
    folder, outcomes = options.inside, Counter[str]()
    if options.engine == "atheris":
        with_atheris(target, folder, options, outcomes)
    elif target == COMMANDS:
        from tests.fuzz.commands import fuzz_commands

        outcomes = fuzz_commands(folder, options.inputs, options.seed)
    else:
        from tests.fuzz.readers import TARGETS
        from tests.fuzz.run import fuzz

        outcomes = fuzz(TARGETS[target], folder / "files", options.inputs, options.seed)
    (folder / "outcomes.json").write_text(json.dumps(outcomes))


def with_atheris(target: str, folder: Path, options: argparse.Namespace, outcomes: Counter[str]) -> None:
    """Let atheris choose the bytes from which hypothesis draws. It ends the process."""
    import atheris

    with atheris.instrument_imports(include=["nac_drive"]):  # type: ignore[attr-defined]
        from tests.fuzz.readers import TARGETS
        from tests.fuzz.run import reader_test

    test = reader_test(TARGETS[target], folder / "files", options.inputs, options.seed, outcomes)
    calls = 0

    def one_input(data: bytes) -> None:
        nonlocal calls
        test.hypothesis.fuzz_one_input(data)  # type: ignore[attr-defined]
        calls += 1
        if calls % SAVED_EVERY == 0:
            (folder / "outcomes.json").write_text(json.dumps(outcomes))

    atheris.Setup(["fuzz", f"-runs={options.inputs}", f"-seed={options.seed + 1}", "-max_len=4096"], one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
