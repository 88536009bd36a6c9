/* Negotiation on one RTCPeerConnection. */

import { parsed } from "./identity.js";
import { PAUSE_MS, sleep } from "./timing.js";

export function newConnection(iceServers, { rtc, RTCPeerConnection = globalThis.RTCPeerConnection, prepare }) {
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
export function keepMessages(channel) {
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
export class Negotiation {
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
    // An offer that comes twice was sent again because its response was lost, with the candidates found meanwhile.
    if (description?.type === "offer" && of !== this.#seen) {
      if (!(of > this.#seen)) return; // it is late
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
    } else if (description?.type === "answer" && of === this.#of && connection.signalingState === "have-local-offer") {
      await connection.setRemoteDescription(description);
    }
    for (const each of candidates) connection.addIceCandidate(each).catch(() => {}); // may be of an older description
  }
}
