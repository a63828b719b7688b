"""Names in the shell completion: tyro's script completes commands and options, this adds the values of options."""

from __future__ import annotations

from string import Template

_TRACK_COUNTS = (1, 5, 10, 20, 50, 100)

_WRAPPER = Template("""
# Names of drivers, cores, encoders, tracks and perturbations; everything else is completed by tyro's function.
_nac_drive_names() {
  local current="$${COMP_WORDS[COMP_CWORD]}" option="" names="" i
  for ((i = COMP_CWORD - 1; i > 0; i--)); do
    if [[ "$${COMP_WORDS[i]}" == --* ]]; then
      option="$${COMP_WORDS[i]}"
      break
    fi
  done
  case "$$option" in
$cases
  esac
  case "$$option" in
    --drivers | --augment) ;;
    *) if ((i != COMP_CWORD - 1)); then names=""; fi ;;
  esac
  if [[ -z "$$names" || "$$current" == -* ]]; then
    _tyro_nac_drive
    return
  fi
  COMPREPLY=($$(compgen -W "$$names" -- "$$current"))
  case "$$option" in
    $drivers) COMPREPLY+=($$(compgen -d -- "$$current")) ;;
  esac
}
complete -F _nac_drive_names nac-drive
""")
_DRIVERS = ("--driver", "--expert", "--baseline", "--init-from", "--freeze-encoder-from")


def with_names(script: str) -> str:
    """Add the names that options take to a completion script.

    Args:
        script: The bash script of tyro, whose function is `_tyro_nac_drive`.

    Returns:
        A bash script that completes names too, and folders for options that take a driver.
    """
    cases = "\n".join(
        f"    {' | '.join(options)}) names={' '.join(names)!r} ;;" for options, names in names_of().items()
    )
    return script + _WRAPPER.substitute(cases=cases, drivers=" | ".join(_DRIVERS))


def names_of() -> dict[tuple[str, ...], list[str]]:
    """Options -> names that they take. Loads torch."""
    from nac_drive.data_collection.controller.controller import CONTROLLERS
    from nac_drive.envs import ENVIRONMENTS, PERTURBATIONS, SPLITS, recordable
    from nac_drive.policies import CORES, ENCODERS, shipped_names

    experts = {name for spec in ENVIRONMENTS.values() for name in spec.experts}
    drivers = sorted({*shipped_names(), *CONTROLLERS, *experts})
    tracks = [f"{split}-{count}" for split, seeds in SPLITS.items() for count in _TRACK_COUNTS if count <= len(seeds)]
    return {
        _DRIVERS: drivers,
        ("--core",): list(CORES),
        ("--drivers",): ["all", *CORES],
        ("--encoder",): list(ENCODERS),
        ("--tracks", "--validation-tracks"): tracks,
        ("--perturb",): list(PERTURBATIONS),
        ("--augment",): recordable(),
    }
