/* The identity of a member with a name, or whose program gives its secret. Loaded when a page enters a room with one. */

import { SignalError } from "./errors.js";
import { Identity, integer, isName, MAX_NAME, power, random } from "./identity.js";
import { base64, unbase64, utf8 } from "./text.js";

/** Import from PKCS #8. @param {string} name @param {string} prefix @param {Uint8Array} bytes @param {KeyUsage} use */
const privateKey = (name, prefix, bytes, use) =>
  crypto.subtle.importKey("pkcs8", Uint8Array.of(...unbase64(prefix), ...bytes), name, true, [use]);

const STORED = "tornado-signal secret"; // the key of the tab's secret in sessionStorage
const RELEASE_MS = 1000; // for a page that is being reloaded to release its secret
/** @type {Promise<string> | undefined} */ let tabSecret;

/**
 * Return the secret of this tab, which survives a reload. A copy of a tab has a copy of its storage, so a lock shows
 * whether another tab uses the secret.
 */
async function ownSecret() {
  try {
    const stored = /** @type {string} */ ((sessionStorage[STORED] ??= random()));
    return (await locked(stored)) ? stored : (sessionStorage[STORED] = random());
  } catch {
    return random(); // the storage does not exist or is blocked
  }
}

/**
 * Lock a secret while the page is shown, since browsers do not cache pages with locks. Returns whether no other tab uses it.
 * @param {string} secret @returns {Promise<boolean>}
 */
const locked = (secret) =>
  new Promise((resolve) => {
    const signal = AbortSignal.timeout(RELEASE_MS);
    const hold = () => {
      resolve(true);
      return new Promise((release) => addEventListener("pagehide", release, { once: true }));
    };
    const request = (options = {}) => navigator.locks.request(`${STORED} ${secret}`, options, hold);
    request({ signal }).catch(() => resolve(!signal.aborted));
    addEventListener("pageshow", ({ persisted }) => persisted && request().catch(() => {}));
  });

/** Return the identity for a secret, or for this tab. Checks the name. @param {string} [secret] @param {string} [me] */
export async function named(secret, me) {
  if (me !== undefined && !isName(me))
    throw new SignalError("name-invalid", `A name has one to ${MAX_NAME} characters`);
  const { subtle } = crypto;
  if (!subtle) throw new SignalError("insecure-context", "A name needs HTTPS or localhost");
  if (!secret) return /** @type {Identity} */ (Identity.ofPage(await (tabSecret ??= ownSecret())));
  const seed = new Uint8Array(await subtle.digest("SHA-256", utf8(`tornado-signal room\n${secret}`)));
  const key = await privateKey("Ed25519", "MC4CAQAwBQYDK2VwBCIEIA==", seed, "sign");
  const identity = new Identity(key, "Ed25519", "");
  const { x } = await subtle.exportKey("jwk", key).catch(() => publicKey(seed, identity));
  identity.id = `@${x}`;
  return identity;
}

/**
 * Compute the public key, which Firefox does not export: that of X25519 on another curve, with a sign.
 * @param {Uint8Array<ArrayBuffer>} seed @param {Identity} identity
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
