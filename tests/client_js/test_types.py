"""penstock.d.ts declares what penstock.js has (D6)."""

from __future__ import annotations

import re

from tests.client_js.node import CLIENT, Node


def test_every_public_name_is_declared_and_nothing_else_is() -> None:
    code = """
        const found = {};
        for (const [name, value] of Object.entries(penstock)) {
            const isClass = String(value).startsWith("class");
            const members = isClass ? Object.getOwnPropertyNames(value.prototype) : [];
            found[name] = members.filter((member) => member !== "constructor");
        }
        say(found);
        """
    with Node(code) as node:
        exported = node.told()
    text = CLIENT.with_suffix(".d.ts").read_text(encoding="utf-8")
    declared = set(re.findall(r"^export (?:class|function) (\w+)", text, re.MULTILINE))
    assert declared == set(exported)
    bodies = dict(
        re.findall(r"^export class (\w+).*?\{(.*?)\n?\}$", text, re.MULTILINE | re.DOTALL)
    )
    for name, members in exported.items():
        for member in members:
            assert re.search(rf"\b{member}\b[(<:?]", bodies[name]), f"{name}.{member}"
