"""`/v1/ledger`: what has been processed, and claims on what is to be.

Rights go by scope: `ledger` to look up, mark and claim, `ledger_admin` also to forget, prune and
set the retention. Whether a scope exists that the token may not use is not told.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import APIRouter, Query, Request
from msgspec import UNSET
from starlette.responses import Response

from penstock.delivery.access import Access, covers
from penstock.entry import ScopeStats, check_entry_key, check_scope
from penstock.errors import BadRequest, InProgress, InvalidInput, LeaseLost
from penstock.server.routes.context import Context, body_as, context_of, reply
from penstock.server.routes.ledger_shapes import (
    ClaimReply,
    ClaimRequest,
    CompleteRequest,
    DoneReply,
    EntriesReply,
    EntryReply,
    ForgetRequest,
    HeldRequest,
    LedgerEventReply,
    LedgerEventsReply,
    LedgerPrunedReply,
    LedgerPruneRequest,
    LookReply,
    MarkedReply,
    MarkRequest,
    RenewRequest,
    ScopeReply,
    ScopeRequest,
    ScopesReply,
)
from penstock.server.routes.schema import describe
from penstock.server.routes.shapes import RemovedReply

LIST_MAX = 1_000
EVENTS_MAX = 1_000
PRUNE_MAX = 10_000
KEYS_MAX = 1_000
"""Keys of one request that forgets."""
REPLY_BYTES_MAX = 4 * 1024 * 1024
"""A reply gets no further entry beyond this."""
PAGE = 50
LEASE_SECONDS_MAX = 3_600.0
"""A client that is gone keeps others waiting for so long at most: it cannot be seen from here."""
TOKEN_MAX = 2**63 - 1

router = APIRouter(tags=["ledger"])

# Not in the path: a key may be `..`, which clients and proxies take for a step up.
EntryKey = Annotated[str, Query()]

_scope_body = msgspec.json.Decoder(ScopeRequest)
_mark_body = msgspec.json.Decoder(MarkRequest)
_claim_body = msgspec.json.Decoder(ClaimRequest)
_renew_body = msgspec.json.Decoder(RenewRequest)
_complete_body = msgspec.json.Decoder(CompleteRequest)
_held_body = msgspec.json.Decoder(HeldRequest)
_forget_body = msgspec.json.Decoder(ForgetRequest)
_prune_body = msgspec.json.Decoder(LedgerPruneRequest)


# Scopes


@router.get("/v1/ledger", **describe("The scopes the token may use", ok={200: ScopesReply}))
async def list_scopes(request: Request) -> Response:
    context = context_of(request)
    access = context.access(request)
    found = [one for one in await context.hub.aio.ledger.stats() if may_use(access, one.scope)]
    processed = sum(one.processed for one in found)
    return reply(ScopesReply(processed, [ScopeReply.of(one) for one in found]))


@router.get(
    "/v1/ledger/{scope:name}",
    **describe("One scope: how many keys are processed", ok={200: ScopeReply}, errors=(400, 403)),
)
async def get_scope(request: Request, scope: str) -> Response:
    context = context_of(request)
    context.access(request).check_ledger(scope)
    return reply(await _scope(context, scope))


@router.put(
    "/v1/ledger/{scope:name}",
    **describe(
        "How long entries of a scope are kept that are made from now on",
        body=ScopeRequest,
        ok={200: ScopeReply},
        errors=(400, 403, 413),
    ),
)
async def put_scope(request: Request, scope: str) -> Response:
    context = context_of(request)
    context.access(request).check_ledger_admin(scope)
    wanted = await body_as(request, _scope_body)
    await context.hub.aio.ledger.configure(scope, keep_seconds=wanted.keep())
    return reply(await _scope(context, scope))


async def _scope(context: Context, scope: str) -> ScopeReply:
    check_scope(scope)
    found = {one.scope: one for one in await context.hub.aio.ledger.stats()}
    return ScopeReply.of(found.get(scope, ScopeStats(scope)))


# Entries


@router.get(
    "/v1/ledger/{scope:name}/entries",
    **describe("A scope's entries by key", ok={200: EntriesReply}, errors=(400, 403)),
)
async def list_entries(
    request: Request,
    scope: str,
    after: Annotated[str, Query(description="Keys behind this one.")] = "",
    limit: Annotated[int, Query(ge=1, le=LIST_MAX)] = 100,
) -> Response:
    context = context_of(request)
    context.access(request).check_ledger(scope)
    shown: list[EntryReply] = []
    size = 0
    while len(shown) < limit:
        count = min(PAGE, limit - len(shown))
        # One more, to know whether there is more.
        part = await context.hub.aio.ledger.list(scope, after=after, limit=count + 1)
        for entry in part[:count]:
            size += len(entry.raw_result or b"")
            if shown and size > REPLY_BYTES_MAX:
                return reply(EntriesReply(shown, is_complete=False))
            shown.append(EntryReply.of(entry))
        if len(part) <= count:
            return reply(EntriesReply(shown, is_complete=True))
        after = shown[-1].key
    return reply(EntriesReply(shown, is_complete=False))


@router.get(
    "/v1/ledger/{scope:name}/entry",
    **describe("Whether a key was processed", ok={200: LookReply}, errors=(400, 403)),
)
async def get_entry(request: Request, scope: str, key: EntryKey) -> Response:
    context = context_of(request)
    context.access(request).check_ledger(scope)
    found = await context.hub.aio.ledger.get(scope, key)
    if found is None:
        return reply(LookReply(is_processed=False, entry=None))
    return reply(LookReply(found.state.is_final, EntryReply.of(found)))


@router.delete(
    "/v1/ledger/{scope:name}/entry",
    **describe(
        "Forget a key, so that it can be processed again", ok={200: RemovedReply}, errors=(400, 403)
    ),
)
async def forget_entry(request: Request, scope: str, key: EntryKey) -> Response:
    context = context_of(request)
    context.access(request).check_ledger_admin(scope)
    return reply(RemovedReply(await context.hub.aio.ledger.forget(scope, key)))


@router.post(
    "/v1/ledger/{scope:name}/forget",
    **describe(
        "Forget many keys",
        body=ForgetRequest,
        ok={200: RemovedReply},
        errors=(400, 403, 413),
    ),
)
async def forget_entries(request: Request, scope: str) -> Response:
    context = context_of(request)
    context.access(request).check_ledger_admin(scope)
    wanted = await body_as(request, _forget_body)
    if len(wanted.keys) > KEYS_MAX:
        raise InvalidInput(f"keys has up to {KEYS_MAX:,} of them, not {len(wanted.keys):,}.")
    return reply(RemovedReply(await context.hub.aio.ledger.forget(scope, *wanted.keys)))


# Marks


@router.post(
    "/v1/ledger/{scope:name}/marks",
    **describe(
        "Enter a key, or many, as processed; true for exactly one caller",
        body=MarkRequest,
        ok={200: MarkedReply},
        errors=(400, 403, 409, 413, 429),
    ),
)
async def mark(request: Request, scope: str) -> Response:
    context = context_of(request)
    access = context.access(request)
    access.check_ledger(scope)
    wanted = await body_as(request, _mark_body)
    ledger = context.hub.aio.ledger
    if isinstance(wanted.keys, list):
        if wanted.key is not UNSET or wanted.digest() is not None:
            raise BadRequest("Many keys have neither key, payload, base64 nor hash.")
        limit = context.settings.commit_group_max
        if not 1 <= len(wanted.keys) <= limit:
            raise InvalidInput(f"keys has 1 to {limit:,} of them, not {len(wanted.keys):,}.")
        context.rates.check(context.address(request), access, len(wanted.keys))
        return reply(MarkedReply(await ledger.mark_many(scope, wanted.keys, ttl=wanted.ttl())))
    if not isinstance(wanted.key, str):
        raise BadRequest("A mark has a key, or keys.")
    context.rates.check(context.address(request), access, 1)
    is_new = await ledger.proxy.mark(scope, wanted.key, ttl=wanted.ttl(), hash=wanted.digest())
    return reply(MarkedReply([is_new]))


# Claims


@router.post(
    "/v1/ledger/{scope:name}/claims",
    **describe(
        "Claim a key: 201 if it is the caller's now, 200 if it was processed before, 409 if "
        "somebody else is at it",
        body=ClaimRequest,
        ok={200: ClaimReply, 201: ClaimReply},
        errors=(400, 403, 409, 413, 429),
    ),
)
async def claim(request: Request, scope: str) -> Response:
    context = context_of(request)
    access = context.access(request)
    access.check_ledger(scope)
    wanted = await body_as(request, _claim_body)
    context.rates.check(context.address(request), access, 1)
    entry, is_mine = await context.hub.aio.ledger.proxy.claim(
        check_scope(scope),
        check_entry_key(wanted.key),
        lease_seconds=_lease(wanted.lease_seconds),
        hash=wanted.digest(),
    )
    if is_mine:
        return reply(ClaimReply(True, entry.token, EntryReply.of(entry)), 201)
    if not entry.state.is_final:
        raise InProgress(f"Somebody else is at {wanted.key!r} in {scope!r}.")
    return reply(ClaimReply(False, None, EntryReply.of(entry)))


@router.post(
    "/v1/ledger/{scope:name}/claims/renew",
    **describe(
        "Keep a claim for longer",
        body=RenewRequest,
        ok={200: DoneReply},
        errors=(400, 403, 409, 413),
    ),
)
async def renew(request: Request, scope: str) -> Response:
    context = context_of(request)
    context.access(request).check_ledger(scope)
    wanted = await body_as(request, _renew_body)
    key, token = _held(wanted)
    seconds = _lease(wanted.lease_seconds)
    proxy = context.hub.aio.ledger.proxy
    return _answer(await proxy.renew(scope, key, token, lease_seconds=seconds), scope, wanted)


@router.post(
    "/v1/ledger/{scope:name}/claims/complete",
    **describe(
        "Done, or failed for good, with a result for all who come later",
        body=CompleteRequest,
        ok={200: DoneReply},
        errors=(400, 403, 409, 413),
    ),
)
async def complete(request: Request, scope: str) -> Response:
    context = context_of(request)
    context.access(request).check_ledger(scope)
    wanted = await body_as(request, _complete_body)
    key, token = _held(wanted)
    outcome = wanted.outcome(context.settings)
    proxy = context.hub.aio.ledger.proxy
    return _answer(await proxy.complete(scope, key, token, outcome), scope, wanted)


@router.post(
    "/v1/ledger/{scope:name}/claims/release",
    **describe(
        "Not done: anybody may claim it",
        body=HeldRequest,
        ok={200: DoneReply},
        errors=(400, 403, 409, 413),
    ),
)
async def release(request: Request, scope: str) -> Response:
    context = context_of(request)
    context.access(request).check_ledger(scope)
    wanted = await body_as(request, _held_body)
    key, token = _held(wanted)
    proxy = context.hub.aio.ledger.proxy
    return _answer(await proxy.release(scope, key, token), scope, wanted)


def _held(wanted: HeldRequest) -> tuple[str, int]:
    if not 0 < wanted.token <= TOKEN_MAX:
        raise InvalidInput("token is what the claim was answered with.")
    return check_entry_key(wanted.key), wanted.token


def _lease(seconds: float) -> float:
    if not 0 < seconds <= LEASE_SECONDS_MAX:
        raise InvalidInput(
            f"lease_seconds is above 0, up to {LEASE_SECONDS_MAX:g}; not {seconds:g}.",
            hint="Renew it while the work goes on.",
        )
    return seconds


def _answer(is_accepted: bool, scope: str, wanted: HeldRequest) -> Response:
    if not is_accepted:
        raise LeaseLost(f"Somebody else has {wanted.key!r} in {scope!r}, or had it since.")
    return reply(DoneReply(wanted.key, wanted.token))


# All scopes


@router.post(
    "/v1/ledger-prune",
    **describe(
        "Remove entries of all scopes that have expired, now",
        body=LedgerPruneRequest,
        ok={200: LedgerPrunedReply},
        errors=(400, 403, 413),
    ),
)
async def prune(request: Request) -> Response:
    context = context_of(request)
    context.access(request).check_ledger_admin("*")
    limit = (await body_as(request, _prune_body)).limit
    if not 1 <= limit <= PRUNE_MAX:
        raise InvalidInput(f"limit is 1 to {PRUNE_MAX:,}, not {limit:,}.")
    removed = await context.hub.aio.ledger.prune(limit=limit)
    return reply(LedgerPrunedReply(removed, is_complete=removed < limit))


@router.get(
    "/v1/ledger-events",
    **describe(
        "The ledger's history, of scopes the token may use, by id", ok={200: LedgerEventsReply}
    ),
)
async def list_events(
    request: Request,
    after: Annotated[int, Query(ge=0, le=TOKEN_MAX, description="Ids above this.")] = 0,
    limit: Annotated[int, Query(ge=1, le=EVENTS_MAX)] = EVENTS_MAX,
) -> Response:
    context = context_of(request)
    access = context.access(request)
    events = await context.hub.aio.ledger.events(after=after, limit=limit)
    shown = [LedgerEventReply.of(one) for one in events if may_use(access, one.scope)]
    return reply(LedgerEventsReply(shown, events[-1].id if events else after))


def may_use(access: Access, scope: str) -> bool:
    """Whether a scope exists for this caller at all."""
    return any(covers(grant, scope) for grant in (*access.ledger, *access.ledger_admin))
