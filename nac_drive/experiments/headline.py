"""The result of a comparison in one sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

from nac_drive.evaluation.evaluate import Evaluation
from nac_drive.evaluation.statistics import grid
from nac_drive.evaluation.verdict import ALIKE, Judgement, Verdict, paired, points
from nac_drive.experiments.leaderboard import RankedDriver

_WORDS: dict[Judgement, str] = {"more": "more than", "less": "less than", "alike": "as much as"}
_FEW = 3
"""Names that a sentence lists; more are counted."""
_MOST_NAMES = 6
"""Drivers that a headline names."""
_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def headline(drivers: Sequence[RankedDriver]) -> str:
    """Return the result in one sentence or two.

    Drivers are alike if every pair of them is (`Verdict.outcome`): a difference that nobody has shown is not enough.

    Args:
        drivers: The drivers, of which one is the baseline.

    Returns:
        An empty text if nothing is compared.
    """
    verdicts = [driver.evaluation.verdict for driver in drivers if driver.evaluation.verdict]
    if len(verdicts) < 2:
        return "".join(verdict.sentence for verdict in verdicts)
    if all(verdict.outcome == "alike" for verdict in verdicts) and _all_alike(drivers):
        needless = any(driver.has_memory is False for driver in drivers)
        margin = f"within {points(verdicts[0].margin)} points ({100 * ALIKE:.0f} %)"
        memory = " These tracks need no memory." if needless else ""
        return f"All {_number(len(drivers))} drive alike, {margin}.{memory}"
    return _grouped(verdicts)


def _all_alike(drivers: Sequence[RankedDriver]) -> bool:
    return all(
        _pair(one.evaluation, other.evaluation).outcome == "alike" for one, other in combinations(drivers, 2)
    )  # fmt: skip


def _pair(one: Evaluation, other: Evaluation) -> Verdict:
    return paired(grid(one.rows, "episode_return"), grid(other.rows, "episode_return"))


def _grouped(verdicts: Sequence[Verdict]) -> str:
    """Return the drivers by their outcome against the baseline."""
    groups = _by_outcome({verdict.driver: verdict for verdict in verdicts})
    baseline, undecided = verdicts[0].baseline, groups.pop("open")
    if verdicts[0].tracks == 1:
        return "All drivers drove one track, which says nothing about others."
    if len(undecided) == len(verdicts):
        return f"No driver is distinguishable from {baseline}."
    parts = [
        f"{_counted(names)} score{'s' * (len(names) == 1)} {_WORDS[outcome]} {baseline}"
        for outcome, names in groups.items()
        if names
    ]
    if undecided:
        verb = "is" if len(undecided) == 1 else "are"
        parts.append(f"{_counted(undecided)} {verb} not distinguishable from {baseline}")
    return f"{'; '.join(parts)}."


def over_baseline(drivers: Sequence[RankedDriver], baseline_is: str) -> str:
    """Return which trained drivers differ from the baseline.

    It is the end of a sentence, with intervals.

    Args:
        drivers: The drivers, of which one is the baseline.
        baseline_is: A clause about the baseline.
    """
    verdicts = {
        driver.summary.driver: driver.evaluation.verdict
        for driver in drivers
        if driver.runs and driver.evaluation.verdict
    }
    groups, baseline = _by_outcome(verdicts), next(iter(verdicts.values())).baseline

    def named(names: Sequence[str]) -> str:
        return _listed([f"{name} ({verdicts[name].difference.text('+.0f')})" for name in names])

    undecided, parts, said = groups.pop("open"), [], f"{baseline}, {baseline_is}"
    intervals = [verdicts[name].difference for name in undecided]
    narrow = any(each.low < each.high and (each.low > 0 or each.high < 0) for each in intervals)  # one track has none
    test = "; intervals without zero did not pass the test" if narrow else ""
    if len(undecided) == len(verdicts):
        return f"no driver is distinguishable from {said}: {named(undecided)}{test}."
    for outcome, names in groups.items():
        if names:
            parts.append(f"{named(names)} score{'s' * (len(names) == 1)} {_WORDS[outcome]} {said}")
            said = baseline
    if undecided:
        parts.append(
            f"{named(undecided)} {'is' if len(undecided) == 1 else 'are'} not distinguishable from {said}{test}"
        )
    return f"{'; '.join(parts)}."


def over_worlds(verdicts: Mapping[str, Verdict]) -> str:
    """Return where a driver scores more or less than another.

    Args:
        verdicts: Perturbation -> verdict on the same two drivers, with Holm's correction for all.
    """
    groups = _by_outcome(verdicts)
    undecided, some = groups.pop("open"), next(iter(verdicts.values()))
    if some.tracks == 1:
        return f"{some.driver} and {some.baseline} drove one track, which says nothing about others."
    parts = [
        f"scores {_WORDS[outcome]} {some.baseline} under "
        + (_listed(worlds) if len(worlds) < len(verdicts) else f"all {len(verdicts)} conditions")
        for outcome, worlds in groups.items()
        if worlds
    ]
    if undecided:
        left = f"the other {len(undecided)}" if len(undecided) > _FEW else _listed(undecided)
        left = left if parts else f"any of {len(verdicts)} conditions"
        parts.append(f"is not distinguishable from {some.baseline} under {left}")
    correction = f"; Holm's correction for {some.comparisons} comparisons" if some.comparisons > 1 else ""
    text = f"{some.driver} {', and '.join(parts)} ({some.tracks} tracks{correction})."
    if not undecided:
        return text
    largest = max(undecided, key=lambda world: abs(verdicts[world].difference.mean))
    return f"{text} Under {largest}: {verdicts[largest].needed}."


def _by_outcome(verdicts: Mapping[str, Verdict]) -> dict[Judgement, list[str]]:
    """Return the names of the verdicts of each outcome."""
    groups: dict[Judgement, list[str]] = {outcome: [] for outcome in (*_WORDS, "open")}
    for name, verdict in verdicts.items():
        groups[verdict.outcome].append(name)
    return groups


def _counted(names: Sequence[str]) -> str:
    """Return a few names, or how many they are."""
    return _listed(names) if len(names) <= _MOST_NAMES else f"{len(names)} drivers"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _number(count: int) -> str:
    return _NUMBERS[count] if count < len(_NUMBERS) else str(count)
