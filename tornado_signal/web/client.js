/*
 * Finding peers through tornado-signal and connecting to them. Two layers:
 *
 *   SignalClient                 the API of one server, call by call
 *   publish(topic), join(topic)  WebRTC connections whose data channel is open
 *
 * client.d.ts describes both. On the wire an offer or answer is the JSON of an RTCSessionDescription, a candidate that
 * of an RTCIceCandidate.
 */

const REQUEST_MS = 15_000; // for an answer, beyond what was asked to wait
const WAIT_S = 50; // below the minute after which many proxies give up
const TTL_MS = 120_000; // how long an offer outlives a page that vanished without a word
const REFRESH_MS = 40_000;
const RENEW_MS = 600_000; // how old an offer, or a TURN password, is at most when somebody uses it
const CONNECT_MS = 20_000; // from the answer to the open channel
const PAUSE_MS = 1000; // between two polls of a server that cannot wait
const MAX_PAUSE_MS = 10_000;
const FAILED_MS = 30_000; // for so long another server is asked first
const TRIES = 4; // before another server is asked
const GONE_MS = 3000; // from the end of the session to giving up
const SILENCE_MS = 45_000; // of a stream, which has a comment every 15 s
const CLOSE_MS = 2000; // for the other side to take what is still on its way
const MAX_BATCH = 100;
const MAX_PEERS = 100; // of a listing
const EVENTS = ["session", "gone", "offer", "answer", "candidate"];
const HERE = new URL(".", import.meta.url).href; // the server that this file came from

const random = () => Array.from(crypto.getRandomValues(new Uint32Array(8)), (part) => part.toString(36)).join("-");

let me; // made up when it is needed: not every Node can

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

  constructor(url = HERE, { origin } = {}) {
    this.url = String(url).replace(/\/+$/, "");
    this.#headers = origin ? { Origin: origin } : {}; // which a browser sets by itself
  }

  version(options) {
    return this.#get("/", {}, options);
  }

  health(options) {
    return this.#get("/health", {}, options);
  }

  topics({ page, limit, ...options } = {}) {
    return this.#get("/topics", { page, limit }, options);
  }

  sessions(topic, { wait, since, limit, ...options } = {}) {
    return this.#get(inTopic(topic, "sessions"), { wait, since, limit }, options, wait);
  }

  iceServers(options) {
    return this.#get("/ice-servers", {}, options);
  }

  offer(topic, { info, offer, ttl, secret, ...options }) {
    return this.#post(inTopic(topic, "offer"), { info, offer, ttl, secret }, options);
  }

  answer(code, answer, { secret, ...options } = {}) {
    return this.#post("/answer", { code, side: "answerer", answer, secret }, options);
  }

  candidate(code, side, candidate, { secret, ...options } = {}) {
    return this.#post("/answer", { code, side, candidate, secret }, options);
  }

  candidates(code, side, candidates, { secret, ...options } = {}) {
    return this.#post("/answer", { code, side, candidates, secret }, options);
  }

  poll(code, side, { wait, since, secret, ...options } = {}) {
    return this.#post("/poll", { code, side, wait, since, secret }, options, wait);
  }

  refresh(code, side, { secret, ...options } = {}) {
    return this.#post("/refresh", { code, side, secret }, options);
  }

  withdraw(code, side, { secret, ...options } = {}) {
    return this.#post("/withdraw", { code, side, secret }, options);
  }

  /** Withdraw without waiting for an answer; works while the page goes away. */
  leave(code, side, { secret } = {}) {
    const body = JSON.stringify({ code, side, secret });
    const sent = globalThis.navigator?.sendBeacon?.(`${this.url}/withdraw`, body);
    if (!sent) this.withdraw(code, side, { secret }).catch(() => {});
  }

  /** The events of a topic, or of a session for one side, as they come: `{type, data, id}`. */
  async *events(about, { signal = new AbortController().signal } = {}) {
    const { topic, ...session } = typeof about === "string" ? { topic: about } : about;
    const path = topic === undefined ? `/events?${query(session)}` : inTopic(topic, "events");
    let id = "";
    let retryMs = PAUSE_MS;
    let begun = false;
    for (let failures = 0; ; failures += 1) {
      const deadline = new Deadline(signal);
      let leastMs = 0;
      try {
        const headers = { Accept: "text/event-stream", ...(id && { "Last-Event-ID": id }) };
        const asking = this.#ask(path, { headers, cache: "no-store" }, deadline.signal);
        const response = await deadline.within(SILENCE_MS, asking);
        // Something between here and the server may answer in its place.
        const stream = response.headers.get("Content-Type")?.startsWith("text/event-stream");
        if (!stream) throw new TypeError("The answer is no event stream");
        begun = true;
        const reader = response.body.getReader();
        const parse = messages();
        for (;;) {
          const { value, done } = await deadline.within(SILENCE_MS, reader.read());
          if (done) break;
          failures = 0;
          for (const { id: last = id, retry, event: type, data } of parse(value)) {
            id = last;
            if (/^\d+$/.test(retry)) retryMs = Number(retry);
            if (!data || !EVENTS.includes(type)) continue;
            signal.throwIfAborted();
            yield { type, data: JSON.parse(data), id };
            if (type === "gone" && topic === undefined) return;
          }
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
      await sleep(Math.max(retryMs, backOff(failures)), signal, Math.max(retryMs, leastMs));
    }
  }

  #get(path, fields, options, wait) {
    const text = String(query(fields));
    return this.#fetch(text ? `${path}?${text}` : path, {}, options, wait);
  }

  #post(path, fields, options, wait) {
    const headers = { "Content-Type": "application/json" };
    return this.#fetch(path, { method: "POST", headers, body: JSON.stringify(fields) }, options, wait);
  }

  async #fetch(path, init, { signal } = {}, wait = 0) {
    const deadline = new Deadline(signal);
    const asking = this.#ask(path, init, deadline.signal).then(json);
    try {
      return await deadline.within(REQUEST_MS + wait * 1000, asking);
    } finally {
      deadline.end();
    }
  }

  async #ask(path, init, signal) {
    const response = await fetch(this.url + path, { ...init, headers: { ...init.headers, ...this.#headers }, signal });
    if (response.ok) return response;
    const { error } = await json(response);
    const retryAfterMs = parseInt(response.headers.get("Retry-After")) * 1000 || undefined;
    throw new SignalError(response.status, error ?? response.statusText, retryAfterMs);
  }
}

const inTopic = (topic, last) => `/${encodeURIComponent(topic)}/${last}`;

const query = (fields) => new URLSearchParams(Object.entries(fields).filter(([, value]) => value != null));

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

  constructor(outer) {
    const abort = () => this.#stop.abort(outer.reason);
    if (outer?.aborted) abort();
    outer?.addEventListener("abort", abort, { signal: this.signal });
  }

  get signal() {
    return this.#stop.signal;
  }

  async within(ms, promise) {
    const error = new DOMException("The server does not answer in time", "TimeoutError");
    const timer = setTimeout(() => this.#stop.abort(error), ms);
    try {
      return await promise;
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
    const stop = () => {
      clearTimeout(timer);
      reject(signal.reason);
    };
    const end = () => {
      signal.removeEventListener("abort", stop);
      resolve();
    };
    const timer = setTimeout(end, leastMs + ms * Math.random());
    signal.addEventListener("abort", stop);
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
  constructor({ url = HERE, origin }, signal, report) {
    this.clients = [url].flat().map((each) => new SignalClient(each, { origin }));
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

/** One side of one session, from its description to the open channel. */
class Link {
  #outbox = []; // candidates of this side that are still to be sent
  #inbox = []; // those of the other side, until it is known who that is
  #known = new Set();
  #sending = true; // or not to be sent yet
  #asked = false;
  #since;
  #stop = new AbortController();

  constructor(client, side, { iceServers, until }, options, signal) {
    this.client = client;
    this.side = side;
    this.until = until;
    this.secret = random();
    this.own = { secret: this.secret, signal: this.signal };
    const connection = (this.peerConnection = new RTCPeerConnection({ iceServers, ...options.rtc }));
    this.step = (name, detail) => options.onstep?.(name, detail, connection);
    this.opened = new Promise((resolve, reject) => {
      this.fail = (error) => {
        if (this.signal.aborted) return; // it is open, or has failed before
        reject(error);
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
          if (this.signal.aborted) return;
          this.step("open");
          this.#stop.abort();
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
      if (candidate) this.#send(JSON.stringify(candidate));
    });
    connection.addEventListener("connectionstatechange", () => {
      this.step(connection.connectionState);
      if (connection.connectionState === "failed") this.fail(new Error("There is no way to the other peer"));
    });
    options.prepare?.(connection);
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
    this.#inbox.push(...candidates.filter((each) => !this.#known.has(each) && this.#known.add(each)));
    if (!this.peerConnection.remoteDescription) return;
    for (const each of this.#inbox.splice(0)) {
      const ignore = () => {}; // one that is wrong does not spoil the others
      new Promise((resolve) => resolve(this.peerConnection.addIceCandidate(JSON.parse(each)))).catch(ignore);
    }
  }

  /** Wait for what the other side sends, and use it; whether it has described itself. */
  async news(tries) {
    if (this.#asked && !this.#since) await sleep(PAUSE_MS, this.signal);
    const { client, code, side, own, peerConnection } = this;
    const asking = () => client.poll(code, side, { wait: WAIT_S, since: this.#since, ...own });
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
    const timer = setTimeout(() => this.fail(new Error("The other peer did not connect in time")), CONNECT_MS);
    this.signal.addEventListener("abort", () => clearTimeout(timer));
    try {
      while (!this.signal.aborted) await this.news();
    } catch (error) {
      // Two peers that have described themselves may connect without the server too. But when the session is gone, so
      // is the other peer, most likely.
      if (taken(error)) setTimeout(() => this.fail(new Error("The other peer has left")), GONE_MS);
    }
  }
}

/** A connection whose data channel is open. */
class Connection {
  constructor({ peerConnection, channel, code, side, info }) {
    Object.assign(this, { peerConnection, channel, code, side, info });
    const leave = () => peerConnection.close();
    globalThis.addEventListener?.("pagehide", leave); // the other side is told at once
    this.closed = new Promise((resolve) => {
      const end = () => {
        globalThis.removeEventListener?.("pagehide", leave);
        leave();
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

/** Offers under a topic, one unanswered at a time; events `connection`, `error` and `close`. */
class Publication extends EventTarget {
  #stop = new AbortController();
  #listed; // the link that waits for its answer

  constructor(topic, options) {
    super();
    const { signal } = this.#stop;
    globalThis.addEventListener?.("pagehide", () => this.#withdraw(), { signal });
    options.signal?.addEventListener("abort", () => this.close(), { signal });
    if (options.signal?.aborted) this.close();
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
        const link = (this.#listed = await servers.first((client) => this.#offer(client, topic, options, servers)));
        if (await this.#answered(link, servers)) {
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

  async #offer(client, topic, options, servers) {
    const { signal } = this.#stop;
    const link = new Link(client, "offerer", await servers.iceServers(client), options, signal);
    try {
      const offer = await link.describe();
      await link.use(offer);
      const info = options.info ?? (me ??= random());
      const fields = { info, offer: JSON.stringify(offer), secret: link.secret };
      const { code } = await client.offer(topic, { ...fields, ttl: TTL_MS }).catch((error) => {
        if (error.status !== 400) throw error;
        return client.offer(topic, fields); // so long is not allowed
      });
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
  async #answered(link, servers) {
    const { client, code } = link;
    let refreshed = Date.now();
    try {
      while (!(await link.news(servers.tries))) {
        if (Date.now() > link.until) {
          client.leave(code, "offerer", link.own);
          return false;
        }
        if (Date.now() > refreshed + REFRESH_MS) {
          refreshed = Date.now();
          client.refresh(code, "offerer", link.own).catch(() => {}); // `news` will be told
        }
      }
      return true;
    } catch (error) {
      this.#stop.signal.throwIfAborted();
      if (passing(error)) servers.fail(client, error);
      else if (!taken(error)) throw error;
      await sleep(backOff(0), this.#stop.signal);
      return false;
    } finally {
      this.#listed = undefined;
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
  const { info = (me ??= random()), choose = (sessions) => sessions, wait = true, onstep = () => {} } = options;
  const { signal = new AbortController().signal } = options;
  const servers = new Servers(options, signal, (error) => onstep("failed", error));
  const tried = new Set();
  const cursors = new Map();
  for (;;) {
    const { client, sessions, cursor } = await servers.first(async (client) => {
      const asked = { wait: wait ? WAIT_S : 0, since: cursors.get(client), limit: MAX_PEERS, signal };
      const [listing] = await Promise.all([client.sessions(topic, asked), servers.iceServers(client)]);
      return { client, ...listing };
    });
    cursors.set(client, cursor);
    const others = sessions.filter((each) => each.info !== info && !tried.has(each.code));
    onstep("peers", others.length);
    for (const session of choose(shuffled(others))) {
      tried.add(session.code);
      onstep("trying", session.info);
      const link = new Link(client, "answerer", await servers.iceServers(client), options, signal);
      try {
        return await accept(link, session, servers.tries);
      } catch (error) {
        link.fail(error);
        signal.throwIfAborted();
        onstep(taken(error) ? "taken" : "failed", error);
      }
    }
    if (!wait) return null;
    if (!cursor) await sleep(PAUSE_MS, signal);
  }
}

/** Answer a session; fails if somebody else was faster, or there is no way to the peer. */
async function accept(link, { code, info, offer, offerCandidates }, tries) {
  Object.assign(link, { code, info });
  const description = await link.describe(offer);
  const answer = JSON.stringify(description);
  await retry(() => link.client.answer(code, answer, link.own), link.signal, tries);
  link.step("accepted");
  // Not before: what two peers send to one offer would keep both from connecting for a long time.
  await link.use(description);
  link.add(offerCandidates);
  link.begin(code);
  link.connect();
  return link.opened;
}

/** In any order: else everybody who joins would try the same peer. */
const shuffled = (list) =>
  list
    .map((each) => [Math.random(), each])
    .sort(([a], [b]) => a - b)
    .map(([, each]) => each);
