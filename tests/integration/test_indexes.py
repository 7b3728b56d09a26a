"""Every query that should use an index does, and no index is there for nothing (T2)."""

from __future__ import annotations

import re

import pytest

import penstock
from penstock.stores import queries

PACKAGE = "penstock.stores.sqlite"
FILES = ("topics.sql", "consumers.sql", "leases.sql", "presence.sql")

# What a busy hub asks all the time, and the way it must be answered.
WAYS = {
    "read_next": "SEARCH penstock_messages USING INTEGER PRIMARY KEY",
    "read_topic": "SEARCH m USING INDEX penstock_messages_by_topic (topic_id=? AND rowid>?)",
    "read_glob": "SEARCH m USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)",
    "oldest_messages": "SEARCH penstock_messages USING INDEX penstock_messages_by_topic",
    "count_all_after": "SEARCH m USING COVERING INDEX penstock_messages_by_topic",
    "find_key": "SEARCH penstock_idempotency USING PRIMARY KEY",
    "forget_keys": "USING COVERING INDEX penstock_idempotency_by_expiry (expires_at<?)",
    "entries_of": "SEARCH penstock_presence USING PRIMARY KEY (topic=? AND client=?)",
    "members": "SEARCH penstock_presence USING PRIMARY KEY (topic=?)",
    "count_members": "USING COVERING INDEX penstock_presence_by_instance (instance=? AND topic=?)",
    "remove": "SEARCH penstock_presence USING PRIMARY KEY (topic=? AND client=? AND instance=?)",
    "remove_of_instance": "USING COVERING INDEX penstock_presence_by_instance (instance=?)",
    "trims": "SEARCH penstock_topics USING COVERING INDEX penstock_topics_by_trim",
}


@pytest.fixture
def plans(memory: penstock.Hub) -> dict[str, str]:
    """How SQLite would run each reading or deleting query of the store."""
    found = {}
    for file in FILES:
        for name, sql in queries.load(PACKAGE, file).items():
            if re.match(r"(--[^\n]*\n)*\s*(SELECT|DELETE)", sql):
                numbered = [int(number) for number in re.findall(r"\?(\d+)", sql)]
                count = max(numbered, default=sql.count("?"))
                with memory.connection() as connection:
                    rows = connection.execute(f"EXPLAIN QUERY PLAN {sql}", (1,) * count)
                found[name] = "\n".join(row[3] for row in rows)
    return found


@pytest.mark.parametrize("name", WAYS)
def test_a_query_takes_its_way(plans: dict[str, str], name: str) -> None:
    assert WAYS[name] in plans[name]


def test_no_index_is_there_for_nothing(memory: penstock.Hub, plans: dict[str, str]) -> None:
    with memory.connection() as connection:
        indexes = connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'index' AND name LIKE 'penstock%'"
        )

    assert indexes
    used = "\n".join(plans.values())
    assert [name for (name,) in indexes if name not in used] == []
