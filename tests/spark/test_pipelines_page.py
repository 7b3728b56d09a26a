"""The reference of pipelines says what they take (S8)."""

from __future__ import annotations

import re

from penstock.ports.pipelines import PipelineStatus
from tests.spark.pipelines_page import PAGE, expected


def test_the_page_has_every_option_of_every_built_in_pipeline() -> None:
    """If not: `python -m tests.spark.pipelines_page`."""
    assert PAGE.read_text(encoding="utf-8") == expected()


def test_the_page_has_every_field_of_a_status() -> None:
    part = PAGE.read_text(encoding="utf-8").split("\n## Status\n")[1].split("| Prometheus")[0]
    cells = re.findall(r"^\| (`.*?) \|", part, re.MULTILINE)
    named = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    assert named == set(PipelineStatus.__struct_fields__)
