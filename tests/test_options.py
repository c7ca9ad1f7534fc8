"""Strict structs from mappings, and objects from import paths: every fault with its place and remedy."""

from __future__ import annotations

from typing import Annotated

import msgspec
import pytest

from podium.errors import ConfigurationError, InvalidRequestError
from podium.options import find_faults, import_callable, import_object, read_options, read_params


class Inner(msgspec.Struct, frozen=True):
    depth: int = 0


class Model(msgspec.Struct, kw_only=True):
    name: str
    size: Annotated[int, msgspec.Meta(ge=1, le=9)] = 1
    tags: list[str] = []
    inner: Inner = Inner()

    def __post_init__(self) -> None:
        if self.name == str(self.size):
            raise ValueError("the name may not be the size")


def test_good_values_make_a_struct() -> None:
    assert read_options(Model, {"name": "a", "size": 3, "inner": {"depth": 2}}) == Model(
        name="a", size=3, inner=Inner(depth=2)
    )
    assert read_params(Model, {"name": "a"}) == Model(name="a")


@pytest.mark.parametrize(
    ("values", "faults"),
    [
        ({}, ["at.name: is missing; give it a value"]),
        ({"name": "a", "sizes": 1}, ["at.sizes: is unknown; did you mean 'size'?"]),
        ({"name": "a", "x": 1}, ["at.x: is unknown; use one of: name, size, tags, inner"]),
        (
            {"name": 1, "size": 0},
            [
                "at.name: expected `str`, got `int`; correct the value",
                "at.size: expected `int` >= 1; correct the value",
            ],
        ),
        ({"name": "a", "tags": ["b", 3]}, ["at.tags[1]: expected `str`, got `int`; correct the value"]),
        ({"name": "a", "inner": {"depth": "x"}}, ["at.inner.depth: expected `int`, got `str`; correct the value"]),
        ({"name": "2", "size": 2}, ["at: the name may not be the size; correct the value"]),
    ],
)
def test_every_fault_is_found(values: dict[str, object], faults: list[str]) -> None:
    assert [str(fault) for fault in find_faults(Model, values, "at")] == faults
    with pytest.raises(ConfigurationError) as caught:
        read_options(Model, values, "at")
    assert [str(fault) for fault in caught.value.faults] == faults
    with pytest.raises(InvalidRequestError) as refused:
        read_params(Model, values, "at")
    assert refused.value.record.message == "; ".join(faults)


class Nothing(msgspec.Struct):
    pass


def test_where_nothing_can_be_set() -> None:
    (fault,) = find_faults(Nothing, {"a": 1}, "options")
    assert str(fault) == "options.a: is unknown; remove it, nothing can be set here"


def test_objects_are_imported() -> None:
    assert import_object("podium.errors:ConfigurationError", "at") is ConfigurationError
    assert import_callable("podium.options:read_params", "at") is read_params


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("podium.errors", "at: 'podium.errors' is not an import path; write it as package.module:name"),
        ("podium.errors:a.b", "at: 'podium.errors:a.b' is not an import path"),
        (":name", "at: ':name' is not an import path"),
        ("podium.nowhere:name", "install or correct the module 'podium.nowhere'"),
        ("podium.errors:Scoop", "names nothing in module 'podium.errors'; did you mean 'podium.errors:Scope'?"),
        ("podium.errors:qqqqqq", "names nothing in module 'podium.errors'; correct the name after the colon"),
        ("podium.core.identity:MAIN", "'podium.core.identity:MAIN' is a str, which cannot be called"),
    ],
)
def test_what_cannot_be_used_is_refused(path: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        import_callable(path, "at")
    assert message in str(caught.value.faults[0])


def test_a_module_that_raises_is_a_fault(monkeypatch: pytest.MonkeyPatch, tmp_path: pytest.TempPathFactory) -> None:
    (tmp_path / "raises_at_import.py").write_text("raise ZeroDivisionError('half written')\n")  # type: ignore[operator]
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigurationError, match="cannot be imported: ZeroDivisionError: half written") as caught:
        import_object("raises_at_import:name", "at")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
