/* Numbers that two people compare to exclude somebody in between. Loaded on first use. */

import { SignalError } from "./errors.js";
import { utf8 } from "./text.js";

/** @import { Peer } from "../client.d.ts" */

const EMOJI = [
  ..."🐶🐱🦁🐴🦄🐷🐘🐰🐼🐔🐧🐢🐟🐙🦋🌷🌳🌵🍄🌏🌙🌈🔥🍌🍎🍓🌽🍕🎂💎🤖🎩",
  ..."👓🔧🎅👍☔⌛⏰🎁💡📕🎈📎🎲🔒🔑🔨📷🏁🚂🚲⛵🚀🏆⚽🎸🎺🔔⚓🎧📁📌😀",
];

/**
 * Return the only fingerprint of a description. Of several, it is unknown which was checked. `sdp` is written by the
 * WebRTC implementation. A received text could hide lines from this search.
 * @param {string} sdp
 */
function fingerprintOf(sdp) {
  const [one = "", ...others] = new Set(
    [...sdp.matchAll(/^a=fingerprint:(.*?)\s*$/gim)].map(([, it]) => it.toUpperCase()),
  );
  const [, bytes] = /^SHA-256 ((?:[\dA-F]{2}:){31}[\dA-F]{2})$/.exec(one) ?? [];
  if (bytes && !others.length) return bytes;
  throw new SignalError(
    "not-verifiable",
    "A description of this connection has not exactly one fingerprint with SHA-256",
  );
}

/**
 * Return the number of a connection (docs/room-protocol.md#verification), the same whatever the order of its members.
 * @param {string} scope @param {{ id: string, sdp: string | undefined }[]} members
 */
export async function verification(scope, members) {
  if (!crypto.subtle) throw new SignalError("insecure-context", "Verification needs a page with HTTPS");
  const sorted = members
    .map(({ id, sdp = "" }) => ({ id, fingerprint: fingerprintOf(sdp) }))
    .sort((a, b) => (a.fingerprint < b.fingerprint || (a.fingerprint === b.fingerprint && a.id < b.id) ? -1 : 1));
  const fields = [...sorted.map(({ fingerprint }) => fingerprint), ...sorted.map(({ id }) => id)];
  const text = [scope, "verification", ...fields].join("\n");
  const digest = new DataView(await crypto.subtle.digest("SHA-256", utf8(text)));
  return {
    emoji: Array.from({ length: 5 }, (_, place) => EMOJI[digest.getUint8(8 + place) % EMOJI.length]),
    digits: String(digest.getBigUint64(0) % 10n ** 12n).padStart(12, "0"),
  };
}

/**
 * @param {Peer<unknown>} peer @param {string} scope the first lines of what members of the room sign
 * @param {string} ownId
 */
export function verify({ id, peerConnection: { localDescription, remoteDescription } }, scope, ownId) {
  return verification(scope, [
    { id: ownId, sdp: localDescription?.sdp },
    { id, sdp: remoteDescription?.sdp },
  ]);
}
