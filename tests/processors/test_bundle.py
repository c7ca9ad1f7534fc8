"""The `bundle` processor: what a request and its companions made, as one item."""

from __future__ import annotations

import pytest

from podium.core.identity import MAIN, JobKey
from podium.errors import ConfigurationError
from podium.payloads import Bundle, Text
from podium.ports.input_processor import BundleMember
from podium.ports.stage_backend import Placement
from podium.processors.bundle import WholeBundleProcessor

JOB = JobKey("r1", "painter", MAIN, 0)


@pytest.mark.rule("ORCH-INV-113")
def test_it_gives_wholes_by_role_and_source() -> None:
    bundle = [
        BundleMember(MAIN, {"thinker": (Text("a "), Text("cat")), "voice": ()}),
        BundleMember("negative", {"thinker": (Text("dog"),), "voice": ()}),
    ]
    (item,) = WholeBundleProcessor(None).join(JOB, "prompt", bundle)
    assert isinstance(item, Bundle)
    assert item.parts == {
        "main": {"thinker": Text("a cat"), "voice": None},
        "negative": {"thinker": Text("dog"), "voice": None},
    }
    assert list(item.parts) == ["main", "negative"]


def test_it_has_no_options() -> None:
    WholeBundleProcessor.parse_options({})
    with pytest.raises(ConfigurationError, match="speed"):
        WholeBundleProcessor.parse_options({"speed": 1})


def test_what_it_accepts() -> None:
    assert WholeBundleProcessor.accepts is None
    assert WholeBundleProcessor.placement is Placement.LOOP
