/* Negotiation on one RTCPeerConnection. */

import { announce, heed } from "./data.js";
import { SignalError } from "./errors.js";
import { read } from "./text.js";
import { PAUSE_MS, sleep } from "./timing.js";

/** @import { Mail, PeerOptions, Way } from "./types.d.ts" */

/** @param {RTCIceServer[]} iceServers @param {PeerOptions} options */
export function newConnection(iceServers, { rtc, RTCPeerConnection = globalThis.RTCPeerConnection }) {
  try {
    return new RTCPeerConnection({ iceServers, ...rtc });
  } catch (cause) {
    throw new SignalError("rtc-failed", `No RTCPeerConnection: ${cause}`, { cause });
  }
}

/** Whether the other side has a description with content. @param {RTCPeerConnection} connection */
export const isDescribed = ({ remoteDescription }) => Boolean(remoteDescription?.type); // node-datachannel has an empty one

/** @param {string} peer @param {RTCPeerConnection} connection */
export const iceFailure = (peer, connection) =>
  new SignalError(
    /"turn/.test(JSON.stringify(connection.getConfiguration?.())) ? "ice-failed" : "no-relay",
    `ICE found no route to ${peer}; a STUN or TURN server may be missing (docs/turn.md)`,
  );

const MAX_BATCH = 100; // candidates of a message: a server takes no more of a session at once
/** @type {WeakSet<Event>} */
export const kept = new WeakSet(); // events that are delivered later, also where events cannot be stopped (werift)

/**
 * Buffer the messages that arrive before a page can listen. The function that is returned delivers them after the
 * current event-loop iteration, and then calls `then`.
 * @param {RTCDataChannel} channel
 */
export function keepMessages(channel) {
  /** @type {unknown[]} */ const buffer = [];
  /** @param {MessageEvent} event */
  const keep = (event) => {
    event.stopImmediatePropagation?.();
    kept.add(event);
    buffer.push(event.data);
  };
  channel.addEventListener("message", keep);
  return (/** @type {() => void} */ then) => {
    const { port1, port2 } = new MessageChannel(); // browsers slow timers of background pages down, but not this
    port1.onmessage = () => {
      port1.close();
      channel.removeEventListener("message", keep);
      for (const data of buffer) channel.dispatchEvent(new MessageEvent("message", { data }));
      then();
    };
    port2.postMessage(null);
  };
}

/**
 * "Perfect negotiation" on one RTCPeerConnection: either side may offer at any time. Of two offers at once, that of the
 * side that leads is used. If only one side is Firefox, the other side's offer is used, because Chromium cannot always
 * use an offer of Firefox after a rollback. A message is `{description, of, candidates}`: the description is either the
 * `of`th offer of its side or the answer to the `of`th offer of the other side.
 *
 * While `way.direct` is true, messages go over a data channel that both sides create with the same number. Otherwise,
 * while `way.listed` is true, they go over `way.send`, which returns whether the mail was taken. `way.signal` ends the
 * negotiation.
 */
export class Negotiation {
  #connection;
  #way;
  #channel;
  /** @type {RTCIceCandidate[]} */ #outbox = []; // candidates that still must be sent
  #described = false; // whether the description still must be sent
  #offers = 0;
  #of = 0;
  #seen = 0; // the number of the other side's last offer
  #making = false; // whether an offer is being made
  #posting = false;
  #taking = Promise.resolve();
  /** @type {RTCIceCandidateInit[]} */ #inbox = []; // candidates of the other side, until it has described itself

  /** @param {RTCPeerConnection} connection @param {number} id @param {Way} way */
  constructor(connection, id, way) {
    this.#connection = connection;
    this.#way = way;
    const { signal } = way;
    this.#channel = connection.createDataChannel("negotiation", { negotiated: true, id });
    this.#channel.addEventListener("open", () => this.post(), { signal });
    this.#channel.addEventListener("message", ({ data }) => this.take(read(data, "negotiation")), { signal });
    const offer = () => {
      // Some implementations fire this event before the state is stable.
      if (connection.signalingState === "stable" && (way.begins || isDescribed(connection))) this.#offer();
    };
    connection.addEventListener("negotiationneeded", offer, { signal });
    // node-datachannel makes its offer with the first channel, and fires no event.
    if (way.begins && connection.signalingState === "have-local-offer") this.#offer();
  }

  get #direct() {
    return this.#way.direct && this.#channel.readyState === "open";
  }

  get #describes() {
    return this.#described && (this.#direct || !this.#way.candidatesOnly);
  }

  /** @param {RTCIceCandidate} candidate */
  add(candidate) {
    this.#outbox.push(candidate);
    this.post();
  }

  /** Look for another way through the network. */
  restart() {
    this.#way.renew?.();
    try {
      this.#connection.restartIce();
    } catch {
      return; // node-datachannel cannot
    }
    // In other states the browser fires `negotiationneeded`.
    if (this.#connection.signalingState === "have-local-offer") this.#offer();
  }

  async #offer() {
    this.#making = true;
    try {
      await this.#connection.setLocalDescription();
      this.#of = this.#offers += 1;
      this.#described = true;
      this.post();
    } catch {
      // The connection is closed, or the other side was faster: then the event fires again.
    }
    this.#making = false;
  }

  /** Send all pending data. Data added in the meantime goes with the next message. */
  async post() {
    if (this.#posting) return;
    this.#posting = true;
    const { signal } = this.#way;
    /** @type {Mail & { candidates: RTCIceCandidate[] }} */ let message = { candidates: [] };
    try {
      while (!signal.aborted && (this.#direct || this.#way.listed) && (this.#describes || this.#outbox.length)) {
        message = { candidates: this.#outbox.splice(0, MAX_BATCH) };
        const description = /** @type {RTCSessionDescription} */ (this.#connection.localDescription);
        if (this.#describes) {
          Object.assign(message, { description: announce(description), of: this.#of });
          this.#described = false;
        }
        if (this.#direct) this.#channel.send(JSON.stringify(message));
        // The description contains all candidates found so far.
        else if (!(await this.#way.send?.(message))) this.#described = true;
      }
    } catch {
      this.#outbox.unshift(...message.candidates);
      this.#described ||= "description" in message;
      const again = () => this.post();
      sleep(PAUSE_MS, signal).then(again, () => {}); // the channel's buffer may be full
    } finally {
      this.#posting = false;
    }
  }

  /** Process a message of the other side, after the earlier ones. @param {Mail} [message] */
  take(message = {}) {
    this.#taking = this.#taking.then(() => this.#take(message)).catch(() => {}); // an unusable message is ignored
  }

  /** @param {Mail} message */
  async #take({ description, of: number, candidates }) {
    const of = number ?? NaN;
    const connection = this.#connection;
    if (description) heed(connection, description);
    // The same offer arrives twice if its response was lost; candidates found since then arrive with it.
    if (description?.type === "offer" && of !== this.#seen) {
      if (!(of > this.#seen)) return; // it is outdated
      const texts = [connection.localDescription?.sdp, description.sdp];
      const [own, other] = texts.map((each) => /^o=mozilla/m.test(each ?? ""));
      const stands = own === other ? this.#way.leads : other;
      if (stands && (this.#making || (this.#offers && connection.signalingState !== "stable"))) return;
      this.#seen = of;
      this.#described = false; // the offer of this side is void
      this.#way.renew?.(); // it can restart ICE
      try {
        await connection.setRemoteDescription(description);
      } catch {
        return this.#way.refuse?.(); // after this error Chromium cannot continue
      }
      await connection.setLocalDescription();
      this.#of = of;
      this.#described = true;
      this.post();
    } else if (description?.type === "answer" && of === this.#of && connection.signalingState === "have-local-offer") {
      await connection.setRemoteDescription(description);
    }
    this.#inbox.push(...(candidates ?? []));
    if (!isDescribed(connection)) return;
    // A candidate may belong to an older description, or be invalid.
    const add = async (/** @type {RTCIceCandidateInit} */ candidate) => connection.addIceCandidate(candidate);
    for (const each of this.#inbox.splice(0)) add(each).catch(() => {});
  }
}
