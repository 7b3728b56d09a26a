"""`@pipeline`: what a function must be to be one, and what it can be told (S8). No JVM."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import pytest

from penstock.errors import InvalidInput, InvalidTopic, PenstockError
from penstock.spark import pipeline
from penstock.spark.declared import PipelineFunction
from penstock.spark.programs import find_hub, find_pipeline, import_program, pipelines_of

MODULE = '''
from typing import Annotated
import penstock
from penstock.spark import pipeline

hub = penstock.connect("memory:")

@pipeline("totals", source="orders", sink="topic:totals")
def sums(messages, *, currency: Annotated[str, "Which one."] = "EUR", top: int = 10):
    """Orders per customer. And more."""

@pipeline("drains", source="orders", sink=None)
def other(messages):
    pass
'''


def declare(function: Any = None, **changes: Any) -> PipelineFunction:
    values = {"name": "totals", "source": "orders", "sink": "topic:totals"} | changes
    return pipeline(values.pop("name"), **values)(function or (lambda messages: messages))


def test_a_declared_function_is_still_the_function() -> None:
    @pipeline("double", source="numbers", sink="topic:doubles")
    def double(frame: Any) -> Any:
        """Twice as much."""
        return frame * 2

    assert double(21) == 42
    assert double.__name__ == "double"
    assert double.pipeline.summary == "Twice as much"


def test_arguments_after_the_first_are_options() -> None:
    def function(
        messages: Any,
        *,
        currency: Annotated[str, "The currency."] = "EUR",
        top: int = 10,
        share: float | None = None,
        other: Unheard = "x",  # type: ignore[name-defined]  # noqa: F821
        names: list[str] = [],  # noqa: B006
        plain=True,  # type: ignore[no-untyped-def]
    ) -> Any:
        return messages

    options = {o.name: (o.type, o.default, o.help) for o in declare(function).pipeline.options}
    assert options["currency"] == (str, "EUR", "The currency.")
    assert options["top"][:2] == (int, 10)
    assert options["share"][:2] == (float, None)
    assert options["other"][:2] == (str, "x")
    assert options["names"][:2] == (list, [])
    assert options["plain"][:2] == (bool, True)


@pytest.mark.parametrize(
    ("source", "options"),
    [
        ("orders", {"subscribePattern": '["orders"]'}),
        ("topic:orders", {"subscribePattern": '["orders"]'}),
        (["a", "b,c"], {"subscribePattern": '["a","b,c"]'}),
        ("canvas-*", {"subscribePattern": '["canvas-*"]'}),
        ("job_events", {"entity": "job_events"}),
    ],
)
def test_sources(source: Any, options: dict[str, str]) -> None:
    assert declare(source=source).source.options == options


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"name": ""}, InvalidInput, "pipeline name"),
        ({"name": "a/b"}, InvalidInput, "names a folder"),
        ({"name": ".."}, InvalidInput, "names a folder"),
        ({"source": []}, InvalidInput, "no source"),
        ({"source": ""}, InvalidTopic, ""),
        ({"sink": "totals"}, InvalidInput, "sink 'totals' is not understood"),
        ({"sink": "table:x"}, InvalidInput, "is not understood"),
        ({"sink": "lake:../x"}, InvalidInput, "no name for a table"),
        ({"sink": "topic:orders"}, InvalidInput, "would read what it writes"),
        ({"mode": "upsert"}, InvalidInput, "mode is not 'upsert'"),
        ({"trigger": "often"}, InvalidInput, "is no time"),
        ({"function": lambda: None}, InvalidInput, "called with a DataFrame"),
        ({"function": lambda messages, needed: None}, InvalidInput, "has no default"),
        ({"function": lambda messages, batch_id: None}, InvalidInput, "mode='batch'"),
    ],
)
def test_what_cannot_be_a_pipeline_is_refused_where_it_is_declared(
    changes: dict[str, Any], error: type[PenstockError], text: str
) -> None:
    with pytest.raises(error) as raised:
        declare(**changes)
    assert text in str(raised.value)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"shop_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def test_a_module_has_its_pipelines_by_name(module: str) -> None:
    found = pipelines_of(import_program(module))
    assert [one.name for one in found] == ["drains", "totals"]
    assert found[1].home == f"{module}:sums"
    assert [(o.name, o.type, o.help) for o in found[1].options] == [
        ("currency", str, "Which one."),
        ("top", int, ""),
    ]


def test_one_is_found_by_its_name_or_its_functions(module: str) -> None:
    assert find_pipeline(f"{module}:totals").name == "totals"
    assert find_pipeline(f"{module}:sums").name == "totals"
    assert find_pipeline("totals", [module]).name == "totals"
    assert find_pipeline("drain", [module]).home == "built in"


@pytest.mark.parametrize(
    ("text", "modules", "message", "hint"),
    [
        ("{m}:total", [], "has no pipeline 'total'", "Did you mean {m}:totals?"),
        ("{m}:xyz", [], "has no pipeline 'xyz'", "It has drains, totals."),
        ("tortals", ["{m}"], "no pipeline 'tortals'", "Did you mean totals?"),
        ("nowhere_at_all:x", [], "no module 'nowhere_at_all'", "Looked in"),
        ("{m}.py:totals", [], "is not the name of a module", "as in Python: {m}"),
        ("json:x", [], "has no pipeline 'x'", "Decorate a function there"),
    ],
)
def test_one_that_is_not_there_is_told_with_the_nearest(
    module: str, text: str, modules: list[str], message: str, hint: str
) -> None:
    with pytest.raises(InvalidInput) as raised:
        find_pipeline(text.format(m=module), [m.format(m=module) for m in modules])
    assert message in raised.value.message
    assert hint.format(m=module) in raised.value.hint


def test_a_module_that_breaks_is_told_with_its_line(module: str, tmp_path: Path) -> None:
    (tmp_path / f"{module}_broken.py").write_text("x = 1\nraise RuntimeError('oh')\n")
    with pytest.raises(InvalidInput, match=r"RuntimeError: oh \(.*, line 2\)"):
        import_program(f"{module}_broken")


def test_a_module_that_needs_spark_too_early_is_told_what_to_do(tmp_path: Path) -> None:
    """In a process of its own: here, another test may have started Spark."""
    (tmp_path / "early.py").write_text(
        "from pyspark.sql.functions import udf\n\n@udf('string')\ndef f(x): ...\n"
    )
    program = "from penstock.spark.programs import import_program; import_program('early')"
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert "needs Spark while it is imported, line 3" in ran.stderr
    assert "StringType()" in ran.stderr


def test_two_pipelines_of_one_name_are_refused(module: str, tmp_path: Path) -> None:
    twice = MODULE.replace('"drains"', '"totals"')
    (tmp_path / f"{module}_twice.py").write_text(twice)
    with pytest.raises(InvalidInput, match="two pipelines 'totals'"):
        find_pipeline(f"{module}_twice:totals")


def test_a_hub_is_found(module: str) -> None:
    assert find_hub(f"{module}:hub").url == find_hub(module).url == "memory:"
    with pytest.raises(InvalidInput) as raised:
        find_hub(f"{module}:nope")
    assert raised.value.hint == f"It has {module}:hub."
