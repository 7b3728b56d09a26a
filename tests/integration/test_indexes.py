"""Every query that should use an index does, and no index is there for nothing (T2, J2)."""

from __future__ import annotations

import re

import pytest

import penstock
from penstock.job import State
from penstock.stores import queries
from penstock.stores.sqlite.job_reader import _TABLES, JOB
from penstock.stores.sqlite.job_rows import RUNS

PACKAGE = "penstock.stores.sqlite"
FILES = (
    "lake",
    *("topics", "consumers", "leases", "presence", "jobs", "schedules", "ledger"),
    *("scan", "sinks", "pipelines"),
)

# What a busy hub asks all the time, and the way it must be answered.
WAYS = {
    "topics.read_next": "SEARCH penstock_messages USING INTEGER PRIMARY KEY",
    "topics.read_topic": (
        "SEARCH m USING INDEX penstock_messages_by_topic (topic_id=? AND rowid>?)"
    ),
    "topics.read_glob": "SEARCH m USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)",
    "topics.oldest_messages": "SEARCH penstock_messages USING INDEX penstock_messages_by_topic",
    "topics.count_all_after": "SEARCH m USING COVERING INDEX penstock_messages_by_topic",
    "topics.find_key": "SEARCH penstock_idempotency USING PRIMARY KEY",
    "topics.forget_keys": "USING COVERING INDEX penstock_idempotency_by_expiry (expires_at<?)",
    "topics.trims": "SEARCH penstock_topics USING COVERING INDEX penstock_topics_by_trim",
    "presence.entries_of": "SEARCH penstock_presence USING PRIMARY KEY (topic=? AND client=?)",
    "presence.members": "SEARCH penstock_presence USING PRIMARY KEY (topic=?)",
    "presence.count_members": (
        "USING COVERING INDEX penstock_presence_by_instance (instance=? AND topic=?)"
    ),
    "presence.remove": (
        "SEARCH penstock_presence USING PRIMARY KEY (topic=? AND client=? AND instance=?)"
    ),
    "presence.remove_of_instance": (
        "USING COVERING INDEX penstock_presence_by_instance (instance=?)"
    ),
    "jobs.next_ready": "SEARCH r USING PRIMARY KEY (queue=?)",
    "jobs.leave_ready_through": "USING PRIMARY KEY (queue=? AND (priority,job_id)<(?,?))",
    "jobs.due": "SEARCH s USING PRIMARY KEY (run_at<?)",
    "jobs.look": "SEARCH penstock_job_scheduled USING PRIMARY KEY (run_at<?)",
    "jobs.next_at": "SEARCH penstock_job_scheduled USING PRIMARY KEY",
    "jobs.key_holder": "SEARCH penstock_job_unique USING PRIMARY KEY (key=?)",
    "jobs.events": "SEARCH penstock_job_events USING INTEGER PRIMARY KEY (rowid>?)",
    "jobs.events_of_job": "USING INDEX penstock_job_events_by_job (job_id=? AND rowid>?)",
    "jobs.prunable": "SEARCH f USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)",
    "runs.claim_many": "SEARCH penstock_jobs USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)",
    "runs.drop_claims": "penstock_job_claims USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)",
    "runs.free_keys": "USING INDEX penstock_job_unique_by_job (job_id>? AND job_id<?)",
    "runs.children": "SEARCH e USING PRIMARY KEY (parent_id>? AND parent_id<?)",
    "ledger.mark_events": "SEARCH penstock_ledger USING PRIMARY KEY (scope=? AND key=?)",
    "ledger.entry": "SEARCH penstock_ledger USING PRIMARY KEY (scope=? AND key=?)",
    "ledger.processed": "SEARCH penstock_ledger USING PRIMARY KEY (scope=? AND key=?)",
    "ledger.entries": "SEARCH penstock_ledger USING PRIMARY KEY (scope=? AND key>?)",
    "ledger.remove_run": "SEARCH penstock_ledger USING PRIMARY KEY (scope=? AND key=?)",
    "ledger.expired": "SEARCH penstock_ledger USING INDEX penstock_ledger_by_expiry",
    "ledger.has_expired": "USING COVERING INDEX penstock_ledger_by_expiry",
    "ledger.events": "SEARCH penstock_ledger_events USING INTEGER PRIMARY KEY (rowid>?)",
    "ledger.marked_since": "SEARCH penstock_ledger_events USING INTEGER PRIMARY KEY (rowid>?)",
    "ledger.prune_events": "SEARCH penstock_ledger_events USING INTEGER PRIMARY KEY (rowid<?)",
    "scan.ids_of_topic": "USING COVERING INDEX penstock_messages_by_topic (topic_id=? AND",
    "scan.sizes": "SEARCH penstock_messages USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)",
    "scan.first_message": "SEARCH penstock_messages",
    "scan.pruned": "SEARCH penstock_pruned USING PRIMARY KEY",
    "sinks.get_batch": "SEARCH b USING PRIMARY KEY (sink=? AND number=?)",
    "sinks.last_batch": "SEARCH b USING PRIMARY KEY (sink=?)",
    "sinks.open_batches": "INDEX penstock_sink_batches_open",
    "found.failed": "USING COVERING INDEX penstock_job_finished_badly (state=?)",
    "found.processing": "SEARCH j USING INTEGER PRIMARY KEY (rowid=?)",
}

# Tables that have as many rows as there are workers' slots, processes, queues, scopes or
# schedules; and one that is read from its beginning up to a limit. To walk through them is meant.
MEANT = {
    "jobs.workers": {"w", "c"},
    "jobs.claim_instances": {"c"},
    "jobs.claims_of": {"penstock_job_claims"},
    "jobs.claimed_count": {"penstock_job_claims"},
    "jobs.held": {"penstock_job_claims"},
    "jobs.cancelling": {"penstock_job_claims"},
    "jobs.all_queues": {"penstock_job_queues"},
    "jobs.counts": {"penstock_job_counts"},
    "jobs.count_in_states": {"penstock_job_counts"},
    "jobs.oldest_ready": {"first"},
    "schedules.due": {"penstock_schedules"},
    "schedules.all": {"penstock_schedules"},
    "ledger.last_event": {"sqlite_sequence"},
    "ledger.counts": {"penstock_ledger_counts"},
    "ledger.keeps": {"penstock_ledger_scopes"},
    "ledger.prune_events": {"penstock_ledger_events"},
    "ledger.note_events": {"penstock_ledger_events"},
    "sinks.open_batches": {"b"},
}
WALKED = re.compile(r"^SCAN (?!.*VIRTUAL TABLE)(\w+)", re.MULTILINE)
WHOLE = re.compile(r"^(--[^\n]*\n)*\s*(SELECT|DELETE|UPDATE|WITH|INSERT[^;]*SELECT)\b")


def statements() -> dict[str, str]:
    """Every query that reads, by file and name."""
    found = {
        f"{file}.{name}": sql
        for file in FILES
        for name, sql in queries.load(PACKAGE, f"{file}.sql").items()
        if f"{file}.{name}" != "jobs.job"
    }
    found |= {f"runs.{name}": sql for name, sql in RUNS.items()}
    for state, (condition, ids) in _TABLES.items():
        name, end = state.name.lower(), "ORDER BY j.id DESC LIMIT ?1"
        found[f"found.many_{name}"] = f"{JOB} WHERE ({condition}) {end}"
        if ids is not None:
            found[f"found.{name}"] = f"{JOB} WHERE ({condition}) AND j.id IN ({ids}) {end}"
    return {name: sql for name, sql in found.items() if WHOLE.match(sql)}


@pytest.fixture
def plans(memory: penstock.Hub) -> dict[str, str]:
    """How SQLite would run each of them."""
    found = {}
    for name, sql in statements().items():
        numbered = [int(number) for number in re.findall(r"\?(\d+)", sql)]
        count = max(numbered, default=sql.count("?"))
        named = dict.fromkeys(re.findall(r":([a-z_]+)", sql), 1)
        with memory.connection() as connection:
            rows = connection.execute(f"EXPLAIN QUERY PLAN {sql}", named or (1,) * count)
        found[name] = "\n".join(row[3] for row in rows)
    return found


@pytest.mark.parametrize("name", WAYS)
def test_a_query_takes_its_way(plans: dict[str, str], name: str) -> None:
    assert WAYS[name] in plans[name]


@pytest.mark.parametrize("state", list(State))
def test_the_newest_of_many_jobs_are_found_in_order(plans: dict[str, str], state: State) -> None:
    """J7: by going through the newest, not by sorting all there are."""
    plan = plans[f"found.many_{state.name.lower()}"]
    assert plan.startswith("SCAN j\n")
    assert "TEMP B-TREE" not in plan


@pytest.mark.parametrize("file", ["jobs", "schedules", "ledger", "runs", "sinks"])
def test_nothing_walks_through_a_table_that_grows(plans: dict[str, str], file: str) -> None:
    """J2: a claim, an answer or a look costs the same beside a million other jobs."""
    walked = {
        name: found
        for name, plan in plans.items()
        if name.startswith(f"{file}.") and (found := set(WALKED.findall(plan)) - {"CONSTANT"})
    }
    assert walked == {name: tables for name, tables in MEANT.items() if name.startswith(file)}


def test_no_index_is_there_for_nothing(memory: penstock.Hub, plans: dict[str, str]) -> None:
    with memory.connection() as connection:
        indexes = connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'index' AND name LIKE 'penstock%'"
        )

    assert indexes
    used = "\n".join(plans.values())
    assert [name for (name,) in indexes if name not in used] == []
