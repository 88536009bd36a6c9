// A tile of the demo page: one member of the room, its streams, and the route of its data.

export const $ = (id) => document.getElementById(id);

export const make = (name, text, fields) =>
  Object.assign(document.createElement(name), { textContent: text ?? "", ...fields });

const LOOK_MS = 3000;
const TITLES = {
  Direct: "The data goes through no server. The time is there and back.",
  Relayed: "All data goes through a TURN server, which cannot read it. The time is there and back.",
};

export class Tile {
  #tile = $("tile").content.firstElementChild.cloneNode(true);
  #pictures = new Map(); // by stream
  #stop = new AbortController();

  /** Without a `peer` it is this page's own, whose sound is not played. */
  constructor(name, list, peer) {
    this.muted = !peer;
    this.name = name;
    this.kind = "";
    if (!peer) this.#find("h2").append(" (me)");
    const hue = [...(peer?.id ?? "")].reduce((sum, character) => (31 * sum + character.charCodeAt(0)) % 360, 210);
    this.#tile.style.setProperty("--hue", hue);
    this.#find(".pictures").addEventListener("dblclick", () => this.enlarge());
    this.#find(".way").addEventListener("click", () => this.#verify(peer));
    this.#find(".enlarge").addEventListener("click", () => this.enlarge());
    list.append(this.#tile);
  }

  get pointed() {
    return this.#tile.matches(":hover, :focus-within");
  }

  get name() {
    return this.#find("h2 span").textContent;
  }

  set name(name) {
    const shown = this.#find("h2 span");
    shown.textContent = shown.title = name;
    this.#find(".enlarge").ariaLabel = `Enlarge ${name}`;
    for (const video of this.#pictures.values()) video.ariaLabel = `What ${name} sends`;
    this.#initial();
  }

  #find(selector) {
    return this.#tile.querySelector(selector);
  }

  /** Show the first letter of the name while there is no picture. */
  #initial() {
    const seen = [...this.#pictures.values()].some((each) => !each.classList.contains("sound"));
    this.#tile.dataset.initial = seen ? "" : [...this.name][0]?.toUpperCase();
  }

  /** Show this tile alone, or all of them again. */
  enlarge() {
    const large = $("tiles").classList.toggle("enlarged");
    this.#tile.classList.toggle("large", large);
    this.#find(".enlarge").ariaPressed = String(large);
  }

  show(stream) {
    const video = make("video", "", { autoplay: true, playsInline: true, muted: this.muted, srcObject: stream });
    video.ariaLabel = `What ${this.name} sends`;
    video.classList.toggle("sound", !stream.getVideoTracks().length);
    this.#pictures.set(stream, video);
    this.#find(".pictures").append(video);
    this.#initial();
    video.play().catch(() => {}); // it is gone already
  }

  hide(stream) {
    this.#pictures.get(stream)?.remove();
    this.#pictures.delete(stream);
    this.#initial();
  }

  /** Say which way the data of a connection goes, as long as the tile is there. */
  async follow(peerConnection, onkind) {
    while (!this.#stop.signal.aborted) {
      const { kind, roundTrip } = await wayOf(peerConnection);
      const ms = roundTrip === undefined ? "" : `, ${Math.max(1, Math.round(roundTrip * 1000))} ms`;
      this.#find(".way span").textContent = `${kind ?? "Connected"}${ms}`;
      const before = this.kind;
      this.kind = kind ?? "";
      if (before !== this.kind && !this.#stop.signal.aborted) onkind();
      this.#find(".way").title = `${TITLES[kind] ?? ""} A click shows the safety number.`;
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
    if (this.#tile.isConnected) this.#find("dialog").showModal();
  }

  remove() {
    this.#stop.abort();
    if (this.#tile.classList.contains("large")) this.enlarge();
    this.#tile.remove();
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
