/* The identity of a member whose program gives its secret. Loaded when a page enters a room with one. */

import { power } from "./curve.js";
import { Identity, integer } from "./identity.js";
import { base64, unbase64, utf8 } from "./text.js";
import { PeerError } from "./timing.js";

/**
 * Import a key from PKCS #8, which has a prefix before the key's bytes.
 *
 * @param {string} name
 * @param {string} prefix
 * @param {Uint8Array} bytes
 * @param {KeyUsage} use
 */
const privateKey = (name, prefix, bytes, use) =>
  crypto.subtle.importKey("pkcs8", Uint8Array.of(...unbase64(prefix), ...bytes), name, true, [use]);

/** @param {string} secret */
export async function named(secret) {
  const { subtle } = crypto;
  if (!subtle) throw new PeerError("insecure-context", "A name needs HTTPS or localhost");
  const seed = new Uint8Array(await subtle.digest("SHA-256", utf8(`tornado-signal room\n${secret}`)));
  const key = await privateKey("Ed25519", "MC4CAQAwBQYDK2VwBCIEIA==", seed, "sign");
  const identity = new Identity(key, "Ed25519", "");
  const { x } = await subtle.exportKey("jwk", key).catch(() => publicKey(seed, identity));
  identity.id = `@${x}`;
  return identity;
}

/**
 * Compute the public key, which Firefox does not export: that of X25519 on another curve, with a sign.
 *
 * @param {Uint8Array<ArrayBuffer>} seed
 * @param {Identity} identity
 */
async function publicKey(seed, identity) {
  const { subtle } = crypto;
  const hash = await subtle.digest("SHA-512", seed);
  const key = await privateKey("X25519", "MC4CAQAwBQYDK2VuBCIEIA==", new Uint8Array(hash, 0, 32), "deriveBits");
  const base = await subtle.importKey("raw", new Uint8Array(32).fill(9, 0, 1), "X25519", true, []);
  const bits = new Uint8Array(await subtle.deriveBits({ name: "X25519", public: base }, key, 256));
  const u = integer(bits.reverse());
  const p = 2n ** 255n - 19n;
  const y = ((u - 1n + p) * power(u + 1n, p - 2n, p)) % p; // divided by u + 1: multiplied by its power of p - 2
  const bytes = bits.map((_, place) => Number((y >> BigInt(8 * place)) & 255n));
  if (!(await Identity.signed(`@${base64(bytes)}`, await identity.sign(""), ""))) bytes[31] += 128;
  return { x: base64(bytes) };
}
