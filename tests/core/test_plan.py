"""Plans: which jobs a request needs, and who shares what."""

from __future__ import annotations

import pytest

from podium.core.graph import EdgeMode, Graph, Stage
from podium.core.identity import PROMPT
from podium.core.plan import MAX_KEPT, Link, Plan, Planner, plan_key
from podium.errors import InvalidRequestError
from tests.support.core_world import complete, guided, make_stage, on_label, streaming, voice


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


def shape(plan: Plan) -> list[str]:
    return [f"{job.stage.name}/{job.sibling}" for job in plan.jobs]


def expand(
    *stages: Stage, outputs: tuple[str, ...] | None = None, samples: int = 1, roles: tuple[str, ...] = (), most: int = 8
) -> Plan:
    return Planner(Graph(stages)).expand(outputs, samples, roles, most)


class TestSiblings:
    @pytest.mark.rule("ORCH-INV-112")
    def test_there_may_be_as_many_as_the_limit_says(self) -> None:
        assert expand(*voice(), samples=2, most=2).samples == 2

    def test_every_sample_has_all_jobs_and_links_stay_within_it(self) -> None:
        plan = expand(*voice(), samples=2)
        assert shape(plan) == ["a/0", "b/0", "a/1", "b/1"]
        assert [job.position for job in plan.jobs] == [0, 1, 2, 3]
        assert [[link.consumer for link in job.links] for job in plan.jobs] == [[1], [], [3], []]
        assert [job.sample for job in plan.jobs] == [0, 0, 1, 1]
        assert (plan.samples, plan.finals, plan.stages) == (2, 2, ("a", "b"))
        assert [(stage.name, jobs) for stage, jobs in plan.demand] == [("a", 2), ("b", 2)]

    @pytest.mark.rule("ORCH-INV-113")
    def test_companions_have_what_is_upstream_of_the_stage_that_joins(self) -> None:
        plan = expand(*guided(), roles=("negative", "style"))
        assert shape(plan) == [
            *("a/main", "t/main", "b/main"),
            *("a/main.negative", "t/main.negative", "a/main.style", "t/main.style"),
        ]
        joining = plan.jobs[2]
        assert [(one.stage, one.role) for one in joining.bundle] == [
            ("a", "negative"), ("t", "negative"), ("a", "style"), ("t", "style"),
        ]  # fmt: skip
        keys = {(one.stage, one.role): one.key for one in joining.bundle}
        assert plan.jobs[3].links == (
            Link(4, EdgeMode.STREAMING, "a"),
            Link(2, EdgeMode.COMPLETE, keys["a", "negative"]),
        )
        assert not any(job.is_final for job in plan.jobs[3:])
        assert [(job.leader, job.followers) for job in plan.jobs] == [
            (-1, (3, 5)), (-1, (4, 6)), (-1, ()), (0, ()), (1, ()), (0, ()), (1, ()),
        ]  # fmt: skip

    def test_each_sample_has_companions_of_its_own(self) -> None:
        plan = expand(make_stage("a"), make_stage("b", complete("a"), output="x", joins=True), samples=2, roles=("n",))
        assert shape(plan) == ["a/0", "b/0", "a/0.n", "a/1", "b/1", "a/1.n"]
        assert [[link.consumer for link in job.links] for job in plan.jobs] == [[1], [], [1], [4], [], [4]]

    def test_what_several_get_is_shared(self) -> None:
        plan = expand(*guided(), roles=("negative",))
        shared = [sorted(name.replace("\0", ".") for name in job.shared) for job in plan.jobs]
        assert shared == [[], ["a"], ["a", "negative.a"], [], ["a"]]
        assert [job.shared for job in expand(*voice(), samples=2).jobs][::2] == [{PROMPT}, {PROMPT}]

    def test_a_consumer_beside_the_joining_stage_gets_nothing_of_companions(self) -> None:
        stages = (
            make_stage("a"),
            make_stage("b", complete("a"), output="image", joins=True),
            make_stage("c", streaming("a"), output="text"),
        )
        plan = expand(*stages, roles=("n",))
        assert shape(plan) == ["a/main", "b/main", "c/main", "a/main.n"]
        assert [link.consumer for link in plan.jobs[3].links] == [1]
        assert plan.jobs[1].shared == {"a"}

    @pytest.mark.rule("ORCH-INV-107")
    def test_companions_that_no_output_needs_are_left_out(self) -> None:
        stages = (make_stage("a", output="text"), make_stage("b", complete("a"), output="image", joins=True))
        planner = Planner(Graph(stages))
        assert planner.expand(("text",), 1, ("n",), 8) is planner.plan(("text",))

    def test_plans_are_kept_within_a_limit(self) -> None:
        planner = Planner(Graph(guided()))
        plan = planner.expand(None, 2, (), 8)
        assert planner.expand(None, 2, (), 8) is plan
        for number in range(MAX_KEPT):
            planner.expand(None, 1, (f"role{number}",), 8)
        assert planner.expand(None, 2, (), 8) is not plan

    @pytest.mark.parametrize(
        ("samples", "roles", "message"),
        [
            (0, (), "samples: 0 makes no sense; ask for at least 1"),
            (3, ("n", "m"), "samples: with its companions the request has 9 siblings, and may have 8"),
            (1, ("main",), "companions: 'main' is no role"),
            (1, ("a.b",), "companions: 'a.b' is no role"),
        ],
    )
    def test_siblings_that_cannot_be(self, samples: int, roles: tuple[str, ...], message: str) -> None:
        with pytest.raises(InvalidRequestError) as caught:
            expand(*guided(), samples=samples, roles=roles)
        assert caught.value.record.message.startswith(message)

    def test_companions_that_nobody_joins(self) -> None:
        with pytest.raises(InvalidRequestError, match="this pipeline has no stage that joins them"):
            expand(*voice(), roles=("negative",))


@pytest.mark.rule("ORCH-INV-116")
def test_what_runs_for_certain_depends_on_no_condition() -> None:
    stages = (
        make_stage("r", labels=("yes", "no")),
        make_stage("a", on_label("r", "yes")),
        make_stage("b", complete("a"), output="out"),
        make_stage("c", on_label("r", "no"), complete("r2"), output="more"),
        make_stage("r2"),
    )
    plan = Planner(Graph(stages)).plan(None)
    assert {job.stage.name for job in plan.jobs if not job.is_certain} == {"a", "b"}
    (router,) = (job for job in plan.jobs if job.stage.name == "r")
    assert {link.when for link in router.links} == {"yes", "no"}
