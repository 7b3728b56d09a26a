/** The built-in page: watch a topic live, publish to it, see who else is there. */

import { connect, PenstockError, Unauthorized } from "./penstock.js";
import { duration, element, MessageLog } from "./message-log.js";

const TOKEN_KEY = "penstock.token";
const FIRST_TOPIC = "demo";
const LATENCIES_MAX = 200;
const TOPICS_MAX = 200;

const at = (id) => document.getElementById(id);
const log = new MessageLog(at("rows"), at("empty"));
const latencies = [];
let received = 0;
let hub = null;
let subscription = null;
let subscribedAt = Infinity;

// The connection

/** This server, and others on the same database that the link names. The content security policy
 * lets the page connect only to those that the server's `origins` allow. */
function instances() {
  const others = fromAddress().getAll("also");
  return [document.baseURI, ...others].map((base) => new URL("ws", base).href);
}

function open() {
  subscription = null;
  hub?.close();
  const current = (hub = connect(instances(), { token: readToken() || null }));
  const show = (state, text, detail = "") => {
    if (hub !== current) return;
    at("state").dataset.state = state;
    at("state-text").textContent = text;
    at("state-detail").textContent = detail;
  };
  hub.on("connecting", () => show("connecting", "connecting"));
  hub.on("connected", ({ instance }) => {
    show("connected", "connected", instance);
    at("token-panel").hidden = true;
    showMembers(subscription?.members ?? []);
    suggestTopics();
  });
  hub.on("disconnected", ({ retryInMs }) => {
    show("disconnected", "disconnected", `next try in ${duration(retryInMs)}`);
    showMembers([]);
  });
  hub.on("closed", ({ error }) => {
    if (error === null || hub !== current) return;
    show("closed", "closed", error.message);
    if (error instanceof Unauthorized) askForToken(error.message);
  });
  watch(topicFromAddress() || at("topic").value || FIRST_TOPIC);
}

/** Topics that exist, for the fields to complete; without the right to list them, none. */
async function suggestTopics() {
  const token = readToken();
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  try {
    const response = await fetch(new URL("v1/topics", document.baseURI), { headers });
    if (!response.ok) return;
    const body = await response.json();
    const names = (body.topics ?? []).map((topic) => topic.name ?? topic).slice(0, TOPICS_MAX);
    at("topics").replaceChildren(
      ...names.map((name) => Object.assign(document.createElement("option"), { value: name })),
    );
  } catch {
    // The fields work without it.
  }
}

// The token

function readToken() {
  return sessionStorage.getItem(TOKEN_KEY) ?? "";
}

function askForToken(why = "") {
  at("token-why").textContent = why || "It is kept until this tab is closed.";
  at("token-title").textContent = why ? "This server asks for a token" : "Token";
  at("token-panel").hidden = false;
  at("token").focus();
}

at("token-open").addEventListener("click", () => {
  if (at("token-panel").hidden) askForToken();
  else at("token-panel").hidden = true;
});
at("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(TOKEN_KEY, at("token").value.trim());
  at("token").value = "";
  at("token-panel").hidden = true;
  open();
});
at("token-forget").addEventListener("click", () => {
  sessionStorage.removeItem(TOKEN_KEY);
  at("token").value = "";
  at("token-panel").hidden = true;
  open();
});

// Watching

function fromAddress() {
  return new URLSearchParams(location.hash.slice(1));
}

function topicFromAddress() {
  return fromAddress().get("topic") ?? "";
}

function isGlob(topic) {
  return /[*?]/.test(topic ?? "");
}

function watch(topic) {
  at("topic").value = topic;
  at("messages").classList.toggle("single", !isGlob(topic));
  if (!isGlob(topic)) at("publish-topic").value = topic;
  const address = fromAddress();
  address.set("topic", topic);
  history.replaceState(null, "", `#${address}`);
  document.title = `${topic} · penstock`;
  subscription?.close();
  showProblem("");
  log.clear();
  received = latencies.length = 0;
  subscribedAt = Infinity;
  const last = Number(at("from").value);
  const options = isGlob(topic) ? {} : { join: { page: "penstock" }, presence: true };
  try {
    follow(hub.subscribe(topic, { last: last || null, ...options }, receive));
  } catch (error) {
    showProblem(textOf(error));
  }
}

function follow(current) {
  subscription = current;
  showMembers([]);
  const whenCurrent = (work) => (detail) => subscription === current && work(detail);
  current.on("subscribed", whenCurrent(() => (subscribedAt = Math.min(subscribedAt, wallClock()))));
  current.on("presence", whenCurrent(({ members }) => showMembers(members)));
  current.on("gap", whenCurrent(({ reason }) => log.note(gapText(reason))));
  current.on("dropped", whenCurrent(({ messages }) => log.note(`${messages} messages were left out: this page was too slow.`)));
  current.on("retrying", whenCurrent(({ error }) => showProblem(textOf(error))));
  current.on("error", whenCurrent((error) => error instanceof Unauthorized || showProblem(textOf(error))));
}

function receive(message) {
  const sentAt = message.at / 1000;
  // What was there before has no latency; what came while the page was away does.
  const latency = sentAt < subscribedAt ? null : Math.max(0, wallClock() - sentAt);
  received += 1;
  if (latency !== null) {
    latencies.push(latency);
    if (latencies.length > LATENCIES_MAX) latencies.shift();
  }
  log.add(message, latency);
}

/** Milliseconds since 1970, finer than Date.now(). */
function wallClock() {
  return performance.timeOrigin + performance.now();
}

function gapText(reason) {
  return reason === "trimmed"
    ? "Messages are missing here: they were removed before this page could read them."
    : "The database was restored or replaced: what follows is another generation.";
}

function showFigures() {
  const parts = [`${received.toLocaleString("en")} messages`];
  if (latencies.length > 0) {
    const median = [...latencies].sort((a, b) => a - b)[latencies.length >> 1];
    parts.push(`median ${duration(median)}`);
  }
  at("figures").textContent = parts.join(" · ");
  const waits = log.isPaused && log.waiting > 0 ? ` (${log.waiting} new)` : "";
  at("pause").textContent = log.isPaused ? `Resume${waits}` : "Pause";
}

function showProblem(text) {
  at("watch-problem").textContent = text;
  at("watch-problem").hidden = !text;
}

function textOf(error) {
  return error instanceof PenstockError ? `${error.message} ${error.hint}`.trim() : String(error);
}

log.onChange = showFigures;
at("watch-form").addEventListener("submit", (event) => {
  event.preventDefault();
  watch(at("topic").value.trim());
});
at("pause").addEventListener("click", () => {
  log.isPaused = !log.isPaused;
  at("pause").setAttribute("aria-pressed", String(log.isPaused));
  showFigures();
});
at("clear").addEventListener("click", () => log.clear());
at("filter").addEventListener("input", (event) => (log.filter = event.target.value));
addEventListener("hashchange", () => watch(topicFromAddress() || FIRST_TOPIC));

// Who is there

function presenceNote() {
  if (hub.state !== "connected") return "Not connected.";
  return isGlob(subscription?.topic) ? "A glob has no list of its own." : "Nobody yet.";
}

function showMembers(members) {
  const rows = members
    .toSorted((a, b) => Number(b.client === hub.client) - Number(a.client === hub.client) || a.joinedAt - b.joinedAt)
    .map(({ client, info }) => {
      const row = element("li");
      row.title = JSON.stringify(info);
      row.append(element("span", "name", client));
      if (client === hub.client) row.append(element("span", "you", "this page"));
      return row;
    });
  at("members").replaceChildren(...rows);
  at("present-count").textContent = rows.length > 0 ? `(${rows.length})` : "";
  at("presence-note").textContent = rows.length > 0 ? "" : presenceNote();
  at("presence-note").hidden = rows.length > 0;
}

// Publishing

function readPayload() {
  const text = at("publish-payload").value;
  try {
    return { kind: "JSON", payload: JSON.parse(text) };
  } catch {
    return { kind: "Text", payload: text };
  }
}

async function publish() {
  const outcome = (text, kind = "") => {
    at("outcome").textContent = text;
    at("outcome").dataset.kind = kind;
  };
  const topic = at("publish-topic").value.trim();
  const options = { type: at("publish-type").value || null, key: at("publish-key").value || null };
  if (hub.state !== "connected") outcome("Waiting for a connection …");
  const began = performance.now();
  try {
    const receipt = await hub.publish(topic, readPayload().payload, options);
    outcome(`On disk as ${receipt.id}, after ${duration(performance.now() - began)}`);
  } catch (error) {
    outcome(textOf(error), "problem");
  }
}

at("publish-form").addEventListener("submit", (event) => {
  event.preventDefault();
  publish();
});
at("publish-payload").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) at("publish-form").requestSubmit();
});
at("publish-payload").addEventListener("input", () => (at("payload-kind").textContent = readPayload().kind));

open();
