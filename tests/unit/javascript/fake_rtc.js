/** As much of RTCPeerConnection as negotiation uses: signaling states, implicit rollback, candidates, one data channel. */

export class FakeChannel extends EventTarget {
  readyState = "connecting";
  sent = [];

  send(data) {
    this.sent.push(JSON.parse(data));
  }

  open() {
    this.readyState = "open";
    this.dispatchEvent(new Event("open"));
  }

  receive(message) {
    this.dispatchEvent(new MessageEvent("message", { data: JSON.stringify(message) }));
  }
}

export class FakeConnection extends EventTarget {
  signalingState = "stable";
  localDescription = null;
  remoteDescription = null;
  candidates = [];
  #name;
  #made = 0;

  constructor(name) {
    super();
    this.#name = name;
  }

  createDataChannel() {
    this.channel = new FakeChannel();
    return this.channel;
  }

  async setLocalDescription() {
    const type = this.signalingState === "have-remote-offer" ? "answer" : "offer";
    this.#made += 1;
    this.localDescription = { type, sdp: `${type} ${this.#made} of ${this.#name}` };
    this.signalingState = type === "answer" ? "stable" : "have-local-offer";
  }

  async setRemoteDescription(description) {
    const expected = description.type === "offer" ? ["stable", "have-local-offer"] : ["have-local-offer"];
    if (!expected.includes(this.signalingState)) throw new Error(`${description.type} in ${this.signalingState}`);
    if (this.signalingState === "have-local-offer" && description.type === "offer") this.localDescription = null;
    this.remoteDescription = description;
    this.signalingState = description.type === "offer" ? "have-remote-offer" : "stable";
  }

  async addIceCandidate(candidate) {
    if (!this.remoteDescription) throw new Error("no remote description");
    this.candidates.push(candidate);
  }

  /** Have it offer, as a browser does when a track or a channel was added. */
  need() {
    this.dispatchEvent(new Event("negotiationneeded"));
  }
}
