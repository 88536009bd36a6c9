/* One side of one session, from its description to the open channel. */

import { announce, heed, send } from "./data.js";
import { dispatch, passing, SignalError, taken } from "./errors.js";
import { sendFile } from "./files.js";
import { ownInfo, random } from "./identity.js";
import { Link } from "./link.js";
import { iceFailure, isDescribed, keepMessages } from "./negotiation.js";
import { publishHeld } from "./servers.js";
import { read } from "./text.js";
import { backOff, deferred, makePace, now, onAbort, PAIR_MS, PAUSE_MS, retry, sleep, WAIT_S } from "./timing.js";

/** @import { Offer } from "./files.js" */
/** @import { Servers } from "./servers.js" */
/** @import { SignalClient } from "./signal-client.js" */
/** @import { Connection as PublicConnection, IceServers, LinkOptions, Mail, Side } from "./types.d.ts" */

const CONNECT_MS = 20_000; // from the answer to the open channel
const GIVE_UP_MS = 3000; // after the end of the session
const NEGOTIATION = 255; // the number of its channel, far from those that a page opens itself

const DATA = "data"; // the label of the channel of messages
export const CHOSEN = "pair"; // that of a channel which shows the offerer of a pair that it was chosen
/** @type {Set<string>} */
export const listedHere = new Set(); // the codes of this page's offers. `join` does not answer those with its own `info`

/**
 * Use the first channel with a label. A page can open others in `prepare`.
 * @param {RTCPeerConnection} connection @param {string} label @param {(channel: RTCDataChannel) => void} use
 */
function whenOpened(connection, label, use) {
  const stop = new AbortController();
  const take = (/** @type {RTCDataChannelEvent} */ { channel }) => {
    if (stop.signal.aborted || channel.label !== label) return;
    stop.abort();
    use(channel);
  };
  connection.addEventListener("datachannel", take, { signal: stop.signal });
}

export class SessionLink extends Link {
  /** @type {Set<string>} */ #received = new Set(); // candidates
  #polled = false;
  #pace = makePace();
  /** @type {string | undefined} */ #since;
  #stop = new AbortController();
  #endMs = 0; // when it is given up, from the time at which both sides are described
  #wanted = deferred(); // until both sides are described
  /** @type {ReturnType<typeof deferred<Connection>>} */ #opened = deferred();
  opened = this.#opened.promise;
  /** @type {ReturnType<typeof deferred<Connection>>} */ #listening = deferred(); // until the page can listen
  code = ""; // once the session belongs to this side
  /** @type {Connection | undefined} */ connection; // once it is open
  candidatesOnly = true;
  /** @type {string | undefined} */ info;
  /** @type {(() => Promise<void>) | undefined} */ keep;
  opening = this.#stop.signal; // aborted when it is open, or has failed
  own = { secret: random(), signal: this.opening };

  /**
   * @param {SignalClient} client @param {Side} side @param {IceServers} ice @param {LinkOptions} options
   * @param {AbortSignal} signal
   */
  constructor(client, side, ice, options, signal) {
    super(ice, options, NEGOTIATION, side === "offerer");
    this.client = client;
    this.side = side;
    this.pairs = options.pair;
    this.#makeChannel(options.channel);
    this.prepare();
    onAbort(
      this.opening,
      onAbort(signal, () => this.fail(signal.reason)),
    );
  }

  get listed() {
    return this.code;
  }

  /** @param {string} name @param {unknown} [detail] */
  step(name, detail) {
    this.options.onstep?.(name, detail, this.peerConnection);
  }

  /** @param {RTCDataChannelInit | undefined} init */
  #makeChannel(init) {
    const connection = this.peerConnection;
    // The answerer of a pair may have tried several peers. It opens a second channel with the one that it chooses.
    const chosen = this.pairs && this.leads && new Promise((resolve) => whenOpened(connection, CHOSEN, resolve));
    /** @param {RTCDataChannel} channel */
    const use = (channel) => {
      channel.binaryType = "arraybuffer";
      const release = keepMessages(channel);
      const open = async () => {
        await Promise.all([chosen, this.#wanted.promise, this.settle()]);
        if (this.opening.aborted) return;
        this.step("open");
        this.isOpen = true;
        this.limit();
        this.#stop.abort();
        this.negotiation.post();
        const opened = (this.connection = new Connection(this, channel));
        this.#opened.resolve(opened);
        release(() => {
          this.#listening.resolve(opened);
          if (channel.readyState === "closed") opened.end(); // before this side could listen
        });
      };
      if (channel.readyState === "open") open();
      else channel.addEventListener("open", open, { once: true });
    };
    if (this.leads) use(connection.createDataChannel(DATA, init));
    else whenOpened(connection, DATA, use);
  }

  /** @param {Offer} offer */
  async receive(offer) {
    offer(await this.#listening.promise, {});
  }

  /** @param {RTCPeerConnectionState} state */
  changed(state) {
    this.step(state);
    if (state === "connected") this.#wait();
    if (state === "failed") this.fail(iceFailure("the other peer", this.peerConnection));
    if (["failed", "closed"].includes(state)) this.connection?.end();
  }

  #wait(ms = this.#endMs - now()) {
    const late = () => this.fail(new SignalError("connect-timeout", "The other peer did not connect in time"));
    if (this.#endMs && !this.opening.aborted) this.limit(ms, late);
  }

  /** Close it, and withdraw its session. @param {unknown} error */
  fail(error) {
    if (this.opening.aborted) return;
    if (this.code) this.leave();
    this.#opened.reject(error);
    this.stop();
    this.#stop.abort(error);
  }

  /** Describe this side, after the offer of the other side if there is one. @param {string} [offer] */
  async describe(offer) {
    const connection = this.peerConnection;
    if (offer) await connection.setRemoteDescription(heed(connection, read(offer, "description")));
    const description = await (offer ? connection.createAnswer() : connection.createOffer());
    this.step(description.type);
    return description;
  }

  /** Send the candidates found so far: the session now belongs to this side. @param {string} code */
  begin(code) {
    this.code = code;
    globalThis.addEventListener?.("pagehide", () => this.leave(), { signal: this.opening });
    this.negotiation.post();
  }

  leave() {
    this.client.leave(this.code, this.side, this.own);
  }

  /** @param {Mail} mail */
  async send({ candidates }) {
    const { client, code, side, own } = this;
    const batch = (candidates ?? []).map((each) => JSON.stringify(each));
    const post = () =>
      client.candidates(code, side, batch, own).catch(async (error) => {
        if (error.status !== 400) throw error;
        for (const each of batch) await client.candidate(code, side, each, own); // the server does not support batches
      });
    try {
      await retry(post, this.opening);
      this.step("candidates sent", batch.length);
    } catch (error) {
      if (this.isOpen) throw error; // they go over the channel. Otherwise the session has ended, and `news` also fails
    }
    return true;
  }

  /** Use each candidate of the other side once, after it has described itself. @param {string[]} texts */
  add(texts) {
    const unseen = texts.filter((each) => !this.#received.has(each) && this.#received.add(each));
    if (unseen.length) this.#wait();
    this.negotiation.take({ candidates: unseen.flatMap((each) => read(each, "candidate") ?? []) });
  }

  /**
   * Poll, and use what the other side has sent. Returns whether it has described itself. Each try begins with `keep`.
   * @param {number} [tries] @param {() => Promise<void>} [keep]
   */
  async news(tries, keep) {
    await (this.#polled && !this.#since ? sleep(PAUSE_MS, this.opening) : this.#pace(this.opening));
    const { client, code, side, own, peerConnection } = this;
    const poll = async () => {
      await keep?.();
      return client.poll(code, side, { wait: WAIT_S, since: this.#since, ...own });
    };
    const { answer, answerCandidates, offerCandidates, cursor } = await retry(poll, this.opening, tries);
    this.#polled = true;
    this.#since = cursor;
    const candidates = answerCandidates ?? offerCandidates ?? [];
    if (candidates.length) this.step("candidates received", candidates.length);
    if (answer && !isDescribed(peerConnection)) {
      this.step("answered");
      try {
        const { info, ...description } = heed(peerConnection, read(answer, "description"));
        this.info = info ?? this.info;
        await peerConnection.setRemoteDescription(description);
      } catch (error) {
        this.fail(error);
      }
    }
    this.add(candidates);
    return Boolean(answer);
  }

  /** Continue until the channel is open or the time limit is reached. Both sides are described. */
  async connect() {
    this.beganMs = now();
    const failed = (/** @type {unknown} */ error) =>
      /^(connect-timeout|ice-failed|no-relay)$/.test(Object(error).code) && this.report(false);
    this.opened.then(() => this.report(true), failed);
    this.#wanted.resolve();
    this.#endMs = this.beganMs + CONNECT_MS;
    // Earlier if the other side has not sent a candidate or connected.
    this.#wait(this.pairs || !this.leads ? PAIR_MS : CONNECT_MS);
    try {
      while (!this.opening.aborted) await this.news();
    } catch (error) {
      // Two peers that have described themselves can connect without the server. But if the session no longer exists,
      // the other peer has probably left.
      const left = () => this.fail(new SignalError("peer-left", "The other peer has left"));
      if (taken(error)) setTimeout(left, this.pairs ? 0 : GIVE_UP_MS);
    }
  }
}

/** @implements {PublicConnection} */
export class Connection extends EventTarget {
  #link;
  #messages;
  #closed = deferred();
  closed = this.#closed.promise;

  /** @param {SessionLink} link @param {RTCDataChannel} channel */
  constructor(link, channel) {
    super();
    const { peerConnection, signal } = link;
    this.#link = link;
    this.peerConnection = peerConnection;
    this.channel = channel;
    this.code = link.code;
    this.side = link.side;
    this.info = link.info;
    this.initiator = link.leads;
    this.#messages = link.listen(channel, (received) => dispatch(this, "message", received));
    channel.addEventListener("close", () => this.end());
    // So that the other side notices at once.
    globalThis.addEventListener?.("pagehide", () => peerConnection.close(), { signal });
  }

  end() {
    if (this.#link.signal.aborted) return;
    this.#link.stop();
    this.#closed.resolve();
    dispatch(this, "close");
  }

  /** @type {PublicConnection["send"]} */
  send(data) {
    return send(data, () => {
      if (this.channel.readyState !== "open") throw new SignalError("connection-lost", "The connection is closed");
      return [{ messages: this.#messages }];
    });
  }

  /** @type {PublicConnection["sendFile"]} */
  async sendFile(file, options = {}) {
    return sendFile(this.#link.files, file, options, {});
  }

  async close() {
    await this.#messages.close();
    this.end();
  }
}

/** @param {SignalClient} client @param {string} topic @param {LinkOptions} options @param {Servers} servers */
export async function createOffer(client, topic, options, servers) {
  const { signal } = servers;
  const link = new SessionLink(client, "offerer", await servers.iceServers(client), options, signal);
  try {
    const offer = await link.describe();
    await link.peerConnection.setLocalDescription(offer); // from now on candidates are found
    const fields = { info: options.info ?? ownInfo(), offer: JSON.stringify(announce(offer)), secret: link.own.secret };
    const { code, keep } = await publishHeld(client, topic, fields);
    listedHere.add(code);
    link.opening.addEventListener("abort", () => listedHere.delete(code)); // others find it for seconds at most
    link.keep = keep;
    link.begin(code);
    link.step("published", code);
    if (signal.aborted) link.leave();
    signal.throwIfAborted();
  } catch (error) {
    link.fail(error);
    throw error;
  }
  return link;
}

/** Keep an offer listed until it is answered (true) or outdated (false). @param {SessionLink} link @param {Servers} servers */
export async function waitForAnswer(link, servers) {
  try {
    while (!(await link.news(servers.tries, link.keep))) if (now() > link.ice.until) return false;
    return true;
  } catch (error) {
    servers.signal.throwIfAborted();
    if (passing(error)) servers.fail(link.client, error);
    else if (!taken(error)) throw error;
    await sleep(backOff(0), servers.signal);
    return false;
  }
}
