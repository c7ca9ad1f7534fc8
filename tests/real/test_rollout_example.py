"""The example of a trainer's loop, as a reader runs it: it asserts by itself what it shows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "rollout.py"


@pytest.mark.rule("ORCH-INV-239", "ORCH-INV-238", "ORCH-INV-233")
@pytest.mark.case("B014", "B015")
@pytest.mark.timeout(600)
def test_the_trainers_loop_holds_what_it_asserts() -> None:
    ran = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, check=False, timeout=580)
    assert ran.returncode == 0, ran.stderr
    assert [line.split(":")[0] for line in ran.stdout.splitlines() if line.startswith("round")] == [
        "round 1",
        "round 2",
        "round 3",
    ]
