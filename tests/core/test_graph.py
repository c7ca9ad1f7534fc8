"""Graphs: their order, and the text of everything that can be wrong with one."""

from __future__ import annotations

import msgspec
import pytest

from podium.core.graph import EdgeMode, Graph, Limits, Modality, Source, Stage, StageKind, find_faults
from podium.errors import ConfigurationError
from tests.support.core_world import complete, make_stage, on_label, streaming


def texts(*stages: Stage) -> list[str]:
    return [str(fault) for fault in find_faults(stages)]


def test_stages_are_in_topological_order_whatever_the_order_of_the_file() -> None:
    graph = Graph([make_stage("c", complete("b"), output="out"), make_stage("b", streaming("a")), make_stage("a")])
    assert tuple(graph.stages) == ("a", "b", "c")
    assert dict(graph.consumers) == {"a": ("b",), "b": ("c",), "c": ()}
    assert {output: stage.name for output, stage in graph.outputs.items()} == {"out": "c"}
    assert repr(graph) == "<Graph a b c outputs=out>"


def test_edges_are_complete_unless_they_say_otherwise() -> None:
    assert Source("a").mode is EdgeMode.COMPLETE


@pytest.mark.rule("ORCH-INV-300")
@pytest.mark.case("B049")
def test_all_faults_are_named_at_once() -> None:
    stages = [make_stage("a", complete("nobody")), make_stage("b", limits=Limits(max_inflight=0))]
    with pytest.raises(ConfigurationError) as caught:
        Graph(stages, "voice.yaml")
    assert str(caught.value).splitlines() == [
        "voice.yaml: 3 faults",
        "  stages: no stage is final, so no request could ever complete; give a stage an `output`",
        "  stage 'a', sources: unknown source 'nobody'; use one of: a, b",
        "  stage 'b', limits.max_inflight: 0 makes no sense; it must be greater than 0, and finite",
    ]


def test_no_stage_at_all() -> None:
    assert texts() == ["stages: there is no stage; declare at least one"]


def test_an_empty_name_and_one_that_is_used_twice() -> None:
    assert texts(make_stage("", output="x"), make_stage("a", output="y"), make_stage("a", output="z")) == [
        "stages: a stage has an empty name; name it",
        "stage 'a': the name is used twice; give each stage a name of its own",
    ]


def test_an_output_that_two_stages_claim() -> None:
    assert texts(make_stage("a", output="text"), make_stage("b", output="text")) == [
        "stage 'b', output: 'text' is already the output of stage 'a'; give each output a name of its own"
    ]


def test_a_source_that_is_listed_twice() -> None:
    assert texts(make_stage("a"), make_stage("b", complete("a"), streaming("a"), output="out")) == [
        "stage 'b', sources: source 'a' is listed twice; list it once"
    ]


def test_a_source_that_the_processor_does_not_take() -> None:
    picky = msgspec.structs.replace(
        make_stage("b", complete("a"), output="out"), accepts=frozenset({Modality.IMAGE, Modality.LATENT})
    )
    assert texts(make_stage("a"), picky) == [
        (
            "stage 'b', sources: source 'a' produces text, which the input processor does not take; "
            "use a processor for text, or a source that produces image, latent"
        )
    ]
    fitting = msgspec.structs.replace(picky, accepts=frozenset({Modality.TEXT}))
    assert texts(make_stage("a"), fitting) == []


def test_an_output_that_no_client_can_get() -> None:
    tokens = Stage(name="a", kind=StageKind.AUTOREGRESSIVE, produces=Modality.TOKENS, output="tokens")
    assert texts(tokens) == [
        (
            "stage 'a', output: tokens cannot be delivered to a client; "
            "make a stage final that produces one of: embedding, image, speech, text, video"
        )
    ]


@pytest.mark.parametrize("name", [field.name for field in msgspec.structs.fields(Limits)])
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")])
def test_limits_that_make_no_sense(name: str, value: float) -> None:
    limits = msgspec.structs.replace(Limits(), **{name: value})
    assert texts(make_stage("a", output="out", limits=limits)) == [
        f"stage 'a', limits.{name}: {value} makes no sense; it must be greater than 0, and finite"
    ]


def test_a_cycle() -> None:
    faults = texts(make_stage("a", complete("b"), output="out"), make_stage("b", complete("a")))
    assert faults in (
        [f"stages: the sources form a cycle: {path}; remove one of these sources"]
        for path in ("a -> b -> a", "b -> a -> b")
    )


def test_a_stage_that_no_output_needs() -> None:
    assert texts(make_stage("a", output="out"), make_stage("b", complete("a")), make_stage("c", complete("b"))) == [
        f"stage '{name}': no output needs it, so it would never run; "
        "give it an `output`, make it a source of another stage, or remove it"
        for name in "bc"
    ]


def test_a_source_that_two_stages_need_is_visited_once() -> None:
    diamond = (
        make_stage("a"),
        make_stage("b", complete("a")),
        make_stage("c", complete("a")),
        make_stage("d", complete("b"), complete("c"), output="out"),
    )
    assert texts(*diamond) == []


class TestJoins:
    def test_a_stage_may_join_what_is_complete(self) -> None:
        assert texts(make_stage("a"), make_stage("b", complete("a"), output="out", joins=True)) == []

    def test_there_is_something_to_join(self) -> None:
        assert texts(make_stage("a", output="out", joins=True)) == [
            "stage 'a', joins: it has no sources, so there is nothing to join; give it `sources`, or remove `joins`"
        ]

    def test_a_bundle_is_not_streamed_and_not_started_early(self) -> None:
        faults = texts(make_stage("a"), make_stage("b", streaming("a"), output="out", joins=True, prewarm=True))
        assert faults == [
            (
                "stage 'b', joins: source 'a' is streaming, but a bundle is joined when all of it is there; "
                "make it a complete edge"
            ),
            "stage 'b', joins: it starts with the whole bundle, so it cannot be prewarmed; remove `prewarm`",
        ]

    def test_companions_are_joined_once(self) -> None:
        stages = (
            make_stage("a"),
            make_stage("b", complete("a"), joins=True),
            make_stage("c", complete("b"), output="out", joins=True),
        )
        assert texts(*stages) == [
            "stage 'c', joins: stage 'b' upstream of it joins the companions already; join them once"
        ]


class TestConditions:
    @staticmethod
    def router(*labels: str, output: str | None = None) -> Stage:
        return make_stage("r", labels=labels, output=output)

    def test_alternatives_that_join_again_are_fine(self) -> None:
        assert (
            texts(
                self.router("yes", "no"),
                make_stage("a", on_label("r", "yes")),
                make_stage("b", on_label("r", "no")),
                make_stage("c", complete("a"), streaming("b"), output="out"),
            )
            == []
        )

    def test_a_label_that_the_source_never_says(self) -> None:
        stages = [self.router("yes", output="o"), make_stage("a", on_label("r", "no"), output="out")]
        assert texts(*stages) == ["stage 'a', sources: source 'r' never finishes with 'no'; use one of its labels: yes"]

    def test_a_source_without_labels(self) -> None:
        assert texts(make_stage("r"), make_stage("a", on_label("r", "no"), output="out")) == [
            "stage 'a', sources: source 'r' never finishes with 'no'; declare `labels` at 'r'"
        ]

    def test_a_condition_on_a_streaming_edge(self) -> None:
        edge = Source("r", EdgeMode.STREAMING, "yes")
        assert texts(self.router("yes"), make_stage("a", edge, output="out")) == [
            (
                "stage 'a', sources: source 'r' is streaming, but whether it is taken is known only at its end; "
                "make it a complete edge, or remove its `when`"
            )
        ]

    def test_a_condition_on_a_source_that_there_is_not(self) -> None:
        assert texts(make_stage("a", on_label("r", "no"), output="out")) == [
            "stage 'a', sources: unknown source 'r'; use one of: a"
        ]

    def test_a_label_that_leads_nowhere(self) -> None:
        consumer = make_stage("a", on_label("r", "yes"), output="out")
        assert texts(self.router("yes", "no"), consumer) == [
            (
                "stage 'r', labels: 'no' leads nowhere; "
                "add an edge with `when: no`, give the stage an `output`, or remove the label"
            )
        ]
        assert texts(self.router("yes", "no", output="text"), consumer) == []
        assert texts(self.router("yes", "no"), consumer, make_stage("b", complete("r"), output="more")) == []

    def test_labels_that_are_empty_or_listed_twice(self) -> None:
        consumer = make_stage("a", complete("r"), output="out")
        assert texts(self.router("yes", "", "yes"), consumer) == [
            "stage 'r', labels: 'yes' is listed twice; list it once",
            "stage 'r', labels: a label is empty; name it",
        ]

    def test_what_may_not_run_cannot_be_prewarmed(self) -> None:
        assert texts(
            self.router("yes", output="text"),
            make_stage("a", on_label("r", "yes")),
            make_stage("b", streaming("a"), prewarm=True, output="out"),
        ) == ["stage 'b', prewarm: whether the stage runs at all depends on a condition of stage 'a'; remove `prewarm`"]
