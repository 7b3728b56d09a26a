"""The HTTP routes, by what they are about.

Paths have names as `{topic:name}`: one segment, percent-encoded, whatever a topic may be called.
"""

from __future__ import annotations

from urllib.parse import unquote

from starlette.convertors import Convertor, register_url_convertor


class NameConvertor(Convertor[str]):
    regex = "[^/]+"

    def convert(self, value: str) -> str:
        # What is not UTF-8 becomes what no name may contain, and is refused as such.
        return unquote(value, errors="surrogateescape")

    def to_string(self, value: str) -> str:
        raise NotImplementedError


# Before the modules of this package make their routes.
register_url_convertor("name", NameConvertor())
