/* The places of a room with a maximum. `room` loads this file when it needs it. docs/room-protocol.md has the rules. */

import { now } from "./timing.js";

/** @import { Member } from "./types.d.ts" */

const PATIENCE_MS = 5000; // in which a member that has a place may connect before it is asked for a sign of life

/**
 * The order in which members get places, for sorting.
 * @param {{ id: string, entry?: number }} one @param {{ id: string, entry?: number }} other
 */
const compareEntries = ({ id, entry = Infinity }, other) =>
  entry - (other.entry ?? Infinity) || (id < other.id ? -1 : Number(id > other.id));

export class Places {
  full = false; // whether this page has no place
  #max;
  #established = false; // whether this page has had a place since it was last without one
  #againMs = 0;
  #vacant = true; // whether there are fewer members than places
  /** @type {Set<{ id: string }>} */ #members = new Set(); // those with a place
  /** @type {Set<{ id: string }>} */ #known = new Set();

  /** @param {number} max */
  constructor(max) {
    this.#max = max;
  }

  /** Whether a member has a place. One that is known only from its mail comes last. @param {Member} member */
  has(member) {
    return this.#members.has(member) || (this.#vacant && !this.#known.has(member));
  }

  /**
   * Assign the places. Returns the members to ask for a sign of life, and whether to assign again in five seconds.
   * @param {{ id: string, entry: number }} own @param {Member[]} members
   */
  assign(own, members) {
    let counted = 0; // members that are not silent
    let alive = 0; // those that are connected or have given a sign of life
    let urgent = false; // whether members that may be dead are in this page's way
    this.#members.clear();
    for (const each of [own, ...members].sort(compareEntries)) {
      const { open, beacon } = /** @type {Partial<Member>} */ (each);
      const isOwn = each === own;
      if ((open || (isOwn && this.#established) ? alive : counted) < this.#max) this.#members.add(each);
      if (isOwn) urgent = counted >= this.#max;
      const lives = isOwn || open || beacon?.alive;
      alive += Number(Boolean(lives));
      counted += Number(Boolean(lives || !beacon?.silent));
    }
    this.#known = new Set([own, ...members]);
    this.#vacant = counted < this.#max;
    this.#established = this.#members.has(own);
    this.full = !this.#established;
    const inTheWay = members.filter(
      (each) => this.#members.has(each) && !each.open && each.beacon && !each.beacon.alive && !each.beacon.asked,
    );
    const nowMs = now();
    const ask = inTheWay.filter(({ beacon }) => urgent || Number(beacon?.seenMs) + PATIENCE_MS <= nowMs);
    const again = ask.length < inTheWay.length && nowMs >= this.#againMs;
    if (again) this.#againMs = nowMs + PATIENCE_MS;
    return { ask, again };
  }
}
