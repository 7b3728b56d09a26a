"""Are the mailboxes well, and what to do about it if they are not."""

from __future__ import annotations

from penstock.errors import MailboxCorrupt, MailboxesFailed
from penstock.mailboxes.feeder import LEASE, Feeder
from penstock.mailboxes.figures import NAMED_MAX, MailboxFigures
from penstock.mailboxes.mailroom import MailRoom
from penstock.model import Check
from penstock.ports import Store


def check_mailboxes(
    store: Store, mail: MailRoom, feeder: Feeder | None, figures: MailboxFigures
) -> list[Check]:
    """What is wrong; nothing where all is well."""
    checks: list[Check] = []
    if figures.is_failed:
        error = MailboxesFailed()
        checks.append(Check("mailboxes", "critical", error.message, error.hint))
    if figures.damaged:
        damaged = mail.folder.damaged()
        names = ", ".join(sorted(damaged)[:NAMED_MAX])
        found = f"{len(damaged):,} damaged: {names}"
        checks.append(Check("mailboxes", "critical", found, MailboxCorrupt.hint))
    if figures.subscriptions and store.leases.holder(LEASE) is None:
        found = f"nobody feeds {figures.subscriptions:,} subscriptions"
        advice = "Run 'penstock serve', or call hub.start_feeding() in a process that stays."
        checks.append(Check("mailbox feeding", "warning", found, advice))
    if feeder is not None:
        checks += _check_feeder(feeder)
    return checks


def _check_feeder(feeder: Feeder) -> list[Check]:
    checks: list[Check] = []
    if feeder.last_error is not None:
        found = f"failing: {feeder.last_error}"
        checks.append(Check("mailbox feeding", "warning", found, "It is tried again."))
    for mailbox, reason in feeder.status().failing.items():
        name = f"mailbox {mailbox}"
        checks.append(Check(name, "warning", f"cannot be fed: {reason}", MailboxCorrupt.hint))
    return checks
