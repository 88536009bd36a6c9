/* Streams of camera, microphone and screen over one connection of a room. */

/** @import { Contact } from "./peer.js" */

export class Media {
  #contact;
  /** @type {Map<MediaStreamTrack, RTCRtpTransceiver>} */ #transceivers = new Map(); // by the track that is sent
  /** @type {RTCRtpTransceiver[]} */
  #unused = []; // transceivers that can be used again. `addTrack` does not, so descriptions would grow without limit

  /** @param {Contact} contact */
  constructor(contact) {
    this.#contact = contact;
  }

  /** Take a stream of the other side. A peer that has not joined reports it later. @param {MediaStream} stream */
  take(stream) {
    const contact = this.#contact;
    const { streams } = contact.peer;
    if (streams.includes(stream)) return;
    streams.push(stream);
    stream.addEventListener("removetrack", () => {
      if (stream.getTracks().length || !streams.includes(stream)) return;
      streams.splice(streams.indexOf(stream), 1);
      if (contact.isOpen) contact.tell("streamend", { stream });
    });
    if (contact.isOpen) contact.tell("stream", { stream });
  }

  /** Send the tracks of a stream that are not sent yet. @param {MediaStream} stream */
  add(stream) {
    const connection = this.#contact.peerConnection;
    const tracks = connection.getSenders().map(({ track }) => track);
    for (const track of stream.getTracks()) {
      if (tracks.includes(track) || this.#transceivers.has(track)) continue;
      const place = this.#unused.findIndex(({ receiver }) => receiver.track.kind === track.kind);
      if (place < 0) {
        const sender = connection.addTrack(track, stream);
        const transceiver = connection.getTransceivers().find((each) => each.sender === sender);
        if (transceiver) this.#transceivers.set(track, transceiver);
      } else {
        const [transceiver] = this.#unused.splice(place, 1);
        transceiver.sender.setStreams?.(stream);
        transceiver.sender.replaceTrack(track).catch(() => {}); // the transceiver has stopped
        transceiver.direction = transceiver.direction === "inactive" ? "sendonly" : "sendrecv";
        this.#transceivers.set(track, transceiver);
      }
    }
  }

  /** @param {MediaStream} stream */
  remove(stream) {
    for (const track of stream.getTracks()) {
      const transceiver = this.#transceivers.get(track);
      if (!transceiver) continue;
      this.#transceivers.delete(track);
      transceiver.sender.replaceTrack(null).catch(() => {});
      transceiver.direction = transceiver.direction === "sendonly" ? "inactive" : "recvonly";
      this.#unused.push(transceiver);
    }
  }
}
