// WebRTC for Node.js: @roamhq/wrtc, and what it lacks of the standard that tornado-signal uses.

import wrtc from "@roamhq/wrtc";

/** Makes its descriptions by itself when it is given none. */
export class RTCPeerConnection extends wrtc.RTCPeerConnection {
  async setLocalDescription(description) {
    const make = () => (this.signalingState === "have-remote-offer" ? this.createAnswer() : this.createOffer());
    return super.setLocalDescription(description ?? (await make()));
  }
}

// Its events become real ones, so that listeners can stop them and have options, such as `signal`.
const targets = new WeakMap();
const targetOf = (object) => targets.get(object) ?? targets.set(object, new EventTarget()).get(object);

for (const { prototype } of [wrtc.RTCPeerConnection, wrtc.RTCDataChannel]) {
  prototype.addEventListener = function (...given) {
    targetOf(this).addEventListener(...given);
  };
  prototype.removeEventListener = function (...given) {
    targetOf(this).removeEventListener(...given);
  };
  prototype.dispatchEvent = function ({ type, data, candidate, channel, track, streams }) {
    const event = Object.assign(new Event(type), { data, candidate, channel, track, streams });
    const handler = () => this[`on${type}`]?.(event);
    process.nextTick(() => {
      this.addEventListener(type, handler);
      targetOf(this).dispatchEvent(event);
      this.removeEventListener(type, handler);
    });
  };
}
