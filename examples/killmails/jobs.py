"""The chain: receive, fetch, price, notify.

    penstock work examples.killmails.jobs:hub --queues remote:8,notify:4

Every step writes what it found and its own completion in one transaction, so a worker that is
killed at any instant leaves a step either done or to be done again, never half done.
"""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

import msgspec

import penstock
from penstock import retry

REMOTE = os.environ.get("KILLMAILS_REMOTE", "http://127.0.0.1:8460")
RATE = 20
"""Jobs a second that may ask the remote side, over all workers: it turns away who asks too fast."""
REQUEST_SECONDS = 5.0
ATTEMPTS_MAX = 10

hub = penstock.connect()


class Notice(msgspec.Struct, frozen=True):
    """What is known of a kill when it is reported."""

    id: int


class Busy(Exception):
    """The remote side failed, or has had enough of us: try again."""


patiently = retry.only_on((Busy, TimeoutError), retry.exponential(0.2, max_seconds=2.0))


def prepare() -> None:
    """Our own tables, and the limit that all workers keep together."""
    with hub.transaction() as tx:
        tx.execute(
            "CREATE TABLE IF NOT EXISTS kills ("
            "id INTEGER PRIMARY KEY, ship TEXT, items TEXT, worth INTEGER)"
        )
        tx.execute("CREATE TABLE IF NOT EXISTS prices (item TEXT PRIMARY KEY, price INTEGER)")
    hub.jobs.limit("remote", rate=RATE, per_seconds=1.0)


def receive(numbers: list[int]) -> list[int]:
    """The whole chain for each kill, in one transaction; one that is known is not repeated.

    Returns the ids of the jobs that come last.
    """
    last = []
    for number in numbers:
        notice = Notice(number)
        with hub.transaction() as tx:
            rows = tx.execute(
                "INSERT INTO kills (id) VALUES (?) ON CONFLICT DO NOTHING RETURNING id", (number,)
            )
            if not rows:
                continue
            options: dict[str, Any] = {"max_attempts": ATTEMPTS_MAX, "timeout": 30}
            fetched = tx.enqueue("remote", "fetch", notice, **options)
            priced = tx.enqueue("remote", "price", notice, after=[fetched], priority=-1, **options)
            last.append(tx.enqueue("notify", "notify", notice, after=[priced]).id)
    return last


@hub.job(queue="remote", retry=patiently)
def fetch(notice: Notice, job: Any) -> penstock.Cancel | None:
    kill = ask(f"kills/{notice.id}")
    if kill is None:
        # Nothing to price or to announce: what waits for this job is cancelled with it.
        return penstock.Cancel("the remote side does not know it")
    with job.transaction() as tx:
        tx.execute(
            "UPDATE kills SET ship = ?, items = ? WHERE id = ?",
            (kill["ship"], json.dumps(kill["items"]), notice.id),
        )
    return None


@hub.job(queue="remote", retry=patiently)
def price(notice: Notice, job: Any) -> None:
    with hub.connection() as connection:
        (row,) = connection.execute("SELECT ship, items FROM kills WHERE id = ?", (notice.id,))
    wanted = [(row[0], 1), *((item["item"], item["quantity"]) for item in json.loads(row[1]))]
    worth = 0
    for done, (name, quantity) in enumerate(wanted):
        job.progress(done, len(wanted), name)
        worth += price_of(name) * quantity
    with job.transaction() as tx:
        tx.execute("UPDATE kills SET worth = ? WHERE id = ?", (worth, notice.id))


@hub.job(queue="notify")
async def notify(notice: Notice, job: Any) -> None:
    async with job.transaction() as tx:
        ((ship, worth),) = await tx.execute(
            "SELECT ship, worth FROM kills WHERE id = ?", (notice.id,)
        )
        await tx.publish("kills", {"id": notice.id, "ship": ship, "worth": worth})


def price_of(item: str) -> int:
    """Asked for once, whoever needs it: a repeated attempt goes on where the last one ended."""
    with hub.connection() as connection:
        rows = connection.execute("SELECT price FROM prices WHERE item = ?", (item,))
    if rows:
        return int(rows[0][0])
    found = ask(f"prices/{urllib.parse.quote(item)}")
    amount = 0 if found is None else int(found["price"])
    with hub.transaction() as tx:
        tx.execute("INSERT OR REPLACE INTO prices VALUES (?, ?)", (item, amount))
    return amount


def ask(path: str) -> Any:
    """What the remote side says; None if it knows nothing. Raises `Busy`."""
    try:
        with urllib.request.urlopen(f"{REMOTE}/{path}", timeout=REQUEST_SECONDS) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            if error.code == 404:
                return None
        raise Busy(f"{path}: {error.code} {error.reason}") from None
    except (urllib.error.URLError, ConnectionError) as error:
        raise Busy(f"{path}: {error}") from None
