"""Plans: which jobs a request needs, and who shares what."""

from __future__ import annotations

import pytest

from podium.core.graph import EdgeMode, Graph
from podium.core.identity import PROMPT
from podium.core.plan import Link, Planner, plan_key
from podium.errors import InvalidRequestError
from tests.support.core_world import complete, make_stage, streaming, voice


def test_repr() -> None:
    assert repr(Planner(Graph(voice()))) == "<Planner of <Graph a b outputs=text,speech>>"


@pytest.mark.rule("ORCH-INV-107")
def test_a_plan_has_only_what_the_outputs_need() -> None:
    planner = Planner(Graph(voice()))
    assert planner.plan(("text",)).stages == ("a",)
    assert planner.plan(("speech",)).stages == ("a", "b")
    assert planner.plan(None).stages == ("a", "b")


def test_finals_are_what_was_asked_for() -> None:
    plan = Planner(Graph(voice())).plan(("speech",))
    assert plan.finals == 1
    assert [job.is_final for job in plan.jobs] == [False, True]


def test_links_lead_to_consumers_in_the_plan_only() -> None:
    planner = Planner(Graph((*voice(), make_stage("c", complete("a"), output="more"))))
    assert planner.plan(("speech",)).jobs[0].links == (Link(1, EdgeMode.STREAMING, "a"),)
    links = planner.plan(None).jobs[0].links
    assert [(planner.plan(None).jobs[link.consumer].stage.name, link.mode) for link in links] == [
        ("b", EdgeMode.STREAMING),
        ("c", EdgeMode.COMPLETE),
    ]


def test_plans_are_made_once_for_all_ways_to_ask_for_the_same() -> None:
    planner = Planner(Graph(voice()))
    plan = planner.plan(("text", "speech"))
    assert planner.plan(("speech", "text")) is plan
    assert planner.plan(("speech", "text", "speech")) is plan
    assert planner.plan(plan_key(("text", "speech"))) is plan


def test_a_source_with_several_takers_is_shared() -> None:
    planner = Planner(Graph(voice()))
    assert planner.plan(("speech",)).jobs[1].shared == frozenset()
    assert planner.plan(None).jobs[1].shared == {"a"}


def test_the_prompt_is_shared_by_stages_that_begin_with_it() -> None:
    graph = Graph([make_stage("a"), make_stage("b"), make_stage("c", streaming("a"), streaming("b"), output="out")])
    assert [job.shared for job in Planner(graph).plan(None).jobs] == [{PROMPT}, {PROMPT}, frozenset()]
    assert Planner(Graph(voice())).plan(None).jobs[0].shared == frozenset()


@pytest.mark.rule("ORCH-INV-107")
def test_an_output_that_there_is_not() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        Planner(Graph(voice())).plan(("text", "video"))
    assert str(caught.value) == "outputs: this pipeline has no output 'video'; ask for some of: text, speech"
    assert caught.value.status == 400


def test_no_output_at_all() -> None:
    with pytest.raises(InvalidRequestError, match="outputs: nothing is asked for; ask for some of: text, speech"):
        Planner(Graph(voice())).plan(())
