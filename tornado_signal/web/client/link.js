/* One side of one session, from its description to the open channel. */

import { ownInfo, random } from "./identity.js";
import { keepMessages, Negotiation, newConnection } from "./negotiation.js";
import { publishHeld } from "./servers.js";
import { backOff, PAUSE_MS, passing, retry, sleep, taken } from "./timing.js";

export const WAIT_S = 50; // below the minute after which many proxies give up
const CONNECT_MS = 20_000; // from the answer to the open channel
const GIVE_UP_MS = 3000; // from the end of the session to giving up
export const CLOSE_MS = 2000; // for the other side to take what is still on its way
export const PAIR_MS = 5000; // for two peers to connect, or to show that they are there
const MAX_BATCH = 100;
const NEGOTIATION = 255; // the number of the channel for it, far from those that a page opens itself

/** One side of one session, from its description to the open channel. */
export class Link {
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
      if (taken(error)) setTimeout(() => this.fail(new Error("The other peer has left")), this.#pairs ? 0 : GIVE_UP_MS);
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
export async function createOffer(client, topic, options, servers) {
  const { signal } = servers;
  const link = new Link(client, "offerer", await servers.iceServers(client), options, signal);
  try {
    const offer = await link.describe();
    await link.use(offer);
    const info = options.info ?? ownInfo();
    const { code, keep } = await publishHeld(client, topic, {
      info,
      offer: JSON.stringify(offer),
      secret: link.secret,
    });
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
export async function waitForAnswer(link, servers) {
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
