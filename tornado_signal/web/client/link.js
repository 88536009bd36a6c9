/* One RTCPeerConnection to another page, from its creation to its end. */

import { Messages } from "./data.js";
import { Files } from "./files.js";
import { kept, Negotiation, newConnection } from "./negotiation.js";
import { doubt, now } from "./timing.js";

/** @import { Offer } from "./files.js" */
/** @import { IceServers, PeerOptions, Received, Way } from "./types.d.ts" */

/** The shared part of the connections of sessions and rooms. @implements {Way} */
export class Link {
  isOpen = false; // whether the page has the connection
  beganMs = now(); // of the attempt
  #stop = new AbortController();
  signal = this.#stop.signal; // aborted when the connection has ended
  /** @type {ReturnType<typeof setTimeout> | undefined} */ #timer;

  /** @param {IceServers} ice @param {PeerOptions} options @param {number} id @param {boolean} leads */
  constructor(ice, options, id, leads, begins = false) {
    this.ice = ice;
    this.options = options;
    this.leads = leads;
    this.begins = begins;
    const { signal } = this;
    const connection = (this.peerConnection = newConnection(ice.iceServers, options));
    this.files = new Files(connection, signal, (offer) => this.receive(offer));
    this.negotiation = new Negotiation(connection, id, this);
    const send = (/** @type {RTCPeerConnectionIceEvent} */ { candidate }) =>
      candidate && this.negotiation.add(candidate);
    connection.addEventListener("icecandidate", send, { signal });
    const change = () => {
      if (connection.connectionState === "disconnected") doubt();
      this.changed(connection.connectionState);
    };
    connection.addEventListener("connectionstatechange", change, { signal });
  }

  /** Whether messages of the negotiation can go over its channel. */
  get direct() {
    return this.isOpen;
  }

  // Both kinds of connections define these.

  /** @param {Offer} _offer of a file */
  receive(_offer) {}

  /** @param {RTCPeerConnectionState} _state */
  changed(_state) {}

  /** Let the page prepare the connection, which has a channel by now. */
  prepare() {
    try {
      this.options.prepare?.(this.peerConnection);
    } catch (error) {
      this.stop();
      throw error;
    }
  }

  /** Wait until a channel with the event `open` is open: Chromium can lose what is sent before. */
  async settle() {
    await this.peerConnection.getStats().catch(() => {});
  }

  /**
   * @param {RTCDataChannel} channel @param {(received: Received) => void} use called with each message of the other side
   * @param {(error: Error) => void} [slow]
   */
  listen(channel, use, slow) {
    const messages = new Messages(this.peerConnection, channel, this.signal, slow);
    channel.addEventListener("message", (event) => {
      const received = !kept.has(event) && messages.take(event.data);
      if (received) use(received);
    });
    return messages;
  }

  /** Report how the attempt has ended. @param {boolean} connected */
  report(connected) {
    this.ice.report(this.peerConnection, now() - this.beganMs, connected);
  }

  /** Set a time limit in place of the last one; without parameters none. @param {number} [ms] @param {() => void} [late] */
  limit(ms, late) {
    clearTimeout(this.#timer);
    if (late && !this.signal.aborted) this.#timer = setTimeout(late, ms);
  }

  stop() {
    this.limit();
    this.#stop.abort();
    this.peerConnection.close();
  }
}
