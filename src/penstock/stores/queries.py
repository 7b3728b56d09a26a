"""SQL lives in `.sql` files: named queries under `-- name --` headers."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

_HEADER = re.compile(r"^-- (\w+) --$", re.MULTILINE)


@cache
def load(package: str, file: str) -> dict[str, str]:
    """The file's queries by name."""
    text = resources.files(package).joinpath("sql", file).read_text(encoding="utf-8")
    pieces = _HEADER.split(text)
    queries = {name: body.strip() for name, body in zip(pieces[1::2], pieces[2::2], strict=True)}
    assert len(queries) == len(pieces) // 2, f"a query name stands twice in {file}"
    return queries
