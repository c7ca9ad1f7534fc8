"""`make mutate`: the planted faults fit the core as it is, and what is said of them is told as it is."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tools.mutate import (
    CORE,
    HUNTERS,
    Ground,
    Hunter,
    Mutant,
    UnfitError,
    Verdict,
    is_good,
    judge_all,
    main,
    misfits,
    read,
    report,
    report_as_json,
)

ROOT = Path(__file__).resolve().parents[2]
MUTANTS = read()
PAGE = (ROOT / "docs" / "mutation.md").read_text(encoding="utf-8")
RULES = re.findall(
    r"^### (ORCH-INV-\d{3}) ·", (ROOT / "docs" / "contract.md").read_text(encoding="utf-8"), re.MULTILINE
)


def mutant(find: str = "a = 1", replace: str = "a = 2", survives: str = "") -> Mutant:
    return Mutant("one", "ending.py", "ORCH-INV-101", "it ends", find, replace, survives)


def test_every_mutant_can_be_planted() -> None:
    assert misfits(MUTANTS) == []


def test_there_are_enough_of_them_in_all_that_carries_the_contract() -> None:
    assert len(MUTANTS) >= 60
    assert {one.file for one in MUTANTS} >= {
        "admission.py", "barrier.py", "controlling.py", "deadlines.py", "ending.py", "fence.py", "forwarding.py",
        "lifecycle.py", "orchestrator.py", "ordering.py", "plan.py", "records.py", "stage_pool.py",
    }  # fmt: skip


def test_each_names_a_rule_and_is_looked_for_by_the_tests_of_its_file() -> None:
    assert [one.name for one in MUTANTS if one.rule not in RULES] == []
    assert [one.name for one in MUTANTS if not (ROOT / "tests" / "core" / f"test_{one.file}").is_file()] == []


def test_the_page_has_each_survivor_with_its_reason() -> None:
    rows = re.findall(r"^\| `([a-z0-9-]+)` \| `[a-z_]+\.py` \| (.+) \|$", PAGE, re.MULTILINE)
    assert rows == [(one.name, one.survives) for one in MUTANTS if one.survives]


@pytest.mark.parametrize(
    ("one", "source", "why"),
    [
        (mutant(), "b = 1", "its text is 0 times"),
        (mutant(), "a = 1\na = 1", "its text is 2 times"),
        (mutant(replace="a ="), "a = 1", "no Python"),
        (mutant(replace="a = 1"), "a = 1", "changes nothing"),
        (mutant(), "a = 1", None),
    ],
)
def test_what_cannot_be_planted_is_told(tmp_path: Path, one: Mutant, source: str, why: str | None) -> None:
    (tmp_path / CORE).mkdir(parents=True)
    (tmp_path / CORE / "ending.py").write_text(source, encoding="utf-8")
    found = misfits([one], tmp_path)
    assert (found == []) if why is None else (why in found[0])


def test_names_come_once(tmp_path: Path) -> None:
    entry = '[[mutant]]\nname = "n"\nfile = "f"\nrule = "r"\nbreaks = "b"\nfind = "x"\nreplace = "y"\n'
    data = tmp_path / "mutants.toml"
    data.write_text(entry * 2, encoding="utf-8")
    with pytest.raises(UnfitError, match="come twice: n"):
        read(data)


def test_survivors_are_listed_and_counted() -> None:
    verdicts = [Verdict(mutant(), HUNTERS[0].name, 1.0), Verdict(mutant(), None, 2.0)]
    told = report(verdicts, 3.0)
    assert "ending.py: one survives (ORCH-INV-101: it ends); nobody has said why: a test is missing" in told
    assert told.endswith("1/2 killed (50.0%) in 3 s")
    document = json.loads(report_as_json(verdicts, 3.0))
    assert (document["killed"], document["total"]) == (1, 2)
    assert [row["killer"] for row in document["mutants"]] == [HUNTERS[0].name, None]


@pytest.mark.parametrize(
    ("killed", "survivor", "expected"),
    [(19, mutant(survives="it is the same"), True), (19, mutant(), False), (18, mutant(survives="same"), False)],
)
def test_it_is_good_when_few_survive_and_each_for_a_reason(killed: int, survivor: Mutant, *, expected: bool) -> None:
    verdicts = [Verdict(mutant(), "x", 1.0)] * killed + [Verdict(survivor, None, 1.0)] * (20 - killed)
    assert is_good(verdicts) is expected


LOOK = """
from podium.core.fence import Fence

def test_look() -> None:
    assert Fence().is_settled
"""
ENDLESS = "def test_endless() -> None:\n    while True:\n        pass\n"


@pytest.fixture
def hunter(tmp_path: Path) -> Callable[..., Hunter]:
    """Makes a hunter that runs one test file; pytest is not told of this project, so its own options do not count."""

    def make(program: str, timeout_s: float = 60.0) -> Hunter:
        path = tmp_path / "test_it.py"
        path.write_text(program, encoding="utf-8")
        return Hunter("a hunter", "pytest", ("-c", "/dev/null", "--rootdir", str(tmp_path), str(path)), timeout_s)

    return make


@pytest.mark.parametrize(
    ("program", "timeout_s", "expected"),
    [(LOOK, 60.0, False), (LOOK.replace("assert", "assert not"), 60.0, True), (ENDLESS, 1.0, True)],
    ids=["nothing", "a failure", "no end"],
)
def test_who_fails_or_does_not_end_has_found_it(
    tmp_path: Path, hunter: Callable[..., Hunter], program: str, timeout_s: float, *, expected: bool
) -> None:
    assert Ground(tmp_path / "ground").hunt(hunter(program, timeout_s)) is expected


def test_a_hunter_that_cannot_judge_is_no_hunter(tmp_path: Path, hunter: Callable[..., Hunter]) -> None:
    with pytest.raises(UnfitError, match="exit code 5"):
        Ground(tmp_path / "ground").hunt(hunter("nothing = 'to be collected'"))


def test_a_verb_of_podium_can_hunt(tmp_path: Path) -> None:
    verb = Hunter("a verb", "podium", ("explore", "--world=stream", "--max-states=5", "--journals={scratch}"))
    assert not Ground(tmp_path / "ground").hunt(verb)


def test_a_fault_is_planted_in_a_copy_and_taken_out_again(hunter: Callable[..., Hunter]) -> None:
    find, replace = "is FenceState.SETTLED", "is not FenceState.SETTLED"
    fault = Mutant("broken", "fence.py", "ORCH-INV-238", "it breaks", find, replace)
    none = Mutant("none", "fence.py", "ORCH-INV-238", "nothing", "", "")
    verdicts = judge_all([fault, none], 1, (hunter(LOOK), hunter(LOOK)))
    assert [verdict.killer for verdict in verdicts] == ["a hunter", None]


def test_nothing_is_judged_where_a_fault_is_found_without_one(hunter: Callable[..., Hunter]) -> None:
    broken = hunter("def test_it() -> None:\n    raise AssertionError\n")
    with pytest.raises(UnfitError, match="where none was planted"):
        judge_all(MUTANTS[:1], 1, (broken, broken))


def test_a_name_that_there_is_not_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nobody"]) == 2
    assert "no mutant or file is called nobody" in capsys.readouterr().err
