"""`/v1/mailboxes`: put, read, acknowledge, look after.

Rights go by the mailbox's name: `mailboxes_put`, `mailboxes_read`, `mailboxes_admin`. They are
asked for before anything is looked up, so that without them a mailbox that exists and one that
does not are answered for alike, and equally fast. To those who have the right, one that does not
exist is empty.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Request
from msgspec import UNSET
from starlette.responses import Response

from penstock import codec
from penstock.delivery.access import Access, covers
from penstock.delivery.mail_entries import encode_mail
from penstock.errors import BadRequest, InvalidInput
from penstock.mail import Mail
from penstock.mailboxes.coroutines import AsyncMailbox
from penstock.protocol import JSON_WIRE
from penstock.server.routes.context import Context, body_as, context_of, reply
from penstock.server.routes.mailbox_shapes import (
    AckAndNextRequest,
    AckedReply,
    AckRequest,
    DeletedReply,
    ExpireRequest,
    MailboxesReply,
    MailboxReply,
    MailsReply,
    OutgoingMail,
    OutgoingMails,
    PostedManyReply,
    PostedReply,
    PutRequest,
    RawMailsReply,
    parcel_of,
)
from penstock.server.routes.schema import describe
from penstock.server.routes.shapes import RemovedReply

if TYPE_CHECKING:
    from collections.abc import Iterator

WAIT_SECONDS_MAX = 20.0
NEXT_MAX = 100
"""Messages of one reply."""
REPLY_BYTES_MAX = 4 * 1024 * 1024
"""A reply gets no further message beyond this."""
LIST_MAX = 10_000
ALL = 2**31

router = APIRouter(prefix="/v1/mailboxes", tags=["mailboxes"])

_put_body = msgspec.json.Decoder(PutRequest)
_ack_body = msgspec.json.Decoder(AckRequest)
_ack_and_next_body = msgspec.json.Decoder(AckAndNextRequest)
_expire_body = msgspec.json.Decoder(ExpireRequest)

Wait = Annotated[
    float,
    Query(ge=0, le=WAIT_SECONDS_MAX, description="Seconds to wait for one, if there is none."),
]


@router.get(
    "",
    **describe("List the mailboxes the token may administer", ok={200: MailboxesReply}),
)
async def list_mailboxes(
    request: Request,
    after: Annotated[str, Query(description="Names behind this one.")] = "",
    limit: Annotated[int, Query(ge=1, le=LIST_MAX)] = 1_000,
) -> Response:
    context = context_of(request)
    access = context.access(request)
    if not access.mailboxes_admin:
        return reply(MailboxesReply([], True))
    names = await context.hub.aio.mailboxes.list(after=after, limit=ALL)
    seen = [name for name in names if _may_administer(access, name)]
    return reply(MailboxesReply(seen[:limit], len(seen) <= limit))


@router.post(
    "/{mailbox:name}/messages",
    **describe(
        "Put one message, or many in order; 201 when it is on disk",
        body=(OutgoingMail, OutgoingMails),
        ok={201: (PostedReply, PostedManyReply)},
        errors=(400, 403, 409, 413, 429),
    ),
)
async def put(request: Request, mailbox: str) -> Response:
    context = context_of(request)
    access = context.access(request)
    access.check_mailboxes_put(mailbox)
    wanted = await body_as(request, _put_body)
    box = context.hub.aio.mailboxes.open(mailbox)
    if wanted.messages is not UNSET:
        return await _put_many(context, request, access, box, wanted)
    parcel = parcel_of(wanted)
    context.rates.check(context.address(request), access, 1)
    posted = await box.put(parcel.payload, id=parcel.id, type=parcel.type, format=parcel.format)
    return reply(PostedReply.of(posted), 201)


async def _put_many(
    context: Context, request: Request, access: Access, box: AsyncMailbox, wanted: PutRequest
) -> Response:
    messages = wanted.messages
    assert isinstance(messages, list)
    if wanted != PutRequest(messages=messages):
        raise BadRequest("Beside messages nothing else is said.", hint="Say it in each message.")
    limit = context.settings.commit_group_max
    if not 1 <= len(messages) <= limit:
        raise InvalidInput(f"messages has 1 to {limit:,} of them, not {len(messages):,}.")
    parcels = [parcel_of(one) for one in messages]
    context.rates.check(context.address(request), access, len(messages))
    posted = await box.put_many(parcels)
    return reply(PostedManyReply([PostedReply.of(one) for one in posted]), 201)


@router.get(
    "/{mailbox:name}/next",
    **describe(
        "The first messages, which stay where they are",
        ok={200: MailsReply},
        errors=(400, 403, 429),
    ),
)
async def next_mail(
    request: Request,
    mailbox: str,
    wait: Wait = 0.0,
    limit: Annotated[int, Query(ge=1, le=NEXT_MAX)] = 1,
) -> Response:
    context = context_of(request)
    access = context.access(request)
    access.check_mailboxes_read(mailbox)
    box = context.hub.aio.mailboxes.open(mailbox)
    return await _next(context, request, access, box, wait, limit)


@router.post(
    "/{mailbox:name}/ack",
    **describe(
        "The first message, or all up to one, is done with",
        body=AckRequest,
        ok={200: AckedReply},
        errors=(400, 403, 409, 413),
    ),
)
async def ack(request: Request, mailbox: str) -> Response:
    context = context_of(request)
    context.access(request).check_mailboxes_read(mailbox)
    wanted = await body_as(request, _ack_body)
    box = context.hub.aio.mailboxes.open(mailbox)
    return reply(AckedReply(await box.ack(wanted.id, through=wanted.through)))


@router.post(
    "/{mailbox:name}/ack-and-next",
    **describe(
        "Acknowledge, and get what is first then",
        body=AckAndNextRequest,
        ok={200: MailsReply},
        errors=(400, 403, 409, 413, 429),
    ),
)
async def ack_and_next(request: Request, mailbox: str) -> Response:
    context = context_of(request)
    access = context.access(request)
    access.check_mailboxes_read(mailbox)
    wanted = await body_as(request, _ack_and_next_body)
    if not 0 <= wanted.wait <= WAIT_SECONDS_MAX:
        raise InvalidInput(f"wait is 0 to {WAIT_SECONDS_MAX:g} seconds, not {wanted.wait}.")
    if not 1 <= wanted.limit <= NEXT_MAX:
        raise InvalidInput(f"limit is 1 to {NEXT_MAX}, not {wanted.limit}.")
    box = context.hub.aio.mailboxes.open(mailbox)
    await box.ack(wanted.id, through=wanted.through)
    return await _next(context, request, access, box, wanted.wait, wanted.limit)


@router.get(
    "/{mailbox:name}",
    **describe("How full it is", ok={200: MailboxReply}, errors=(400, 403)),
)
async def get_mailbox(request: Request, mailbox: str) -> Response:
    context = context_of(request)
    context.access(request).check_mailboxes_see(mailbox)
    return reply(MailboxReply.of(await context.hub.aio.mailboxes.open(mailbox).stats()))


@router.delete(
    "/{mailbox:name}",
    **describe(
        "Remove it and all that is in it; its subscriptions stay",
        ok={200: DeletedReply},
        errors=(400, 403),
    ),
)
async def delete_mailbox(request: Request, mailbox: str) -> Response:
    context = context_of(request)
    context.access(request).check_mailboxes_admin(mailbox)
    return reply(DeletedReply(await context.hub.aio.mailboxes.open(mailbox).delete()))


@router.post(
    "/{mailbox:name}/expire",
    **describe(
        "Remove messages from the beginning that are older than this",
        body=ExpireRequest,
        ok={200: RemovedReply},
        errors=(400, 403, 413),
    ),
)
async def expire_mailbox(request: Request, mailbox: str) -> Response:
    context = context_of(request)
    context.access(request).check_mailboxes_admin(mailbox)
    wanted = await body_as(request, _expire_body)
    box = context.hub.aio.mailboxes.open(mailbox)
    return reply(RemovedReply(await box.expire(wanted.older_than_seconds)))


# Waiting


async def _next(
    context: Context,
    request: Request,
    access: Access,
    box: AsyncMailbox,
    wait: float,
    limit: int,
) -> Response:
    found = await box.peek_many(limit)
    if not found and wait:
        with _counted(context, request, access):
            if await _until(box.wait(wait), request, context):
                found = await box.peek_many(limit)
    return reply(RawMailsReply(_within_reason(found)))


async def _until(waiting: Awaitable[Mail | None], request: Request, context: Context) -> bool:
    """Whether something came, before the client has left or the server stops."""
    tasks: list[asyncio.Future[Any]] = [
        asyncio.ensure_future(waiting),
        asyncio.ensure_future(_until_gone(request.receive)),
        asyncio.ensure_future(context.delivery.draining.wait()),
    ]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return tasks[0].done() and tasks[0].result() is not None
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _until_gone(receive: Callable[[], Awaitable[Any]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


@contextmanager
def _counted(context: Context, request: Request, access: Access) -> Iterator[None]:
    """One who waits takes a place, as one with a stream does."""
    address, subject = context.address(request), access.subject
    context.connections.enter(address, subject)
    try:
        yield
    finally:
        context.connections.leave(address, subject)


def _within_reason(found: list[Mail]) -> list[msgspec.Raw]:
    shown: list[msgspec.Raw] = []
    size = 0
    for mail in found:
        size += codec.size_of(mail.body, mail.encoding)
        if shown and size > REPLY_BYTES_MAX:
            break
        shown.append(encode_mail(mail, JSON_WIRE, as_stored=True))
    return shown


def _may_administer(access: Access, mailbox: str) -> bool:
    return any(covers(grant, mailbox) for grant in access.mailboxes_admin)
