// A tile of the demo page: one member of the room, its streams, and the route of its data.

export const $ = (id) => document.getElementById(id);

export const make = (name, text = "", fields = {}) =>
  Object.assign(document.createElement(name), { textContent: text, ...fields });

const LOOK_MS = 3000;
export class Tile {
  element = $("tile").content.firstElementChild.cloneNode(true);
  #videos = new Map(); // by stream
  kind = ""; // the way of the data, once it is known

  /** Without a `peer` it is this page's own, whose sound is not played. */
  constructor(name, list, peer) {
    this.name = name;
    this.muted = !peer;
    const hue = [...(peer?.id ?? "")].reduce((sum, character) => (31 * sum + character.charCodeAt(0)) % 360, 210);
    this.element.style.setProperty("--hue", hue);
    this.element.dataset.initial = [...name][0].toUpperCase();
    const [heading, enlarge] = ["h2", ".enlarge"].map((selector) => this.#find(selector));
    heading.textContent = heading.title = name;
    enlarge.ariaLabel = `Enlarge ${name}`;
    enlarge.onclick = () => (enlarge.ariaPressed = String(enlarge.ariaPressed !== "true"));
    this.#find(".pictures").ondblclick = enlarge.onclick;
    this.#find(".way").onclick = () => this.#verify(peer);
    list.append(this.element);
  }

  #find(selector) {
    return this.element.querySelector(selector);
  }

  show(stream) {
    const video = make("video", "", { autoplay: true, playsInline: true, muted: this.muted, srcObject: stream });
    video.ariaLabel = `What ${this.name} sends`;
    video.classList.toggle("sound", !stream.getVideoTracks().length);
    this.#videos.set(stream, video);
    this.#find(".pictures").append(video);
    video.play().catch(() => {}); // it is gone already
  }

  hide(stream) {
    this.#videos.get(stream)?.remove();
    this.#videos.delete(stream);
  }

  /** Say which way the data of a connection goes, as long as the tile is there. */
  async follow(peerConnection, onkind) {
    while (this.element.isConnected) {
      const { kind = "", roundTrip } = await wayOf(peerConnection);
      const ms = roundTrip === undefined ? "" : `, ${Math.max(1, Math.round(roundTrip * 1000))} ms`;
      this.#find(".way span").textContent = `${kind || "Connected"}${ms}`;
      this.kind = kind;
      onkind();
      await new Promise((resolve) => setTimeout(resolve, kind ? LOOK_MS : LOOK_MS / 15));
    }
  }

  /** Show the number that both people compare. */
  async #verify(peer) {
    const show = (selector, text) => (this.#find(`dialog ${selector}`).textContent = text);
    show(".asked", `Is this really ${this.name}?`);
    try {
      const { emoji, digits } = await peer.verification();
      show(".emoji", emoji.join(" "));
      show(".digits", digits.match(/.{4}/g).join(" "));
    } catch (error) {
      show(".digits", `${error.message}.`);
    }
    if (this.element.isConnected) this.#find("dialog").showModal();
  }
}

/** `kind`, once it is known, and `roundTrip` (s): from the statistics of the pair of addresses that is in use. */
async function wayOf(peerConnection) {
  const stats = await peerConnection.getStats();
  const all = [...stats.values()];
  const { selectedCandidatePairId } = all.find(({ type }) => type === "transport") ?? {};
  const pair =
    stats.get(selectedCandidatePairId) ?? all.find(({ type, nominated }) => type === "candidate-pair" && nominated);
  if (!pair) return {};
  const kinds = [pair.localCandidateId, pair.remoteCandidateId].map((id) => stats.get(id)?.candidateType);
  return { kind: kinds.includes("relay") ? "Relayed" : "Direct", roundTrip: pair.currentRoundTripTime };
}
