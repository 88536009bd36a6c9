/*
 * Finding peers through tornado-signal and connecting to them. Three layers:
 *
 *   SignalClient                 the API of one server, call by call
 *   publish(topic), join(topic)  WebRTC connections whose data channel is open
 *   pair(topic)                  one such connection, with whichever page comes next
 *   room(topic)                  everybody who is there, connected to everybody
 *
 * client.d.ts describes them. On the wire an offer or answer is the JSON of an RTCSessionDescription, a candidate that
 * of an RTCIceCandidate; for what a room sends see `Room`.
 *
 * All that a page asks of a server goes over one WebSocket, or over HTTP where there is none to be had: see `Socket`.
 */

const REQUEST_MS = 15_000; // for an answer, beyond what was asked to wait
const OPEN_MS = 4000; // for a WebSocket to open
const HTTP_MS = 300_000; // how long HTTP is used where no WebSocket works
const IDLE_MS = 10_000; // how long a WebSocket stays open that nothing needs
const QUIET_MS = 60_000; // after which a WebSocket that is needed has to show that it works; longer than a wait
const MAX_MESSAGE = 65_536; // what is larger goes over HTTP, which can say that it is too large
const WAIT_S = 50; // below the minute after which many proxies give up
const TTL_MS = 120_000; // how long an offer outlives a page that vanished without a word
const REFRESH_MS = 40_000;
const RENEW_MS = 600_000; // how old an offer, or a TURN password, is at most when somebody uses it
const CONNECT_MS = 20_000; // from the answer to the open channel
const PAUSE_MS = 1000; // between two polls of a server that cannot wait
const MAX_PAUSE_MS = 10_000;
const FAILED_MS = 30_000; // for so long another server is asked first
const TRIES = 4; // before another server is asked
const WITHDRAW_TRIES = 16; // in about two minutes, as long as an offer lives
const GONE_MS = 3000; // from the end of the session to giving up
const SILENCE_MS = 45_000; // of a stream, which has a comment every 15 s
const CLOSE_MS = 2000; // for the other side to take what is still on its way
const PAIR_MS = 5000; // for two peers to connect, or to show that they are there
const BESIDE_MS = 1500; // about: then another one is tried beside a peer that says nothing
const AGAIN_MS = 2000; // in which a peer that was taken is listed again
const LOST_MS = 15_000; // of an interruption, after which another connection is made
const MAX_MAILS = 250; // to one beacon: the server's limits allow twice as many
const MAX_ATTEMPTS = 50; // at once that a room begins, and as many that others do: a page may have 500 connections
const MAX_BATCH = 100;
const MAX_NAME = 256;
const MAX_PEERS = 100; // of a listing
const NEGOTIATION = 255; // the number of the channel for it, far from those that a page opens itself
const EVENTS = ["session", "gone", "offer", "answer", "candidate"];
const READS = ["version", "health", "topics", "sessions", "iceServers"]; // are GET over HTTP
const PATHS = { version: "", iceServers: "ice-servers", hold: "refresh" }; // where they are not called as the method is
const JSON_BODY = { "Content-Type": "application/json" };
const PAIR = "pair/"; // what the topic of a pair begins with on the server
const ROOM = "room/"; // what the topic of a room begins with on the server: no offers are there that `join` could take
const STORED = "tornado-signal secret"; // what a page keeps its secret as
const { url: FILE = globalThis.location?.href } = import.meta; // none in some bundles
const HERE = FILE && new URL(".", FILE).href; // the server that this file came from

const random = (parts = 8) =>
  Array.from(crypto.getRandomValues(new Uint32Array(parts)), (part) => part.toString(36)).join("-");

let made; // when it is needed: not every Node can
const ownInfo = () => (made ??= random());

/** A server's refusal: HTTP's status, the server's own text, and after how many ms to try again, if it says so. */
export class SignalError extends Error {
  constructor(status, message, retryAfterMs) {
    super(message);
    this.name = "SignalError";
    this.status = status;
    this.retryAfterMs = retryAfterMs;
  }
}

/** The API of one server. Nothing is retried here. */
export class SignalClient {
  #headers;
  #socket;

  constructor(url = HERE, { origin, socket = true } = {}) {
    this.url = String(url).replace(/\/+$/, "");
    this.#headers = origin ? { Origin: origin } : {}; // which a browser sets by itself
    // Outside of browsers a WebSocket cannot be given an Origin, which the server insists on.
    if (socket && !origin && globalThis.WebSocket) this.#socket = socketTo(this.url);
  }

  /** The WebSocket that calls go over, opened if there is none; undefined where they go over HTTP. */
  async open() {
    return this.#socket?.open();
  }

  version(options) {
    return this.#call("version", {}, options);
  }

  health(options) {
    return this.#call("health", {}, options);
  }

  topics({ page, limit, ...options } = {}) {
    return this.#call("topics", { page, limit }, options);
  }

  sessions(topic, { wait, since, limit, ...options } = {}) {
    return this.#call("sessions", { topic: String(topic), wait, since, limit }, options, wait);
  }

  iceServers(options) {
    return this.#call("iceServers", {}, options);
  }

  offer(topic, { info, offer, ttl, secret, hold, ...options }) {
    return this.#call("offer", { topic: String(topic), info, offer, ttl, secret, hold }, options);
  }

  answer(code, answer, { secret, ...options } = {}) {
    return this.#call("answer", { code, side: "answerer", answer, secret }, options);
  }

  candidate(code, side, candidate, { secret, ...options } = {}) {
    return this.#call("answer", { code, side, candidate, secret }, options);
  }

  candidates(code, side, candidates, { secret, ...options } = {}) {
    return this.#call("answer", { code, side, candidates, secret }, options);
  }

  poll(code, side, { wait, since, secret, ...options } = {}) {
    return this.#call("poll", { code, side, wait, since, secret }, options, wait);
  }

  refresh(code, side, { secret, ...options } = {}) {
    return this.#call("refresh", { code, side, secret }, options);
  }

  /** Hold an offer that an earlier WebSocket has held; without one, refresh it. */
  hold(code, side, { secret, ...options } = {}) {
    return this.#call("hold", { code, side, secret }, options);
  }

  withdraw(code, side, { secret, ...options } = {}) {
    return this.#call("withdraw", { code, side, secret }, options);
  }

  /** Withdraw in the background, and again while the server is unavailable. Works while the page goes away. */
  leave(code, side, { secret } = {}) {
    const body = JSON.stringify({ code, side, secret });
    const send = () => globalThis.navigator?.sendBeacon?.(`${this.url}/withdraw`, body);
    if (hidden && send()) return;
    withdrawals.add(send);
    const withdraw = () => this.withdraw(code, side, { secret });
    retry(withdraw, new AbortController().signal, WITHDRAW_TRIES)
      .catch(() => {}) // it is gone
      .finally(() => withdrawals.delete(send));
  }

  /** The events of a topic, or of a session for one side, as they come: `{type, data, id}`. */
  async *events(about, { signal = new AbortController().signal } = {}) {
    const fields = typeof about === "string" ? { topic: about } : about;
    let id = "";
    let retryMs = PAUSE_MS;
    let begun = false;
    for (let failures = 0; ; failures += 1) {
      const deadline = new Deadline(signal);
      const began = Date.now();
      let leastMs = 0;
      try {
        const told = (await deadline.within(REQUEST_MS, this.open()))
          ? this.#socket.subscribe({ ...fields, since: id || undefined }, deadline)
          : this.#stream(fields, id, deadline);
        for await (const { id: last = id, retry, type, data } of told) {
          begun = true;
          id = last;
          if (/^\d+$/.test(retry)) retryMs = Number(retry);
          if (!data || !EVENTS.includes(type)) continue;
          signal.throwIfAborted();
          yield { type, data: typeof data === "string" ? JSON.parse(data) : data, id };
          if (type === "gone" && fields.topic === undefined) return;
        }
      } catch (error) {
        signal.throwIfAborted();
        if (error.status === 400 && id) {
          id = ""; // the server knows it no more
          continue;
        }
        if (!begun || !passing(error)) throw error;
        leastMs = error.retryAfterMs ?? 0;
      } finally {
        deadline.end();
      }
      if (Date.now() - began > MAX_PAUSE_MS) failures = 0;
      await sleep(Math.max(retryMs, backOff(failures)), signal, Math.max(retryMs, leastMs));
    }
  }

  /** The fields of the events of a stream; first none, when it has begun. */
  async *#stream({ topic, ...fields }, id, deadline) {
    const path = pathOf(topic, "events", fields);
    const headers = { Accept: "text/event-stream", ...(id && { "Last-Event-ID": id }) };
    const asking = this.#request(path, { headers, cache: "no-store" }, deadline.signal);
    const response = await deadline.within(SILENCE_MS, asking);
    // Something between here and the server may answer in its place.
    const stream = response.headers.get("Content-Type")?.startsWith("text/event-stream");
    if (!stream) throw new TypeError("The answer is no event stream");
    yield {};
    const reader = response.body.getReader();
    const parse = messages();
    for (;;) {
      const { value, done } = await deadline.within(SILENCE_MS, reader.read());
      if (done) return;
      for (const { event, ...others } of parse(value)) yield { type: event, ...others };
    }
  }

  async #call(method, fields, { signal } = {}, wait = 0) {
    signal?.throwIfAborted();
    return limited(REQUEST_MS + wait * 1000, signal, async (deadline) => {
      const { topic, ...others } = fields;
      const body = JSON.stringify(others);
      if (body.length < MAX_MESSAGE && (await this.open())) {
        deadline.signal.throwIfAborted();
        return this.#socket.ask(method, fields, deadline);
      }
      const last = PATHS[method] ?? method;
      const asking = READS.includes(method)
        ? this.#request(pathOf(topic, last, others), {}, deadline.signal)
        : this.#request(pathOf(topic, last), { method: "POST", headers: JSON_BODY, body }, deadline.signal);
      return json(await asking);
    });
  }

  #request(path, init, signal) {
    return request(this.url + path, { ...init, headers: { ...init.headers, ...this.#headers }, signal });
  }
}

/**
 * The WebSocket to a server, for everything that a page asks of it: opened when something is asked, closed when nothing
 * has been needed for a while. Where it does not open although the server is there, HTTP is used for some minutes.
 */
class Socket {
  #url;
  #opening; // the WebSocket, as a promise
  #socket; // when it is open
  #timer;
  #calls = new Map(); // by the id of the request: what is to be done with its answer
  #streams = new Map(); // by the number of the subscription
  #lastId = 0;
  #heardMs; // when
  #works = false; // whether the server has ever said anything
  #failed = false; // whether it did not open when it was tried last
  #httpUntilMs = 0;

  constructor(url) {
    this.#url = url;
  }

  /** The WebSocket; undefined where HTTP is to be used. Fails as a request does when the server is away. */
  open() {
    if (Date.now() >= this.#httpUntilMs) return (this.#opening ??= this.#open());
  }

  async #open() {
    try {
      for (let tries = this.#works ? 2 : 1; ; tries -= 1) {
        // Why it does not open no page is told.
        if (this.#failed) await limited(REQUEST_MS, null, (deadline) => this.#serverIsThere(deadline));
        if (!tries) return this.#avoid();
        this.#socket = await opened(`${this.#url}/ws`);
        this.#failed = !this.#socket;
        if (this.#socket) return this.#use(this.#socket);
      }
    } finally {
      if (!this.#socket) this.#opening = undefined;
    }
  }

  async #serverIsThere({ signal }) {
    await json(await request(`${this.#url}/health`, { signal }));
  }

  #avoid() {
    this.#httpUntilMs = Date.now() + HTTP_MS;
  }

  #use(socket) {
    this.#heardMs = Date.now();
    socket.onmessage = ({ data }) => this.#take(JSON.parse(data));
    socket.onclose = ({ code }) => {
      if (code === 1008 || code === 1009) this.#avoid(); // too much or too large: HTTP can say what
      this.#broken();
    };
    this.#timer = setInterval(() => {
      const quietMs = Date.now() - this.#heardMs;
      if (!this.#calls.size && !this.#streams.size) {
        if (quietMs > IDLE_MS) this.end();
      } else if (quietMs > QUIET_MS) {
        limited(REQUEST_MS, null, (deadline) => this.ask("health", {}, deadline)).catch(() => {});
      }
    }, IDLE_MS / 2);
    return socket;
  }

  #take({ id, result, error, params }) {
    this.#heardMs = Date.now();
    this.#works = true;
    if (params) {
      const { cursor, ...event } = params;
      this.#streams.get(params.subscription)?.enqueue({ ...event, id: cursor });
      return;
    }
    const { resolve, reject, stream, abandoned } = this.#calls.get(id) ?? {};
    this.#calls.delete(id);
    if (error) reject?.(new SignalError(error.code, error.message, error.data?.retryAfter * 1000 || undefined));
    else if (resolve) {
      if (stream) this.#streams.set(result.subscription, stream);
      resolve(result);
    } else if (result.subscription) this.tell("unsubscribe", result);
    else if (abandoned) this.tell("withdraw", { code: result.code, ...abandoned });
  }

  #broken() {
    if (!this.#works) this.#avoid(); // something lets it open, and nothing through
    this.end();
  }

  end() {
    if (!this.#socket) return;
    clearInterval(this.#timer);
    this.#socket.onmessage = this.#socket.onclose = null; // which may take long
    this.#socket.close();
    this.#socket = this.#opening = undefined;
    const error = new TypeError("The connection to the server has ended");
    for (const { reject } of this.#calls.values()) reject?.(error);
    for (const stream of this.#streams.values()) stream.error(error);
    this.#calls.clear();
    this.#streams.clear();
  }

  /** The result of a method, asked over the open WebSocket; its events, if it has some, go into a stream. */
  ask(method, params, deadline, stream) {
    return new Promise((resolve, reject) => {
      const id = (this.#lastId += 1);
      const askedMs = Date.now();
      this.#calls.set(id, { resolve, reject, stream });
      deadline.signal.addEventListener("abort", () => {
        if (!this.#calls.delete(id)) return;
        if (params.hold) this.#calls.set(id, { abandoned: { side: "offerer", secret: params.secret } });
        if (deadline.passed && this.#heardMs <= askedMs) this.#broken();
      });
      this.#send({ id, method, params });
    });
  }

  /** Say something that needs no answer, if there is an open WebSocket; whether it is said. */
  tell(method, params) {
    const open = this.#socket?.readyState === 1;
    if (open) this.#send({ method, params });
    return open;
  }

  #send(message) {
    this.#socket.send(JSON.stringify({ jsonrpc: "2.0", ...message }));
  }

  /** The events of a subscription: `{type, data, id}`; first none of these, when it has begun. */
  async *subscribe(params, deadline) {
    let stream;
    const reader = new ReadableStream({ start: (controller) => (stream = controller) }).getReader();
    const { subscription } = await deadline.within(REQUEST_MS, this.ask("subscribe", params, deadline, stream));
    try {
      yield {};
      for (;;) {
        const { value } = await deadline.within(undefined, reader.read());
        if (value.type === "gone" && "code" in params) this.#streams.delete(subscription); // which has ended by that
        yield value;
      }
    } finally {
      // Another connection may have the same number for another one.
      if (this.#streams.get(subscription) === stream) {
        this.#streams.delete(subscription);
        this.tell("unsubscribe", { subscription });
      }
    }
  }
}

const sockets = new Map(); // by the URL of the server
const withdrawals = new Set(); // functions that send what has no response yet
let hidden = false; // whether the page goes away
// A page that goes away has none: then the browser may keep it, and `leave` uses what outlives it.
globalThis.addEventListener?.("pagehide", () => {
  hidden = true;
  for (const socket of sockets.values()) socket.end();
  for (const send of withdrawals) send();
});
globalThis.addEventListener?.("pageshow", () => (hidden = false));
// When the network is back it may be another one, on which nothing comes any more over the old connection.
globalThis.addEventListener?.("online", () => {
  for (const socket of sockets.values()) socket.end();
});

function socketTo(url) {
  if (!sockets.has(url)) sockets.set(url, new Socket(url));
  return sockets.get(url);
}

/** A WebSocket that is open; undefined if it does not open. */
const opened = (url) =>
  new Promise((resolve) => {
    let socket;
    const end = () => {
      clearTimeout(timer);
      socket?.close();
      resolve();
    };
    const timer = setTimeout(end, OPEN_MS);
    try {
      socket = new WebSocket(new URL(url, globalThis.location?.href).href.replace(/^http/, "ws"));
      socket.onclose = end;
      socket.onopen = () => {
        clearTimeout(timer);
        resolve(socket);
      };
    } catch {
      end(); // a page that came over HTTPS may not
    }
  });

function pathOf(topic, last, fields = {}) {
  const query = String(new URLSearchParams(Object.entries(fields).filter(([, value]) => value != null)));
  return `${topic === undefined ? "" : `/${encodeURIComponent(topic)}`}/${last}${query && `?${query}`}`;
}

async function request(url, init) {
  const response = await fetch(url, init);
  if (response.ok) return response;
  const { error } = await json(response);
  const retryAfterMs = parseInt(response.headers.get("Retry-After"), 10) * 1000 || undefined;
  throw new SignalError(response.status, error ?? response.statusText, retryAfterMs);
}

async function json(response) {
  try {
    return (await response.json()) ?? {};
  } catch (error) {
    if (error.name !== "SyntaxError") throw error; // it was interrupted
    return {};
  }
}

/** Its signal is aborted with another one, and when what it waits for takes too long. */
class Deadline {
  #stop = new AbortController();
  #aborted;
  passed = false; // whether it took too long

  constructor(outer) {
    this.#aborted = new Promise((_, reject) => {
      this.signal.addEventListener("abort", () => reject(this.signal.reason));
    });
    this.#aborted.catch(() => {}); // it need not be waited for
    const abort = () => this.#stop.abort(outer.reason);
    if (outer?.aborted) abort();
    outer?.addEventListener("abort", abort, { signal: this.signal });
  }

  get signal() {
    return this.#stop.signal;
  }

  async within(ms, promise) {
    const late = () => {
      this.passed = true;
      this.#stop.abort(new DOMException("The server does not answer in time", "TimeoutError"));
    };
    const timer = ms && setTimeout(late, ms);
    try {
      return await Promise.race([promise, this.#aborted]);
    } catch (failure) {
      this.signal.throwIfAborted(); // of a body that is cut off Chromium does not tell the reason
      throw failure;
    } finally {
      clearTimeout(timer);
    }
  }

  end() {
    this.#stop.abort();
  }
}

/** What a task comes to, which is given a `Deadline`. */
async function limited(ms, signal, task) {
  const deadline = new Deadline(signal);
  try {
    return await deadline.within(ms, task(deadline));
  } finally {
    deadline.end();
  }
}

/** A function that takes the bytes of an event stream as they come, split anywhere, and gives what ends in them. */
function messages() {
  const decoder = new TextDecoder();
  let rest = "";
  let fields = {};
  return function* (bytes) {
    // A CR at the end may be half of a CR LF.
    const lines = (rest + decoder.decode(bytes, { stream: true })).split(/\r\n|\n|\r(?=[^\n])/);
    rest = lines.pop();
    for (const line of lines) {
      if (line) {
        const [, name, value] = /^([^:]*):? ?(.*)/s.exec(line);
        fields[name] = name === "data" && name in fields ? `${fields[name]}\n${value}` : value;
      } else {
        yield fields;
        fields = {};
      }
    }
  };
}

/** Wait about so long, or at least so long: not everybody is to come back at the same moment. */
const sleep = (ms, signal, leastMs = ms / 2) =>
  new Promise((resolve, reject) => {
    signal.throwIfAborted();
    const stop = new AbortController();
    const end = () => {
      clearTimeout(timer);
      stop.abort();
      if (signal.aborted) reject(signal.reason);
      else resolve();
    };
    const timer = setTimeout(end, leastMs + ms * Math.random());
    signal.addEventListener("abort", end, { signal: stop.signal });
    globalThis.addEventListener?.("online", end, { signal: stop.signal }); // the network is back
  });

const backOff = (attempt) => Math.min(MAX_PAUSE_MS, 200 * 2 ** attempt);

/** Whether the same may work later, or elsewhere: no network, no answer in time, a server that cannot just now. */
const passing = ({ name, status }) => status >= 500 || status === 429 || ["TypeError", "TimeoutError"].includes(name);

/** With secrets, a session that somebody else has answered is told as one that is not there. */
const taken = ({ status }) => status === 404 || status === 409;

async function retry(task, signal, tries = Infinity) {
  for (let attempt = 1; ; attempt += 1) {
    try {
      return await task();
    } catch (error) {
      if (signal.aborted || !passing(error) || attempt >= tries) throw error;
      await sleep(backOff(attempt), signal, error.retryAfterMs);
    }
  }
}

/** The servers of a publication or of somebody who joins: the first one that works, in their order. */
class Servers {
  constructor({ url = HERE, origin, socket }, signal, report) {
    this.clients = [url].flat().map((each) => new SignalClient(each, { origin, socket }));
    this.tries = this.clients.length > 1 ? TRIES : Infinity;
    this.signal = signal;
    this.report = report;
    this.failed = new Map();
    this.ice = new Map();
  }

  async first(task) {
    for (let attempt = 0; ; attempt += 1) {
      let leastMs;
      const failing = (client) => Date.now() - (this.failed.get(client) ?? 0) < FAILED_MS;
      for (const client of [...this.clients].sort((a, b) => failing(a) - failing(b))) {
        try {
          return await task(client);
        } catch (error) {
          if (this.signal.aborted || !passing(error)) throw error;
          this.fail(client, error);
          leastMs = error.retryAfterMs;
        }
      }
      await sleep(backOff(attempt), this.signal, leastMs);
    }
  }

  fail(client, error) {
    this.failed.set(client, Date.now());
    this.report(error);
  }

  /** Wait until a server works again that comes before this one: others who come now are there. */
  async better(client, signal) {
    for (;;) {
      await sleep(FAILED_MS, signal);
      for (const each of this.clients.slice(0, this.clients.indexOf(client))) {
        const works = each.health({ signal }).then(
          () => this.failed.delete(each) || true,
          () => false,
        );
        if (await works) return;
      }
    }
  }

  /** The ICE servers of a server, asked anew before their password ends; none from one that does not know them. */
  async iceServers(client) {
    const kept = this.ice.get(client);
    if (Date.now() < kept?.until) return kept;
    const { iceServers, expiresAt } = await client.iceServers({ signal: this.signal }).catch((error) => {
      if (error.status !== 404) throw error;
      return { iceServers: [], expiresAt: Infinity };
    });
    const now = Date.now(); // which may be far from the server's
    const until = now + Math.min(RENEW_MS, Math.max(0, expiresAt - now) / 2);
    this.ice.set(client, { iceServers, until });
    return { iceServers, until };
  }
}

/** Publish an offer: its code, and a function that keeps it listed, to be called before each wait for its news. */
async function list(client, topic, fields) {
  let holder = await client.open();
  const { code } = await client.offer(topic, { ...fields, hold: true, ttl: TTL_MS }).catch((error) => {
    if (error.status !== 400) throw error;
    return client.offer(topic, { ...fields, hold: true }); // so long is not allowed
  });
  let kept = Date.now();
  const keep = async () => {
    // Its WebSocket keeps it. Another one has to take it over; over HTTP it is refreshed, at once after a WebSocket.
    const found = await client.open();
    if (found === holder && (found || Date.now() < kept + REFRESH_MS)) return;
    await client.hold(code, "offerer", fields).catch((error) => {
      if (passing(error)) throw error; // else the news are that it is gone
    });
    holder = found;
    kept = Date.now();
  };
  return { code, keep };
}

function newConnection(iceServers, { rtc, RTCPeerConnection = globalThis.RTCPeerConnection, prepare }) {
  const connection = new RTCPeerConnection({ iceServers, ...rtc });
  try {
    prepare?.(connection);
    return connection;
  } catch (error) {
    connection.close();
    throw error;
  }
}

/** Keep what arrives before anybody can listen; the function that is returned hands it over after this turn. */
function keepMessages(channel) {
  const kept = [];
  const keep = (event) => {
    event.stopImmediatePropagation();
    kept.push(event.data);
  };
  channel.addEventListener("message", keep);
  return () => {
    const { port1, port2 } = new MessageChannel(); // unlike a timer it is not slowed down in the background
    port1.onmessage = () => {
      port1.close();
      channel.removeEventListener("message", keep);
      for (const data of kept) channel.dispatchEvent(new MessageEvent("message", { data }));
    };
    port2.postMessage(null);
  };
}

/**
 * What is negotiated on one RTCPeerConnection, by "perfect negotiation": either side may offer at any time, and of two
 * offers at once that of the side that leads stands; but never that of Firefox beside another browser's, since Chromium
 * cannot always use one after it has taken back its own. What is sent is `{description, of, candidates}`: a description
 * is the `of`th offer of its side, or answers that of the other.
 *
 * It goes over a data channel, which both sides make with the same number, when `way` says that it is `direct`. Before
 * that, if the other side is `listed`, over `send`, which tells whether it was taken. `signal` ends it.
 */
class Negotiation {
  #connection;
  #way;
  #channel;
  #found = []; // candidates that are still to be sent
  #described = false; // whether the description is still to be sent
  #offers = 0;
  #of = 0;
  #seen = 0; // the last offer of the other side
  #making = false; // whether an offer is being made
  #posting = false;
  #taking = Promise.resolve();

  constructor(connection, id, way) {
    this.#connection = connection;
    this.#way = way;
    const { signal } = way;
    this.#channel = connection.createDataChannel("negotiation", { negotiated: true, id });
    this.#channel.addEventListener("open", () => this.post(), { signal });
    this.#channel.addEventListener("message", ({ data }) => this.take(parsed(data)), { signal });
    const offer = () => {
      // Not every implementation waits with this event until it is true.
      if (connection.signalingState === "stable" && (way.begins || connection.remoteDescription)) this.#offer();
    };
    connection.addEventListener("negotiationneeded", offer, { signal });
  }

  get #direct() {
    return this.#way.direct && this.#channel.readyState === "open";
  }

  /** Send a candidate of this side. */
  add(candidate) {
    this.#found.push(candidate);
    this.post();
  }

  /** Look for another way through the network. */
  restart() {
    this.#connection.restartIce();
    if (this.#connection.signalingState === "have-local-offer") this.#offer(); // else it is told to
  }

  async #offer() {
    this.#making = true;
    try {
      await this.#connection.setLocalDescription();
      this.#of = this.#offers += 1;
      this.#described = true;
      this.post();
    } catch {
      // It has ended, or the other side was faster: then this is told again.
    }
    this.#making = false;
  }

  /** Send what there is to be sent; what is found meanwhile goes with the next message. */
  async post() {
    if (this.#posting) return;
    this.#posting = true;
    const { signal } = this.#way;
    let message;
    try {
      while (!signal.aborted && (this.#direct || this.#way.listed) && (this.#described || this.#found.length)) {
        message = { candidates: this.#found.splice(0) };
        if (this.#described) Object.assign(message, { description: this.#connection.localDescription, of: this.#of });
        this.#described = false;
        if (this.#direct) this.#channel.send(JSON.stringify(message));
        // The description has all candidates until then in it.
        else if (!(await this.#way.send(message))) this.#described = true;
      }
    } catch {
      this.#found.unshift(...message.candidates);
      this.#described ||= "description" in message;
      const again = () => this.post();
      sleep(PAUSE_MS, signal).then(again, () => {}); // the channel's buffer may be full
    } finally {
      this.#posting = false;
    }
  }

  /** Take what the other side has sent, one message after the other. */
  take(message) {
    this.#taking = this.#taking.then(() => this.#take(message)).catch(() => {}); // nonsense is no description
  }

  async #take({ description, of, candidates = [] }) {
    const connection = this.#connection;
    if (description?.type === "offer") {
      if (!(of > this.#seen)) return; // it comes twice, or late
      const [own, other] = [connection.localDescription, description].map((each) => /^o=mozilla/m.test(each?.sdp));
      const stands = own === other ? this.#way.leads : other;
      if (stands && (this.#making || connection.signalingState !== "stable")) return;
      this.#seen = of;
      this.#described = false; // what this side has offered is void
      try {
        await connection.setRemoteDescription(description);
      } catch {
        return this.#way.refused?.(); // from here on Chromium does nothing more
      }
      await connection.setLocalDescription();
      this.#of = of;
      this.#described = true;
      this.post();
    } else if (description && of === this.#of && connection.signalingState === "have-local-offer") {
      await connection.setRemoteDescription(description);
    }
    for (const each of candidates) connection.addIceCandidate(each).catch(() => {}); // may be of an older description
  }
}

/** One side of one session, from its description to the open channel. */
class Link {
  #outbox = []; // candidates of this side that are still to be sent
  #inbox = []; // those of the other side, until it is known who that is
  #known = new Set();
  #sending = true; // or not to be sent yet
  #asked = false;
  #since;
  #stop = new AbortController();
  #silent; // the time until the other side has to have said something
  #open = false;
  #pairs; // whether it is for a pair
  #wanted; // tells that somebody waits for the connection
  over = new AbortController(); // aborted when the connection has ended

  constructor(client, side, { iceServers, until }, options, signal) {
    this.client = client;
    this.side = side;
    this.until = until;
    this.secret = random();
    this.own = { secret: this.secret, signal: this.signal };
    const connection = (this.peerConnection = newConnection(iceServers, options));
    this.step = (name, detail) => options.onstep?.(name, detail, connection);
    const link = this;
    const negotiation = new Negotiation(connection, NEGOTIATION, {
      signal: this.over.signal,
      leads: side === "offerer",
      get direct() {
        return link.#open;
      },
    });
    // Of a pair the answerer may have asked several, and says which it takes.
    this.#pairs = options.pair;
    const agreed =
      this.#pairs && side === "offerer"
        ? new Promise((resolve) => connection.addEventListener("datachannel", resolve, { once: true }))
        : undefined;
    const wanted = new Promise((resolve) => (this.#wanted = resolve));
    this.opened = new Promise((resolve, reject) => {
      this.fail = (error) => {
        if (this.signal.aborted) return; // it is open, or has failed before
        reject(error);
        this.over.abort();
        this.#stop.abort(error);
        connection.close();
      };
      const use = (channel) => {
        this.channel = channel;
        channel.binaryType = "arraybuffer";
        const release = keepMessages(channel);
        const open = async () => {
          // Chromium says so a moment too early, and now and then loses what is sent at once; not after this.
          await connection.getStats().catch(() => {});
          await Promise.all([agreed, wanted]);
          if (this.signal.aborted) return;
          this.step("open");
          this.#open = true;
          this.#stop.abort();
          negotiation.post();
          resolve(new Connection(this));
          release();
        };
        if (channel.readyState === "open") open();
        else channel.addEventListener("open", open, { once: true });
      };
      if (side === "offerer") use(connection.createDataChannel("data", options.channel));
      else connection.addEventListener("datachannel", ({ channel }) => use(channel), { once: true });
    });
    this.opened.catch(() => {}); // nobody has to ask
    signal.addEventListener("abort", () => this.fail(signal.reason), { signal: this.signal });
    connection.addEventListener("icecandidate", ({ candidate }) => {
      if (!candidate) return;
      if (this.#open) negotiation.add(candidate);
      else this.#send(JSON.stringify(candidate));
    });
    connection.addEventListener("connectionstatechange", () => {
      this.step(connection.connectionState);
      if (connection.connectionState === "connected") clearTimeout(this.#silent);
      if (connection.connectionState === "failed") this.fail(new Error("There is no way to the other peer"));
    });
  }

  get signal() {
    return this.#stop.signal;
  }

  /** Describe this side, after what the other side says if it was first. */
  async describe(offer) {
    const connection = this.peerConnection;
    if (offer) await connection.setRemoteDescription(JSON.parse(offer));
    const description = await (offer ? connection.createAnswer() : connection.createOffer());
    this.step(description.type);
    return description;
  }

  /** Begin with what `describe` has made: from here on candidates are found, and an answerer connects. */
  use(description) {
    return this.peerConnection.setLocalDescription(description);
  }

  /** The session is this side's, and what was found so far can be sent. */
  begin(code) {
    this.code = code;
    this.#sending = false;
    this.#send();
  }

  async #send(...found) {
    this.#outbox.push(...found);
    if (this.#sending) return;
    this.#sending = true;
    try {
      // What is found during one request goes with the next one.
      while (this.#outbox.length) {
        const batch = this.#outbox.slice(0, MAX_BATCH);
        await retry(() => this.#post(batch), this.signal);
        this.#outbox.splice(0, batch.length);
        this.step("candidates sent", batch.length);
      }
    } catch {
      // The channel is open, or the session is gone, which `news` will be told too.
    }
    this.#sending = false;
  }

  async #post(batch) {
    try {
      await this.client.candidates(this.code, this.side, batch, this.own);
    } catch (error) {
      if (error.status !== 400) throw error; // else it knows no batches
      for (const each of batch) await this.client.candidate(this.code, this.side, each, this.own);
    }
  }

  /** Take candidates of the other side, each once; they are kept until it has described itself. */
  add(candidates) {
    const found = candidates.filter((each) => !this.#known.has(each) && this.#known.add(each));
    if (found.length) clearTimeout(this.#silent);
    this.#inbox.push(...found);
    if (!this.peerConnection.remoteDescription) return;
    for (const each of this.#inbox.splice(0)) {
      const ignore = () => {}; // one that is wrong does not spoil the others
      new Promise((resolve) => resolve(this.peerConnection.addIceCandidate(JSON.parse(each)))).catch(ignore);
    }
  }

  /** Wait for what the other side sends, and use it; whether it has described itself. Each try begins with `keep`. */
  async news(tries, keep) {
    if (this.#asked && !this.#since) await sleep(PAUSE_MS, this.signal);
    const { client, code, side, own, peerConnection } = this;
    const asking = async () => {
      await keep?.();
      return client.poll(code, side, { wait: WAIT_S, since: this.#since, ...own });
    };
    const { answer, answerCandidates, offerCandidates, cursor } = await retry(asking, this.signal, tries);
    this.#asked = true;
    this.#since = cursor;
    const candidates = answerCandidates ?? offerCandidates;
    if (candidates.length) this.step("candidates received", candidates.length);
    if (answer && !peerConnection.remoteDescription) {
      this.step("answered");
      try {
        await peerConnection.setRemoteDescription(JSON.parse(answer));
      } catch (error) {
        this.fail(error);
      }
    }
    this.add(candidates);
    return Boolean(answer);
  }

  /** Both sides are described: go on until the channel is open, for a while at the most. */
  async connect() {
    this.#wanted();
    const timer = setTimeout(() => this.fail(new Error("The other peer did not connect in time")), CONNECT_MS);
    const silent = () => this.fail(new Error("The other peer says nothing"));
    if (this.#pairs || this.side === "answerer") this.#silent = setTimeout(silent, PAIR_MS);
    this.signal.addEventListener("abort", () => [timer, this.#silent].forEach(clearTimeout));
    try {
      while (!this.signal.aborted) await this.news();
    } catch (error) {
      // Two peers that have described themselves may connect without the server too. But when the session is gone, so
      // is the other peer, most likely.
      if (taken(error)) setTimeout(() => this.fail(new Error("The other peer has left")), this.#pairs ? 0 : GONE_MS);
    }
  }
}

/** A connection whose data channel is open. */
class Connection {
  constructor({ peerConnection, channel, code, side, info, over }) {
    Object.assign(this, { peerConnection, channel, code, side, info });
    const leave = () => peerConnection.close();
    globalThis.addEventListener?.("pagehide", leave); // the other side is told at once
    this.closed = new Promise((resolve) => {
      const end = () => {
        globalThis.removeEventListener?.("pagehide", leave);
        leave();
        over.abort();
        resolve();
      };
      channel.addEventListener("close", end, { once: true });
      peerConnection.addEventListener("connectionstatechange", () => {
        if (["failed", "closed"].includes(peerConnection.connectionState)) end();
      });
      this.end = end;
    });
  }

  /** Send what is still to be sent, then close; resolves when all is closed. */
  async close() {
    this.channel.close();
    const timer = setTimeout(this.end, CLOSE_MS);
    await this.closed;
    clearTimeout(timer);
  }
}

/** Publish an offer: its link. */
async function offered(client, topic, options, servers) {
  const { signal } = servers;
  const link = new Link(client, "offerer", await servers.iceServers(client), options, signal);
  try {
    const offer = await link.describe();
    await link.use(offer);
    const info = options.info ?? ownInfo();
    const { code, keep } = await list(client, topic, { info, offer: JSON.stringify(offer), secret: link.secret });
    link.keep = keep;
    link.begin(code);
    link.step("published", code);
    if (signal.aborted) client.leave(code, "offerer", link.own);
    signal.throwIfAborted();
  } catch (error) {
    link.fail(error);
    throw error;
  }
  return link;
}

/** Keep a link's offer listed until it is answered (true), or has to be replaced by another. */
async function answered(link, servers) {
  const { client, code, keep } = link;
  try {
    while (!(await link.news(servers.tries, keep))) {
      if (Date.now() > link.until) {
        client.leave(code, "offerer", link.own);
        return false;
      }
    }
    return true;
  } catch (error) {
    servers.signal.throwIfAborted();
    if (passing(error)) servers.fail(client, error);
    else if (!taken(error)) throw error;
    await sleep(backOff(0), servers.signal);
    return false;
  }
}

/** Offers under a topic, one unanswered at a time; events `connection`, `error` and `close`. */
class Publication extends EventTarget {
  #stop = new AbortController();
  #listed; // the link that waits for its answer

  constructor(topic, options) {
    super();
    const { signal } = this.#stop;
    globalThis.addEventListener?.("pagehide", () => this.#withdraw(), { signal });
    options.signal?.addEventListener("abort", () => this.close(), { signal });
    // Later, so that the caller can listen for the event.
    if (options.signal?.aborted) queueMicrotask(() => this.close());
    else this.#run(topic, options, new Servers(options, signal, (error) => this.#tell("error", { error })));
  }

  /** Take the offer back. Connections that were made stay. */
  close() {
    if (this.#stop.signal.aborted) return;
    this.#withdraw();
    this.#stop.abort();
    this.#tell("close");
  }

  async #run(topic, options, servers) {
    const { signal } = this.#stop;
    try {
      for (;;) {
        const link = (this.#listed = await servers.first((client) => offered(client, topic, options, servers)));
        const isAnswered = await answered(link, servers);
        this.#listed = undefined;
        if (isAnswered) {
          link.connect();
          link.opened.then(
            (connection) => this.#tell("connection", { connection }),
            (error) => this.#tell("error", { error }),
          );
        } else {
          link.fail(new Error("Nobody answered"));
        }
      }
    } catch (error) {
      if (signal.aborted) return;
      this.#tell("error", { error });
      this.close();
    }
  }

  #withdraw() {
    const link = this.#listed;
    if (link) link.client.leave(link.code, "offerer", link.own);
  }

  #tell(name, fields) {
    this.dispatchEvent(Object.assign(new Event(name), fields));
  }
}

/** Publish under a topic: whoever joins is a `connection` event of what this returns. */
export const publish = (topic, options = {}) => new Publication(topic, options);

/** Connect to somebody who has published under a topic, as soon as there is somebody. */
export async function join(topic, options = {}) {
  const { info = ownInfo(), choose = (sessions) => sessions, wait = true, onstep = () => {} } = options;
  const { signal = new AbortController().signal } = options;
  const servers = new Servers(options, signal, (error) => onstep("failed", error));
  const tried = new Set();
  const cursors = new Map();
  for (let untilMs = 0; ; ) {
    const moment = Math.ceil(Math.max(0, untilMs - Date.now()) / 1000);
    const { client, sessions, cursor } = await servers.first(async (client) => {
      const asked = { wait: wait ? WAIT_S : moment, since: cursors.get(client), limit: MAX_PEERS, signal };
      const [listing] = await Promise.all([client.sessions(topic, asked), servers.iceServers(client)]);
      return { client, ...listing };
    });
    cursors.set(client, cursor);
    const others = sessions.filter((each) => each.info !== info && !tried.has(each.code));
    onstep("peers", others.length);
    const chosen = choose(shuffled(others));
    const { connection, late } = await firstOf(chosen, client, options, servers);
    if (connection) return connection;
    for (const { code } of chosen) tried.add(code);
    if (late) untilMs = Date.now() + AGAIN_MS;
    if (!wait && !chosen.length && Date.now() >= untilMs) return null;
    if (!cursor) await sleep(PAUSE_MS, signal);
  }
}

/**
 * Answer one session after the other until a connection opens; the next one beside one that says nothing. `late` tells
 * whether another peer was faster with one of them.
 */
async function firstOf(sessions, client, options, servers) {
  const { signal } = servers;
  const { onstep = () => {} } = options;
  const iceServers = await servers.iceServers(client);
  const links = [];
  let late = false;
  let connection;
  let opened;
  const open = new Promise((resolve) => (opened = resolve));
  const attempt = async (session) => {
    onstep("trying", session.info);
    const link = new Link(client, "answerer", iceServers, options, signal);
    links.push(link);
    try {
      const found = await accept(link, session, servers.tries);
      if (connection) return found.end();
      connection = found;
      if (options.pair) connection.peerConnection.createDataChannel("pair"); // this is the one
      opened();
    } catch (error) {
      link.fail(error);
      if (connection || signal.aborted) return;
      late ||= taken(error);
      onstep(taken(error) ? "taken" : "failed", error);
    }
  };
  const attempts = [];
  for (const session of sessions) {
    const trying = attempt(session);
    attempts.push(trying);
    await Promise.race([open, trying, sleep(BESIDE_MS, signal)]);
    if (connection) break;
  }
  await Promise.race([open, Promise.all(attempts)]);
  signal.throwIfAborted();
  for (const link of links) link.fail(new Error("Another peer was faster"));
  return { connection, late };
}

/** Answer a session; fails if somebody else was faster, or there is no way to the peer. */
async function accept(link, { code, info, offer, offerCandidates }, tries) {
  Object.assign(link, { code, info });
  const description = await link.describe(offer);
  const answer = JSON.stringify(description);
  await retry(() => link.client.answer(code, answer, link.own), link.signal, tries);
  link.step("accepted");
  try {
    // Not before: what two peers send to one offer would keep both from connecting for a long time.
    await link.use(description);
    link.add(offerCandidates);
    link.begin(code);
    link.connect();
    return await link.opened;
  } catch (error) {
    link.client.leave(code, "answerer", link.own);
    throw error;
  }
}

/** Connect two that call this with the same topic, whichever comes next. */
export async function pair(topic, options = {}) {
  const stop = new AbortController();
  const { signal } = stop;
  const report = (error) => options.onstep?.("failed", error);
  const end = () => stop.abort(options.signal?.reason);
  globalThis.addEventListener?.("pagehide", end, { signal });
  options.signal?.addEventListener("abort", end, { signal });
  if (options.signal?.aborted) end();
  try {
    const servers = new Servers(options, signal, report);
    return await servers.first((client) => meet(client, PAIR + topic, { ...options, pair: true }, servers));
  } finally {
    stop.abort();
  }
}

/**
 * Be one of a pair. In the order of the offers the second one answers the first, the fourth the third, and so on; the
 * others wait, unless nothing happens. A peer takes its own offer, so that no other can, before it answers another one.
 */
async function meet(client, topic, options, servers) {
  const { signal } = servers;
  const tried = new Set();
  let link; // of the offer that is listed
  let answer; // whether it is answered, as a promise
  let cursor;
  let others = [];
  const withdraw = () => {
    if (!link) return;
    client.leave(link.code, "offerer", link.own);
    link.fail(new Error("The offer was taken back"));
    tried.add(link.code);
    link = answer = undefined;
  };
  signal.addEventListener("abort", withdraw);
  const stay = new Deadline(signal);
  const better = servers.better(client, stay.signal).then(() => {
    throw new TypeError("A server that comes before this one works again");
  });
  better.catch(() => {}); // it may come while nothing waits
  try {
    for (;;) {
      const round = new Deadline(signal);
      const most = others.length ? 1 + Math.round(2 * Math.random()) : WAIT_S;
      const asked = { ...(link && { wait: most, since: cursor }), limit: MAX_PEERS, signal: round.signal };
      const asking = client.sessions(topic, asked);
      const listing = await Promise.race([asking, answer ?? asking, better]).finally(() => round.end());
      let isAnswered = !listing.sessions;
      if (!isAnswered) {
        const listed = listing.sessions.filter(({ code }) => !tried.has(code)).reverse(); // the oldest first
        const place = link ? listed.findIndex(({ code }) => code === link.code) : listed.length;
        const stuck = link && listing.cursor === cursor;
        cursor = listing.cursor;
        others = listed.filter(({ code }) => code !== link?.code);
        if (others.length && (place % 2 === 1 || stuck)) {
          isAnswered = link && !(await claimed(link, signal));
          if (!isAnswered) {
            withdraw();
            const next = listed[place - 1];
            const sorted = shuffled(others).sort((a, b) => (b === next) - (a === next));
            const { connection } = await firstOf(sorted, client, options, servers);
            if (connection) return connection;
            for (const { code } of others) tried.add(code);
          }
        } else if (!link) {
          link = await offered(client, topic, options, servers);
          answer = answered(link, servers);
          answer.catch(() => {}); // it may be withdrawn
        } else if (!cursor) {
          await sleep(PAUSE_MS, signal);
        }
      }
      if (isAnswered) {
        const { opened } = link;
        if (await answer) link.connect();
        else withdraw();
        try {
          return await opened;
        } catch (error) {
          signal.throwIfAborted();
          options.onstep?.("failed", error);
          withdraw();
        }
      }
    }
  } catch (error) {
    withdraw();
    throw error;
  } finally {
    stay.end();
    signal.removeEventListener("abort", withdraw);
  }
}

/** Take one's own offer, so that no other peer can answer it; whether none has. */
async function claimed({ client, code }, signal) {
  try {
    await retry(() => client.answer(code, "taken back", { signal }), signal);
    return true;
  } catch (error) {
    if (!taken(error)) throw error;
    return false;
  }
}

/** In any order: else everybody who joins would try the same peer. */
const shuffled = (list) =>
  list
    .map((each) => [Math.random(), each])
    .sort(([a], [b]) => a - b)
    .map(([, each]) => each);

/** One connection to another member of a room, from the attempt to its end; what a room gives as a peer. */
class Peer {
  #link; // what the room has for it
  #negotiation;
  #joined = false;
  #interrupted = false;
  #timer;
  #stop = new AbortController();
  #mail = new AbortController(); // aborted when what is to be sent can go over the data channel again
  #sent = new Map(); // by the track: its transceiver
  #unused = []; // transceivers that have sent and can again, which `addTrack` leaves: descriptions would grow for ever
  streams = []; // that the other side sends

  constructor({ id, name, info }, link, streams, options) {
    Object.assign(this, { id, name, info });
    this.#link = link;
    const { signal } = this.#stop;
    const connection = (this.peerConnection = newConnection(link.iceServers, options));
    this.channel = connection.createDataChannel("room", { ...options.channel, negotiated: true, id: 0 });
    this.channel.binaryType = "arraybuffer";
    const peer = this;
    this.#negotiation = new Negotiation(connection, 1, {
      signal,
      leads: link.leads,
      begins: link.leads,
      refused: () => this.#joined && this.end(), // and another attempt is made
      get direct() {
        return peer.#joined && !peer.#interrupted;
      },
      get listed() {
        return link.listed;
      },
      send: (mail) => link.send(mail, this.#mail.signal),
    });
    const on = (target, name, act) => target.addEventListener?.(name, act, { signal });
    on(connection, "icecandidate", ({ candidate }) => candidate && this.#negotiation.add(candidate));
    on(connection, "track", ({ streams: [stream] }) => stream && this.#hear(stream));
    on(connection, "connectionstatechange", () => this.#changed());
    on(this.channel, "open", async () => {
      await connection.getStats().catch(() => {}); // as for a Link
      this.#join();
    });
    on(this.channel, "message", ({ data }) => {
      this.#join();
      link.tell("message", { peer: this, data });
    });
    on(this.channel, "close", () => this.end());
    on(globalThis, "online", () => {
      if (this.#interrupted) this.#again(LOST_MS);
    });
    for (const stream of streams) this.add(stream);
    this.#wait();
  }

  /** Give up when the other side says nothing for a while; the one that leads first, and then tries again. */
  #wait() {
    if (this.#joined || this.#stop.signal.aborted) return;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.giveUp(), this.#link.leads ? this.#link.ms : 2 * LOST_MS);
  }

  #join() {
    if (this.#joined || this.#stop.signal.aborted) return;
    clearTimeout(this.#timer);
    this.#joined = true;
    this.#link.joined(this);
    for (const stream of this.streams) this.#link.tell("stream", { peer: this, stream });
    this.post();
  }

  #changed() {
    const { connectionState } = this.peerConnection;
    if (connectionState === "connected") {
      if (this.#joined) clearTimeout(this.#timer);
      this.#wait();
      if (!this.#interrupted) return;
      this.#interrupted = false;
      this.#mail.abort();
      this.#mail = new AbortController();
      this.post();
    } else if (connectionState === "failed" && !this.#joined) {
      this.giveUp();
    } else if (["disconnected", "failed"].includes(connectionState) && this.#joined && !this.#interrupted) {
      this.#interrupted = true;
      this.check();
      if (this.#interrupted) this.#again(LOST_MS);
    }
  }

  /** Look for another way, and again after longer and longer pauses: a browser is slow to notice another network. */
  #again(leftMs, pauseMs = leftMs / 15) {
    clearTimeout(this.#timer);
    if (leftMs <= 0) return this.end();
    if (this.#link.leads) this.#negotiation.restart();
    this.#timer = setTimeout(() => this.#again(leftMs - pauseMs, 1.2 * pauseMs), pauseMs);
  }

  /** End it if there is neither a connection nor, on the server, the other member. */
  check() {
    if (!this.#link.listed && this.peerConnection.connectionState !== "connected") this.end();
  }

  post() {
    this.#negotiation.post();
  }

  /** Take mail. */
  take(mail) {
    this.#wait();
    this.#negotiation.take(mail);
  }

  #hear(stream) {
    if (this.streams.includes(stream)) return;
    this.streams.push(stream);
    stream.addEventListener("removetrack", () => {
      if (stream.getTracks().length || !this.streams.includes(stream)) return;
      this.streams.splice(this.streams.indexOf(stream), 1);
      if (this.#joined) this.#link.tell("streamend", { peer: this, stream });
    });
    if (this.#joined) this.#link.tell("stream", { peer: this, stream });
  }

  /** Send the tracks of a stream which are not sent yet. */
  add(stream) {
    const connection = this.peerConnection;
    const sent = connection.getSenders().map(({ track }) => track);
    for (const track of stream.getTracks()) {
      if (sent.includes(track) || this.#sent.has(track)) continue;
      const at = this.#unused.findIndex(({ receiver }) => receiver.track.kind === track.kind);
      if (at < 0) {
        const sender = connection.addTrack(track, stream);
        const made = connection.getTransceivers().find((each) => each.sender === sender);
        this.#sent.set(track, made);
      } else {
        const [kept] = this.#unused.splice(at, 1);
        kept.sender.setStreams?.(stream);
        kept.sender.replaceTrack(track).catch(() => {}); // it has ended
        kept.direction = kept.direction === "inactive" ? "sendonly" : "sendrecv";
        this.#sent.set(track, kept);
      }
    }
  }

  remove(stream) {
    for (const track of stream.getTracks()) {
      const kept = this.#sent.get(track);
      if (!this.#sent.delete(track)) continue;
      kept.sender.replaceTrack(null).catch(() => {});
      kept.direction = kept.direction === "sendonly" ? "inactive" : "recvonly";
      this.#unused.push(kept);
    }
  }

  /** End an attempt; that the other side is there, but cannot be reached, is told. */
  giveUp() {
    if (!this.#joined && this.peerConnection.remoteDescription) this.#link.unreachable();
    this.end();
  }

  end() {
    if (this.#stop.signal.aborted) return;
    clearTimeout(this.#timer);
    this.#stop.abort();
    this.#mail.abort();
    this.#interrupted = false;
    this.peerConnection.close();
    this.#link.ended(this, this.#joined);
  }

  /** Send what is still to be sent, then end. */
  async close() {
    if (this.#joined) {
      await new Promise((resolve) => {
        this.channel.addEventListener("close", resolve);
        setTimeout(resolve, CLOSE_MS);
        this.channel.close();
      });
    }
    this.end();
  }
}

const base64 = (bytes) =>
  btoa(String.fromCharCode(...new Uint8Array(bytes))).replace(/[+/=]/g, (sign) => ({ "+": "-", "/": "_" })[sign] ?? "");
const unbase64 = (text) =>
  Uint8Array.from(atob(text.replace(/[-_]/g, (sign) => (sign === "-" ? "+" : "/"))), (byte) => byte.charCodeAt());
const utf8 = (text) => new TextEncoder().encode(text);

/** A key from PKCS #8, which has a prefix before its bytes. */
const privateKey = (name, prefix, bytes, use) =>
  crypto.subtle.importKey("pkcs8", Uint8Array.of(...unbase64(prefix), ...bytes), name, true, [use]);

/** What a member with a secret signs with: Ed25519. Its id is the public key. */
class Identity {
  static async of(secret) {
    const { subtle } = crypto;
    if (!subtle) throw new Error("A name needs a page that came over HTTPS, or from localhost");
    const seed = new Uint8Array(await subtle.digest("SHA-256", utf8(`tornado-signal room\n${secret}`)));
    const identity = new Identity();
    identity.key = await privateKey("Ed25519", "MC4CAQAwBQYDK2VwBCIEIA==", seed, "sign");
    const { x } = await subtle.exportKey("jwk", identity.key).catch(() => identity.#publicKey(seed));
    identity.id = `@${x}`;
    return identity;
  }

  /** Firefox does not tell the public key. It is that of X25519 on another curve, and with a sign. */
  async #publicKey(seed) {
    const { subtle } = crypto;
    const hash = await subtle.digest("SHA-512", seed);
    const key = await privateKey("X25519", "MC4CAQAwBQYDK2VuBCIEIA==", new Uint8Array(hash, 0, 32), "deriveBits");
    const base = await subtle.importKey("raw", new Uint8Array(32).fill(9, 0, 1), "X25519", true, []);
    const bits = new Uint8Array(await subtle.deriveBits({ name: "X25519", public: base }, key, 256));
    const u = bits.reduceRight((sum, byte) => sum * 256n + BigInt(byte), 0n);
    const p = 2n ** 255n - 19n;
    let y = u - 1n + p; // divided by u + 1, which is multiplied by its power of p - 2
    for (let n = p - 2n, power = u + 1n; n; n >>= 1n, power = power ** 2n % p) if (n & 1n) y = (y * power) % p;
    const bytes = bits.map((_, place) => Number((y >> BigInt(8 * place)) & 255n));
    if (!(await Identity.signed(`@${base64(bytes)}`, await this.sign(""), ""))) bytes[31] += 128;
    return { x: base64(bytes) };
  }

  async sign(text) {
    return base64(await crypto.subtle.sign("Ed25519", this.key, utf8(text)));
  }

  static async signed(id, signature, text) {
    try {
      const jwk = { kty: "OKP", crv: "Ed25519", x: id.slice(1) };
      const key = await crypto.subtle.importKey("jwk", jwk, "Ed25519", false, ["verify"]);
      return await crypto.subtle.verify("Ed25519", key, unbase64(signature), utf8(text));
    } catch {
      return false;
    }
  }
}

const isName = (me) => typeof me === "string" && me !== "" && me.length <= MAX_NAME;

/** A secret that a page keeps when it is reloaded, but no other page has. */
function ownSecret() {
  try {
    return (sessionStorage[STORED] ??= random());
  } catch {
    return random(); // there is no such storage, or it may not be used
  }
}

/** Members that wait for an attempt: the least tried first, in random order. */
class Queue {
  #byTries = Array.from({ length: 5 }, () => []);

  add(member) {
    this.delete(member);
    member.waiting = this.#byTries[Math.min(4, member.tries)];
    member.place = member.waiting.push(member) - 1;
  }

  delete(member) {
    const { waiting, place } = member;
    if (!waiting) return;
    const last = waiting.pop();
    if (last !== member) Object.assign((waiting[place] = last), { place });
    member.waiting = undefined;
  }

  get next() {
    const waiting = this.#byTries.find(({ length }) => length) ?? [];
    return waiting[Math.floor(Math.random() * waiting.length)];
  }
}

/**
 * Everybody under a topic, connected to everybody: events `listed`, `join`, `leave`, `message`, `stream`, `streamend`,
 * `error` and `close`.
 *
 * A member has an id, and under the topic a session, its beacon, as long as it is there. Nobody answers a beacon. Its
 * `offer` is `{id, at, me}`, its `info` the member's. Its candidates are the mail to the member:
 *
 *   {from, me, info, code, connection, description, of, candidates}
 *
 * `from`, `me`, `info` and `code` are the sender's id, name, info and beacon; `connection` names the attempt that this is
 * about, and is known to both sides only; the others are described at `Negotiation`, which goes on over a data channel
 * when there is one. Of two members the one with the smaller id leads: it begins.
 *
 * Offer and mail are JSON. A member with a name has a secret, and an id that is made from it (`Identity`): it signs
 * both, together with the topic and the id of the recipient of the mail, and its signature stands before the JSON.
 */
class Room extends EventTarget {
  id;
  listed = false;
  peers = new Map();
  #members = new Map(); // by id: {id, name, code, at, createdAt, info, connection, tries, resting, peer, waiting, place}
  #listed = new Map(); // the members by the codes of their beacons
  #named = new Map(); // by name: the members that use it; it belongs to the first one
  #queue = new Queue();
  #attempts = { true: new Map(), false: new Map() }; // by who leads: links, by the peers that have not joined
  #made = 0; // how many peers there have been
  // biome-ignore lint/correctness/noUnusedPrivateClassMembers: kept in a field so that bundlers do not drop the allocation
  #garbage;
  #paused = false; // because one could not be made
  #streams = new Set();
  #topic;
  #options;
  #identity;
  #secret = random(); // of the beacon
  #at = 0; // when the beacon was made
  #iceServers;
  #client;
  #code; // of the beacon
  #stop = new AbortController();

  constructor(topic, options) {
    super();
    this.#topic = ROOM + topic;
    this.#options = options;
    if (!options.me && !options.secret) this.id = random(4);
    const { signal } = this.#stop;
    const hide = () => {
      this.#withdraw();
      for (const { peer } of this.#members.values()) peer?.end(); // the others are told at once
    };
    globalThis.addEventListener?.("pagehide", hide, { signal });
    options.signal?.addEventListener("abort", () => this.leave(), { signal });
    if (options.signal?.aborted) this.leave();
    else this.#run(new Servers(options, signal, (error) => this.#tell("error", { error })));
  }

  /** Send a stream to all, now and later. */
  addStream(stream) {
    this.#streams.add(stream);
    for (const { peer } of this.#members.values()) peer?.add(stream);
  }

  removeStream(stream) {
    this.#streams.delete(stream);
    for (const { peer } of this.#members.values()) peer?.remove(stream);
  }

  /** Send to one peer (or its id), or to all. */
  send(data, to) {
    for (const { channel } of to === undefined ? this.peers.values() : [this.peers.get(to.id ?? to) ?? {}]) {
      if (channel?.readyState === "open") channel.send(data);
    }
  }

  async leave() {
    if (this.#stop.signal.aborted) return;
    this.#withdraw();
    this.#stop.abort();
    await Promise.all([...this.#members.values()].map(({ peer }) => peer?.close()));
    this.#tell("close");
  }

  async #run(servers) {
    const { signal } = this.#stop;
    const { me, secret = me && ownSecret() } = this.#options;
    try {
      if (secret) {
        this.#identity = await Identity.of(secret);
        this.id = this.#identity.id;
        if (me && !isName(me)) throw new Error(`A name has one to ${MAX_NAME} characters`);
        if (me) await servers.first((client) => this.#claim(client, me));
      }
      for (;;) {
        await servers.first((client) => this.#attend(client, servers));
        await sleep(backOff(0), signal);
      }
    } catch (error) {
      if (signal.aborted) return;
      this.#tell("error", { error });
      this.leave();
    }
  }

  /** Look whether another member has the name. */
  async #claim(client, me) {
    const { sessions } = await client.sessions(this.#topic, { limit: MAX_PEERS, signal: this.#stop.signal });
    for (const { offer } of sessions) {
      const { id, me: theirs } = await this.#read(offer, "id");
      if (id && id !== this.id && theirs === me) throw new Error(`Another member has the name ${me}`);
    }
  }

  /** Be there, by one beacon, until another is needed. */
  async #attend(client, servers) {
    const { signal } = this.#stop;
    const { me, info = ownInfo() } = this.#options;
    this.#iceServers = (await servers.iceServers(client)).iceServers;
    this.#at = Math.max(Date.now(), this.#at + 1); // also after the clock was set back
    const offer = await this.#write({ id: this.id, at: this.#at, me });
    const { code, keep } = await list(client, this.#topic, { info, offer, secret: this.#secret });
    this.#withdraw();
    this.#client = client;
    this.#code = code;
    if (signal.aborted) this.#withdraw();
    else this.#list(true);
    const deadline = new Deadline(signal);
    // Those that are there are told now.
    this.#listed.clear();
    this.#queue = new Queue();
    for (const member of this.#members.values()) member.code = member.at = undefined;
    for (const member of this.#members.values()) if (!member.peer) this.#remove(member);
    try {
      const better = servers.better(client, deadline.signal);
      await Promise.race([this.#watch(deadline), this.#receive(deadline, servers, keep), better]);
    } finally {
      deadline.end();
      this.#list(false);
    }
  }

  #list(listed) {
    this.listed = listed;
    this.#tell("listed");
  }

  async #watch({ signal }) {
    for await (const { type, data } of this.#client.events(this.#topic, { signal })) {
      if (type === "session") await this.#see(data);
      else this.#gone(data.code);
    }
  }

  async #receive({ signal }, servers, keep) {
    const client = this.#client;
    const code = this.#code;
    const own = { secret: this.#secret, signal };
    let since;
    const ask = async () => {
      await keep();
      return client.poll(code, "offerer", { wait: WAIT_S, since, ...own });
    };
    try {
      for (let got = 0; got < MAX_MAILS; ) {
        const { answer, answerCandidates, cursor } = await retry(ask, signal, servers.tries);
        for (const each of answerCandidates) await this.#take(each);
        if (answer) return; // what nobody should do
        since = cursor;
        got += answerCandidates.length;
        this.#iceServers = (await servers.iceServers(client)).iceServers;
      }
    } catch (error) {
      if (!taken(error)) throw error;
    }
  }

  #withdraw() {
    if (this.#code) this.#client.leave(this.#code, "offerer", { secret: this.#secret });
    this.#code = undefined;
  }

  /** What is sent as an offer, or as mail to a member. */
  async #write(fields, to = "") {
    const json = JSON.stringify(fields);
    return `${(await this.#identity?.sign(`${this.#topic}\n${to}\n${json}`)) ?? ""}${json}`;
  }

  /** The fields of what another member has sent; none if it is nonsense, or not signed as the id in `field` asks for. */
  async #read(text, field, to = "") {
    const [, signature, json] = /^([^{]*)(.*)/s.exec(text);
    const { [field]: id, me, ...others } = parsed(json);
    if (typeof id !== "string" || id === "") return {};
    if (id[0] !== "@") return { ...others, [field]: id };
    const signed = await Identity.signed(id, signature, `${this.#topic}\n${to}\n${json}`);
    return signed ? { ...others, [field]: id, me: isName(me) ? me : undefined } : {};
  }

  async #see({ code, info, offer, createdAt }) {
    const { id, at, me } = await this.#read(offer, "id");
    if (id === this.id && this.#identity && at > this.#at) {
      throw new Error("Another page is in this room with the same secret");
    }
    if (!id || id === this.id || !(at > 0) || this.#stop.signal.aborted) return;
    const member = this.#members.get(id) ?? { id, tries: 0 };
    // It has another one now, or this is a copy of it.
    if (at < member.at || (at === member.at && createdAt > member.createdAt)) return;
    this.#add(member, me);
    this.#listed.set(code, member);
    Object.assign(member, { code, at, createdAt, info, resting: false });
    if (!member.peer) return this.#begin(member);
    member.peer.info = info;
    member.peer.post();
  }

  #gone(code) {
    const member = this.#listed.get(code);
    this.#listed.delete(code);
    if (member?.code !== code) return;
    member.code = member.at = undefined;
    if (member.peer) member.peer.check();
    else this.#remove(member);
  }

  /** Add a member, or give it another name. */
  #add(member, name) {
    if (this.#members.get(member.id) === member && member.name === name) return;
    this.#remove(member);
    this.#members.set(member.id, Object.assign(member, { name }));
    this.#named.set(name, (this.#named.get(name) ?? new Set()).add(member));
  }

  #remove(member) {
    this.#queue.delete(member);
    if (this.#members.get(member.id) !== member) return;
    this.#members.delete(member.id);
    const others = this.#named.get(member.name);
    others.delete(member);
    const [owner] = others;
    if (owner) this.#begin(owner);
    else this.#named.delete(member.name);
  }

  /** Whether a member has the name of another one, which had it first. */
  #usurps({ id, name }) {
    const [owner] = this.#named.get(name) ?? [];
    return name && (name === this.#options.me || (owner ?? { id }).id !== id);
  }

  async #take(text) {
    const { from, me, info, code, connection, ...mail } = await this.#read(text, "from", this.id);
    if (!from || from === this.id || this.#stop.signal.aborted) return;
    const member = this.#members.get(from) ?? { id: from, name: me, info: String(info), tries: 0 };
    const first = from < this.id && mail.description?.type === "offer" && mail.of === 1;
    const another = member.connection !== connection && this.#attempts.false.get(member.peer)?.late !== false;
    if (first && another && !this.#usurps(member) && this.#admits(false)) {
      member.code ??= String(code);
      this.#connect(member, connection);
      if (member.peer) this.#add(member, member.name);
    }
    if (member.connection === connection) member.peer?.take(mail);
  }

  /** Queue a member if it needs an attempt, and begin attempts. */
  #begin(member) {
    if (member && this.id < member.id && member.code && !member.peer && !member.resting && !this.#usurps(member)) {
      this.#queue.add(member);
    }
    while (!this.#stop.signal.aborted && this.#queue.next && this.#admits(true)) {
      const { next } = this.#queue; // an attempt that has ended for this one may have begun another
      if (next) this.#connect(next, random(4));
    }
  }

  /** Whether another attempt may begin, of what may be listed in any number; one that has had its time ends for it. */
  #admits(leads) {
    const attempts = this.#attempts[leads];
    if (this.#paused) return false;
    if (attempts.size >= MAX_ATTEMPTS) [...attempts].find(([, { late }]) => late)?.[0].end();
    return attempts.size < MAX_ATTEMPTS;
  }

  /** Begin an attempt, in the place of another one. */
  #connect(member, connection) {
    const room = this;
    this.#queue.delete(member);
    const before = member.peer;
    const times = Math.min(4, (member.tries += 1)); // longer each time: it may be the machine that is slow
    const link = {
      leads: this.id < member.id,
      ms: PAIR_MS * times,
      late: false,
      iceServers: this.#iceServers,
      get listed() {
        return member.code;
      },
      send: (mail, signal) => this.#send(member, { connection, ...mail }, signal),
      tell: (name, fields) => this.#tell(name, fields),
      joined(peer) {
        member.tries = 0;
        room.#attempts[link.leads].delete(peer);
        room.peers.set(member.id, peer);
        room.#tell("join", { peer });
        room.#begin();
      },
      unreachable() {
        const error = new Error(`There is no way to ${member.name ?? member.info}`);
        if (member.tries > 1) room.#tell("error", { error }); // once it may be a machine that is slow
      },
      ended: (peer, joined) => this.#ended(member, peer, joined),
    };
    try {
      member.peer = new Peer(member, link, this.#streams, this.#options);
    } catch (error) {
      if (!this.#made) throw error; // it never works
      this.#tell("error", { error });
      this.#free();
      this.#paused = true;
      this.#later(PAUSE_MS, () => (this.#paused = false), member);
      return;
    }
    if ((this.#made += 1) % MAX_ATTEMPTS === 0) this.#free();
    this.#attempts[link.leads].set(member.peer, link);
    this.#later(BESIDE_MS * times, () => (link.late = true));
    member.connection = connection;
    before?.giveUp();
  }

  /** Make Chromium free closed connections, which count for its limit of 500. It does after enough was allocated. */
  #free() {
    try {
      this.#garbage = new ArrayBuffer(2 ** 24).byteLength;
    } catch {
      // There is little memory: then it frees what it can.
    }
  }

  /** Change something after a while; then another attempt may begin. */
  #later(ms, change, member) {
    const begin = () => {
      change();
      this.#begin(member);
    };
    sleep(0, this.#stop.signal, ms).then(begin, () => {});
  }

  #ended(member, peer, joined) {
    this.#attempts[this.id < member.id].delete(peer);
    if (joined) {
      this.peers.delete(member.id);
      this.#tell("leave", { peer });
    }
    if (member.peer !== peer) return;
    member.peer = undefined;
    if (!member.code || !member.at) {
      this.#remove(member);
      return this.#begin();
    }
    member.resting = true;
    this.#later(PAUSE_MS * (0.5 + Math.random()), () => (member.resting = false), member);
  }

  /** Send mail to a member; whether it was taken, or there is nothing more to be done about it. */
  async #send(member, mail, signal) {
    const { id, code } = member;
    const { me, info = ownInfo() } = this.#options;
    const text = await this.#write({ from: this.id, me, info, code: this.#code, ...mail }, id);
    try {
      await retry(() => this.#client.candidate(code, "answerer", text, { signal }), signal);
    } catch (error) {
      if (signal.aborted) return false;
      if (taken(error)) {
        if (member.code === code) member.code = undefined; // it may have another beacon soon
        return false;
      }
      this.#tell("error", { error });
    }
    return true;
  }

  #tell(name, fields) {
    this.dispatchEvent(Object.assign(new Event(name), fields));
  }
}

/** Be in a room: everybody who calls this with the same topic is connected to everybody else. */
export const room = (topic, options = {}) => new Room(topic, options);

/** What a text of somebody else is as JSON; nothing if it is none. */
function parsed(text) {
  try {
    return JSON.parse(text) ?? {};
  } catch {
    return {};
  }
}
