/* The page of the admin listener: shows /status and performs actions. See docs/operator-page.md. */

const INTERVAL_MS = 2000;
const HISTORY_MS = 10_000; // between requests of the last hour, and the time of one of its points
const HOUR_MS = 3_600_000;
const TOKEN = "tornado-signal admin token"; // its name in the storage of the tab
const ROWS = 20;
const CLIENTS = 8;

const find = (id) => document.getElementById(id);
const token = sessionStorage.getItem(TOKEN);
const headers = token ? { Authorization: `Bearer ${token}` } : {};
const capital = (text) => text[0].toUpperCase() + text.slice(1);
const nameOf = ({ server, worker }) => (worker ? `${server}/${worker}` : server);
const versionOf = ({ version }) => version.slice(0, 12);
const time = (ms) => new Date(ms).toTimeString().slice(0, 5);
const date = (ms) => new Date(ms).toLocaleString("sv");
const total = (numbers) => numbers.reduce((sum, number) => sum + (number ?? 0), 0);
const percent = (share) => `${Math.round(100 * share)} %`;
const numbers = { maximumFractionDigits: 1, maximumSignificantDigits: 3, roundingPriority: "morePrecision" };
const short = (value) => value?.toLocaleString("en", numbers) ?? "–";
const bytes = { notation: "compact", style: "unit", unit: "byte", unitDisplay: "narrow", maximumSignificantDigits: 3 };
const size = (value) => (value ?? 0).toLocaleString("en", bytes);

function duration(ms) {
  const [days, hours, minutes] = [ms / 86_400_000, (ms / HOUR_MS) % 24, (ms / 60_000) % 60].map(Math.floor);
  return days ? `${days} d ${hours} h` : hours ? `${hours} h ${minutes} min` : `${minutes} min`;
}

// Elements

function make(name, attributes = {}, ...children) {
  const kind = ["svg", "path"].includes(name) ? "http://www.w3.org/2000/svg" : "http://www.w3.org/1999/xhtml";
  const made = document.createElementNS(kind, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

/**
 * Show a table, unless it shows the same, and the number of its rows if it is folded. Columns whose heading begins with #
 * have numbers, and the row `most` is bold. Without a token there are no actions.
 */
function fill(id, headings, rows, empty, most) {
  const classes = headings.map((text) => (text[0] === "#" ? { class: "number" } : {}));
  const rowOf = (name, cells, attributes = {}) => {
    const made = cells.map((cell, at) => make(name, classes[at], ...[cell].flat()));
    return make("tr", attributes, ...made.filter((_, at) => token || headings[at] !== "Actions"));
  };
  const texts = rows.map((cells) => cells.map((cell) => (typeof cell === "number" ? short(cell) : cell)));
  const body = texts.map((cells, at) => rowOf("td", cells, at === most ? { class: "most" } : {}));
  if (!rows.length) body.push(make("tr", {}, make("td", { colspan: headings.length, class: "quiet" }, empty)));
  const head = headings.map((text) => capital(text.replace("#", "").replaceAll("_", " ")));
  const table = make("table", { id }, make("thead", {}, rowOf("th", head)), make("tbody", {}, ...body));
  const before = find(id);
  for (const number of document.querySelectorAll(`#${id}-number`)) number.textContent = rows.length;
  if (before.isEqualNode(table)) return;
  const focused = before.contains(document.activeElement) && document.activeElement.ariaLabel;
  before.replaceWith(table);
  if (focused) [...table.querySelectorAll("button")].find((each) => each.ariaLabel === focused)?.focus();
}

for (const title of ["Origins", "Topics", "Servers", "Addresses", "Log", "Settings"]) {
  const id = title.toLowerCase();
  const table = make("div", { class: "wide", tabindex: 0, role: "region", "aria-label": title }, make("table", { id }));
  const summary = make("summary", {}, title, " ", make("span", { id: `${id}-number` }));
  find("state").append(make("details", {}, summary, table));
}

// Actions

/** Ask, perform an action, and show its result. */
async function act(text, name, fields) {
  if (!confirm(`${text}?`)) return;
  const say = (said, bad) => Object.assign(find("outcome"), { textContent: text + said, className: bad ? "bad" : "" });
  say(" …");
  try {
    const response = await fetch(`actions/${name}`, { method: "POST", headers, body: JSON.stringify(fields) });
    const { results, missing, error, reason } = await response.json();
    if (!response.ok) throw new Error(error ?? reason);
    const lines = results.map(({ process, ...result }) => {
      const values = Object.entries(result).map(([name, value]) => `${name.replaceAll("_", " ")}: ${value}`);
      return `${process}: ${values.join(", ")}`;
    });
    lines.push(...missing.map((process) => `${process} did not respond`));
    say(`: ${lines.join("; ")}`, missing.length);
  } catch (error) {
    say(` failed: ${error.message}`, true);
  }
}

/** Return a button of a table that performs an action. */
function button(text, name, fields) {
  const made = make("button", { type: "button", "aria-label": text }, text.split(" ")[0]);
  made.addEventListener("click", () => act(text, name, fields));
  return made;
}

// The meanings of the text in the field, the first that fits, and the field of the action.
const KINDS = [
  ["an origin", /^https?:\/\//, "origin"],
  ["a subject of tokens", /^sub:./, "subject"],
  ["a network", /^[\da-f:.]+\/\d+$/i, "address"],
  ["an address", /^(?=.*[.:])[\da-f:.]+$/i, "address"],
  ["a session code", /./, "code"],
];
const meaning = () => KINDS.find(([, pattern]) => pattern.test(find("about").value.trim())) ?? [];

find("about").addEventListener("input", () => {
  const [text, , field] = meaning();
  find("kind").textContent = text ? `is ${text}` : "";
  for (const each of document.querySelectorAll("[data-for]"))
    each.hidden = !each.dataset.for.split(" ").includes(field);
});
find("actions").addEventListener("submit", (event) => {
  event.preventDefault();
  const { textContent: text, value: name } = event.submitter;
  const [, , field] = meaning();
  const fields = {
    [field]: find("about")
      .value.trim()
      .replace(/^sub:|(?<=^https?:.*)\/$/, ""),
  };
  if (field === "code") fields.origin = find("origin").value.trim();
  if (name === "block") fields.seconds = Number(find("seconds").value);
  act(`${text} ${fields[field]}`, name, fields);
});
find("drain").addEventListener("click", () => act("Drain and stop this server", "drain", {}));

// Messages

let state; // the latest message
let points = []; // of the last hour, as objects
const events = []; // what happened while the page was open

const event = (time, process, text) => ({ time, from: nameOf(process), level: "event", message: text });
const startOf = (process) => event(1000 * process.started_s, process, `has started, version ${versionOf(process)}`);
const of = (list) => state.processes.flatMap((process) => process[list] ?? []);

function receive(message) {
  for (const process of state?.processes ?? []) {
    const now = message.processes.find(({ id }) => id === process.id);
    if (!now) events.push(startOf(process), event(message.time, process, "has ended"));
    else if (now.figures.redis_failovers_total > process.figures.redis_failovers_total)
      events.push(event(message.time, process, "failover of Redis"));
  }
  events.splice(0, events.length - ROWS);
  state = message;
  const { columns, points: rows } = message.history ?? {};
  if (rows) points = rows.map((row) => Object.fromEntries(columns.map((name, at) => [name, row[at]])));
  showBand();
  if (!state.processes.length) return;
  const lines = listLines();
  showAnswers(lines.filter(({ level }) => level === "event"));
  showWhy(lines.filter(({ level }) => level !== "event"));
  showWho();
  showOthers(lines);
}

/** Return the log of all processes with the events, the latest first. */
function listLines() {
  const logs = [["supervisor", state.log], ...state.processes.map((each) => [nameOf(each), each.log])];
  const logged = logs.flatMap(([from, lines]) => lines.map((line) => ({ ...line, from, time: Date.parse(line.time) })));
  for (const line of logged) if (line.message.startsWith("operator at ")) line.level = "event";
  return [...logged, ...events, ...state.processes.map(startOf)].sort((a, b) => b.time - a.time);
}

/** Add up columns of entries with the same keys. Return rows of the keys and the sums. */
function addUp(entries, keys, columns) {
  const sums = new Map();
  for (const entry of entries) {
    const key = JSON.stringify(keys.map((name) => entry[name]));
    const before = sums.get(key) ?? columns.map(() => 0);
    for (const [at, name] of columns.entries()) before[at] += entry[name] ?? 0;
    sums.set(key, before);
  }
  return [...sums].map(([key, numbers]) => [...JSON.parse(key), ...numbers]);
}

// The band and the answers

function tell(level, word, cause, facts = "") {
  find("band").className = level;
  find("word").textContent = word;
  find("cause").textContent = cause;
  find("facts").textContent = facts;
}

function showBand() {
  const { verdict, processes, missing, time: now } = state;
  const { level, since, causes } = verdict;
  const word = since ? `${capital(level)} since ${time(since)} (${duration(now - since)})` : capital(level);
  const last = points.findLast(({ troubles }) => troubles.length);
  const ended = last && `The last trouble ended at ${time(last.time + HISTORY_MS)}`;
  const calm = ended ?? "No trouble in the last 60 minutes";
  const texts = causes.length ? causes.map(({ text }) => capital(text)) : [calm];
  const facts = processes.slice(0, 1).flatMap((process) => {
    const began = 1000 * Math.min(...processes.map(({ started_s }) => started_s));
    return [`${process.state} for ${duration(now - began)}`, `version ${versionOf(process)}`];
  });
  const count = processes.length + missing.length;
  if (count > 1) facts.push(`servers ${processes.length} of ${count}`);
  for (const [connected, failed, relayed] of addUp(of("reported"), [], ["connected", "unconnected", "relayed"])) {
    const all = connected + failed;
    const median = Math.max(...of("reported").map(({ median_s }) => median_s));
    const shares = `${percent(connected / all)} of ${short(all)} connections, ${percent(relayed / all)} by relay`;
    if (all) facts.push(median ? `${shares}, median ${median} s` : shares);
  }
  tell(level, word, `${texts.join(". ")}.`, facts.join(" · "));
  document.title = `${capital(level)}: tornado-signal`;
}

function showAnswers(marks) {
  const { processes, store, time: now } = state;
  const across = (at) => (360 * (1 - (now - at) / HOUR_MS)).toFixed(1);
  const events = marks.map((mark) => `M${across(mark.time)},32v8`).join("");
  const card = (title, scale, find, top, threshold, ...parts) => {
    const up = (value) => (40 - 40 * Math.min(1, value / top)).toFixed(1);
    const line = `M${points.map((point) => `${across(point.time)},${up(find(point) ?? 0)}`).join("L")}`;
    const limit = threshold ? `M0,${up(threshold)}h360` : "";
    const drawn = Object.entries({ events, line, limit }).map(([name, d]) => make("path", { class: name, d }));
    const attributes = { viewBox: "0 0 360 40", preserveAspectRatio: "none", "aria-hidden": "true" };
    const below = make("div", { class: "scale" }, make("span", {}, scale), "60 min");
    return make("li", {}, make("h2", {}, title), make("p", {}, ...parts), make("svg", attributes, ...drawn), below);
  };
  const figure = (text, name, ...more) => make("span", {}, make("strong", {}, text), ` ${name}`, ...more);
  const latest = points.at(-2) ?? points.at(-1); // the last one is not complete
  const rate = (name) => figure(short(latest[name] / 10), `${name}/s`);
  const worst = (name) => {
    const value = latest[`${name}_s`];
    return figure(short(value && 1000 * value), `ms ${name.replace("_", "-")}`);
  };
  const bar = (name, text, used, most) => {
    const share = { value: used / most, title: `${percent(used / most)} of the limit` };
    return figure(text, name, ...(most ? [make("meter", { high: 0.8, optimum: 0, ...share })] : []));
  };
  const room = (name) => [0, 1].map((at) => total(processes.map(({ room }) => room[name]?.[at])));
  const most = Number(processes[0].settings.max_sessions_per_origin.value);
  const { unanswered_sessions: sessions, store_bytes } = processes[0].figures;
  const bars = [
    bar("sessions", short(sessions), store?.origins[0]?.unanswered_sessions ?? 0, most),
    bar("connections", short(room("connections")[0]), ...room("connections")),
    bar("memory", size(total(processes.map(({ figures }) => figures.memory_bytes))), ...room("unread data")),
    bar("store", size(store_bytes), ...room("store")),
  ];
  const requests = (point) => point.requests / 10;
  const share = ({ requests, refused }) => refused / Math.max(requests, refused, 1);
  const top = 10 ** Math.ceil(Math.log10(Math.max(1, ...points.map(requests))));
  find("answers").replaceChildren(
    card("Traffic", `0 to ${short(top)} requests/s`, requests, top, 0, rate("requests"), rate("pairs")),
    card("Trouble", "refused: 0 to 20 %", share, 0.2, 0.05, rate("refused"), rate("failed")),
    card("Speed, 99 % within", "lag: 0 to 200 ms", ({ lag_s }) => lag_s, 0.2, 0.1, worst("wake_up"), worst("lag")),
    card("Room", "most used limit: 0 to 100 %", ({ used }) => used, 1, 0.8, ...bars),
  );
}

// The tables

function showWhy(lines) {
  const rows = addUp(of("refusals"), [5], [4, 2]).sort((a, b) => b[1] - a[1] || b[2] - a[2]);
  fill("refusals", ["Refused for", "#5 min", "#All"], rows.slice(0, CLIENTS), "Nothing was refused.");
  const strangers = addUp(of("refused_origins"), ["origin"], ["requests"]).slice(0, 3);
  const names = strangers.map(([origin, requests]) => `${origin} (${short(requests)})`).join(", ");
  find("strangers").textContent = names && `Refused origins: ${names}`;
  const warnings = lines.slice(0, 5).map((line) => [time(line.time), line.message]);
  fill("warnings", ["Time", "Warning"], warnings, "None.");
}

function actionsOn(address) {
  if (!/^[\da-f:./]+$/i.test(address)) return []; // a Unix socket, or merged clients
  const block = button(`Block ${address} for an hour`, "block", { address, seconds: 3600 });
  return [block, button(`Disconnect ${address}`, "disconnect", { address })];
}

function nearestLimit(address) {
  const used = of("addresses").flatMap((each) => (each.address === address ? Object.entries(each.used) : []));
  const [nearest] = used.sort(([, a], [, b]) => b - a);
  return nearest ? `${percent(nearest[1])} of ${nearest[0]}` : "–";
}

function showWho() {
  const harm = ([, refused, failed]) => refused + failed;
  const clients = addUp(of("clients"), ["client"], ["refused", "failed", "requests"]);
  const rows = clients.toSorted((a, b) => harm(b) - harm(a) || b[3] - a[3]).slice(0, CLIENTS);
  const alone = clients.filter(([name]) => !/\/(24|48)$/.test(name)); // networks repeat them
  const most = rows.findIndex((row) => harm(row) > total(alone.map(harm)) / 2);
  const cells = rows.map(([name, ...row]) => [name, actionsOn(name), ...row, nearestLimit(name)]);
  const heads = ["Client or network", "Actions", "#Refused", "#Failed", "#Requests", "#Of its limit"];
  fill("clients", heads, cells, "No requests in the last minutes.", most);
}

/** Fill the folded tables, and that of blocks. */
function showOthers(lines) {
  const { processes, store, time: now } = state;
  const use = ["watchers", "held_offers", "WebSockets"];
  const used = (list) => of(list).map((each) => ({ ...each, WebSockets: total(Object.values(each.websockets)) }));
  const heads = (names) => names.map((name) => `#${name}`);

  const numbers = ["unanswered_sessions", "topics", "requests", "refused", "failed", ...use];
  const ofOrigins = [...(store?.origins ?? []), ...used("origins"), ...of("recent_origins")];
  const origins = addUp(ofOrigins, ["origin"], numbers).slice(0, ROWS);
  const originRows = origins.map(([origin, ...row]) => {
    const end = origin ? [button(`Disconnect all of ${origin}`, "disconnect", { origin })] : [];
    return [origin || "none", end, ...row];
  });
  fill("origins", ["Origin", "Actions", ...heads(numbers)], originRows, "No origin has sessions or connections.");
  find("known").replaceChildren(...origins.map(([value]) => make("option", { value })));

  const placed = ["unanswered_sessions", ...use];
  const topics = addUp([...(store?.topics ?? []), ...used("topics")], ["topic", "origin"], placed);
  const topicRows = topics.slice(0, ROWS).map(([topic, origin, ...row]) => {
    const disconnect = button(`Disconnect the clients of ${topic}`, "disconnect", { origin, topic });
    const withdraw = button(`Withdraw the sessions of ${topic}`, "withdraw", { origin, topic });
    return [topic, [disconnect, withdraw], origin, ...row];
  });
  const hidden = "Topics can be private. The setting --admin-topics shows them.";
  const none = processes[0].topics ? "No topic has sessions or watchers." : hidden;
  fill("topics", ["Topic, room, id or hash", "Actions", "Origin", ...heads(placed)], topicRows, none);

  const figures = ["connections", "waiting_requests", "held_offers"];
  const servers = processes.map((process) => {
    const { memory_bytes, store_available, ...others } = process.figures;
    const since = duration(now - 1000 * process.started_s);
    const texts = [nameOf(process), process.state, versionOf(process), since, size(memory_bytes)];
    return [...texts, store_available ? "available" : "not available", ...figures.map((name) => others[name])];
  });
  const about = ["Process", "State", "Version", "Running for", "Memory", "Store"];
  fill("servers", [...about, ...heads(figures)], servers, "");

  const counts = ["connections", "waiting", "held_offers"];
  const addresses = addUp(of("addresses"), ["address"], counts).sort((a, b) => b[1] - a[1]);
  const addressRows = addresses
    .slice(0, ROWS)
    .map(([name, ...row]) => [name, actionsOn(name), ...row, nearestLimit(name)]);
  const addressHeads = ["Address", "Actions", ...heads(counts), "#Of its limit"];
  fill("addresses", addressHeads, addressRows, "No address has a connection.");

  const blocks = [...new Map(of("blocks"))].map(([address, until]) => {
    return [address, date(until), button(`Unblock ${address}`, "unblock", { address })];
  });
  fill("blocks", ["Blocked", "Until", "Actions"], blocks, "No address is blocked.");
  const logged = lines.map(({ time, from, level, message }) => [date(time), from, level, message]);
  fill("log", ["Time", "Server", "Level", "Message"], logged, "None.");
  const settings = Object.entries(processes[0].settings).map(([name, { value, source }]) => {
    return [`--${name.replaceAll("_", "-")}`, value, source ?? "default"];
  });
  settings.sort(([, , a], [, , b]) => (a === "default") - (b === "default"));
  fill("settings", ["Setting", "Value", "From"], settings, "");
}

// Requests

let historyAt = Number.NEGATIVE_INFINITY; // when the figures of the last hour were received

/** Request the state and show it, again and again until a token is needed. */
async function refresh() {
  const now = performance.now();
  const due = now - historyAt >= HISTORY_MS;
  try {
    const response = await fetch(due ? "status?history=1" : "status", { headers });
    find("access").hidden = response.status !== 401;
    find("state").hidden = [401, 403].includes(response.status);
    if (response.status === 401) {
      sessionStorage.removeItem(TOKEN);
      return tell("", "No access", token ? "This is not the admin token." : "This server asks for its admin token.");
    }
    if (response.status === 403)
      tell("", "No access", "Only this machine has access. For others, set --admin-token-file.");
    else {
      receive(await response.json());
      if (due) historyAt = now;
    }
  } catch {
    tell("failing", "No response", "The server does not respond. This page tries again.");
  }
  setTimeout(refresh, INTERVAL_MS);
}

find("access").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(TOKEN, find("token").value.trim());
  location.reload();
});
find("actions").hidden = !token;
find("no-actions").hidden = token;
refresh();
