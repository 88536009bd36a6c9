/* The page of the admin listener: shows the lines of /status and performs actions. See docs/operator-page.md. */

const INTERVAL_S = 2;
const KEPT = (15 * 60) / INTERVAL_S + 1; // messages for the charts
const FEWEST = 30; // points that a chart has room for at first
const RETRY_MS = 3000;
const TOKEN = "tornado-signal admin token"; // its name in the storage of the tab
const ROWS = 20; // of a table with several servers
const LOG_ROWS = 100;

/** @param {string} id */
const find = (id) => /** @type {HTMLElement} */ (document.getElementById(id));
const summary = find("summary");
const chooser = /** @type {HTMLSelectElement} */ (find("chosen"));
const all = /** @type {HTMLInputElement} */ (find("all"));
const token = () => sessionStorage.getItem(TOKEN);

/**
 * @typedef {{ time: string, level: string, logger: string, message: string }} Line
 * @typedef {{ bounds: number[], counts: number[] }} Histogram
 * @typedef {Record<string, number> & { wake_up_seconds: Histogram, loop_lag_seconds: Histogram }} Figures
 * @typedef {{ watchers: number, held_offers: number, websockets: Record<string, number> }} Use
 * @typedef {{ address: string, connections: number, waiting: number, held_offers: number,
 *   used: Record<string, number> }} Address
 * @typedef {{
 *   id: string, server: string, worker: number, version: string, state: string, started_s: number, figures: Figures,
 *   refusals: [number, string, number][], addresses: Address[], blocks: [string, number][],
 *   origins: (Use & { origin: string })[], topics: (Use & { origin: string, topic: string })[] | null,
 *   settings: Record<string, { value: string, source: string | null }>,
 *   log: Line[],
 * }} Process
 * @typedef {{
 *   origins: { origin: string, unanswered_sessions: number, topics: number }[],
 *   topics: { origin: string, topic: string, unanswered_sessions: number }[] | null,
 * }} Stored
 * @typedef {{ time: number, processes: Process[], missing: string[], store: Stored | null, log: Line[] }} Message
 * @typedef {{ time: number, figures: Map<string, Figures> }} Sample
 */

// Figures

/**
 * Return the upper bound below which a share of the values was observed between two samples, in milliseconds.
 *
 * @param {"wake_up_seconds" | "loop_lag_seconds"} name
 * @param {number} share
 */
const within = (name, share) => (/** @type {Figures[]} */ now, /** @type {Figures[]} */ before) => {
  const { bounds } = now[0][name];
  const counts = [...bounds, 0].map((_, at) =>
    now.reduce((sum, figures, index) => sum + figures[name].counts[at] - before[index][name].counts[at], 0),
  );
  const observed = counts.reduce((sum, count) => sum + count, 0);
  let below = 0;
  const place = counts.findIndex((count) => (below += count) >= share * observed);
  return observed > 0 ? 1000 * (bounds[place] ?? Number.NaN) : Number.NaN;
};

/**
 * Return the sum of all processes.
 *
 * @param {string} name
 */
const sum = (name) => (/** @type {Figures[]} */ now) => now.reduce((total, figures) => total + figures[name], 0);

/**
 * Return a number of the store, which all processes share.
 *
 * @param {string} name
 */
const shared = (name) => (/** @type {Figures[]} */ now) =>
  Math.max(...now.map((figures) => figures[name] ?? Number.NaN));

/**
 * Return the increase per second. A process that has restarted counts from 0.
 *
 * @param {string} name
 */
const rate = (name) => (/** @type {Figures[]} */ now, /** @type {Figures[]} */ before, /** @type {number} */ seconds) =>
  now.reduce((total, figures, index) => total + Math.max(0, figures[name] - before[index][name]), 0) / seconds;

/** @typedef {(now: Figures[], before: Figures[], seconds: number) => number} Value */
/** @type {{ name: string, unit: string, value: Value }[]} */
const FIGURES = [
  { name: "Requests", unit: "/s", value: rate("requests_total") },
  { name: "Pairs", unit: "/s", value: rate("answered_total") },
  { name: "Refused requests", unit: "/s", value: rate("refusals_total") },
  { name: "Waiting requests", unit: "", value: sum("waiting_requests") },
  { name: "Connections", unit: "", value: sum("connections") },
  { name: "WebSockets", unit: "", value: sum("websockets") },
  { name: "Unanswered sessions", unit: "", value: shared("unanswered_sessions") },
  { name: "Held offers", unit: "", value: sum("held_offers") },
  { name: "Wake-up time, half within", unit: " ms", value: within("wake_up_seconds", 0.5) },
  { name: "Wake-up time, 99 % within", unit: " ms", value: within("wake_up_seconds", 0.99) },
  { name: "Loop lag, 99 % within", unit: " ms", value: within("loop_lag_seconds", 0.99) },
  { name: "CPU", unit: " %", value: (...samples) => 100 * rate("cpu_seconds_total")(...samples) },
  { name: "Memory", unit: " MiB", value: (now) => sum("memory_bytes")(now) / 2 ** 20 },
  { name: "Store", unit: " MiB", value: (now) => shared("store_bytes")(now) / 2 ** 20 },
];

/** @param {number} value */
function short(value) {
  if (!Number.isFinite(value)) return "–";
  return value.toLocaleString("en", value < 100 ? { maximumSignificantDigits: 3 } : { maximumFractionDigits: 0 });
}

// Elements

/**
 * @param {string} name
 * @param {Record<string, string>} attributes
 * @param {...(Node | string)} children
 */
function make(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

/** @type {Map<string, { value: HTMLElement, line: SVGPolylineElement }>} */
const charts = new Map();
const SVG = "http://www.w3.org/2000/svg";
for (const { name } of FIGURES) {
  const value = make("strong");
  const drawing = document.createElementNS(SVG, "svg");
  drawing.setAttribute("preserveAspectRatio", "none");
  drawing.setAttribute("aria-hidden", "true");
  const line = document.createElementNS(SVG, "polyline");
  drawing.append(line);
  find("figures").append(make("li", {}, name, value, drawing));
  charts.set(name, { value, line });
}

/**
 * @param {string} name
 * @param {number[]} points
 * @param {string} unit
 */
function draw(name, points, unit) {
  const { value, line } = /** @type {{ value: HTMLElement, line: SVGPolylineElement }} */ (charts.get(name));
  const last = points.at(-1) ?? Number.NaN;
  value.textContent = Number.isFinite(last) ? short(last) + unit : "–";
  const finite = points.map((point) => (Number.isFinite(point) ? point : 0));
  const most = Math.max(...finite) || 1;
  line.ownerSVGElement?.setAttribute("viewBox", `0 0 ${Math.max(FEWEST, points.length) - 1} 100`);
  line.setAttribute("points", finite.map((point, index) => `${index},${100 - (95 * point) / most}`).join(" "));
}

/** @type {Map<string, string>} */
const shown = new Map(); // the content of each table

/**
 * Fill a table, unless it shows the same. Columns whose heading begins with # have numbers.
 *
 * @param {string} id
 * @param {string[]} headings
 * @param {(string | number | Node)[][]} rows
 * @param {string} empty
 */
function fill(id, headings, rows, empty) {
  const table = find(id);
  const label = (/** @type {unknown} */ cell) => (cell instanceof Element ? cell.outerHTML : cell);
  const content = JSON.stringify([headings, rows.map((row) => row.map(label))]);
  if (shown.get(id) === content) return;
  shown.set(id, content);
  const focused = table.contains(document.activeElement) ? document.activeElement?.getAttribute("aria-label") : null;
  const kind = (/** @type {number} */ column) => (headings[column].startsWith("#") ? { class: "number" } : {});
  const head = headings.map((text, column) => make("th", { scope: "col", ...kind(column) }, text.replace("#", "")));
  const body = rows.map((row) => {
    const cells = row.map((cell, column) => make("td", kind(column), typeof cell === "number" ? short(cell) : cell));
    return make("tr", {}, ...cells);
  });
  const none = make("tr", {}, make("td", { colspan: String(headings.length), class: "quiet" }, empty));
  const rest = body.length ? body : [none];
  table.replaceChildren(make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rest));
  if (focused) [...table.querySelectorAll("button")].find((button) => button.ariaLabel === focused)?.focus();
}

/** @param {number} seconds */
function duration(seconds) {
  const [days, hours, minutes] = [seconds / 86_400, (seconds / 3600) % 24, (seconds / 60) % 60].map(Math.floor);
  return days ? `${days} d ${hours} h` : hours ? `${hours} h ${minutes} min` : `${minutes} min`;
}

// Actions

/**
 * Return a button that performs an action.
 *
 * @param {string} text
 * @param {string} label
 * @param {string} name
 * @param {Record<string, unknown>} fields
 */
function button(text, label, name, fields) {
  const made = make("button", { type: "button", "aria-label": label }, text);
  made.addEventListener("click", () => act(name, fields, `${label}?`));
  return made;
}

/** @param {(string | number | Node)[]} cells */
const withActions = (...cells) => (token() ? cells : []);

/** @param {Record<string, unknown>} result */
const phrase = (result) =>
  Object.entries(result)
    .filter(([name]) => name !== "process")
    .map(([name, value]) => `${name.replaceAll("_", " ")}: ${value}`)
    .join(", ");

/**
 * Ask a question, and return whether the response is yes. Each question has a dialog of its own, because the `close` event
 * of an earlier one can be late.
 *
 * @param {string} text
 */
async function confirmed(text) {
  const dialog = /** @type {HTMLDialogElement} */ (make("dialog", { "aria-label": text }));
  const no = make("button", { value: "", autofocus: "" }, "Cancel");
  dialog.append(
    make("form", { method: "dialog" }, make("p", {}, text), make("button", { value: "yes" }, "Yes"), " ", no),
  );
  document.body.append(dialog);
  const closed = new Promise((resolve) => dialog.addEventListener("close", resolve, { once: true }));
  dialog.showModal();
  await closed;
  dialog.remove();
  return dialog.returnValue === "yes";
}

/**
 * Ask, perform an action, and show its result.
 *
 * @param {string} name
 * @param {Record<string, unknown>} fields
 * @param {string} text
 */
async function act(name, fields, text) {
  if (!(await confirmed(text))) return;
  const outcome = find("outcome");
  outcome.hidden = false;
  outcome.className = "";
  outcome.textContent = "In progress.";
  const body = JSON.stringify(fields);
  try {
    const response = await fetch(`actions/${name}`, { method: "POST", headers: authorization(), body });
    const { results, missing, error, reason } = await response.json();
    if (!response.ok) throw new Error(error ?? reason);
    const lines = results.map(
      (/** @type {Record<string, unknown>} */ result) => `${result.process}: ${phrase(result)}`,
    );
    for (const process of missing) lines.push(`${process} did not respond`);
    outcome.className = missing.length ? "bad" : "";
    outcome.textContent = `${text.replace("?", "")}: ${lines.join("; ")}`;
  } catch (error) {
    outcome.className = "bad";
    outcome.textContent = `${text.replace("?", "")} failed: ${error instanceof Error ? error.message : error}`;
  }
}

/** @returns {Record<string, string>} */
const authorization = () => (token() ? { Authorization: `Bearer ${token()}` } : {});

find("block").addEventListener("submit", (event) => {
  event.preventDefault();
  const fields = new FormData(/** @type {HTMLFormElement} */ (event.target));
  const address = String(fields.get("address")).trim();
  act("block", { address, seconds: Number(fields.get("seconds")) }, `Block ${address}?`);
});
find("log-level").addEventListener("submit", (event) => {
  event.preventDefault();
  const level = new FormData(/** @type {HTMLFormElement} */ (event.target)).get("level");
  act("log-level", { level }, `Change the log level of this server to ${level}?`);
});
find("compact").addEventListener("click", () => act("compact", {}, "Compact the store?"));
find("drain").addEventListener("click", () => act("drain", {}, "Drain and stop this server?"));

// Messages

/** @type {Sample[]} */
const samples = [];
/** @type {Map<string, Process>} */
const known = new Map(); // the latest of what the stream does not repeat
/** @type {Message | undefined} */
let latest;

/** @param {Process} process */
const nameOf = ({ server, worker }) => (worker ? `${server}/${worker}` : server);

/** @param {Message} message */
function receive(message) {
  message.processes = message.processes.map((process) => ({ ...known.get(process.id), ...process }));
  known.clear();
  for (const process of message.processes) known.set(process.id, process);
  samples.push({ time: message.time, figures: new Map(message.processes.map(({ id, figures }) => [id, figures])) });
  if (samples.length > KEPT) samples.shift();
  latest = message;
  show(message);
}

/** Offer all processes, each server, and each worker. @param {Process[]} processes */
function offerChoices(processes) {
  const servers = [...new Set(processes.map(({ server }) => server))];
  const options = servers.flatMap((server) => {
    const names = processes.filter((process) => process.server === server).map(nameOf);
    return [...new Set([server, ...names])];
  });
  if (options.length > 1) options.unshift("all");
  find("chooser").hidden = options.length < 2;
  if (options.join() === [...chooser.options].map(({ value }) => value).join()) return;
  const chosen = chooser.value;
  chooser.replaceChildren(...options.map((value) => make("option", { value }, value)));
  chooser.value = options.includes(chosen) ? chosen : options[0];
}

/** Draw all charts. @param {Set<string>} ids */
function drawAll(ids) {
  /** @type {Map<string, number[]>} */
  const points = new Map(FIGURES.map(({ name }) => [name, []]));
  samples.slice(1).forEach(({ time, figures }, index) => {
    const before = samples[index];
    const both = [...ids].filter((id) => figures.has(id) && before.figures.has(id));
    if (!both.length) return;
    const [newer, older] = [figures, before.figures].map((each) =>
      both.map((id) => /** @type {Figures} */ (each.get(id))),
    );
    const seconds = (time - before.time) / 1000;
    for (const { name, value } of FIGURES) points.get(name)?.push(value(newer, older, seconds));
  });
  for (const { name, unit } of FIGURES) draw(name, points.get(name) ?? [], unit);
}

const PROTOCOLS = {
  "/ws": "/ws",
  "/peerjs": "PeerJS",
  "/y-webrtc": "y-webrtc",
  "/tracker": "trackers",
  "/nostr": "Nostr",
};

/**
 * Add the use of several processes, by a key.
 *
 * @template {Use} T
 * @param {T[]} uses
 * @param {(use: T) => string} key
 */
function addUp(uses, key) {
  /** @type {Map<string, T>} */
  const sums = new Map();
  for (const use of uses) {
    const earlier = sums.get(key(use));
    const websockets = { ...earlier?.websockets };
    for (const [path, count] of Object.entries(use.websockets)) websockets[path] = (websockets[path] ?? 0) + count;
    sums.set(key(use), {
      ...use,
      watchers: use.watchers + (earlier?.watchers ?? 0),
      held_offers: use.held_offers + (earlier?.held_offers ?? 0),
      websockets,
    });
  }
  return sums;
}

const NO_USE = { watchers: 0, held_offers: 0, websockets: {} };

/** @param {Use} use */
const useCells = ({ watchers, held_offers, websockets }) => [
  watchers,
  held_offers,
  ...Object.keys(PROTOCOLS).map((path) => /** @type {Record<string, number>} */ (websockets)[path] ?? 0),
];
const USE_HEADINGS = ["#Watchers", "#Held offers", ...Object.values(PROTOCOLS).map((name) => `#${name}`)];

/** @param {Process[]} processes @param {Stored | null} store */
function showOrigins(processes, store) {
  const used = addUp(
    processes.flatMap(({ origins }) => origins),
    ({ origin }) => origin,
  );
  const stored = new Map((store?.origins ?? []).map((entry) => [entry.origin, entry]));
  const rows = [...new Set([...stored.keys(), ...used.keys()])]
    .slice(0, ROWS)
    .map((origin) => [
      origin,
      stored.get(origin)?.unanswered_sessions ?? 0,
      stored.get(origin)?.topics ?? 0,
      ...useCells(used.get(origin) ?? NO_USE),
      ...withActions(button("Disconnect", `Disconnect ${origin}`, "disconnect", { origin })),
    ]);
  const headings = ["Origin", "#Unanswered", "#Topics", ...USE_HEADINGS, ...withActions("Action")];
  fill("origins", /** @type {string[]} */ (headings), rows, "No origin has sessions or connections.");

  const topics = processes[0].topics;
  find("topics-hidden").hidden = topics !== null;
  find("topics-region").hidden = topics === null;
  if (topics === null) return;
  const key = (/** @type {{ origin: string, topic: string }} */ entry) => JSON.stringify([entry.origin, entry.topic]);
  const usedTopics = addUp(
    processes.flatMap(({ topics }) => topics ?? []),
    key,
  );
  const storedTopics = new Map((store?.topics ?? []).map((entry) => [key(entry), entry.unanswered_sessions]));
  const topicRows = [...new Set([...storedTopics.keys(), ...usedTopics.keys()])].slice(0, ROWS).map((place) => {
    const [origin, topic] = JSON.parse(place);
    const withdraw = button("Withdraw", `Withdraw the sessions of ${topic}`, "withdraw", { origin, topic });
    const cells = useCells(usedTopics.get(place) ?? NO_USE);
    return [origin, topic, storedTopics.get(place) ?? 0, ...cells, ...withActions(withdraw)];
  });
  const topicHeadings = ["Origin", "Topic, room, id or hash", "#Unanswered", ...USE_HEADINGS, ...withActions("Action")];
  fill("topics", /** @type {string[]} */ (topicHeadings), topicRows, "No topic has sessions or watchers.");
}

const LIMITS = ["connections", "waiting", "held", "requests", "sessions", "bytes"];

/** @param {Process[]} processes */
function showAddresses(processes) {
  const several = processes.length > 1;
  const entries = processes.flatMap((process) => process.addresses.map((address) => ({ process, ...address })));
  entries.sort((a, b) => b.connections - a.connections);
  const rows = entries
    .slice(0, ROWS)
    .map(({ process, address, connections, waiting, held_offers, used }) => [
      address,
      ...(several ? [nameOf(process)] : []),
      ...[connections, waiting, held_offers],
      ...LIMITS.map((name) => (name in used ? `${Math.round(100 * used[name])} %` : "no limit")),
      ...withActions(
        make(
          "span",
          {},
          button("Disconnect", `Disconnect ${address}`, "disconnect", { address }),
          " ",
          button("Block", `Block ${address} for an hour`, "block", { address, seconds: 3600 }),
        ),
      ),
    ]);
  const used = LIMITS.map((name) => `#${name} used`);
  const counts = ["#Connections", "#Waiting", "#Held offers"];
  const headings = ["Address", ...(several ? ["Server"] : []), ...counts, ...used, ...withActions("Actions")];
  fill("addresses", /** @type {string[]} */ (headings), rows, "No address has a connection.");
}

/** @param {Process[]} processes @param {number} time */
function showServers(processes, time) {
  find("servers-section").hidden = processes.length < 2;
  const rows = processes.map((process) => [
    nameOf(process),
    process.state,
    process.version.slice(0, 12),
    duration(time / 1000 - process.started_s),
    process.figures.connections,
    process.figures.waiting_requests,
    process.figures.held_offers,
    process.figures.memory_bytes / 2 ** 20,
    process.figures.store_available ? "available" : "not available",
  ]);
  const numbers = ["#Connections", "#Waiting", "#Held offers", "#Memory (MiB)"];
  fill("servers", ["Process", "State", "Version", "Running for", ...numbers, "Store"], rows, "");
}

/** @param {Message} message */
function show(message) {
  offerChoices(message.processes);
  const chosen = message.processes.filter(
    (process) => chooser.value === "all" || [nameOf(process), process.server].includes(chooser.value),
  );
  const missing = find("missing");
  missing.hidden = !message.missing.length;
  missing.textContent = `No response from: ${message.missing.join(", ")}`;
  if (!chosen.length) {
    summary.textContent = "No process responds.";
    return;
  }
  find("no-actions").hidden = token() !== null;
  find("actions").hidden = token() === null;
  drawAll(new Set(chosen.map(({ id }) => id)));

  const [{ version, settings }] = chosen;
  const conditions = [...new Set(chosen.map(({ state }) => state))].join(", ");
  const available = chosen.every(({ figures }) => figures.store_available);
  const up = duration(message.time / 1000 - Math.min(...chosen.map(({ started_s }) => started_s)));
  summary.className = available ? "" : "bad";
  summary.textContent = `${conditions} for ${up}, version ${version.slice(0, 12)}${available ? "" : ", the store is not available"}`;

  showServers(message.processes, message.time);
  showOrigins(chosen, message.store);
  showAddresses(chosen);

  /** @type {Map<string, number>} */
  const reasons = new Map();
  for (const [status, reason, count] of chosen.flatMap(({ refusals }) => refusals)) {
    const key = `${status}\n${reason}`;
    reasons.set(key, (reasons.get(key) ?? 0) + count);
  }
  const refused = [...reasons].sort(([, a], [, b]) => b - a).map(([key, count]) => [...key.split("\n"), count]);
  fill("refusals", ["Status", "Reason", "#Since the start"], refused, "None.");

  const blocks = new Map(chosen.flatMap(({ blocks }) => blocks));
  const blockRows = [...blocks].map(([address, until]) => [
    address,
    new Date(until).toISOString().slice(0, 16).replace("T", " "),
    button("Unblock", `Unblock ${address}`, "unblock", { address }),
  ]);
  fill("blocks", ["Blocked", "Until (UTC)", "Action"], blockRows, "No address is blocked.");

  const log = chosen.flatMap((process) => process.log.map((line) => ({ ...line, process: nameOf(process) })));
  log.push(...message.log.map((line) => ({ ...line, process: "supervisor" })));
  log.sort((a, b) => b.time.localeCompare(a.time));
  const entries = log
    .slice(0, LOG_ROWS)
    .map(({ time, process, level, message }) => [
      ...[time.slice(0, 19).replace("T", " "), ...(chosen.length > 1 ? [process] : [])],
      ...[level, message],
    ]);
  const source = chosen.length > 1 ? ["Server"] : [];
  fill("log", ["Time (UTC)", ...source, "Level", "Message"], entries, "None since the start.");

  const listed = Object.entries(settings).filter(([, { source }]) => all.checked || source);
  const values = listed.map(([name, { value, source }]) => [
    `--${name.replaceAll("_", "-")}`,
    value,
    source ?? "default",
  ]);
  fill("settings", ["Setting", "Value", "From"], values, "All settings have their default.");
}

const showAgain = () => latest && show(latest);
chooser.addEventListener("change", showAgain);
all.addEventListener("change", showAgain);

// Stream

/** Read the stream and show each line, until it ends. */
async function follow() {
  const presented = token();
  const response = await fetch(`status?interval=${INTERVAL_S}`, { headers: authorization() });
  const denied = response.status === 401;
  find("access").hidden = !denied;
  if (denied) {
    summary.textContent = presented ? "This is not the admin token." : "This server asks for its admin token.";
    sessionStorage.removeItem(TOKEN);
    find("state").hidden = true;
    await new Promise((resolve) => find("access").addEventListener("submit", resolve, { once: true }));
    return;
  }
  if (response.status === 403) {
    summary.textContent = "Only this machine has access. For others, set --admin-token-file.";
    return;
  }
  if (!response.ok || !response.body) throw new Error(String(response.status));
  find("state").hidden = false;
  known.clear();
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ; ) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop() ?? "";
    for (const line of lines) receive(JSON.parse(line));
  }
}

find("access").addEventListener("submit", (event) => {
  event.preventDefault();
  const field = /** @type {HTMLInputElement} */ (find("token"));
  sessionStorage.setItem(TOKEN, field.value.trim());
  field.value = "";
});

for (;;) {
  const began = Date.now();
  try {
    await follow();
  } catch {
    summary.className = "bad";
    summary.textContent = "The server does not respond. This page tries again.";
  }
  if (find("access").hidden) await new Promise((resolve) => setTimeout(resolve, RETRY_MS - (Date.now() - began)));
}
