"""Command lines that are refused.

Beside them parts of the one line that says so. tests/test_cli.py makes the files.
"""

from __future__ import annotations

from tests.nac_drive.small import FRAMES

BASE = ("--workers", "1")
SHORT = ("--epochs", "1", "--sequence-length", "16", "--validation-tracks", "800000", *BASE)
TRAIN = ("train", "data", "--out", "new", "--core", "cnn", *SHORT)

DAGGER = ("dagger", "--out", "new", "--core", "cnn", *BASE)

BAD: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    # Datasets
    "missing dataset": (("train", "typo", "--out", "new", *SHORT), ("no dataset at typo", "pass the folder")),
    "truncated dataset": (("train", "truncated_data", "--out", "new", *SHORT), (".h5 cannot be read", "--resume")),
    "foreign dataset": (("train", "foreign", "--out", "new", *SHORT), ("meta.json is missing", "pass the folder")),
    "a driver for a dataset": (("dataset", "info", "discrete_driver"), ("meta.json is missing",)),
    "a file for a dataset": (("dataset", "info", "file"), ("no dataset at file",)),
    "an action log over a file": (
        ("dataset", "action-log", "data", "--out", "file", *BASE), ("file already exists", "another")
    ),
    "an action log of a truncated dataset": (
        ("dataset", "action-log", "truncated_data", "--out", "new", *BASE),
        ("content has changed", "record it again with --resume"),
    ),
    "rebuilding a dataset": (
        ("dataset", "rebuild", "data", "--out", "new"), ("no action log at data", "dataset action-log")
    ),
    "rebuilding a foreign file": (
        ("dataset", "rebuild", "file", "--out", "new"), ("no action log at file", "dataset action-log")
    ),
    "verifying a truncated one": (
        ("dataset", "verify", "truncated_data", *BASE), ("problem(s)", "each listed above with its fix")
    ),
    "merging a dataset with itself": (
        ("dataset", "merge", "data", "data", "--out", "new"), ("track 0 comes twice", "different tracks")
    ),
    "merging datasets of two controls": (
        ("dataset", "merge", "data", "continuous_data", "--out", "new"),
        ("continuous_data was recorded with other settings", "env.control: dataset has 'continuous', got 'discrete'"),
    ),
    "merging a truncated dataset": (
        ("dataset", "merge", "truncated_data", "--out", "new"), ("000000.h5 cannot be read: its content", "--resume")
    ),
    "merging a foreign folder": (
        ("dataset", "merge", "data", "foreign", "--out", "new"), ("meta.json is missing", "pass the folder")
    ),
    "merging over a dataset": (
        ("dataset", "merge", "data", "--out", "continuous_data"), ("continuous_data already exists", "another folder")
    ),
    "merging nothing": (("dataset", "merge", "--out", "new"), ("datasets", "got none", "at least one")),
    # Devices
    "a cluster with a device for drivers": (
        ("evaluate", "--cluster", "auto", "--device", "auto"), ("must be cpu with --cluster", "leave --device out")
    ),
    # Settings
    "unknown core": (("train", "data", "--out", "new", "--core", "mamba", *SHORT), ("'mamba' is unknown", "lstm")),
    "mistyped core": (("train", "data", "--out", "new", "--core", "lstmm", *SHORT), ("Did you mean 'lstm'?",)),
    "mistyped command": (("evalute",), ("no command 'evalute'", "Did you mean 'evaluate'?", "--help")),
    "settings in the name of a core": (
        ("train", "data", "--out", "new", "--core", "nac-exact,window=4", *SHORT), ("nac-exact --core-args window=4.",)
    ),
    "unknown core key": ((*TRAIN, "--core-args", "foo=1"), ("core_args", "foo")),
    "a core's setting of the wrong type": (
        ("train", "data", "--out", "new", "--core", "nac-exact", *SHORT, "--core-args", "num_heads=many"),
        ("core_args", "num_heads", "many"),
    ),
    "a size for a core's setting": ((*TRAIN, "--core-args", "input_size=3"), ("core_args", "input_size")),
    "no name of a driver": ((*TRAIN, "--init-from", ""), ("init_from must name a driver",)),
    "an unreadable core value": ((*TRAIN, "--core-args", "foo=["), ("core-args", "'foo=['")),
    "no core value": ((*TRAIN, "--core-args", "foo"), ("KEY=VALUE", "'foo'")),
    "short sequences": (
        ("train", "data", "--out", "new", "--core", "lstm", *SHORT, "--sequence-length", "8"),
        ("sequence_length", "at least 16", "8"),
    ),
    "no batch": ((*TRAIN, "--batch-size", "0"), ("batch_size", "at least 1", "0")),
    "no epochs": ((*TRAIN, "--epochs", "0"), ("epochs", "at least 1", "0")),
    "long sequences": (
        (*TRAIN, "--sequence-length", "500"), ("sequence_length", "longest episode", f"{FRAMES} frames")
    ),
    "unknown validation tracks": ((*TRAIN, "--validation-tracks", "val-99"), ("val-99", "25 tracks")),
    "bad fraction": ((*TRAIN, "--set", "validation_fraction=1.5"), ("validation_fraction", "[0, 1)")),
    "negative workers": ((*TRAIN, "--workers", "-1"), ("workers must lie in 0 to 1,024", "got -1")),
    "a core's setting of no plain value": ((*TRAIN, "--core-args", "foo=[1]"), ("neither a number nor a word",)),
    "a core's setting nested deeply": ((*TRAIN, "--core-args", "foo=" + "[" * 5000), ("neither a number",)),
    "a core's setting that is no date": ((*TRAIN, "--core-args", "foo=2020-13-45"), ("neither a number",)),
    "train under no perturbation that is known": ((*TRAIN, "--perturb", "gap:1,fog:1"), ("'fog' is unknown",)),
    "train under a perturbation of the simulator": (
        (*TRAIN, "--perturb", "weak-tyres:1"), ("'weak-tyres' needs the simulator", "collect --perturb")
    ),
    # DAgger
    "DAgger with a missing expert": ((*DAGGER, "--expert", "typo"), ("typo", "folder of a driver or run")),
    "DAgger with an expert of another control": (
        (*DAGGER, "--expert", "continuous_driver"), ("made for continuous control", "--control continuous")
    ),
    "DAgger with too large a beta": ((*DAGGER, "--set", "beta=2"), ("beta", "[0, 1]", "got 2")),
    "DAgger without episodes": ((*DAGGER, "--episodes", "0"), ("episodes", "at least 1", "0")),
    "DAgger over a run": (("dagger", "--out", "run", *BASE), ("run already exists", "--resume")),
    "no DAgger to resume": ((*DAGGER, "--resume"), ("not a run folder",)),
    "another run resumed by DAgger": (("dagger", "--out", "run", "--resume", *BASE), ("cannot resume run", "expert")),
    # Folders
    "existing run": (("train", "data", "--out", "run", *SHORT), ("run already exists", "--resume")),
    "foreign out": (("train", "data", "--out", "foreign", *SHORT), ("foreign already exists",)),
    "file as out": (("train", "data", "--out", "file", *SHORT), ("file already exists",)),
    "out below a file": (("train", "data", "--out", "file/new", *SHORT), ("cannot write", "Not a directory")),
    "nothing to resume": ((*TRAIN, "--resume"), ("not a run folder",)),
    "resume otherwise": (
        ("train", "data", "--out", "run", "--core", "cnn", "--resume", *SHORT, "--batch-size", "9"),
        ("cannot resume run", "data.batch_size: run has 2, got 9"),
    ),
    "resume on another dataset": (
        (
            "train", "continuous_data", "--out", "run", "--core", "cnn", "--resume", *SHORT,
            "--set", "validation_fraction=0",
        ),
        ("cannot resume run", "dataset"),
    ),
    "compare unknown": (
        ("compare", "data", "--out", "new", "--drivers", "mamba", *SHORT), ("mamba", "docs/drivers.md")
    ),
    "compare into a full folder": (("compare", "data", "--out", "foreign", *SHORT), ("foreign already exists",)),
    "compare on unknown tracks": (
        ("compare", "data", "--out", "new", "--drivers", "cnn", "--tracks", "oval-1", *SHORT), ("oval-1", "SPLIT-COUNT")
    ),
    "compare with negative workers": (
        ("compare", "data", "--out", "new", "--drivers", "cnn", *SHORT, "--workers", "-1"), ("workers must lie in 0",)
    ),
    "compare with a path in a setting": (
        ("compare", "data", "--out", "new", "--drivers", "lstm,/../../evil=1", *SHORT), ("core_args", "evil")
    ),
    "compare with a core that cannot be built": (
        ("compare", "data", "--out", "new", "--drivers", "lstm", "nac-exact,num_heads=7", *SHORT), ("num_heads", "7")
    ),
    "compare below a file": (
        ("compare", "data", "--out", "file/new", "--drivers", "cnn", *SHORT), ("cannot write file/new", "Not a")
    ),
    "compare under no perturbation that is known": (
        ("compare", "data", "--out", "new", "--drivers", "cnn", *SHORT, "--perturb", "fog:1"), ("'fog' is unknown",)
    ),
    "the arena at a port that is none": (
        ("arena", "--drivers", "human", "--port", "99999"), ("port must be a whole number from 0 to 65535", "got")
    ),
    "the arena at a negative port": (("arena", "--drivers", "human", "--port", "-1"), ("port", "got -1", "a free one")),
    "the arena at no host": (("arena", "--drivers", "human", "--host", ""), ("host must be an address", "127.0.0.1")),
    "Udacity at a port that is none": (
        ("serve-udacity", "--driver", "discrete_driver", "--port", "65536"), ("port must be a whole number", "65536")
    ),
    "Udacity at a negative port": (
        ("serve-udacity", "--driver", "discrete_driver", "--port", "-1"), ("port must be a whole number", "got -1")
    ),
    "demo over something": (("demo", "--out", "foreign", *BASE), ("foreign holds chapter.tex", "another folder")),
    "demo with a bad seed": (("demo", "--out", "new", "--seed", "-1", *BASE), ("seed",)),
    # Drivers
    "missing driver": (("evaluate", "--driver", "typo", *BASE), ("no folder typo", "champion")),
    "mistyped driver": (("evaluate", "--driver", "champoin", *BASE), ("Did you mean 'champion'?",)),
    "truncated driver": (("evaluate", "--driver", "truncated_driver", *BASE), ("truncated_driver", "safetensors")),
    "foreign driver": (("evaluate", "--driver", "foreign", *BASE), ("foreign", "config.json")),
    "foreign config": (("evaluate", "--driver", "foreign_config", *BASE), ("foreign_config",)),
    "a dataset for a driver": (("evaluate", "--driver", "data", *BASE), ("data", "config.json")),
    "other control": (
        ("evaluate", "--driver", "continuous_driver", "--control", "discrete", *BASE),
        ("made for continuous control", "--control continuous"),
    ),
    "unknown tracks": (("evaluate", "--driver", "controller", "--tracks", "oval-3", *BASE), ("oval-3", "SPLIT-COUNT")),
    "too many tracks": (("evaluate", "--driver", "controller", "--tracks", "test-500", *BASE), ("100 tracks",)),
    "evaluate over something": (
        ("evaluate", "--driver", "controller", "--out", "foreign", *BASE), ("foreign already exists", "another folder")
    ),
    "evaluate on no track": (
        ("evaluate", "--driver", "controller", "--tracks", str(2**63), *BASE), ("whole numbers from 0 to",)
    ),
    "evaluate with too many workers": (
        ("evaluate", "--driver", "controller", "--workers", "1000000000"), ("workers must lie in 0 to 1,024",)
    ),
    "evaluate below a file": (
        ("evaluate", "--driver", "controller", "--out", "file/new", *BASE), ("cannot write file/new", "Not a directory")
    ),
    "no evaluation to resume": (
        ("evaluate", "--driver", "controller", "--out", "new", "--resume", *BASE), ("nothing to resume at new",)
    ),
    "resume something else than an evaluation": (
        ("evaluate", "--driver", "controller", "--out", "foreign", "--resume", *BASE), ("conditions.json is missing",)
    ),
    "resume an evaluation without its folder": (
        ("evaluate", "--driver", "controller", "--resume", *BASE), ("resume needs the folder (--out)",)
    ),
    "evaluate under no perturbation that is known": (
        ("evaluate", "--driver", "controller", "--perturb", "fog:1", "--out", "new", *BASE), ("'fog' is unknown",)
    ),
    "evaluate under perturbations in turn, one of them unknown": (
        ("evaluate", "--driver", "controller", "--perturb", "gap:1,fog:1", "--out", "new", *BASE),
        ("'fog' is unknown",),
    ),
    "evaluate into a file": (("evaluate", "--driver", "controller", "--out", "file", *BASE), ("file",)),
    # Recording
    "collect with a missing driver": (("collect", "--out", "new", "--driver", "typo", *BASE), ("typo",)),
    "collect with another control": (
        ("collect", "--out", "new", "--driver", "continuous_driver", *BASE), ("--control continuous",)
    ),
    "collect over a dataset": (
        ("collect", "--out", "data", "--driver", "controller", *BASE), ("data already exists", "--resume")
    ),
    "collect with another environment": (
        ("collect", "--out", "data", "--driver", "controller", "--resume", *BASE),
        ("data was recorded with other settings", "env.max_steps"),
    ),
    "collect with another control into a dataset": (
        ("collect", "--out", "data", "--driver", "controller", "--control", "continuous", "--resume", *BASE),
        ("env.control: dataset has 'discrete', got 'continuous'",),
    ),
    "resume a foreign folder": (
        ("collect", "--out", "foreign", "--driver", "controller", "--resume", *BASE), ("meta.json is missing",)
    ),
    "collect into a file": (("collect", "--out", "file", "--driver", "controller", *BASE), ("file",)),
    "no episodes": (
        ("collect", "--out", "new", "--driver", "controller", "--episodes", "0", *BASE), ("episodes", "got 0")
    ),
    "too much noise": (
        ("collect", "--out", "new", "--driver", "controller", "--noise", "1.5", *BASE), ("noise probability", "1.5")
    ),
    "short hold": (
        ("collect", "--out", "new", "--driver", "controller", "--noise", "0.1", "--noise-hold", "0", *BASE),
        ("noise hold", "at least 1"),
    ),
    # Options that need another
    "episodes without a dataset": (
        ("evaluate", "--driver", "controller", "--episodes", "7,99"), ("episodes must be left out without --dataset",)
    ),
    "an episode without a dataset": (
        ("inspect", "--out", "new", "--episode", "77"), ("episode must be left out without a dataset, got 77",)
    ),
    "a cluster for a dataset": (
        ("evaluate", "--dataset", "data", "--cluster", "nowhere:1"), ("cluster must be left out with --dataset",)
    ),
    "workers for a dataset": (
        ("evaluate", "--dataset", "data", "--workers", "2"), ("workers must be left out with --dataset",)
    ),
    "a sample of a drive": (
        ("challenge", "--driver", "controller", "--out", "x.json", "--sample", "9"), ("sample must be left out",)
    ),
    "workers that verify": (
        ("challenge", "verify", "x.json", "--workers", "2"), ("workers must be left out with verify",)
    ),
    # Watching
    "no display": (("watch", "--driver", "controller"), ("no display", "--video episode.mp4")),
    "no display and no driver": (("watch", "--driver", "typo"), ("there is no folder typo",)),
    "existing video": (
        ("watch", "--driver", "controller", "--video", "film.mp4"), ("film.mp4 already exists", "another")
    ),
    "watch on no track": (
        ("watch", "--driver", "controller", "--track", "-1", "--video", "x.mp4"), ("tracks must be whole numbers", "-1")
    ),
    "watch under perturbations in turn, one of them unknown": (
        ("watch", "--driver", "controller", "--perturb", "gap:1,fog:1", "--video", "new.mp4"), ("'fog' is unknown",)
    ),
    "a video below a file": (
        ("watch", "--driver", "controller", "--video", "file/x.mp4"), ("cannot write file/x.mp4", "Not a directory")
    ),
    "an action log below a file": (
        ("dataset", "action-log", "data", "--out", "file/x.npz", *BASE), ("cannot write file/x.npz", "Not a directory")
    ),
    "watch a missing driver": (("watch", "--driver", "typo", "--video", "episode.mp4"), ("typo",)),
    "a video in another format": (("watch", "--driver", "controller", "--video", "x.avi"), ("x.avi", ".mp4", ".gif")),
    # PPO
    "PPO under no perturbation that is known": (("ppo", "--out", "new", "--perturb", "fog:1"), ("'fog' is unknown",)),
    "PPO from a driver of another core": (
        ("ppo", "--out", "new", "--init-from", "champion", "--core", "cnn"),  # cnn is the default of a random driver
        ("core must be 'nac-exact' as in init_from, got 'cnn'; leave it out.",),
    ),
    "PPO over a run": (("ppo", "--out", "run"), ("run already exists", "--resume")),
}  # fmt: skip
