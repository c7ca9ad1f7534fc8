"""What callers get."""

from __future__ import annotations

import pytest

from podium.core.effects import AbortRecord, AbortStatus
from podium.core.graph import Modality
from podium.runtime.outputs import AbortReport, OmniOutput


def report() -> AbortReport:
    return AbortReport(tuple(AbortRecord(status.value, status) for status in AbortStatus))


@pytest.mark.rule("ORCH-INV-207")
def test_a_report_has_a_record_for_each_id() -> None:
    assert {status: report()[status.value].status for status in AbortStatus} == {one: one for one in AbortStatus}
    with pytest.raises(KeyError, match="nobody"):
        report()["nobody"]


@pytest.mark.rule("ORCH-INV-207")
def test_unconfirmed_are_those_that_did_not_stop() -> None:
    assert report().unconfirmed == ("unconfirmed", "failed")
    assert AbortReport(()).unconfirmed == ()


@pytest.mark.rule("ORCH-INV-105")
def test_a_plain_item_marks_no_end() -> None:
    item = OmniOutput(request_id="r", stage="s", output="text", modality=Modality.TEXT, sequence=0, at=0.0, delta="x")
    assert (item.stage_finished, item.request_finished, item.finish_reason) == (False, False, None)
