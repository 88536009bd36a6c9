// WebRTC for Node.js: @roamhq/wrtc, with the parts of the standard that it lacks and tornado-signal uses.

import wrtc from "@roamhq/wrtc";

/** A connection that creates its local description if it gets none. */
export class RTCPeerConnection extends wrtc.RTCPeerConnection {
  async setLocalDescription(description) {
    const make = () => (this.signalingState === "have-remote-offer" ? this.createAnswer() : this.createOffer());
    return super.setLocalDescription(description ?? (await make()));
  }
}

// Dispatch its events as real ones, so that listeners can stop them and have options such as `signal`.
const targets = new WeakMap();
const targetOf = (object) => targets.get(object) ?? targets.set(object, new EventTarget()).get(object);

for (const { prototype } of [wrtc.RTCPeerConnection, wrtc.RTCDataChannel]) {
  prototype.addEventListener = function (...args) {
    targetOf(this).addEventListener(...args);
  };
  prototype.removeEventListener = function (...args) {
    targetOf(this).removeEventListener(...args);
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
