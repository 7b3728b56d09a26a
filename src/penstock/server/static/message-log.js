/** The list of messages on the built-in page: bounded, newest first, never read as HTML. */

export const ROWS_MAX = 500;
const PREVIEW_MAX = 240;
const DETAIL_MAX = 100_000;

export class MessageLog {
  #rows;
  #empty;
  #waiting = [];
  #isScheduled = false;
  #isPaused = false;
  #filter = "";
  /** Called when what is shown, or waits, has changed. */
  onChange = () => {};

  /**
   * @param {HTMLElement} rows the list
   * @param {HTMLElement} empty what is shown instead of an empty one
   */
  constructor(rows, empty) {
    this.#rows = rows;
    this.#empty = empty;
  }

  /** Messages that arrived while it is paused, as far as they are kept. */
  get waiting() {
    return this.#waiting.length;
  }

  get isPaused() {
    return this.#isPaused;
  }

  set isPaused(isPaused) {
    this.#isPaused = isPaused;
    this.#schedule();
  }

  /** Show only rows in which this text occurs. */
  set filter(text) {
    this.#filter = text.trim().toLowerCase();
    for (const row of this.#rows.children) this.#applyFilter(row);
    this.#showEmpty();
  }

  /** A message, and how long it took; null if it is an old one. */
  add(message, latencyMs) {
    this.#enqueue({ message, latencyMs });
  }

  /** Something to say between the messages, such as that some are missing. */
  note(text) {
    this.#enqueue({ note: text });
  }

  clear() {
    this.#waiting = [];
    this.#rows.replaceChildren();
    this.#showEmpty();
    this.onChange();
  }

  #enqueue(item) {
    this.#waiting.push(item);
    if (this.#waiting.length > ROWS_MAX) this.#waiting.shift();
    if (this.#isPaused) this.onChange();
    else this.#schedule();
  }

  /** Rows are made once per frame, however many messages there are. */
  #schedule() {
    if (this.#isScheduled) return;
    this.#isScheduled = true;
    // A page in the background gets no frames, and is not looked at either.
    const next = document.hidden ? (work) => setTimeout(work, 200) : requestAnimationFrame;
    next(() => {
      this.#isScheduled = false;
      if (!this.#isPaused) this.#flush();
      this.onChange();
    });
  }

  #flush() {
    const rows = this.#waiting.splice(0).map((item) => this.#row(item));
    this.#rows.prepend(...rows.reverse());
    while (this.#rows.childElementCount > ROWS_MAX) this.#rows.lastElementChild.remove();
    this.#showEmpty();
  }

  #row({ message, latencyMs, note }) {
    const row = element("li", note ? "note" : "fresh");
    if (note) {
      row.textContent = note;
      return row;
    }
    const preview = previewOf(message);
    const summary = element("summary");
    const time = element("time", "time", clockTime(message.time));
    time.dateTime = message.time.toISOString();
    summary.append(
      time,
      element("span", "id", String(message.id)),
      Object.assign(element("span", "topic", message.topic), { title: message.topic }),
      element("span", "type", message.type ?? ""),
      element("span", "payload", preview),
      element("span", "latency", latencyMs === null ? "" : duration(latencyMs)),
    );
    const details = element("details");
    details.append(summary);
    details.addEventListener("toggle", () => details.childElementCount > 1 || details.append(detailOf(message)), {
      once: true,
    });
    row.append(details);
    row.searchText = [message.topic, message.type, message.key, preview, message.id].join(" ").toLowerCase();
    this.#applyFilter(row);
    return row;
  }

  #applyFilter(row) {
    row.hidden = Boolean(this.#filter) && !row.searchText?.includes(this.#filter);
  }

  #showEmpty() {
    this.#empty.hidden = [...this.#rows.children].some((row) => !row.hidden);
  }
}

/** An element with text in it. Text, never HTML: it comes from anybody who may publish. */
export function element(name, className = "", text = "") {
  const made = document.createElement(name);
  made.className = className;
  made.textContent = text;
  return made;
}

function detailOf(message) {
  const detail = element("div", "detail");
  const facts = element("dl");
  const add = (name, value) => {
    const pair = element("div");
    pair.append(element("dt", "", name), element("dd", "", value));
    facts.append(pair);
  };
  add("position", message.position);
  add("published", message.time.toISOString());
  if (message.type !== null) add("type", message.type);
  if (message.key !== null) add("key", message.key);
  if (message.expiresAt !== null) add("expires", new Date(message.expiresAt / 1000).toISOString());
  for (const [name, value] of Object.entries(message.headers)) add(name, value);
  detail.append(facts, element("pre", "", cut(prettyOf(message), DETAIL_MAX)));
  return detail;
}

function previewOf(message) {
  if (message.payload instanceof Uint8Array) return `${message.payload.length} bytes: ${hex(message.payload, 24)}`;
  if (message.conflated.length > 0) {
    const latest = message.conflated.map(({ key, payload }) => `${key}: ${JSON.stringify(payload)}`);
    return cut(latest.join(" · "), PREVIEW_MAX);
  }
  return cut(typeof message.payload === "string" ? message.payload : JSON.stringify(message.payload), PREVIEW_MAX);
}

function prettyOf(message) {
  if (message.payload instanceof Uint8Array) return hex(message.payload, DETAIL_MAX / 3);
  return typeof message.payload === "string" ? message.payload : JSON.stringify(message.payload, null, 2);
}

function hex(bytes, max) {
  const shown = Array.from(bytes.subarray(0, max), (byte) => byte.toString(16).padStart(2, "0"));
  return shown.join(" ") + (bytes.length > max ? " …" : "");
}

function cut(text, max) {
  return text.length > max ? `${text.slice(0, max)}…` : text;
}

function clockTime(time) {
  const pad = (number, width = 2) => String(number).padStart(width, "0");
  const parts = [time.getHours(), time.getMinutes(), time.getSeconds()].map((part) => pad(part));
  return `${parts.join(":")}.${pad(time.getMilliseconds(), 3)}`;
}

/** Milliseconds, for people. */
export function duration(ms) {
  if (ms < 1) return "< 1 ms";
  if (ms < 10) return `${ms.toFixed(1)} ms`;
  return ms < 10_000 ? `${Math.round(ms)} ms` : `${Math.round(ms / 1000)} s`;
}
