/**
 * The penstock client for browsers and Node 22 or newer. One file, no dependencies, no build step.
 *
 *     import { connect } from "/static/penstock.js";
 *
 *     const hub = connect();
 *     hub.subscribe("orders", (message) => console.log(message.id, message.payload));
 *     await hub.publish("orders", { id: 7 });
 *
 * What it promises:
 * - A receipt means that the message is on disk. A publish that was interrupted is sent again under
 *   the same idempotency key, so it is in the log once.
 * - A subscription sees every message once and in order, across reconnects, other instances and
 *   server restarts. What the server had removed before it could be read is a `gap` event.
 * - A mailbox hands out each message, in order, until it is acknowledged; also over reconnects.
 * - Everything is bounded: a reader that falls behind is fed from the log, and a queue of
 *   publishes that grows too long refuses more.
 *
 * @module penstock
 */

const SUBPROTOCOL = "penstock.v1.json";
const FINAL_CODES_FROM = 3500;
const FINAL_CODES_BELOW = 4000;
const CLOSE_SHUTDOWN = 3001;
const CLOSE_TOO_BIG = 1009;
const CLOSE_LOST = 1006;
/** A connection that held for so long starts its backoff anew when it breaks. */
const STABLE_MS = 5_000;
const ANSWER_MS_MAX = 10_000;
const TIMER_MS_MAX = 2 ** 31 - 1;

const DEFAULTS = {
  token: null,
  client: null,
  protocols: [],
  reconnectMinMs: 250,
  reconnectMaxMs: 10_000,
  connectTimeoutMs: 10_000,
  repeatMaxMs: 240_000,
  queueMax: 10_000,
  queueBytesMax: 32 * 1024 * 1024,
  bufferMax: 1_000,
  bufferBytesMax: 16 * 1024 * 1024,
  WebSocket: undefined,
};

// Errors

/** Something went wrong. `code` is stable and the same as on the server; `retryable` says whether trying again can help. */
export class PenstockError extends Error {
  static code = "error";
  static retryable = false;
  static message = "Something went wrong.";
  static hint = "";

  /**
   * @param {string} [message]
   * @param {{code?: string, retryable?: boolean, hint?: string, cause?: unknown}} [details]
   */
  constructor(message, { code, retryable, hint, cause } = {}) {
    super(message || new.target.message, cause === undefined ? undefined : { cause });
    this.name = new.target.name;
    /** Stable, for programs. @type {string} */
    this.code = code ?? new.target.code;
    /** Whether trying again can help. @type {boolean} */
    this.retryable = retryable ?? new.target.retryable;
    /** What to do about it, for people. @type {string} */
    this.hint = hint ?? new.target.hint;
    /** For a publish that failed: publish again under this key and it is stored at most once. @type {string | null} */
    this.idempotencyKey = null;
  }
}

/** The input is not valid. */
export class InvalidInput extends PenstockError {
  static code = "invalid_input";
  static message = "The input is not valid.";
}
/** The payload cannot be encoded. */
export class InvalidPayload extends InvalidInput {
  static code = "invalid_payload";
  static message = "The payload cannot be encoded.";
  static hint = "Publish what JSON can say, or a Uint8Array.";
}
/** The payload is larger than the server takes. */
export class PayloadTooLarge extends InvalidPayload {
  static code = "payload_too_large";
  static message = "The payload is larger than the limit.";
  static hint = "Store the large part elsewhere and publish a link.";
}
/** The server does not understand this client. */
export class BadRequest extends InvalidInput {
  static code = "bad_request";
  static message = "The request is not one of the protocol.";
}
/** A valid token is needed. */
export class Unauthorized extends PenstockError {
  static code = "unauthorized";
  static message = "A valid token is needed.";
  static hint = "Pass a token that has not expired; a function is asked for a fresh one.";
}
/** This token does not allow that. */
export class Forbidden extends PenstockError {
  static code = "forbidden";
  static message = "This token does not allow that.";
}
/** Too much in too short a time. */
export class RateLimited extends PenstockError {
  static code = "rate_limited";
  static retryable = true;
  static message = "Too much in too short a time.";
}
/** A limit of the server is reached. */
export class LimitReached extends PenstockError {
  static code = "limit_reached";
  static message = "A limit of the server is reached.";
}
/** The connection to the server was lost. */
export class Disconnected extends PenstockError {
  static code = "disconnected";
  static retryable = true;
  static message = "The connection to the server was lost.";
  static hint = "What was not acknowledged may have happened.";
}
/** The write may or may not be on disk. */
export class OutcomeUnknown extends PenstockError {
  static code = "outcome_unknown";
  static retryable = true;
  static message = "The write may or may not be on disk.";
  static hint = "Publish again with the same idempotencyKey: it is stored at most once.";
}
/** The write was not acknowledged in time; it may still happen. */
export class WriteTimeout extends OutcomeUnknown {
  static code = "write_timeout";
  static message = "The write was not acknowledged in time; it may still happen.";
}
/** Too many publishes are waiting. */
export class QueueFull extends PenstockError {
  static code = "queue_full";
  static retryable = true;
  static message = "Too many publishes are waiting.";
  static hint = "Wait for receipts before publishing more, or raise queueMax.";
}
/** The hub is closed. */
export class HubClosed extends PenstockError {
  static code = "hub_closed";
  static message = "The hub is closed.";
  static hint = "Open another one with connect().";
}
/** Another client holds this consumer. */
export class ConsumerBusy extends PenstockError {
  static code = "consumer_busy";
  static retryable = true;
  static message = "Another client holds this consumer.";
}
/** The idempotency key was used with a different message. */
export class IdempotencyConflict extends PenstockError {
  static code = "idempotency_conflict";
  static message = "The idempotency key was used with a different message.";
}

/** This is no name of a mailbox, or no id of a message. */
export class InvalidMailbox extends InvalidInput {
  static code = "invalid_mailbox";
  static message = "This is no name of a mailbox.";
}
/** The mailbox is full: it takes messages again when all that are in it are acknowledged. */
export class QuotaExceeded extends PenstockError {
  static code = "quota_exceeded";
  static retryable = true;
  static message = "The mailbox is full.";
}
/** Only the first message of a mailbox can be acknowledged. */
export class WrongAck extends PenstockError {
  static code = "wrong_ack";
  static message = "Only the first message of a mailbox can be acknowledged.";
}
/** Another connection has opened this mailbox. */
export class MailboxTaken extends PenstockError {
  static code = "mailbox_taken";
  static message = "Another connection has opened this mailbox.";
  static hint = "Open it again to take it back.";
}

const ERRORS = new Map(
  [
    PenstockError, InvalidInput, InvalidPayload, PayloadTooLarge, BadRequest, Unauthorized, Forbidden,
    RateLimited, LimitReached, Disconnected, OutcomeUnknown, WriteTimeout, QueueFull, HubClosed,
    ConsumerBusy, IdempotencyConflict, InvalidMailbox, QuotaExceeded, WrongAck, MailboxTaken,
  ].map((kind) => [kind.code, kind]),
);

const CLOSE_ERRORS = new Map([
  [3500, Unauthorized],
  [3501, BadRequest],
  [3503, Unauthorized],
  [3504, LimitReached],
]);

/** The error that a problem on the wire stands for. */
function errorOf({ code, message, hint, retryable }) {
  const kind = ERRORS.get(code) ?? PenstockError;
  return new kind(message, { code, retryable: retryable ?? false, hint });
}

function errorOfClose(code, reason) {
  const kind = CLOSE_ERRORS.get(code) ?? PenstockError;
  return new kind(reason || (code === 3503 ? "The token was revoked." : ""));
}

// Values

/** A message, as it is in the log. */
export class Message {
  /** @hidden */
  constructor(entry, topic, epoch) {
    /** Its place in the log, over all topics. @type {number} */
    this.id = entry.id;
    /** @type {string} */
    this.topic = entry.topic ?? topic;
    /** @type {string | null} */
    this.type = entry.type ?? null;
    /** @type {string | null} */
    this.key = entry.key ?? null;
    /** @type {Record<string, string>} */
    this.headers = entry.headers ?? {};
    /** What was published: plain values, or a Uint8Array for bytes. */
    this.payload = entry.base64 === undefined ? entry.payload : bytesOf(entry.base64);
    /** How it is stored: "json", "bytes" or "msgpack". What JSON cannot say of the last comes as its bytes. @type {string} */
    this.format = entry.format ?? (entry.base64 === undefined ? "json" : "bytes");
    /** When it was published, in microseconds since 1970. @type {number} */
    this.at = entry.at;
    /** When it expires, in microseconds since 1970. @type {number | null} */
    this.expiresAt = entry.expires_at ?? null;
    /** The entries of a conflated message: the latest `{key, payload, type}` of each key. Empty for any other. */
    this.conflated = entry.conflated ? entry.payload : [];
    /** The database and its generation. @type {string} */
    this.epoch = epoch;
  }

  /** Resume after this position and the next message follows. @returns {string} */
  get position() {
    return `${this.epoch}:${this.id}`;
  }

  /** When it was published. @returns {Date} */
  get time() {
    return new Date(this.at / 1000);
  }
}

/** `epoch:offset`, taken apart. */
function parsePosition(text) {
  const cut = typeof text === "string" ? text.lastIndexOf(":") : -1;
  const offset = Number(text?.slice?.(cut + 1));
  if (cut < 1 || !Number.isSafeInteger(offset) || offset < 0) {
    throw new InvalidInput(`${JSON.stringify(text)} is not a position.`, {
      hint: "A position looks like 'epoch:42'.",
    });
  }
  return { epoch: text.slice(0, cut), offset };
}

function textOf({ epoch, offset }) {
  return `${epoch}:${offset}`;
}

function receiptOf(topic, { position, at, durable = true, duplicate = false }) {
  return {
    id: position === null ? null : parsePosition(position).offset,
    topic,
    position,
    at,
    time: new Date(at / 1000),
    durable,
    duplicate,
  };
}

function memberOf({ client, info = {}, joined_at = 0 }) {
  return { client, info, joinedAt: new Date(joined_at / 1000) };
}

function bytesOf(base64) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(base64);
  return Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
}

function base64Of(bytes) {
  if (bytes.toBase64) return bytes.toBase64();
  const pieces = [];
  for (let at = 0; at < bytes.length; at += 0x8000) {
    pieces.push(String.fromCharCode(...bytes.subarray(at, at + 0x8000)));
  }
  return btoa(pieces.join(""));
}

/** A message to publish as it goes out; undefined fields are left out by JSON. */
function outgoing(payload, { type, key, headers, ttl, idempotencyKey }) {
  const fields = { type, key, headers, ttl, idempotency_key: idempotencyKey || undefined };
  if (payload instanceof ArrayBuffer) payload = new Uint8Array(payload);
  if (ArrayBuffer.isView(payload)) {
    fields.base64 = base64Of(new Uint8Array(payload.buffer, payload.byteOffset, payload.byteLength));
  } else if (payload === undefined || typeof payload === "function" || typeof payload === "symbol") {
    throw new InvalidPayload(`A payload cannot be ${typeof payload}.`);
  } else {
    fields.payload = payload;
  }
  return fields;
}

// Events

const emit = Symbol("emit");

/** Something with events: `on` returns a function that ends the listening. */
class Emitter {
  #listeners = new Map();

  /**
   * Call `listener` at each event of this name.
   * @returns {() => void} a function that stops it
   */
  on(event, listener) {
    const listeners = this.#listeners.get(event) ?? new Set();
    this.#listeners.set(event, listeners.add(listener));
    return () => void listeners.delete(listener);
  }

  /** Tell everybody who listens; returns whether there was anybody. */
  [emit](event, detail) {
    const listeners = [...(this.#listeners.get(event) ?? [])];
    for (const listener of listeners) call(listener, detail);
    return listeners.length > 0;
  }
}

/** Call what the user gave us. A mistake in it surfaces as uncaught, and does not stop the client. */
function call(listener, detail) {
  try {
    listener(detail);
  } catch (error) {
    queueMicrotask(() => {
      throw error;
    });
  }
}

/** A promise with its two ends; nobody need wait for it. */
function deferred() {
  const parts = Promise.withResolvers?.() ?? {};
  parts.promise ??= new Promise((resolve, reject) => Object.assign(parts, { resolve, reject }));
  parts.promise.catch(() => {});
  return parts;
}

// Subscriptions

const start = Symbol("start");
const push = Symbol("push");
const interrupt = Symbol("interrupt");
const end = Symbol("end");
const resize = Symbol("resize");

/**
 * A topic or glob, followed. Made by `hub.subscribe()`.
 *
 * Events: `subscribed`, `recovered`, `gap`, `dropped`, `presence`, `retrying`, `error`, `closed`.
 *
 * Without an `onMessage` function it is an async iterable of messages: one loop at a time. Leaving
 * the loop closes the subscription.
 */
export class Subscription extends Emitter {
  #link;
  #options;
  #onMessage;
  #limits;
  /** "waiting" for a reply, "live", "behind" (messages are read again later), "closed". */
  #state = "waiting";
  #error = null;
  #ready = deferred();
  /** The last position that arrived: where to resume. @type {{epoch: string, offset: number} | null} */
  #received = null;
  #position = null;
  /** How far the server is with this subscription on this connection. */
  #served = null;
  #members = new Map();
  #buffer = [];
  /** Of the frames since it was empty. */
  #bufferBytes = 0;
  #wake = null;
  #isLooping = false;
  #attempts = 0;
  #timer = null;
  /** An answer to a subscribe that was given up is not meant for us. */
  #generation = 0;
  #isSubscribed = false;
  #acked = null;
  #ackInFlight = false;
  #ackNext = null;

  /** @hidden */
  constructor(link, topic, options, onMessage, limits) {
    super();
    /** The topic or glob. @type {string} */
    this.topic = topic;
    this.#link = link;
    this.#options = options;
    this.#onMessage = onMessage;
    this.#limits = limits;
    if (options.after != null) parsePosition(options.after);
  }

  /** Resolves when the server has taken the subscription; rejects if it never will. @returns {Promise<Subscription>} */
  get ready() {
    return this.#ready.promise;
  }

  /**
   * `epoch:offset` of the last message that was handed out, or where the subscription began.
   * Keep it, and pass it as `after` to go on from there another day.
   * @returns {string | null}
   */
  get position() {
    return this.#position;
  }

  /** Who is present, if `presence` was asked for. */
  get members() {
    return [...this.#members.values()];
  }

  /** Whether it has ended: closed, or refused by the server. */
  get isClosed() {
    return this.#state === "closed";
  }

  /** Why it ended, if not by `close()`. @returns {PenstockError | null} */
  get error() {
    return this.#error;
  }

  /**
   * Everything up to this position was processed: the durable consumer moves on. Calls made while
   * another is on its way are joined to one.
   * @param {string | Message} [position] by default the last message that was handed out
   * @returns {Promise<string>} where the consumer is now
   */
  async ack(position = this.#position) {
    if (this.#options.consumer == null) {
      throw new InvalidInput("Only a subscription with a consumer is acknowledged.", {
        hint: "Pass consumer: 'name' to subscribe().",
      });
    }
    if (this.#state === "closed") throw this.#error ?? new HubClosed("The subscription is closed.");
    const wanted = parsePosition(position instanceof Message ? position.position : position);
    const received = this.#received;
    if (received === null || (wanted.epoch === received.epoch && wanted.offset > received.offset)) {
      throw new InvalidInput(`${textOf(wanted)} was not received on this subscription.`);
    }
    const next = (this.#ackNext ??= { ...deferred(), wanted });
    const isNewer = wanted.epoch !== next.wanted.epoch || wanted.offset > next.wanted.offset;
    if (isNewer) next.wanted = wanted;
    this.#sendAck();
    return next.promise;
  }

  async #sendAck() {
    const isTaken = this.#isSubscribed && (this.#state === "live" || this.#state === "behind");
    if (this.#ackInFlight || this.#ackNext === null || !isTaken) return;
    const ack = this.#ackNext;
    // After a reconnect the server takes it only when it has sent that message itself.
    const { epoch, offset } = this.#served;
    if (ack.wanted.epoch === epoch && ack.wanted.offset > offset) return;
    this.#ackNext = null;
    this.#ackInFlight = true;
    try {
      const reply = await this.#link.call("ack", { topic: this.topic, position: textOf(ack.wanted) });
      this.#acked = parsePosition(reply.position);
      ack.resolve(reply.position);
    } catch (error) {
      if (error instanceof Disconnected && this.#state !== "closed") this.#ackAgain(ack);
      else ack.reject(error);
    } finally {
      this.#ackInFlight = false;
      this.#sendAck();
    }
  }

  /** The connection broke before the answer: the next one is told, unless a later ack says more. */
  #ackAgain(ack) {
    if (this.#ackNext === null) this.#ackNext = ack;
    else this.#ackNext.promise.then(ack.resolve, ack.reject);
  }

  /** End it. A loop over it ends; a member that joined leaves. */
  close() {
    if (this.#state === "closed") return;
    this.#ackInFlight = false;
    this.#sendAck();
    if (this.#isSubscribed) this.#link.call("unsubscribe", { topic: this.topic }).catch(() => {});
    this.#buffer = [];
    this[end](null);
  }

  /** @hidden The hub is connected, or will be: ask for the subscription. */
  [start]() {
    if (this.#state === "closed" || this.#state === "behind" || !this.#link.isConnected()) return;
    clearTimeout(this.#timer);
    this.#state = "waiting";
    this.#isSubscribed = true;
    const generation = ++this.#generation;
    const { after, last, consumer, start: from, join, presence } = this.#options;
    const fields = { topic: this.topic, consumer, join, presence: Boolean(presence) };
    const resumed = this.#received;
    if (resumed !== null && consumer == null) fields.after = textOf(resumed);
    else Object.assign(fields, resumed === null ? { after, last } : {}, { start: from ?? undefined });
    this.#link.command("subscribe", fields, (error, reply) => {
      if (generation !== this.#generation) return;
      if (error) this.#refused(error);
      else this.#begin(reply, resumed);
    });
  }

  #begin(reply, resumed) {
    this.#state = "live";
    this.#attempts = 0;
    const begins = parsePosition(reply.position);
    // A consumer is resumed where it stands, which may be before what is already here. Only if
    // somebody moved it back behind what was acknowledged are messages meant to come again.
    const movedBack = this.#acked?.epoch === begins.epoch && begins.offset < this.#acked.offset;
    const isAhead = resumed?.epoch === begins.epoch && resumed.offset > begins.offset;
    this.#received = isAhead && !movedBack ? resumed : begins;
    if (movedBack) this.#acked = begins;
    this.#served = begins;
    this.#position ??= reply.position;
    this.#ready.resolve(this);
    this.#sendAck();
    this[emit]("subscribed", { position: reply.position });
    if (reply.gap) this.#tellGap(reply.gap);
    else if (reply.recovered) this[emit]("recovered", { position: reply.position });
  }

  #refused(error) {
    this.#isSubscribed = false;
    if (error instanceof Disconnected) return;
    if (!error.retryable) {
      this[end](error);
      return;
    }
    const delay = this.#link.backoff(this.#attempts++);
    this[emit]("retrying", { error, retryInMs: delay });
    this.#timer = setTimeout(() => this[start](), delay);
  }

  /** @hidden Something arrived for this subscription. */
  [push](frame, size) {
    if (this.#state === "waiting" || this.#state === "closed") return;
    switch (frame.push) {
      case "presence":
        this.#updateMembers(frame);
        return;
      case "unsubscribed":
        this.#state = "waiting";
        this.#refused(errorOf(frame.error));
        return;
    }
    // Of what comes while it is behind nothing is kept, so nothing of it may count as received.
    if (this.#state !== "live") return;
    switch (frame.push) {
      case "messages":
        this.#take(frame.messages, size);
        return;
      case "gap":
        this.#skipTo(frame.gap.resumes);
        this.#tellGap(frame.gap);
        return;
      case "dropped":
        this.#skipTo(frame.through);
        this[emit]("dropped", { messages: frame.messages, through: frame.through });
    }
  }

  #skipTo(position) {
    const to = parsePosition(position);
    const isBehind = to.epoch === this.#received.epoch && to.offset < this.#received.offset;
    if (!isBehind) this.#received = to;
    this.#served = to;
    this.#sendAck();
  }

  #take(entries, size) {
    const { epoch } = this.#received;
    const messages = [];
    for (const entry of entries) {
      if (entry.id <= this.#received.offset) continue;
      this.#received = { epoch, offset: entry.id };
      messages.push(new Message(entry, this.topic, epoch));
    }
    this.#served = { epoch, offset: entries.at(-1)?.id ?? this.#served.offset };
    this.#sendAck();
    if (this.#onMessage === null) {
      for (const message of messages) this.#buffer.push(message);
      this.#bufferBytes += size;
      const { messagesMax, bytesMax } = this.#limits;
      if (this.#buffer.length >= messagesMax || this.#bufferBytes >= bytesMax) this.#fallBehind();
      this.#wake?.();
      return;
    }
    for (const message of messages) {
      if (this.#state === "closed") return;
      this.#position = message.position;
      call(this.#onMessage, message);
    }
  }

  /**
   * The loop is slower than the topic. What comes from now on is not kept: the log has it, and it
   * is asked for again when the loop has caught up.
   */
  #fallBehind() {
    this.#state = "behind";
    const { join, presence, consumer } = this.#options;
    // Others must not see this member leave, nor get its consumer; those stay subscribed meanwhile.
    if (join != null || presence || consumer != null) return;
    this.#isSubscribed = false;
    this.#link.call("unsubscribe", { topic: this.topic }).catch(() => {});
  }

  #catchUp() {
    this.#state = "waiting";
    if (this.#isSubscribed) this.#link.call("unsubscribe", { topic: this.topic }).catch(() => {});
    this[start]();
  }

  #tellGap(gap) {
    const isHeard = this[emit]("gap", gap);
    if (!isHeard) console.warn(`penstock: messages of ${this.topic} are missing (${gap.reason})`, gap);
  }

  /** Told is either everybody or what happened; the event says what has changed for us. */
  #updateMembers({ joined = [], left = [], members = null }) {
    const told = (members ?? joined).map(memberOf);
    const names = new Set(told.map(({ client }) => client));
    const gone = members === null ? left : [...this.#members.keys()].filter((client) => !names.has(client));
    const hasLeft = gone.filter((client) => this.#members.delete(client));
    const isNew = (member) => JSON.stringify(member) !== JSON.stringify(this.#members.get(member.client));
    const hasJoined = told.filter(isNew);
    for (const member of hasJoined) this.#members.set(member.client, member);
    if (members === null && hasLeft.length + hasJoined.length === 0) return;
    this[emit]("presence", { joined: hasJoined, left: hasLeft, members: this.members });
  }

  /** @hidden The connection is gone: a new one asks again. */
  [interrupt]() {
    if (this.#state === "closed") return;
    clearTimeout(this.#timer);
    this.#generation++;
    this.#isSubscribed = false;
    // A loop that is behind asks when it has caught up, whoever it is connected to then.
    if (this.#state === "live") this.#state = "waiting";
  }

  /** @hidden It is over, by an error or on purpose. */
  [end](error) {
    if (this.#state === "closed") return;
    this.#state = "closed";
    this.#generation++;
    this.#error = error;
    clearTimeout(this.#timer);
    this.#members.clear();
    this.#link.forget(this);
    this.#ready.reject(error ?? new HubClosed("The subscription was closed."));
    this.#ackNext?.reject(error ?? new HubClosed("The subscription was closed."));
    this.#ackNext = null;
    if (error !== null && !this[emit]("error", error) && !this.#isLooping) {
      this.#link.report(error, this.topic);
    }
    this.#wake?.();
    this[emit]("closed", { error });
  }

  async *[Symbol.asyncIterator]() {
    for await (const batch of this.#drain(1)) yield batch[0];
  }

  /**
   * The same messages, as many at once as there are.
   * @param {number} [max]
   * @returns {AsyncGenerator<Message[]>}
   */
  batches(max = 500) {
    return this.#drain(max);
  }

  async *#drain(max) {
    if (this.#onMessage !== null) {
      throw new InvalidInput("The messages go to the function that was given to subscribe().");
    }
    this.#isLooping = true;
    try {
      for (;;) {
        while (this.#buffer.length === 0) {
          if (this.#state === "closed") {
            if (this.#error !== null) throw this.#error;
            return;
          }
          if (this.#state === "behind") this.#catchUp();
          this.#bufferBytes = 0;
          await new Promise((resolve) => (this.#wake = resolve));
          this.#wake = null;
        }
        const batch = this.#buffer.splice(0, max);
        this.#position = batch.at(-1).position;
        yield batch;
      }
    } finally {
      this.close();
    }
  }
}

// Mailboxes

/** A message of a mailbox. */
export class Mail {
  /** @hidden */
  constructor(entry, mailbox) {
    /** By which it is acknowledged. @type {string} */
    this.id = entry.id;
    /** @type {string} */
    this.mailbox = mailbox;
    /** Counts up by one for each message of the mailbox. @type {number} */
    this.seq = entry.seq;
    /** "message"; "quota": the mailbox was full, and what came next was refused; "gap": some are missing. @type {string} */
    this.kind = entry.kind ?? "message";
    /** What was put: plain values, or a Uint8Array for bytes; null for a "quota". */
    this.payload = entry.base64 === undefined ? (entry.payload ?? null) : bytesOf(entry.base64);
    /** How it is stored: "json", "bytes" or "msgpack". @type {string} */
    this.format = entry.format ?? (entry.base64 === undefined ? "json" : "bytes");
    /** @type {string | null} */
    this.type = entry.type ?? null;
    /** Of a message that came from a topic. @type {string | null} */
    this.key = entry.key ?? null;
    /** Of a message that came from a topic. @type {Record<string, string>} */
    this.headers = entry.headers ?? {};
    /** Where it was published, if it came from a topic. @type {string | null} */
    this.topic = entry.topic ?? null;
    /** Its place there. @type {string | null} */
    this.position = entry.position ?? null;
    /** Of a gap: how many messages; 0 if that is not known. @type {number} */
    this.missing = entry.missing ?? 0;
    /** When it was put, in microseconds since 1970. @type {number} */
    this.at = entry.at;
  }

  /** When it was put. @returns {Date} */
  get time() {
    return new Date(this.at / 1000);
  }
}

/**
 * A recipient's own queue, which keeps every message until it is acknowledged. Made by
 * `hub.mailbox()`; it is opened for reading by `next()`, `onmail` or a loop.
 *
 * Events: `opened`, `retrying`, `error`, `closed`.
 *
 * Looping over it, asking for the next message acknowledges the one before. Leaving the loop closes
 * the mailbox, and the message that was being looked at comes again.
 */
export class Mailbox extends Emitter {
  #link;
  #window;
  /** "idle" until somebody reads, "waiting" for a reply, "open", "closed". */
  #state = "idle";
  #error = null;
  #onmail = null;
  /** Came, and are not acknowledged, by id. */
  #unacked = new Map();
  /** Of them, those that nobody has been given yet. */
  #buffer = [];
  #readers = [];
  #attempts = 0;
  #timer = null;
  #generation = 0;
  #isOpened = false;

  /** @hidden */
  constructor(link, id, window) {
    super();
    /** Its name. @type {string} */
    this.id = id;
    this.#link = link;
    this.#window = window;
  }

  /** Whether it has ended: closed, refused, or opened by another connection. */
  get isClosed() {
    return this.#state === "closed";
  }

  /** Why it ended, if not by `close()`. @returns {PenstockError | null} */
  get error() {
    return this.#error;
  }

  /** Called with each message, in order; acknowledge it for the next to come. @type {((mail: Mail) => void) | null} */
  get onmail() {
    return this.#onmail;
  }

  set onmail(listener) {
    this.#onmail = listener;
    if (listener === null) return;
    this.#open();
    this.#hand();
  }

  /**
   * Put a message into the mailbox. While disconnected it waits, and an interrupted one is sent
   * again; it is stored once.
   *
   * @param {unknown} payload what JSON can say, or bytes as a Uint8Array
   * @param {object} [options] `id` (put again under the same one it is stored once), `type`,
   *   `timeout` (seconds)
   * @returns {Promise<{id: string, seq: number, wasEmpty: boolean, isNew: boolean}>}
   */
  async put(payload, { id, type, timeout } = {}) {
    const message = id ?? this.#link.newId();
    const { base64, payload: value } = outgoing(payload, {});
    const fields = { mailbox: this.id, payload: value, base64, message, type };
    const reply = await this.#link.request("mailbox.put", fields, { key: message, timeout });
    // Under an id of ours, what the server had already is our own first attempt.
    const isNew = id == null || reply.is_new;
    return { id: reply.id, seq: reply.seq, wasEmpty: reply.was_empty, isNew };
  }

  /**
   * The first message that was not handed out yet, once there is one. It stays in the mailbox until
   * it is acknowledged; with a window of 1, the one after it comes only then.
   * @returns {Promise<Mail>}
   */
  async next() {
    if (this.#state === "closed") throw this.#error ?? new HubClosed("The mailbox is closed.");
    this.#open();
    const waiting = deferred();
    this.#readers.push(waiting);
    this.#hand();
    return waiting.promise;
  }

  /**
   * A message is done with. They are acknowledged in their order, each one, or with `through` all
   * up to this one.
   * @param {Mail | string} mail the message, or its id
   * @param {{through?: boolean}} [options]
   * @returns {Promise<boolean>} false if it was acknowledged before
   */
  async ack(mail, { through = false } = {}) {
    const message = mail instanceof Mail ? mail.id : mail;
    const fields = { mailbox: this.id, message, through: through || undefined };
    const reply = await this.#link.request("mailbox.ack", fields, {});
    const seq = this.#unacked.get(message)?.seq;
    for (const [id, other] of [...this.#unacked]) {
      if (id === message || (through && other.seq <= seq)) this.#unacked.delete(id);
    }
    this.#buffer = this.#buffer.filter(({ id }) => this.#unacked.has(id));
    return reply.acked;
  }

  /** Read no more. What was not acknowledged stays in the mailbox. */
  close() {
    if (this.#state === "closed") return;
    if (this.#isOpened) this.#link.call("mailbox.close", { mailbox: this.id }).catch(() => {});
    this[end](null);
  }

  /** @hidden The window that is wanted, if it is not open yet. */
  [resize](window) {
    if (window !== this.#window && this.#state !== "idle") {
      throw new InvalidInput(`${this.id} is open with a window of ${this.#window}.`, {
        hint: "Close it first to have another one.",
      });
    }
    this.#window = window;
  }

  #open() {
    if (this.#state === "closed") throw this.#error ?? new HubClosed("The mailbox is closed.");
    if (this.#state !== "idle") return;
    this.#state = "waiting";
    this[start]();
  }

  /** @hidden The hub is connected: ask for the mailbox, if anybody reads it. */
  [start]() {
    if (this.#state === "idle" || this.#state === "closed" || !this.#link.isConnected()) return;
    clearTimeout(this.#timer);
    this.#state = "waiting";
    this.#isOpened = true;
    const generation = ++this.#generation;
    const fields = { mailbox: this.id, window: this.#window };
    this.#link.command("mailbox.open", fields, (error, reply) => {
      if (generation !== this.#generation) return;
      if (error) {
        this.#refused(error);
        return;
      }
      this.#state = "open";
      this.#attempts = 0;
      this[emit]("opened", { messages: reply.messages, window: reply.window });
    });
  }

  #refused(error) {
    this.#isOpened = false;
    if (error instanceof Disconnected) return;
    if (!error.retryable) {
      this[end](error);
      return;
    }
    const delay = this.#link.backoff(this.#attempts++);
    this[emit]("retrying", { error, retryInMs: delay });
    this.#timer = setTimeout(() => this[start](), delay);
  }

  /** @hidden Something arrived for this mailbox. */
  [push](frame) {
    if (this.#state !== "open") return;
    if (frame.push === "mailbox_closed") {
      this.#isOpened = false;
      this[end](errorOf(frame.error));
      return;
    }
    for (const entry of frame.messages) {
      // After a reconnect, what was not acknowledged comes again: whoever has it need not get it twice.
      if (this.#unacked.has(entry.id)) continue;
      const mail = new Mail(entry, this.id);
      this.#unacked.set(mail.id, mail);
      this.#buffer.push(mail);
    }
    this.#hand();
  }

  #hand() {
    while (this.#buffer.length > 0 && this.#state !== "closed") {
      const reader = this.#readers.shift();
      if (reader !== undefined) reader.resolve(this.#buffer.shift());
      else if (this.#onmail !== null) call(this.#onmail, this.#buffer.shift());
      else return;
    }
  }

  /** @hidden The connection is gone: a new one asks again. */
  [interrupt]() {
    if (this.#state === "closed" || this.#state === "idle") return;
    clearTimeout(this.#timer);
    this.#generation++;
    this.#isOpened = false;
    this.#state = "waiting";
  }

  /** @hidden It is over, by an error or on purpose. */
  [end](error) {
    if (this.#state === "closed") return;
    this.#state = "closed";
    this.#generation++;
    this.#error = error;
    clearTimeout(this.#timer);
    this.#link.forget(this);
    const readers = this.#readers.splice(0);
    for (const reader of readers) reader.reject(error ?? new HubClosed("The mailbox was closed."));
    this.#buffer = [];
    if (error !== null && !this[emit]("error", error) && readers.length === 0) {
      this.#link.report(error, this.id);
    }
    this[emit]("closed", { error });
  }

  async *[Symbol.asyncIterator]() {
    try {
      while (!this.isClosed) {
        const mail = await this.next();
        yield mail;
        await this.ack(mail);
      }
      if (this.#error !== null) throw this.#error;
    } finally {
      this.close();
    }
  }
}

// The hub

/**
 * A connection to a penstock server that finds its way back. Made by `connect()`.
 *
 * Events: `connecting`, `connected`, `disconnected`, `closed`, `error`.
 */
export class Hub extends Emitter {
  #options;
  #urls;
  #urlAt = 0;
  #state = "connecting";
  #error = null;
  #info = null;
  #socket = null;
  #attempts = 0;
  #connectedAt = 0;
  #heardAt = 0;
  #ids = 0;
  #keyPrefix = randomText();
  /** Commands of this socket only, by id. */
  #calls = new Map();
  /** Commands that are sent again on the next socket until they are answered, by id. */
  #outbox = new Map();
  #outboxBytes = 0;
  /** Conflated publishes that were not sent yet, by topic and key. */
  #conflating = new Map();
  #subscriptions = new Map();
  #mailboxes = new Map();
  #timers = { retry: null, connect: null, alive: null, refresh: null };
  #waiters = [];
  #drained = null;
  #stopListening = () => {};

  /** @hidden */
  constructor(urls, options) {
    super();
    this.#urls = urls;
    this.#options = options;
    this.#listenToPage();
    // After the caller had a chance to listen for the first events.
    queueMicrotask(() => this.#open());
  }

  /** "connecting", "connected", "disconnected" (and trying again), or "closed" for good. */
  get state() {
    return this.#state;
  }

  /** Why it closed, if not by `close()`. @returns {PenstockError | null} */
  get error() {
    return this.#error;
  }

  /** The server it is connected to, or tries next. @returns {string} */
  get url() {
    return this.#urls[this.#urlAt];
  }

  /** This client's name in presence lists; null before the first connection. @returns {string | null} */
  get client() {
    return this.#info?.client ?? this.#options.client;
  }

  /** The server process that answers. @returns {string | null} */
  get instance() {
    return this.#info?.instance ?? null;
  }

  /** The version of the server. @returns {string | null} */
  get version() {
    return this.#info?.version ?? null;
  }

  /** The database and its generation. @returns {string | null} */
  get epoch() {
    return this.#info?.epoch ?? null;
  }

  /** Publishes without a receipt yet. @returns {number} */
  get pending() {
    return this.#outbox.size;
  }

  /** Resolves when it is connected; rejects if it is closed before. @returns {Promise<Hub>} */
  ready() {
    if (this.#state === "connected") return Promise.resolve(this);
    if (this.#state === "closed") return Promise.reject(this.#error ?? new HubClosed());
    const waiter = deferred();
    this.#waiters.push(waiter);
    return waiter.promise;
  }

  /**
   * Follow a topic or glob, from now on or from an earlier point; also over reconnects.
   *
   * @param {string} topic
   * @param {object} [options] `after`, `last`, `consumer`, `start`, `join`, `presence`
   * @param {(message: Message) => void} [onMessage] without it, loop over the subscription
   * @returns {Subscription}
   */
  subscribe(topic, options = {}, onMessage = null) {
    if (typeof options === "function") [options, onMessage] = [{}, options];
    if (this.#state === "closed" || this.#drained) throw this.#error ?? new HubClosed();
    if (this.#subscriptions.has(topic)) {
      throw new InvalidInput(`${topic} is already subscribed to here.`, {
        code: "already_subscribed",
        hint: "Share the subscription, or close it first; another hub is another connection.",
      });
    }
    const link = {
      isConnected: () => this.#state === "connected",
      call: (op, fields) => this.#call(op, fields),
      command: (op, fields, settle) => this.#command(op, fields, settle),
      backoff: (attempts) => this.#backoff(attempts),
      forget: (which) => this.#subscriptions.delete(which.topic),
      report: (error, where) => this.#report(error, where),
    };
    const { bufferMax, bufferBytesMax } = { ...this.#options, ...options };
    const limits = { messagesMax: bufferMax, bytesMax: bufferBytesMax };
    const subscription = new Subscription(link, topic, options, onMessage, limits);
    this.#subscriptions.set(topic, subscription);
    subscription[start]();
    return subscription;
  }

  /**
   * The mailbox of a recipient: the same object for the same name, until it is closed. Nothing is
   * asked of the server before it is used.
   *
   * @param {string} id
   * @param {{window?: number}} [options] `window`: so many messages come before one of them is
   *   acknowledged; by default 1
   * @returns {Mailbox}
   */
  mailbox(id, { window } = {}) {
    if (this.#state === "closed" || this.#drained) throw this.#error ?? new HubClosed();
    const known = this.#mailboxes.get(id);
    if (known) {
      if (window !== undefined) known[resize](window);
      return known;
    }
    const link = {
      isConnected: () => this.#state === "connected",
      call: (op, fields) => this.#call(op, fields),
      command: (op, fields, settle) => this.#command(op, fields, settle),
      request: (op, fields, options) => this.#request(op, fields, options).promise,
      newId: () => this.#keyFor(null),
      backoff: (attempts) => this.#backoff(attempts),
      forget: (which) => this.#mailboxes.delete(which.id),
      report: (error, where) => this.#report(error, where),
    };
    const mailbox = new Mailbox(link, id, window ?? 1);
    this.#mailboxes.set(id, mailbox);
    return mailbox;
  }

  /**
   * Publish a message. While disconnected it waits, and an interrupted one is sent again; it is
   * stored once. The receipt means that it is on disk.
   *
   * @param {string} topic
   * @param {unknown} payload what JSON can say, or bytes as a Uint8Array
   * @param {object} [options] `type`, `key`, `headers`, `ttl` (seconds), `idempotencyKey` (false:
   *   none, and an interrupted publish fails), `conflate`, `timeout` (seconds)
   * @returns {Promise<object>} the receipt
   */
  async publish(topic, payload, options = {}) {
    const { conflate = false, timeout } = options;
    // Conflated messages have no key of their own; that the latest counts makes them repeatable.
    const key = conflate ? options.idempotencyKey : this.#keyFor(options.idempotencyKey);
    const fields = { topic, ...outgoing(payload, { ...options, idempotencyKey: key }) };
    if (conflate) fields.conflate = true;
    const isRepeatable = conflate || Boolean(key);
    const slot = conflate ? JSON.stringify([topic, options.key]) : null;
    const request = this.#request("publish", fields, { isRepeatable, key, timeout, slot });
    return receiptOf(topic, await request.promise);
  }

  /**
   * Publish several messages to a topic: all of them or none, in one transaction.
   *
   * @param {string} topic
   * @param {Iterable<object>} messages `{payload, type, key, headers, ttl, idempotencyKey}` each
   * @param {object} [options] `timeout` (seconds)
   * @returns {Promise<object[]>} a receipt for each
   */
  async publishMany(topic, messages, { timeout } = {}) {
    const keys = [];
    const items = Array.from(messages, (message) => {
      const idempotencyKey = this.#keyFor(message.idempotencyKey);
      keys.push(idempotencyKey);
      return outgoing(message.payload, { ...message, idempotencyKey });
    });
    const fields = { topic, messages: items };
    const isRepeatable = keys.every(Boolean);
    const request = this.#request("publish_many", fields, { isRepeatable, key: keys[0], timeout });
    const reply = await request.promise;
    return reply.messages.map((published) => receiptOf(topic, published));
  }

  /**
   * Who is present on a topic, by whichever server.
   * @param {string} topic
   * @returns {Promise<{topic: string, members: object[], isComplete: boolean}>}
   */
  async presence(topic) {
    const reply = await this.#request("presence", { topic }).promise;
    return { topic: reply.topic, members: reply.members.map(memberOf), isComplete: reply.is_complete };
  }

  /** Forget the wait between attempts, and connect now. */
  reconnect() {
    if (this.#state === "disconnected") this.#open();
  }

  /**
   * Close for good, after what was published has its receipts (for up to `timeout` seconds).
   * @param {{timeout?: number}} [options]
   */
  async close({ timeout = 5 } = {}) {
    if (this.#state === "closed") return;
    for (const one of this.#attached()) one.close();
    if (this.#outbox.size > 0) {
      this.#drained ??= deferred();
      const timer = setTimeout(this.#drained.resolve, timeout * 1000);
      await this.#drained.promise;
      clearTimeout(timer);
    }
    this.#end(null);
  }

  [Symbol.asyncDispose ?? Symbol("asyncDispose")]() {
    return this.close();
  }

  // The connection

  async #open() {
    if (this.#state === "closed") return;
    clearTimeout(this.#timers.retry);
    this.#become("connecting", { url: this.url, attempt: this.#attempts });
    const attempt = (this.#socket = { close() {} });
    let token;
    try {
      token = await this.#token();
    } catch (error) {
      if (this.#socket !== attempt) return;
      this.#lost(CLOSE_LOST, "", new Unauthorized("There is no token to connect with.", { cause: error, retryable: true }));
      return;
    }
    if (this.#socket !== attempt) return;
    try {
      this.#dial(token);
    } catch (error) {
      this.#end(new InvalidInput(`${this.url} cannot be connected to: ${error.message}`, { cause: error }));
    }
  }

  #dial(token) {
    const { WebSocket: kind = globalThis.WebSocket, protocols, client, connectTimeoutMs } = this.#options;
    if (!kind) throw new Error("there is no WebSocket here; pass one as the option WebSocket");
    const socket = (this.#socket = new kind(this.url, [SUBPROTOCOL, ...protocols]));
    const isCurrent = () => this.#socket === socket;
    let isOpen = false;
    this.#timers.connect = setTimeout(() => isCurrent() && this.#lost(CLOSE_LOST, "no answer"), connectTimeoutMs);
    socket.onopen = () => {
      isOpen = true;
      if (isCurrent()) this.#introduce({ token: token ?? undefined, client: client ?? undefined });
    };
    socket.onmessage = ({ data }) => isCurrent() && this.#receive(data);
    socket.onclose = ({ code, reason }) => isCurrent() && this.#lost(code, reason);
    // Not every WebSocket tells of a close when it could not even connect.
    socket.onerror = () => !isOpen && isCurrent() && this.#lost(CLOSE_LOST, "");
  }

  async #introduce(fields) {
    let info;
    try {
      info = await this.#call("connect", fields);
    } catch (error) {
      if (error instanceof Disconnected) return;
      if (error.retryable) this.#lost(CLOSE_LOST, "", error);
      else this.#end(error);
      return;
    }
    clearTimeout(this.#timers.connect);
    this.#info = info;
    this.#connectedAt = now();
    this.#become("connected", {
      url: this.url, client: info.client, instance: info.instance, epoch: info.epoch, version: info.version,
    });
    for (const waiter of this.#waiters.splice(0)) waiter.resolve(this);
    this.#scheduleRefresh(info.expires_in_seconds);
    this.#watch();
    for (const one of this.#attached()) one[start]();
    for (const entry of [...this.#outbox.values()]) this.#sendAgain(entry);
  }

  #lost(code, reason, error = null) {
    const socket = this.#socket;
    this.#socket = null;
    this.#stopTimers();
    quietly(() => socket?.close());
    if (code >= FINAL_CODES_FROM && code < FINAL_CODES_BELOW) {
      this.#end(errorOfClose(code, reason));
      return;
    }
    const wasStable = this.#state === "connected" && now() - this.#connectedAt >= STABLE_MS;
    this.#attempts = wasStable ? 0 : this.#attempts + 1;
    this.#urlAt = (this.#urlAt + 1) % this.#urls.length;
    const round = Math.floor(this.#attempts / this.#urls.length);
    // A server that says goodbye expects us elsewhere now; a little jitter keeps the crowd apart.
    const retryInMs = code === CLOSE_SHUTDOWN ? Math.random() * 100 : this.#backoff(round);
    this.#timers.retry = setTimeout(() => this.#open(), retryInMs);
    this.#become("disconnected", { code, reason, retryInMs, error });
    const calls = [...this.#calls.values()];
    this.#calls.clear();
    for (const settle of calls) settle(new Disconnected());
    for (const one of this.#attached()) one[interrupt]();
    this.#failWhatCannotBeRepeated(code);
  }

  #failWhatCannotBeRepeated(code) {
    const sent = [...this.#outbox.values()].filter((entry) => entry.isSent);
    // Sent again, a message that is too big would end the next connection as well.
    const tooBig = code === CLOSE_TOO_BIG ? sent.reduce((a, b) => (b.frame.length > (a?.frame.length ?? 0) ? b : a), null) : null;
    for (const entry of sent) {
      entry.isSent = false;
      if (entry === tooBig) this.#settle(entry, new PayloadTooLarge());
      else if (!entry.isRepeatable) this.#settle(entry, new OutcomeUnknown());
    }
  }

  #end(error) {
    if (this.#state === "closed") return;
    const socket = this.#socket;
    this.#socket = null;
    this.#error = error;
    this.#stopTimers();
    this.#stopListening();
    quietly(() => socket?.close(1000));
    this.#become("closed", { error });
    const why = () => error ?? new HubClosed();
    for (const waiter of this.#waiters.splice(0)) waiter.reject(why());
    const calls = [...this.#calls.values()];
    this.#calls.clear();
    for (const settle of calls) settle(why());
    for (const one of this.#attached()) one[end](error);
    for (const entry of [...this.#outbox.values()]) this.#settle(entry, why());
    this.#drained?.resolve();
  }

  /** Subscriptions and mailboxes: they live and end with the connection in the same way. */
  #attached() {
    return [...this.#subscriptions.values(), ...this.#mailboxes.values()];
  }

  #become(state, detail) {
    this.#state = state;
    this[emit](state, detail);
  }

  #backoff(attempts) {
    const { reconnectMinMs, reconnectMaxMs } = this.#options;
    return Math.random() * Math.min(reconnectMaxMs, reconnectMinMs * 2 ** Math.min(attempts, 30));
  }

  #stopTimers() {
    for (const timer of Object.values(this.#timers)) clearTimeout(timer);
  }

  #report(error, where) {
    if (!this[emit]("error", error)) console.error(`penstock: ${where}: ${error.message} ${error.hint}`);
  }

  // Is the server still there?

  #watch() {
    const quietMs = this.#info.ping_seconds * 1000;
    const rest = quietMs - (now() - this.#heardAt);
    if (rest > 0) this.#timers.alive = setTimeout(() => this.#watch(), rest);
    else this.#probe();
  }

  /** The server's own pings are not visible to a page, so a quiet connection is asked. */
  #probe() {
    clearTimeout(this.#timers.alive);
    const asked = now();
    const patience = Math.min(ANSWER_MS_MAX, this.#info.ping_seconds * 1000);
    this.#call("ping", {}).catch(() => {});
    this.#timers.alive = setTimeout(() => {
      if (this.#heardAt >= asked) this.#watch();
      else this.#lost(CLOSE_LOST, "no answer");
    }, patience);
  }

  /** A page that wakes up, or is online again, does not wait for a timer. */
  #listenToPage() {
    if (typeof globalThis.addEventListener !== "function") return;
    const onWake = () => {
      if (globalThis.document?.visibilityState === "hidden") return;
      if (this.#state === "connected") this.#probe();
      else this.reconnect();
    };
    globalThis.addEventListener("online", onWake);
    globalThis.document?.addEventListener("visibilitychange", onWake);
    this.#stopListening = () => {
      globalThis.removeEventListener("online", onWake);
      globalThis.document?.removeEventListener("visibilitychange", onWake);
    };
  }

  // Tokens

  async #token() {
    const { token } = this.#options;
    return typeof token === "function" ? token() : token;
  }

  #scheduleRefresh(expiresInSeconds) {
    clearTimeout(this.#timers.refresh);
    if (typeof this.#options.token !== "function" || expiresInSeconds == null) return;
    const delay = Math.min(expiresInSeconds * 800, TIMER_MS_MAX);
    this.#timers.refresh = setTimeout(() => this.#refresh(expiresInSeconds * 0.2), delay);
  }

  async #refresh(secondsLeft) {
    const socket = this.#socket;
    try {
      const token = await this.#token();
      if (this.#socket !== socket) return;
      const reply = await this.#call("refresh", { token });
      this.#scheduleRefresh(reply?.expires_in_seconds);
    } catch (error) {
      if (this.#socket !== socket || this.#state !== "connected") return;
      this[emit]("error", error instanceof PenstockError ? error : new Unauthorized("There is no fresh token.", { cause: error, retryable: true }));
      // Until it expires; then the server closes, and connecting asks for a token again.
      if (secondsLeft > 1) this.#scheduleRefresh(secondsLeft);
    }
  }

  // Commands

  /**
   * A command of this connection. `settle(error, reply)` is called as the reply is read: messages
   * may follow in the same breath, before any promise has got its turn.
   */
  #command(op, fields, settle) {
    if (this.#state !== "connected" && op !== "connect") {
      settle(new Disconnected());
      return;
    }
    const id = ++this.#ids;
    this.#calls.set(id, settle);
    this.#send({ frame: JSON.stringify({ op, id, ...fields }) });
  }

  #call(op, fields) {
    const { promise, resolve, reject } = deferred();
    this.#command(op, fields, (error, reply) => (error ? reject(error) : resolve(reply)));
    return promise;
  }

  /** A command that waits for a connection, and for the next one if that one breaks. */
  #request(op, fields, { isRepeatable = true, key = null, timeout, slot = null } = {}) {
    if (this.#state === "closed" || this.#drained) throw this.#error ?? new HubClosed();
    const waiting = slot === null ? undefined : this.#conflating.get(slot);
    const id = waiting?.id ?? ++this.#ids;
    const frame = encode({ op, id, ...fields });
    if (waiting) {
      // Never sent: the newer one takes its place, and both get its receipt.
      this.#outboxBytes += frame.length - waiting.frame.length;
      waiting.frame = frame;
      return waiting;
    }
    const { queueMax, queueBytesMax } = this.#options;
    if (this.#outbox.size >= queueMax || this.#outboxBytes + frame.length > queueBytesMax) {
      throw new QueueFull();
    }
    const entry = { ...deferred(), id, frame, isRepeatable, key, slot, isSent: false, firstSentAt: 0, timer: null };
    if (timeout != null) {
      entry.timer = setTimeout(() => this.#settle(entry, new WriteTimeout()), timeout * 1000);
    }
    this.#outbox.set(id, entry);
    this.#outboxBytes += frame.length;
    if (this.#state === "connected") this.#send(entry);
    else if (slot !== null) this.#conflating.set(slot, entry);
    return entry;
  }

  /** The server remembers idempotency keys for a while; after that, sending again could publish twice. */
  #sendAgain(entry) {
    const limit = Math.min(this.#options.repeatMaxMs, this.#info.idempotency_seconds * 800);
    const isForgotten = entry.key && entry.firstSentAt && Date.now() - entry.firstSentAt > limit;
    if (isForgotten) this.#settle(entry, new OutcomeUnknown());
    else this.#send(entry);
  }

  #send(entry) {
    entry.isSent = true;
    entry.firstSentAt ||= Date.now();
    if (entry.slot) this.#conflating.delete(entry.slot);
    // A socket that is closing throws or ignores it; its close event is on the way.
    quietly(() => this.#socket.send(entry.frame));
  }

  #settle(entry, error, reply) {
    if (!this.#outbox.delete(entry.id)) return;
    this.#outboxBytes -= entry.frame.length;
    clearTimeout(entry.timer);
    if (entry.slot) this.#conflating.delete(entry.slot);
    if (error) {
      // The hub's own error is everybody's.
      if (error !== this.#error) error.idempotencyKey = entry.key || null;
      entry.reject(error);
    } else entry.resolve(reply);
    if (this.#outbox.size === 0) this.#drained?.resolve();
  }

  #receive(data) {
    this.#heardAt = now();
    let frame;
    try {
      frame = JSON.parse(data);
    } catch (error) {
      this.#lost(CLOSE_LOST, "", new BadRequest("The server sent what is not JSON.", { cause: error }));
      return;
    }
    if (frame.id === undefined) {
      const isMail = frame.push === "mail" || frame.push === "mailbox_closed";
      if (isMail) this.#mailboxes.get(frame.mailbox)?.[push](frame);
      else this.#subscriptions.get(frame.topic)?.[push](frame, data.length);
      return;
    }
    const error = frame.error && errorOf(frame.error);
    const entry = this.#outbox.get(frame.id);
    if (entry) {
      this.#settle(entry, error, frame.ok);
      return;
    }
    const settle = this.#calls.get(frame.id);
    this.#calls.delete(frame.id);
    settle?.(error, frame.ok);
  }

  #keyFor(given) {
    return given === undefined || given === null ? `${this.#keyPrefix}-${++this.#ids}` : given;
  }
}

function encode(command) {
  try {
    return JSON.stringify(command);
  } catch (error) {
    throw new InvalidPayload(error.message, { cause: error });
  }
}

function quietly(work) {
  try {
    work();
  } catch {
    // What is going away anyway need not say how.
  }
}

function now() {
  return performance.now();
}

function randomText() {
  // Not randomUUID, which exists only on https pages.
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** `http://host:8400` or `ws://host:8400/ws`: both name the server. */
function socketUrl(url) {
  let parsed;
  try {
    parsed = new URL(url, globalThis.location?.href);
  } catch (error) {
    throw new InvalidInput(`${url} is not a URL.`, { hint: "Use ws://host:8400/ws, or wss://….", cause: error });
  }
  parsed.protocol = parsed.protocol.replace(/^http/, "ws");
  if (parsed.pathname === "/") parsed.pathname = "/ws";
  parsed.hash = "";
  return parsed.href;
}

/**
 * Connect to a penstock server, and stay connected: when the connection breaks it is made again,
 * and every subscription goes on where it was.
 *
 * @param {string | string[]} [url] the server; several are instances on one database, tried in
 *   turn. Default: where this page comes from.
 * @param {object} [options] `token` (text, or a function that returns a fresh one), `client` (a
 *   name for presence lists) and limits; see `penstock.d.ts`
 * @returns {Hub}
 */
export function connect(url, options) {
  if (url !== null && typeof url === "object" && !Array.isArray(url)) [url, options] = [undefined, url];
  const urls = [url ?? "/ws"].flat().map(socketUrl);
  if (urls.length === 0) throw new InvalidInput("There is no URL to connect to.");
  const given = Object.entries(options ?? {}).filter(([, value]) => value !== undefined);
  for (const [name] of given) {
    if (!Object.hasOwn(DEFAULTS, name)) throw new InvalidInput(`There is no option ${name}.`);
  }
  return new Hub(urls, { ...DEFAULTS, ...Object.fromEntries(given) });
}
