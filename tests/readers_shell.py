"""A reader's shell: documented command lines run in this process, in sizes that a test can afford.

`SIZES`, `SHORTER`, `NUMBERS`, `REPRODUCED` and `LENGTHS` hold the sizes. All else is as documented.
"""

from __future__ import annotations

import argparse
import ast
import multiprocessing.dummy
import os
import re
import runpy
import sys
import urllib.error
import urllib.request
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial, wraps
from importlib import import_module
from inspect import isfunction, signature
from pathlib import Path
from shutil import copy, copytree
from threading import Thread
from types import SimpleNamespace
from typing import IO, Any

import cv2
import gymnasium as gym
import numpy as np
import pygame
import pytest
import tyro
from matplotlib.figure import Figure

from nac_drive.envs import SPLITS, EnvConfig
from nac_drive.envs import config as env_config
from nac_drive.experiments import cost, experiment, learning, protocol
from nac_drive.experiments.protocol import PaperEntry, Protocol
from nac_drive.parallel import processes
from nac_drive.policies.ops.threads import one_thread
from nac_drive.training.ppo.config import PPOConfig
from tests.commands import call
from tests.documented import ROOT, expanded
from tests.nac_drive.small import ZOOM, each_here, nested, short_zoom
from tests.process import read_translations_once
from tests.roads import quick_racetrack

NAMED_TRACKS = rf"^({'|'.join(SPLITS)})-\d+$"
SEQUENCE = 16
"""Frames of a training sequence."""
RECORDED = ZOOM + SEQUENCE + 2
"""Frames of an episode: the zoom, and a sequence."""
LENGTHS = {
    "challenge": 4, "compare": 4, "dagger": 60, "evaluate": 4, "inspect": 4, "reproduce": ZOOM + 34, "stress": 4,
    "train": 4, "watch": 4, "benchmarks/protocols/direction.py": 451, "benchmarks/protocols/shifts.py": 4,
    "benchmarks/papers/reproduce.py": ZOOM + 34,
}  # fmt: skip
"""Command or script -> most frames of its episodes, where they are others.

Episodes of `reproduce` hold a sequence of 32. Where `dagger` drives through lost frames, its episodes still hold 16.
"""
BLOCKS = ZOOM + 32
"""Frames of every episode in a Python block: the zoom, and a sequence of 32."""

_VALIDATED = {"--validation-tracks": "val-1"}
_MEASURED = {"--tracks": "test-1"}
SIZES: dict[str, dict[str, str]] = {
    "arena": {"--port": "0"},
    "challenge": {"--tracks": "1"},
    "collect": {"--episodes": "2"},
    "compare": {"--epochs": "1", "--num-seeds": "1", "--sequence-length": str(SEQUENCE), **_VALIDATED, **_MEASURED},
    "dagger": {
        "--initial-episodes": "1", "--rounds": "1", "--episodes": "1", "--initial-epochs": "1", "--epochs": "1",
        "--sequence-length": str(SEQUENCE), "--set": f"max_steps={ZOOM + SEQUENCE}", **_VALIDATED,
    },
    "evaluate": _MEASURED,
    "ppo": {
        "--total-timesteps": "32", "--n-envs": "1", "--n-steps": "16", "--batch-size": "16", "--n-epochs": "1",
        "--value-warmup-steps": "0", "--validate-every": "32", **_VALIDATED,
    },
    "serve-udacity": {"--port": "0"},
    "stress": {"--perturb": "gap:1", **_MEASURED},
    "train": {"--epochs": "1", "--sequence-length": str(SEQUENCE), **_VALIDATED},
    "benchmarks/attention.py": _MEASURED,
    "benchmarks/protocols/direction.py": {"--tracks": "2", "--epochs": "1"},
    "benchmarks/protocols/distil_encoder.py": {"--minutes": "0.01"},
    "benchmarks/protocols/harness.py": {**_MEASURED, "--max-steps": "4"},
    "benchmarks/protocols/shifts.py": {**_MEASURED, "--perturb": "published-bars"},
    "benchmarks/papers/interpretability.py": _MEASURED,
}  # fmt: skip
"""Command or script -> options that have these values, whether the line names them or not."""
_BUDGET = {"iterations": 1, "rollouts": 1, "steps": 3, "episodes": 1}
REPRODUCED: dict[str, dict[str, Any]] = {
    "circuits": {"runs": 1, "budgets": dict.fromkeys(("mountain-car", "car"), _BUDGET)},
    "cost": {"lengths": [4, 8], "passes": 1},
    "cloning": {
        "episodes": 2, "runs": 1, "tracks": "test-1", "epochs": 1, "rounds": 1, "round_episodes": 1, "round_epochs": 1,
        "perturbations": ["gap:1"], "validation_tracks": "val-1", "recorded_tracks": "test-1", "recipe": [],
    },
    "flow": {"graphs": 2, "runs": 1},
    "learning-curves": {"episodes": 5, "folds": 5, "tested_folds": 1, "epochs": 1},
    "pictures": {
        "episodes": 2, "runs": 1, "tracks": "test-1", "epochs": 1, "rounds": 1, "round_episodes": 1, "round_epochs": 1,
        "validation_tracks": "val-1", "seen_tracks": "val-1",
    },
    "learning": {"runs": 1, "total_timesteps": 32, "validate_every": 32, "validation_tracks": "val-1"},
    "offline": {"episodes": 5, "folds": 5, "tested_folds": 1, "epochs": 1},
    "responses": {
        "units": [4], "width": 4, "driven_cells": 2, "runs": 1, "tracks": "test-1", "episodes": 2, "epochs": 1,
    },
    "trajectory": {"widths": [4], "networks": 2, "frames": 8},
}  # fmt: skip
"""Experiment of `reproduce` -> settings in place of the protocol's; of every table, one line is measured."""
NUMBERS = {
    "rounds": 1, "initial_episodes": 2, "episodes": 1, "initial_epochs": 1, "epochs": 1, "num_envs": 2, "processes": 1,
    "range": 2, "total_timesteps": 16, "n_steps": 8,
}  # fmt: skip
"""Argument or function in a Python block -> its number."""
ADDED = {
    "TrainConfig": {"epochs": "1", "validation": "nd.EvalConfig('val-1')"},
    "DaggerConfig": {"validation": "nd.EvalConfig('val-1')"},
}
"""Function in a Python block -> arguments that it is given besides."""


SHORTER = {
    **{f"--out runs/{name}": f"--set max_steps={LENGTHS['dagger']} --out runs/{name}" for name in ("mix-", "robust-")},
    " optim.precision=bf16-mixed": "",  # emulated, and ten times as slow, on processors without it
    "optim.sequence_length=32": "optim.sequence_length=8",
    "--drivers all nac-exact,window=32 mha,window=8": "--drivers nac-exact,window=32 mha,window=8",
    "cnn lstm gru cfc mtan nac-sharp nac-exact mha ct-gru pdna-c pdna-e ncp ltc nac-exact,num_heads=4,gain=8,recency=2,"
    "output=riemann": "lstm mtan nac-sharp",
    "lstm gru cfc cnn mha transformer mtan ct-gru nac-sharp nac-transformer nac-exact,num_heads=4 ltc": "lstm mtan",
    "attention cfc-ncp cfc-no-gate cfc-pure circuitnet-l cnn-bojarski ct-rnn ct-rnn-sparse cta deepstate gru-ode lds "
    "linear-attention nac-02sfc nac-05sfc nac-09s nac-09sfc nac-exact nac-fc nac-phi-tanh narx ode-rnn odeformer "
    "pdna-b pdna-c pdna-d pdna-e pdna-ode performer relu-attention rin rnn s4 tdnn": "rnn",
    "lstm-sparse mmrnn nac-02s nac-2k nac-euler nac-learned nac-phi-linear nac-steady ncp ncp-full ncp-random "
    "phased-lstm s4d": "lstm-sparse",
    "cnn lstm ct-rnn ncp cfc nac-exact nac-sharp": "cnn",
    "thesis-6.1,tested_folds=10,": "thesis-6.1,tested_folds=2,",
    "nac-table1,tested_folds=5 --out table1-five": "nac-table1,tested_folds=1 --out table1-five --only RNN",
    "--only cnn-bojarski rnn gru lstm lstm-sparse ct-gru ct-rnn ct-rnn-sparse": "--only rnn",
    "--drivers cnn lstm nac-sharp": "--drivers lstm nac-sharp",
    " nac-transformer mtan transformer cfc gru ltc ct-gru nac-exact cnn ncp": "",
    ",nac-transformer,mtan,lstm,transformer,gru,nac-exact,cfc,cnn,ltc,ct-gru}-{0,1,2,3,4}": ",lstm}-0",
    "runs/end-to-end/ncp-{0,1}": "",
    "runs/aged/nac_attempts.Aged-{0,1,2,3,4}": "runs/aged/nac_attempts.Aged-0",
    " --driver nac-transformer": "",
    "benchmarks/protocols/nac_attempts.py": str(Path(__file__).parents[1] / "benchmarks/protocols/nac_attempts.py"),
    "runs/clockless/nac-sharp-{0,1}": "runs/clockless/nac-sharp-0",
    "--drivers lstm transformer": "--drivers lstm",
    "runs/dt/lstm-{0,1}": "runs/dt/lstm-0",
    "cfc pdna-b pdna-c pdna-d pdna-e": "cfc pdna-c",
    "nac-sharp cfc mtan ct-gru nac-exact pdna-c pdna-e": "mtan",
    "--drivers nac-exact,num_heads=4 nac-exact,num_heads=4,recency=2,value=input,output=riemann": "--drivers",
    "{lstm,nac-sharp,mtan,gru,cfc,cnn}-{0,1}": "{lstm,nac-sharp}-0",
    "{cfc,pdna-b,pdna-c,pdna-d,pdna-e}-{0,1,2,3,4}": "{cfc,pdna-c}-0",
    "$(seq -s, 50000 50099)": "$(seq -s, 50000 50001)",
    "--drivers champion robust-champion expert ppo-expert --tracks": "--drivers champion --tracks",
}
"""Text of a line -> shorter text."""


class Shell:
    """A shell in the working folder, with the variables of a page.

    A line that names no file of the folder, and was run before, leaves a copy of what it left then.
    """

    def __init__(self, cut: Callable[[int, int], None], kept: Path) -> None:
        self._cut, self._kept = cut, kept
        self._finished: dict[tuple[str, ...], Path] = {}
        self.variables: list[str] = []

    def run(self, line: str) -> int:
        """Run a command line; return its exit status."""
        for long, short in SHORTER.items():
            line = line.replace(long, short)
        words = expanded(line, self.variables)
        program = "nac-drive" if "nac-drive" in words[:3] else "python"
        words = reduced(words[words.index(program) + 1 :])
        out = Path(words[words.index("--out") + 1]) if "--out" in words else Path("none")
        alone = not any(os.path.exists(word) for word in words)  # a long word is no path, and no error
        if alone and (kept := self._finished.get(tuple(words))):
            (copytree if kept.is_dir() else copy)(kept, out)
            return 0
        drawn = "--view" in words  # recorded episodes are drawn anew, to their ends
        longest = RECORDED if drawn else LENGTHS.get(words[0] if words else "", RECORDED)
        self._cut(max(RECORDED, longest), longest)
        status = call(*words) if program == "nac-drive" else run_script(words)
        if alone and status == 0 and out.exists():
            kept = self._kept / str(len(self._finished))
            (partial(copytree, symlinks=True) if out.is_dir() else copy)(out, kept)
            self._finished[tuple(words)] = kept
        return status

    def run_code(self, code: str, names: dict[str, Any]) -> None:
        """Run a Python block with the numbers of `NUMBERS`, among `names` and for them."""
        self._cut(BLOCKS, BLOCKS)
        tree = ast.fix_missing_locations(_Smaller().visit(ast.parse(code)))
        exec(compile(tree, "block", "exec"), names)


def reduced(words: list[str]) -> list[str]:
    """Return the words of a command with the values of `SIZES`, and one track of each list of tracks."""
    name = " ".join(words[:2]) if words[:1] == ["dataset"] else "".join(words[:1])
    words = [re.sub(NAMED_TRACKS, r"\1-1", re.sub(r"^(\d+),[\d,]+$", r"\1", word)) for word in words]
    as_documented = {"--help", "--dataset", "verify"} & set(words)  # nothing is driven, or what a result says
    for option, value in ({} if as_documented else SIZES.get(name, {})).items():
        if option == "--set":
            setting = value.partition("=")[0]
            words += [] if any(word.startswith(f"{setting}=") for word in words) else [option, value]
        elif option in words:
            start = words.index(option) + 1
            end = next((i for i in range(start, len(words)) if words[i].startswith("--")), len(words))
            words[start:end] = [value]
        elif not any(word.startswith(f"{option}=") for word in words):  # with "=" a number is as it should be
            words += [option, value]
    return words


def run_script(words: list[str]) -> int:
    """Run a script of the repository, or a module after -m, as `python` would; return its exit status."""
    module = words[0] == "-m"
    name, *arguments = words[1:] if module else words
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [name, *arguments])
        try:
            if module:
                runpy.run_module(name, run_name="__main__", alter_sys=True)
            else:
                patch.syspath_prepend(str((ROOT / name).parent))
                runpy.run_path(str(ROOT / name), run_name="__main__")
        except SystemExit as end:
            return int(end.code or 0)
    return 0


class Parsed(BaseException):
    """The words of a script are accepted, and its work would begin."""


def parses(line: str) -> bool:
    """Return whether a script accepts the words of a line. One that parses none is imported alone."""
    words = expanded(line, [])
    words = words[words.index("python") + 1 :]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_args", _then_stop(argparse.ArgumentParser.parse_args))
        patch.setattr(tyro, "cli", _then_stop(tyro.cli))
        patch.setattr(tyro.extras, "subcommand_cli_from_dict", _then_stop(tyro.extras.subcommand_cli_from_dict))
        try:
            if re.search(r"argparse|ArgumentParser|tyro", _source(words)):
                run_script(words)
                return False
        except Parsed:
            return True
        patch.syspath_prepend(str((ROOT / words[0]).parent))
        runpy.run_path(str(ROOT / words[0]))
        return True


def _source(words: list[str]) -> str:
    module = ROOT.joinpath(*words[1].split(".")) if words[0] == "-m" else (ROOT / words[0]).with_suffix("")
    return (module / "__main__.py" if module.is_dir() else module.with_suffix(".py")).read_text()


def _then_stop(parse: Callable[..., Any]) -> Callable[..., Any]:
    """Return a parser that stops where the work of the parsed functions would begin."""

    def alone(work: Any) -> Any:
        if isinstance(work, dict):
            return {name: alone(each) for name, each in work.items()}
        return wraps(work)(lambda *arguments, **keywords: None) if isfunction(work) else work

    def parsed(work: Any, *arguments: Any, **keywords: Any) -> Any:
        parse(alone(work), *arguments, **keywords)
        raise Parsed

    return parsed


class _Smaller(ast.NodeTransformer):
    """Replace numbers of arguments and calls by `NUMBERS`, and lists of tracks by one track."""

    def visit_keyword(self, node: ast.keyword) -> ast.keyword:
        self.generic_visit(node)
        if node.arg in NUMBERS:
            node.value = ast.Constant(NUMBERS[node.arg])
        return node

    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id in NUMBERS and isinstance(node.args[0], ast.Constant):
            node.args = [ast.Constant(NUMBERS[node.func.id])]
        added = ADDED.get(node.func.attr, {}) if isinstance(node.func, ast.Attribute) else {}
        node.keywords += [ast.keyword(name, ast.parse(value, mode="eval").body) for name, value in added.items()]
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        if isinstance(node.value, str):
            return ast.Constant(re.sub(r"^(test)-\d+$", r"\1-1", node.value))
        return node


@contextmanager
def small_world(kept: Path) -> Iterator[Shell]:
    """Make episodes and reproductions small, run everything in this process, and end servers when they answer."""
    with pytest.MonkeyPatch.context() as patch, one_thread(), short_zoom():
        patch.setenv("SDL_VIDEODRIVER", "dummy")  # windows that nobody sees
        patch.setenv("DISPLAY", "dummy")
        patch.setattr(pygame.time, "Clock", lambda: SimpleNamespace(tick=lambda *rate: 0, get_fps=lambda: 0.0))
        patch.setattr(webbrowser, "open", lambda address: True)
        patch.setattr(Figure, "savefig", _save_a_pixel)
        read_translations_once()
        quick_racetrack(patch)
        _work_here(patch)
        for module in (import_module("nac_drive.live.arena"), import_module("nac_drive.live.udacity")):
            patch.setattr(module, "serve", _until_it_answers(module.serve))
        run = import_module("nac_drive.experiments.reproduce")
        patch.setattr(run, "load", small_protocol)
        small = nested(PPOConfig(), n_envs=1, n_steps=16, batch_size=16, n_epochs=1)
        patch.setattr(learning, "PPOConfig", partial(PPOConfig, rollout=small.rollout, optim=small.optim))
        patch.setattr(run, "chosen", lambda table, only: protocol.chosen(table, only)[:1])
        yield Shell(cut_episodes(patch), kept)


def _save_a_pixel(figure: Figure, file: IO[bytes] | Path, **_: Any) -> None:
    """Write one pixel in place of a figure. Figures have tests of their own."""
    pixel = cv2.imencode(".png", np.zeros((1, 1, 3), np.uint8))[1].tobytes()
    file.write_bytes(pixel) if isinstance(file, Path) else file.write(pixel)


def _work_here(patch: pytest.MonkeyPatch) -> None:
    """Do the work of processes in this one."""

    patch.setattr(processes, "default_workers", lambda: 1)
    patch.setattr(import_module("nac_drive.training.ppo.run"), "default_workers", lambda: 1)
    patch.setattr(experiment, "each_in_a_process", each_here)
    patch.setattr(cost, "multiprocessing", SimpleNamespace(get_context=lambda kind: multiprocessing.dummy))


def _until_it_answers(serve: Callable[..., None]) -> Callable[..., None]:
    """Return `serve` with a visitor of the page who then ends the server."""

    def served(server: Any, on_ready: Callable[[str], None], *beside: Any) -> None:
        def visit(address: str) -> None:
            try:
                urllib.request.urlopen(address, timeout=600).read()
            except urllib.error.HTTPError:  # a server without a page
                pass
            finally:
                server.should_exit = True

        def ready(address: str) -> None:
            on_ready(address)
            Thread(target=visit, args=[address]).start()

        serve(server, ready, *beside)

    return served


def small_protocol(name: str, protocols: Path) -> Protocol:
    """Return a protocol with the settings of `REPRODUCED`."""
    table = protocol.load(name, protocols)
    sizes = REPRODUCED.get(table.experiment, {})
    optional = {"rounds", "recorded_tracks", "recipe"} - (table.settings | table.full).keys()  # not all learn by DAgger
    sizes = {key: value for key, value in sizes.items() if key not in optional}

    def smaller(entry: PaperEntry) -> PaperEntry:
        return replace(entry, settings={key: sizes.get(key, value) for key, value in entry.settings.items()})

    entries = [smaller(entry) for entry in table.entries]
    return replace(table, settings=table.settings | sizes, full=table.full | sizes, entries=entries)


def cut_episodes(patch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """Return a function that sets the frames of new settings, and the most frames of any episode."""
    whole, most = env_config.TimeLimit, [RECORDED]
    defaults = {name: parameter.default for name, parameter in signature(EnvConfig).parameters.items()}

    def cut(env: gym.Env, max_episode_steps: int) -> gym.Env:
        return whole(env, max_episode_steps=min(max_episode_steps, most[0]))

    def set_frames(new: int, longest: int) -> None:
        patch.setattr(EnvConfig.__init__, "__defaults__", tuple({**defaults, "max_steps": new}.values()))
        most[0] = longest

    patch.setattr(env_config, "TimeLimit", cut)
    return set_frames
