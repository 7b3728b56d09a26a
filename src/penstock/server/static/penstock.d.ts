/** The penstock client for browsers and Node 22 or newer. See docs/reference/javascript.md. */

/** What JSON can say. */
export type Json = string | number | boolean | null | Json[] | { [name: string]: Json };

/** What can be published: JSON-like values, or bytes. */
export type Payload = Json | object | ArrayBuffer | ArrayBufferView;

/** A token, or a function that is asked for a fresh one at each connect and before it expires. */
export type Token = string | null | (() => string | null | Promise<string | null>);

export interface ConnectOptions {
  token?: Token;
  /** How this client is named in presence lists. Default: a name the server makes up. */
  client?: string | null;
  /** Subprotocols to offer beside penstock's own, where a proxy wants to see one. */
  protocols?: string[];
  /** The longest first wait before connecting again; it doubles, and the wait is random below it. Default: 250. */
  reconnectMinMs?: number;
  /** The longest wait before connecting again. Default: 10,000. */
  reconnectMaxMs?: number;
  /** How long connecting may take. Default: 10,000. */
  connectTimeoutMs?: number;
  /**
   * How long after its first attempt an interrupted publish is sent again; then OutcomeUnknown. Keep it below
   * the server's idempotency_seconds. Default: 240,000.
   */
  repeatMaxMs?: number;
  /** Publishes without a receipt; more are refused with QueueFull. Default: 10,000. */
  queueMax?: number;
  /** Characters of them. Default: 32 Mi. */
  queueBytesMax?: number;
  /** Messages that wait for a loop before the log is read instead. Default: 1,000. */
  bufferMax?: number;
  /** Characters of the frames they came in. Default: 16 Mi. */
  bufferBytesMax?: number;
  /** A WebSocket class, where there is none built in. */
  WebSocket?: unknown;
}

/**
 * Connect to a penstock server, and stay connected.
 * @param url The server; several are instances on one database, tried in turn. Default: where this page comes from.
 */
export function connect(url?: string | string[] | null, options?: ConnectOptions): Hub;
export function connect(options: ConnectOptions): Hub;

export interface SubscribeOptions {
  /** Resume after this position, `epoch:offset`. */
  after?: string | null;
  /** Start with the last so many messages. */
  last?: number | null;
  /** Start where this durable consumer is, and let `ack` move it. */
  consumer?: string | null;
  /** Where a consumer that does not exist yet begins. Default: "latest". */
  start?: "latest" | "earliest";
  /** Be listed as present on the topic, with this information. */
  join?: Record<string, unknown> | null;
  /** Keep `members`, and tell who joins and leaves. */
  presence?: boolean;
  /** Messages that wait for a loop before the log is read instead. */
  bufferMax?: number;
  /** Characters of the frames they came in. */
  bufferBytesMax?: number;
}

export interface PublishOptions {
  type?: string | null;
  key?: string | null;
  headers?: Record<string, string> | null;
  /** Seconds after which it is no longer delivered. */
  ttl?: number | null;
  /** Default: one is made up. False: none, so that an interrupted publish fails with OutcomeUnknown. */
  idempotencyKey?: string | false | null;
  /** Keep only the latest message per key and interval; acknowledged before it is on disk. */
  conflate?: boolean;
  /** Seconds to wait for the receipt; then WriteTimeout. Default: for ever. */
  timeout?: number;
}

export interface Publication {
  payload: Payload;
  type?: string | null;
  key?: string | null;
  headers?: Record<string, string> | null;
  ttl?: number | null;
  idempotencyKey?: string | false | null;
}

export interface Receipt {
  /** Its place in the log; null for a conflated message, which has none yet. */
  readonly id: number | null;
  readonly topic: string;
  readonly position: string | null;
  /** When, in microseconds since 1970. */
  readonly at: number;
  readonly time: Date;
  /** Whether it is on disk. */
  readonly durable: boolean;
  /** The idempotency key was seen before; this is the first message's receipt. */
  readonly duplicate: boolean;
}

export interface Member {
  readonly client: string;
  readonly info: Record<string, unknown>;
  readonly joinedAt: Date;
}

export interface Members {
  readonly topic: string;
  readonly members: Member[];
  /** False: there are more than the server lists. */
  readonly isComplete: boolean;
}

export interface ConflatedEntry<P = any> {
  readonly key: string;
  readonly payload: P;
  readonly type: string | null;
}

/** A message, as it is in the log. */
export class Message<P = any> {
  private constructor();
  /** Its place in the log, over all topics. */
  readonly id: number;
  readonly topic: string;
  readonly type: string | null;
  readonly key: string | null;
  readonly headers: Record<string, string>;
  /** Plain values, or a Uint8Array for bytes. */
  readonly payload: P;
  /** How it is stored. What JSON cannot say of MessagePack comes as its bytes. */
  readonly format: "json" | "bytes" | "msgpack";
  /** When it was published, in microseconds since 1970. */
  readonly at: number;
  /** When it expires, in microseconds since 1970. */
  readonly expiresAt: number | null;
  /** The latest entry of each key, for a conflated message; empty for any other. */
  readonly conflated: ConflatedEntry[];
  readonly epoch: string;
  /** `epoch:id`. Resume after it and the next message follows. */
  readonly position: string;
  readonly time: Date;
}

export interface Gap {
  readonly reason: "trimmed" | "epoch_changed";
  /** The position that was asked for. */
  readonly after: string;
  /** The position after which messages follow. */
  readonly resumes: string;
}

export interface SubscriptionEvents {
  /** The server has taken it: at the start, and after each reconnect. */
  subscribed: { position: string };
  /** It went on where it was; nothing is missing. */
  recovered: { position: string };
  /** Messages were removed before they could be read. */
  gap: Gap;
  /** By the topic's policy, messages were left out because this client was too slow. */
  dropped: { messages: number; through: string };
  presence: { joined: Member[]; left: string[]; members: Member[] };
  /** The server could not take it now, for example because another holds the consumer. */
  retrying: { error: PenstockError; retryInMs: number };
  /** It has ended. */
  error: PenstockError;
  closed: { error: PenstockError | null };
}

/** A topic or glob, followed. Without an `onMessage` function, loop over it: one loop at a time. */
export class Subscription<P = any> implements AsyncIterable<Message<P>> {
  private constructor();
  /** The topic or glob. */
  readonly topic: string;
  /** Resolves when the server has taken the subscription; rejects if it never will. */
  readonly ready: Promise<this>;
  /** `epoch:offset` of the last message that was handed out, or where the subscription began. */
  readonly position: string | null;
  /** Who is present, if `presence` was asked for. */
  readonly members: Member[];
  readonly isClosed: boolean;
  /** Why it ended, if not by `close()`. */
  readonly error: PenstockError | null;
  /** Everything up to here was processed. Default: the last message that was handed out. Resolves to where the consumer is. */
  ack(position?: string | Message<P>): Promise<string>;
  close(): void;
  /** The same messages, as many at once as there are. */
  batches(max?: number): AsyncGenerator<Message<P>[], void, void>;
  [Symbol.asyncIterator](): AsyncGenerator<Message<P>, void, void>;
  /** Returns a function that ends the listening. */
  on<E extends keyof SubscriptionEvents>(event: E, listener: (detail: SubscriptionEvents[E]) => void): () => void;
}

/** A message of a mailbox. */
export class Mail<P = any> {
  private constructor();
  /** By which it is acknowledged. */
  readonly id: string;
  readonly mailbox: string;
  /** Counts up by one for each message of the mailbox. */
  readonly seq: number;
  /** "quota": the mailbox was full, and what came next was refused. "gap": some are missing. */
  readonly kind: "message" | "quota" | "gap";
  /** Plain values, or a Uint8Array for bytes; null for a "quota". */
  readonly payload: P;
  readonly format: "json" | "bytes" | "msgpack";
  readonly type: string | null;
  readonly key: string | null;
  readonly headers: Record<string, string>;
  /** Where it was published, if it came from a topic. */
  readonly topic: string | null;
  /** Its place there. */
  readonly position: string | null;
  /** Of a gap: how many messages; 0 if that is not known. */
  readonly missing: number;
  /** When it was put, in microseconds since 1970. */
  readonly at: number;
  readonly time: Date;
}

export interface Posted {
  readonly id: string;
  readonly seq: number;
  /** It is the only message in the mailbox. */
  readonly wasEmpty: boolean;
  /** False: the mailbox had a message of this id already. */
  readonly isNew: boolean;
}

export interface MailboxEvents {
  /** The server pushes it: at the start, and after each reconnect. */
  opened: { messages: number; window: number };
  /** The server could not open it now. */
  retrying: { error: PenstockError; retryInMs: number };
  /** It has ended. */
  error: PenstockError;
  closed: { error: PenstockError | null };
}

/** A recipient's own queue, which keeps every message until it is acknowledged. */
export class Mailbox<P = any> implements AsyncIterable<Mail<P>> {
  private constructor();
  /** Its name. */
  readonly id: string;
  readonly isClosed: boolean;
  /** Why it ended, if not by `close()`. */
  readonly error: PenstockError | null;
  /** Called with each message, in order; acknowledge it for the next to come. */
  onmail: ((mail: Mail<P>) => void) | null;
  /** It is on disk when this resolves. Put again under the same `id`, it is stored once. */
  put(payload: Payload, options?: { id?: string; type?: string; timeout?: number }): Promise<Posted>;
  /** The first message that was not handed out yet, once there is one. */
  next(): Promise<Mail<P>>;
  /** In the order of the messages; with `through`, all up to this one. */
  ack(mail: Mail<P> | string, options?: { through?: boolean }): Promise<boolean>;
  close(): void;
  /** Asking for the next message acknowledges the one before. */
  [Symbol.asyncIterator](): AsyncGenerator<Mail<P>, void, void>;
  /** Returns a function that ends the listening. */
  on<E extends keyof MailboxEvents>(event: E, listener: (detail: MailboxEvents[E]) => void): () => void;
}

export type HubState = "connecting" | "connected" | "disconnected" | "closed";

export interface HubEvents {
  connecting: { url: string; attempt: number };
  connected: { url: string; client: string; instance: string; epoch: string; version: string };
  /** The connection is gone, and is made again after `retryInMs`. */
  disconnected: { code: number; reason: string; retryInMs: number; error: PenstockError | null };
  /** For good: by `close()`, or because connecting again would not help. */
  closed: { error: PenstockError | null };
  /** What nobody else listened to: a subscription that was refused, a token that could not be had. */
  error: PenstockError;
}

/** A connection to a penstock server that finds its way back. */
export class Hub {
  private constructor();
  readonly state: HubState;
  /** Why it closed, if not by `close()`. */
  readonly error: PenstockError | null;
  /** The server it is connected to, or tries next. */
  readonly url: string;
  /** This client's name in presence lists. */
  readonly client: string | null;
  /** The server process that answers. */
  readonly instance: string | null;
  readonly version: string | null;
  /** The database and its generation. */
  readonly epoch: string | null;
  /** Publishes without a receipt yet. */
  readonly pending: number;
  /** Resolves when it is connected; rejects if it is closed before. */
  ready(): Promise<this>;
  subscribe<P = any>(topic: string, options?: SubscribeOptions, onMessage?: ((message: Message<P>) => void) | null): Subscription<P>;
  subscribe<P = any>(topic: string, onMessage: (message: Message<P>) => void): Subscription<P>;
  /** The same object for the same name, until it is closed. */
  mailbox<P = any>(id: string, options?: { window?: number }): Mailbox<P>;
  /** The receipt means that the message is on disk. */
  publish(topic: string, payload: Payload, options?: PublishOptions): Promise<Receipt>;
  /** All of them or none, in one transaction. */
  publishMany(topic: string, messages: Iterable<Publication>, options?: { timeout?: number }): Promise<Receipt[]>;
  /** Who is present on a topic, by whichever server. */
  presence(topic: string): Promise<Members>;
  /** Forget the wait between attempts, and connect now. */
  reconnect(): void;
  /** Close for good, after what was published has its receipts (for up to `timeout` seconds, by default 5). */
  close(options?: { timeout?: number }): Promise<void>;
  /** Returns a function that ends the listening. */
  on<E extends keyof HubEvents>(event: E, listener: (detail: HubEvents[E]) => void): () => void;
}

/** Something went wrong. `code` is stable, and the same as on the server. */
export class PenstockError extends Error {
  constructor(message?: string, details?: { code?: string; retryable?: boolean; hint?: string; cause?: unknown });
  readonly code: string;
  /** Whether trying again can help. */
  readonly retryable: boolean;
  readonly hint: string;
  /** For a publish that failed: publish again under this key and it is stored at most once. */
  readonly idempotencyKey: string | null;
}
export class InvalidInput extends PenstockError {}
export class InvalidPayload extends InvalidInput {}
export class PayloadTooLarge extends InvalidPayload {}
export class BadRequest extends InvalidInput {}
export class Unauthorized extends PenstockError {}
export class Forbidden extends PenstockError {}
export class RateLimited extends PenstockError {}
export class LimitReached extends PenstockError {}
export class Disconnected extends PenstockError {}
export class OutcomeUnknown extends PenstockError {}
export class WriteTimeout extends OutcomeUnknown {}
export class QueueFull extends PenstockError {}
export class HubClosed extends PenstockError {}
export class ConsumerBusy extends PenstockError {}
export class IdempotencyConflict extends PenstockError {}
export class InvalidMailbox extends InvalidInput {}
export class QuotaExceeded extends PenstockError {}
export class WrongAck extends PenstockError {}
export class MailboxTaken extends PenstockError {}
