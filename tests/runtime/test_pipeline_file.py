"""Pipeline files: what is read from a good one, and the exact words for everything that can be wrong with one."""

from __future__ import annotations

from pathlib import Path

import pytest

from podium.core.admission import EngineLimits
from podium.core.graph import Balance, EdgeMode, EmptyPolicy, Limits, Modality, Source, StageKind
from podium.errors import ConfigurationError
from podium.runtime.config import PipelineConfig
from podium.runtime.pipeline_file import load_pipeline
from podium.runtime.replica_slot import RestartLimits
from tests.runtime.fake_catalog import FakeCatalog

GOOD = """\
name: voice
description: text in, text and speech out
requires: [json, no_such_module]
install: make demo
limits: {max_requests: 7}
stages:
  thinker:
    kind: autoregressive
    produces: text
    output: text
    backend: fake
    options: {model: small}
    params: {max_tokens: 100}
    rerun: true
  speaker:
    kind: function
    produces: speech
    output: speech
    sources: {thinker: streaming}
    backend: fake
    processor: text
    processor_options: {join: 2}
    replicas: 2
    on_empty: error
    prewarm: true
    limits: {max_inflight: 16, stop_timeout_s: 5}
"""
"""Lines 1 to 26; `thinker` is at 7, `speaker` at 15."""


def load(text: str) -> PipelineConfig:
    return load_pipeline(text, FakeCatalog())


def faults_of(text: str) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        load(text)
    return [str(fault) for fault in caught.value.faults]


def test_a_good_file_is_read_whole() -> None:
    config = load(GOOD)

    assert (config.name, config.description, config.install) == ("voice", "text in, text and speech out", "make demo")
    assert config.requires == ("json", "no_such_module")
    assert config.limits == EngineLimits(max_requests=7)
    thinker, speaker = config.stages
    assert (thinker.name, thinker.backend, thinker.options) == ("thinker", "fake", {"model": "small"})
    assert (thinker.params, thinker.processor, thinker.transport) == ({"max_tokens": 100}, "prompt", "in_process")
    assert (thinker.stage.kind, thinker.stage.rerun, thinker.replicas) == (StageKind.AUTOREGRESSIVE, True, 1)
    assert (speaker.processor, speaker.processor_options, speaker.replicas) == ("text", {"join": 2}, 2)
    assert speaker.stage.sources == (Source("thinker", EdgeMode.STREAMING),)
    assert (speaker.stage.produces, speaker.stage.output) == (Modality.SPEECH, "speech")
    assert (speaker.stage.on_empty, speaker.stage.prewarm) == (EmptyPolicy.ERROR, True)
    assert speaker.stage.limits == Limits(max_inflight=16, stop_timeout_s=5.0)
    assert (thinker.stage.accepts, speaker.stage.accepts) == (None, frozenset({Modality.TEXT}))


def test_the_graph_and_the_defaults_of_a_file() -> None:
    config = load(GOOD)

    assert list(config.graph.stages) == ["thinker", "speaker"]
    assert config.default_params == {"thinker": {"max_tokens": 100}, "speaker": {}}


def test_sources_in_a_list_are_complete_edges() -> None:
    text = GOOD.replace("{thinker: streaming}", "[thinker]").replace("    prewarm: true\n", "")

    assert load(text).stages[1].stage.sources == (Source("thinker", EdgeMode.COMPLETE),)


def test_what_is_empty_counts_as_absent() -> None:
    text = GOOD.replace("{model: small}", "").replace("on_empty: error", "on_empty:")

    thinker, speaker = load(text).stages
    assert (thinker.options, speaker.stage.on_empty) == ({}, EmptyPolicy.COMPLETE)


@pytest.mark.case("B049")
def test_five_faults_are_five_messages() -> None:
    text = (
        GOOD.replace("description:", "descripton:")
        .replace("autoregressive", "autoregresive")
        .replace("{thinker: streaming}", "{thinkr: streaming}")
        .replace("max_inflight: 16", "max_inflight: 0")
        .replace("max_tokens: 100", "tempo: 3")
    )

    assert faults_of(text) == [
        "line 2: descripton: unknown key 'descripton'; did you mean 'description'?",
        "line 8: stage 'thinker', kind: unknown value 'autoregresive'; did you mean 'autoregressive'?",
        "line 13: stage 'thinker', params.tempo: unknown parameter 'tempo'; use one of: max_tokens, temperature, seed",
        "line 19: stage 'speaker', sources: unknown source 'thinkr'; use one of: thinker, speaker",
        "line 26: stage 'speaker', limits.max_inflight: 0 makes no sense; it must be greater than 0, and finite",
    ]


def test_how_a_lost_replica_comes_back_can_be_said() -> None:
    text = GOOD.replace("replicas: 2", "restart: {attempts: 0, window_s: 60}")
    thinker, speaker = load(text).stages
    assert thinker.restart == RestartLimits(), "it does by default"
    assert speaker.restart == RestartLimits(attempts=0, window_s=60.0)


def test_the_error_lists_every_fault_in_its_own_text() -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(GOOD.replace("name: voice", "nam: voice").replace("replicas: 2", "replicas: 0"))

    assert str(caught.value) == (
        "pipeline: 2 faults\n"
        "  line 1: nam: unknown key 'nam'; did you mean 'name'?\n"
        "  line 23: stage 'speaker', replicas: 0 makes no sense; it must be at least 1"
    )


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        pytest.param("name: voice\n", "", "name: is missing; give the pipeline a name", id="no name"),
        pytest.param("name: voice", "name: 3", "line 1: name: is a whole number (3); it must be text", id="name"),
        pytest.param(
            "requires: [json, no_such_module]",
            "requires: json",
            "line 3: requires: is text ('json'); it must be a list of texts",
            id="requires",
        ),
        pytest.param(
            "[json, no_such_module]",
            "[json>=2]",
            "line 3: requires: 'json>=2' cannot be imported; use a module's name, as in `import name`",
            id="module",
        ),
        pytest.param(
            "{max_requests: 7}",
            "{max_requests: 7.5}",
            "line 5: limits.max_requests: is a number (7.5); it must be a whole number",
            id="engine limit",
        ),
        pytest.param(
            "    kind: function\n",
            "",
            "line 15: stage 'speaker', kind: is missing; use one of: autoregressive, diffusion, function",
            id="no kind",
        ),
        pytest.param(
            "    produces: speech\n",
            "",
            "line 15: stage 'speaker', produces: is missing;"
            " use one of: text, speech, image, video, tokens, embedding, latent",
            id="no modality",
        ),
        pytest.param(
            "produces: speech",
            "produces: sound",
            "line 17: stage 'speaker', produces: unknown value 'sound';"
            " use one of: text, speech, image, video, tokens, embedding, latent",
            id="modality",
        ),
        pytest.param(
            "thinker: streaming",
            "thinker: stream",
            "line 19: stage 'speaker', sources.thinker: unknown value 'stream'; did you mean 'streaming'?",
            id="mode",
        ),
        pytest.param(
            "thinker: streaming}",
            "thinker: }",
            "line 19: stage 'speaker', sources.thinker: has no mode; use one of: complete, streaming",
            id="no mode",
        ),
        pytest.param(
            "sources: {thinker: streaming}",
            "sources: thinker",
            "line 19: stage 'speaker', sources: is text ('thinker'); it must be a mapping",
            id="sources",
        ),
        pytest.param(
            "    processor: text\n    processor_options: {join: 2}\n",
            "",
            "line 15: stage 'speaker', processor: is missing, and a stage with sources needs one;"
            " use one of: prompt, text, joining, or package.module:Class",
            id="no processor",
        ),
        pytest.param(
            "processor: text",
            "processor: txt",
            "line 21: stage 'speaker', processor: unknown processor 'txt'; did you mean 'text'?",
            id="processor",
        ),
        pytest.param(
            "{join: 2}",
            "{jon: 2}",
            "line 22: stage 'speaker', processor_options.jon: unknown option; did you mean 'join'?",
            id="processor option",
        ),
        pytest.param(
            "    backend: fake\n    options",
            "    options",
            "line 7: stage 'thinker', backend: is missing; use one of: fake, whole, or package.module:Class",
            id="no backend",
        ),
        pytest.param(
            "    backend: fake\n    processor",
            "    backend: fke\n    processor",
            "line 20: stage 'speaker', backend: unknown backend 'fke'; did you mean 'fake'?",
            id="backend",
        ),
        pytest.param(
            "{model: small}",
            "{model: small, modle: x}",
            "line 12: stage 'thinker', options.modle: unknown option; did you mean 'model'?",
            id="option",
        ),
        pytest.param(
            "{model: small}",
            "{threads: many}",
            "line 12: stage 'thinker', options.threads: is not a number; give a whole number",
            id="option value",
        ),
        pytest.param(
            "{model: small}",
            "[small]",
            "line 12: stage 'thinker', options: is a list; it must be a mapping",
            id="options",
        ),
        pytest.param(
            "{max_tokens: 100}",
            "{max_tokens: 0, seed: 1}",
            "line 13: stage 'thinker', params: these cannot be combined; correct the stage's default parameters",
            id="parameters",
        ),
        pytest.param(
            "kind: function",
            "kind: diffusion",
            "line 16: stage 'speaker', kind: backend 'fake' cannot be diffusion;"
            " declare autoregressive or function, or use another backend",
            id="capability kind",
        ),
        pytest.param(
            "produces: speech",
            "produces: image",
            "line 17: stage 'speaker', produces: backend 'fake' does not produce image;"
            " declare speech or text or tokens, or use another backend",
            id="capability produces",
        ),
        pytest.param(
            "replicas: 2",
            "replicas: 2\n    transport: carrier_pigeon",
            "line 24: stage 'speaker', transport: unknown transport 'carrier_pigeon'; use one of: in_process",
            id="transport",
        ),
        pytest.param(
            "replicas: 2",
            "replicas: two",
            "line 23: stage 'speaker', replicas: is text ('two'); it must be a whole number",
            id="replicas",
        ),
        pytest.param(
            "on_empty: error",
            "on_empty: fail",
            "line 24: stage 'speaker', on_empty: unknown value 'fail'; use one of: complete, error",
            id="on_empty",
        ),
        pytest.param(
            "prewarm: true",
            "prewarm: 1",
            "line 25: stage 'speaker', prewarm: is a whole number (1); it must be true or false",
            id="prewarm",
        ),
        pytest.param(
            "replicas: 2",
            "restart: {attempts: -1}",
            "line 23: stage 'speaker', restart.attempts: -1 makes no sense; it must be at least 0, and finite",
            id="restart attempts",
        ),
        pytest.param(
            "replicas: 2",
            "restart: {backoff_s: 0}",
            "line 23: stage 'speaker', restart.backoff_s: 0.0 makes no sense; it must be greater than 0, and finite",
            id="restart backoff",
        ),
        pytest.param(
            "replicas: 2",
            "restart: {backof_s: 5}",
            "line 23: stage 'speaker', restart.backof_s: unknown key 'backof_s'; did you mean 'backoff_s'?",
            id="restart key",
        ),
        pytest.param(
            "replicas: 2",
            "restart:\n      max_backoff_s: 5\n      backoff_s: 9",
            "line 24: stage 'speaker', restart.max_backoff_s: 5.0 is less than backoff_s, 9.0;"
            " make it at least as long",
            id="restart max_backoff_s",
        ),
        pytest.param(
            "rerun: true",
            "prewarm: true",
            "line 14: stage 'thinker', prewarm: the stage has no streaming source to be started before;"
            " remove `prewarm`, or make a source `streaming`",
            id="prewarm without source",
        ),
        pytest.param(
            "stop_timeout_s: 5",
            "stop_timeout_s: .inf",
            "line 26: stage 'speaker', limits.stop_timeout_s: inf makes no sense;"
            " it must be greater than 0, and finite",
            id="endless limit",
        ),
        pytest.param(
            "max_inflight: 16",
            "max_inflght: 16",
            "line 26: stage 'speaker', limits.max_inflght: unknown key 'max_inflght'; did you mean 'max_inflight'?",
            id="limit",
        ),
        pytest.param(
            "produces: speech",
            "produces: tokens",
            "line 18: stage 'speaker', output: tokens cannot be delivered to a client;"
            " make a stage final that produces one of: embedding, image, speech, text, video",
            id="output",
        ),
        pytest.param(
            "output: speech",
            "output: text",
            "line 18: stage 'speaker', output: 'text' is already the output of stage 'thinker';"
            " give each output a name of its own",
            id="output twice",
        ),
        pytest.param(
            "output: speech",
            "output: [speech]",
            "line 18: stage 'speaker', output: is a list; it must be text",
            id="output type",
        ),
        pytest.param(
            "output: speech",
            "output: my speech",
            "line 18: stage 'speaker', output: 'my speech' is not a name; use letters, digits, '_' and '-'",
            id="output name",
        ),
        pytest.param(
            "  speaker:",
            "  a.b:",
            "line 15: stage 'a.b': 'a.b' is not a name; use letters, digits, '_' and '-'",
            id="stage name",
        ),
        pytest.param(
            "  speaker:",
            "  prompt:",
            "line 15: stage 'prompt': 'prompt' is what the prompt of a request is called; choose another name",
            id="reserved stage name",
        ),
        pytest.param(
            "    output: speech\n",
            "",
            "line 15: stage 'speaker': no output needs it, so it would never run;"
            " give it an `output`, make it a source of another stage, or remove it",
            id="unreachable",
        ),
        pytest.param(
            "    rerun: true",
            "    sources: {speaker: complete}\n    processor: prompt",
            "line 6: stages: the sources form a cycle: thinker -> speaker -> thinker; remove one of these sources",
            id="cycle",
        ),
        pytest.param(
            "    replicas: 2",
            "    kind: function",
            "line 23: stage 'speaker', kind: key 'kind' comes twice; keep one; line 16 has the first",
            id="duplicate key",
        ),
        pytest.param(
            "  speaker:",
            "  other:\n  speaker:",
            "line 15: stage 'other': is empty; it must be a mapping",
            id="empty stage",
        ),
        pytest.param(
            "description: text in, text and speech out",
            "description: 2024-99-99",
            "line 2: description: '2024-99-99' cannot be read as tag:yaml.org,2002:timestamp; quote it if it is a text",
            id="unreadable value",
        ),
    ],
)
def test_one_fault_is_one_message(old: str, new: str, fault: str) -> None:
    assert old in GOOD

    assert faults_of(GOOD.replace(old, new, 1)) == [fault]


def test_a_streaming_edge_needs_a_backend_that_takes_streams() -> None:
    text = (
        GOOD.replace("kind: function", "kind: diffusion")
        .replace("produces: speech", "produces: image")
        .replace("    backend: fake\n    processor", "    backend: whole\n    processor")
        .replace("    prewarm: true\n", "")
    )

    assert faults_of(text) == [
        (
            "line 19: stage 'speaker', sources.thinker: backend 'whole' takes no streaming input;"
            " declare `thinker: complete`, or use another backend"
        )
    ]
    assert load(text.replace("thinker: streaming", "thinker: complete")).stages[1].backend == "whole"


def test_a_source_must_produce_what_the_processor_takes() -> None:
    text = GOOD.replace("produces: text\n    output: text", "produces: tokens")

    assert faults_of(text) == [
        (
            "line 18: stage 'speaker', sources: source 'thinker' produces tokens,"
            " which the input processor does not take; use a processor for tokens, or a source that produces text"
        )
    ]


@pytest.mark.case("B049")
def test_a_pipeline_without_a_final_stage_is_refused() -> None:
    text = GOOD.replace("    output: text\n", "").replace("    output: speech\n", "")

    assert faults_of(text) == [
        "line 6: stages: no stage is final, so no request could ever complete; give a stage an `output`"
    ]


def test_every_bad_parameter_is_named_although_the_backend_stops_at_the_first() -> None:
    assert faults_of(GOOD.replace("{max_tokens: 100}", "{max_tokens: all, tempo: 1, seed: none}")) == [
        "line 13: stage 'thinker', params.max_tokens: must be a number; correct the stage's default parameters",
        "line 13: stage 'thinker', params.tempo: unknown parameter 'tempo'; use one of: max_tokens, temperature, seed",
        "line 13: stage 'thinker', params.seed: must be a number; correct the stage's default parameters",
    ]


def test_a_fault_in_sources_does_not_make_other_stages_unreachable() -> None:
    text = GOOD.replace("    output: text\n", "").replace("sources: {thinker: streaming}", "sources: 5")

    faults = faults_of(text.replace("    prewarm: true\n", ""))
    assert faults == ["line 18: stage 'speaker', sources: is a whole number (5); it must be a mapping"]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        pytest.param("\n", "pipeline: the file is empty; declare at least `name` and `stages`", id="empty"),
        pytest.param("voice\n", "line 1: pipeline: is text ('voice'); it must be a mapping", id="not a mapping"),
        pytest.param(
            "name: a\nstages: []\n",
            "line 2: stages: is a list; it must be a mapping",
            id="list of stages",
        ),
        pytest.param("name: a\nstages: {}\n", "line 2: stages: there is no stage; declare at least one", id="no stage"),
        pytest.param(
            "name: a\nstages:\n", "line 2: stages: is missing; declare at least one stage", id="stages missing"
        ),
    ],
)
def test_a_file_that_is_hardly_a_pipeline(text: str, fault: str) -> None:
    assert faults_of(text) == [fault]


def test_a_shipped_name_a_path_and_a_text_are_told_apart(tmp_path: Path) -> None:
    file = tmp_path / "voice.yaml"
    file.write_text(GOOD, encoding="utf-8")
    bare = tmp_path / "bare"
    bare.write_text(GOOD, encoding="utf-8")
    catalog = FakeCatalog({"voice": file})

    assert [load_pipeline(source, catalog).name for source in ("voice", file, str(bare), GOOD)] == ["voice"] * 4


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_pipeline("vioce", FakeCatalog({"voice": Path("voice.yaml")}))

    assert str(caught.value) == (
        "vioce: 1 fault\n"
        "  pipeline: there is no pipeline 'vioce'; did you mean 'voice'? (or give the path of a pipeline file)"
    )


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    latin = tmp_path / "latin.yaml"
    latin.write_bytes(b"name: caf\xe9\n")

    messages = []
    for path in (tmp_path / "none.yaml", latin, tmp_path):
        with pytest.raises(ConfigurationError) as caught:
            load_pipeline(path, FakeCatalog())
        messages += [str(fault) for fault in caught.value.faults]
    assert messages == [
        "pipeline: there is no such file; give the path of a pipeline file, or a pipeline's name",
        "pipeline: byte 9 is not UTF-8; save the file as UTF-8 text",
        "pipeline: cannot be read: Is a directory; give the path of a readable file",
    ]


GUIDED = """\
name: guided
companions: json:loads
stages:
  thinker:
    kind: autoregressive
    produces: text
    backend: fake
  painter:
    kind: function
    produces: speech
    output: speech
    sources: {thinker: complete}
    backend: fake
    processor: joining
    joins: true
    limits: {bundle_timeout_s: 7}
"""


def test_companions_and_the_stage_that_joins_them() -> None:
    config = load(GUIDED)
    assert config.companions == "json:loads"
    assert [stage.stage.joins for stage in config.stages] == [False, True]
    assert config.stages[1].stage.limits.bundle_timeout_s == 7
    assert load(GOOD).companions is None


@pytest.mark.rule("ORCH-INV-300")
@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        (
            "companions: json:loads\n",
            "",
            (
                "line 14: stage 'painter', joins: nothing makes companions that it could join; "
                "add `companions: package.module:function` to the pipeline, or remove `joins`"
            ),
        ),
        (
            "    processor: joining\n    joins: true\n",
            "    processor: text\n",
            (
                "line 2: companions: no stage joins them; "
                "declare `joins: true` at the stage that does, or remove `companions`"
            ),
        ),
        (
            "json:loads",
            "json:lods",
            "line 2: companions: 'json:lods' names nothing in module 'json'; did you mean 'json:loads'?",
        ),
        (
            "processor: joining",
            "processor: text",
            (
                "line 14: stage 'painter', processor: 'text' does not join companions; "
                "use `bundle`, or a BundleProcessor of your own"
            ),
        ),
        (
            "thinker: complete",
            "thinker: streaming",
            (
                "line 15: stage 'painter', joins: source 'thinker' is streaming, but a bundle is joined when all of it"
                " is there; make it a complete edge"
            ),
        ),
    ],
)
def test_companions_that_do_not_work(old: str, new: str, fault: str) -> None:
    assert faults_of(GUIDED.replace(old, new)) == [fault]


def test_a_processor_that_joins_stands_at_a_stage_that_does() -> None:
    assert faults_of(GOOD.replace("processor: text", "processor: joining").replace("{join: 2}", "{}")) == [
        (
            "line 21: stage 'speaker', processor: 'joining' joins companions, and the stage does not; "
            "add `joins: true`, or use another"
        )
    ]


ROUTER = """\
name: router
stages:
  judge:
    kind: function
    produces: text
    backend: fake
    labels: [draw, talk]
  painter:
    kind: function
    produces: text
    output: picture
    sources: {judge: {when: draw}}
    processor: text
    backend: fake
    replicas: 3
    balance: affinity
  talker:
    kind: function
    produces: text
    output: talk
    sources:
      judge:
        mode: complete
        when: talk
    processor: text
    backend: fake
"""
"""Line 7 has the labels, 12 the edge of `painter`, 22 that of `talker`."""


class TestConditions:
    def test_a_good_file(self) -> None:
        judge, painter, talker = (stage.stage for stage in load(ROUTER).stages)
        assert (judge.labels, judge.balance) == (("draw", "talk"), Balance.LEAST_LOADED)
        assert painter.sources == (Source("judge", EdgeMode.COMPLETE, "draw"),)
        assert talker.sources == (Source("judge", EdgeMode.COMPLETE, "talk"),)
        assert painter.balance is Balance.AFFINITY

    @pytest.mark.parametrize(
        ("old", "new", "faults"),
        [
            (
                "when: draw",
                "when: drow",
                [
                    (
                        "line 7: stage 'judge', labels: 'draw' leads nowhere; add an edge with `when: draw`, "
                        "give the stage an `output`, or remove the label"
                    ),
                    (
                        "line 12: stage 'painter', sources: source 'judge' never finishes with 'drow'; "
                        "use one of its labels: draw, talk"
                    ),
                ],
            ),
            (
                "    labels: [draw, talk]\n",
                "",
                [
                    (
                        "line 11: stage 'painter', sources: source 'judge' never finishes with 'draw'; "
                        "declare `labels` at 'judge'"
                    ),
                    (
                        "line 21: stage 'talker', sources: source 'judge' never finishes with 'talk'; "
                        "declare `labels` at 'judge'"
                    ),
                ],
            ),
            (
                "mode: complete",
                "mode: streaming",
                [
                    (
                        "line 22: stage 'talker', sources: source 'judge' is streaming, but whether it is taken is "
                        "known only at its end; make it a complete edge, or remove its `when`"
                    ),
                ],
            ),
            (
                "labels: [draw, talk]",
                "labels: draw",
                [
                    "line 7: stage 'judge', labels: is text ('draw'); it must be a list of texts",
                ],
            ),
            (
                "{when: draw}",
                "{wen: draw}",
                [
                    "line 12: stage 'painter', sources.judge.wen: unknown key 'wen'; did you mean 'when'?",
                ],
            ),
            (
                "when: draw",
                "when: yes",
                [
                    "line 12: stage 'painter', sources.judge.when: is true or false (True); it must be text",
                ],
            ),
            ("balance: affinity", "balance: random", []),
            (
                "balance: affinity",
                "balance: fair",
                [
                    (
                        "line 16: stage 'painter', balance: unknown value 'fair'; "
                        "use one of: least_loaded, round_robin, random, affinity"
                    ),
                ],
            ),
        ],
        ids=["label", "no labels", "streaming", "labels", "key", "flag", "balance", "unknown balance"],
    )
    def test_faults_have_their_line_and_remedy(self, old: str, new: str, faults: list[str]) -> None:
        text = ROUTER.replace(old, new)
        assert text != ROUTER
        if faults:
            assert faults_of(text) == faults
        else:
            load(text)
