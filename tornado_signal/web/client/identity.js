/* Topics of rooms and pairs, random names, and names with keys that prove them. */

import { SignalError } from "./errors.js";
import { base64, read, unbase64, utf8 } from "./text.js";

/** @import { Fields, Records } from "./types.d.ts" */

export const VERSION = 2; // of the format of rooms
export const SKEW_MS = 60_000; // by which the clock of a beacon's author may differ from the server's

export const random = (parts = 8) =>
  Array.from(crypto.getRandomValues(new Uint32Array(parts)), (part) => part.toString(36)).join("-");

/** @type {string | undefined} */ let pageInfo; // created on first use: not every version of Node.js has `crypto`
export const ownInfo = () => (pageInfo ??= random());

/**
 * Return the topic of a room or pair. Proxies change or refuse some characters in a path, so these are escaped.
 * @param {string} prefix @param {string} name
 */
export function topicOf(prefix, name) {
  const code = (/** @type {string} */ each) => `~${each.codePointAt(0)?.toString(16)}~`;
  const topic = prefix + String(name).replace(/[^\w .\-\u0080-\ud7ff\ue000-\u{10ffff}]/gu, code);
  if (typeof name === "string" && name && [...topic].length <= MAX_TOPIC) return topic;
  throw new SignalError("topic-invalid", `A room has a name, and its topic at most ${MAX_TOPIC} characters`);
}

export const ROOM = "room~"; // the prefix of the topic of a room on the server, where `join` finds no beacons

export const MAX_NAME = 256;
const MAX_TOPIC = 256;
const P256 = { name: "ECDSA", namedCurve: "P-256", hash: "SHA-256" };

/** @param {bigint} number */
const base64Of = (number) =>
  base64(Array.from({ length: 32 }, (_, place) => Number((number >> BigInt(248 - 8 * place)) & 255n)));

/** @param {Iterable<number>} bytes */
export const integer = (bytes) => [...bytes].reduce((sum, byte) => sum * 256n + BigInt(byte), 0n);

/** @param {bigint} x */
const jwkOf = (x) => ({ kty: "EC", crv: "P-256", x: base64Of(x), y: base64Of(yOf(x)) });

/**
 * The key that a member signs with. Its id is the public key, after a character for the kind of key: `@` for Ed25519,
 * made from a secret that the program gives (named.js), and `$` for P-256, made from a random secret of the page.
 */
export class Identity {
  /** @type {CryptoKey | Promise<CryptoKey>} */ #key;
  #algorithm;

  /** @param {CryptoKey | Promise<CryptoKey>} key @param {string | typeof P256} algorithm @param {string} id */
  constructor(key, algorithm, id) {
    this.id = id;
    this.#key = key;
    this.#algorithm = algorithm;
  }

  /** Return the identity for a random secret; undefined where the browser cannot sign. @param {string} secret */
  static ofPage(secret) {
    if (!crypto.subtle) return undefined;
    const { x, privateKey } = keyPair(integer(utf8(secret)));
    const jwk = jwkOf(x);
    const key = crypto.subtle.importKey("jwk", { ...jwk, d: base64Of(privateKey) }, P256, false, ["sign"]);
    return new Identity(key, P256, `$${jwk.x}`);
  }

  /** @param {string} text */
  async sign(text) {
    return base64(await crypto.subtle.sign(this.#algorithm, await this.#key, utf8(text)));
  }

  /** @param {string} id @param {string} signature @param {string} text */
  static async signed(id, signature, text) {
    try {
      const x = id.slice(1);
      const bytes = unbase64(x);
      if (base64(bytes) !== x) return false; // otherwise one key would have several ids
      const named = id[0] === "@";
      const jwk = named ? { kty: "OKP", crv: "Ed25519", x } : jwkOf(integer(bytes));
      const algorithm = named ? "Ed25519" : P256;
      const key = await crypto.subtle.importKey("jwk", jwk, algorithm, false, ["verify"]);
      return await crypto.subtle.verify(algorithm, key, unbase64(signature), utf8(text));
    } catch {
      return false;
    }
  }
}

/** Whether texts with an id are verified: over plain HTTP none are. @param {string} id */
export const isProven = (id) => /^[@$]/.test(id) && crypto.subtle !== undefined;

/** @param {unknown} me @returns {me is string} */
export const isName = (me) => typeof me === "string" && me !== "" && me.length <= MAX_NAME;

/**
 * Return the first lines of what members sign: the version of the format, the application's origin, and the topic.
 * @param {string} origin @param {string} topic
 */
export const scopeOf = (origin, topic) => `tornado-signal room ${VERSION}\n${origin}\n${topic}`;

/**
 * Encode what a member sends to all, or to another member's beacon; signed if it has an identity.
 * @param {Identity | undefined} identity @param {string} scope @param {Fields} fields
 */
export async function seal(identity, scope, fields, to = "", code = "") {
  const json = JSON.stringify(fields);
  return `${(await identity?.sign(`${scope}\n${to}\n${code}\n${json}`)) ?? ""}${json}`;
}

/**
 * Decode what a member has sent; undefined if it is malformed, outdated, or not signed by its id.
 *
 * A browser that cannot verify accepts an id from a random secret, without a name.
 * @template {"beacon" | "mail"} Kind @param {string} scope @param {string} text @param {Kind} kind @param {string} [to]
 * @param {string} [code] @param {number} [createdAt] when the server got the beacon
 * @returns {Promise<Records[Kind] | undefined>}
 */
export async function unseal(scope, text, kind, to = "", code = "", createdAt = 0) {
  const [, signature, json] = /** @type {RegExpExecArray} */ (/^([^{]*)(.*)/s.exec(text)); // matches any text
  const record = read(json, kind);
  if (!record) return undefined;
  const { id, v, now, since } = /** @type {Records["beacon"]} */ (record);
  // A beacon that is listed long after it was made is a copy.
  const current = v === VERSION && Math.abs(now - createdAt) <= SKEW_MS && (since ?? 0) <= createdAt + SKEW_MS;
  if (kind === "beacon" && !current) return undefined;
  const member = kind === "beacon" ? id : /** @type {Records["mail"]} */ (record).from;
  if (!member || /^[@$]/.test(member) !== (signature !== "")) return undefined;
  const me = isName(record.me) ? record.me : undefined;
  if (!isProven(member) && member[0] !== "@") return { ...record, me: undefined };
  const signed = await Identity.signed(member, signature, `${scope}\n${to}\n${code}\n${json}`);
  return signed ? { ...record, me } : undefined;
}

// Keys of the curve P-256 (FIPS 186-4). WebCrypto returns no public key at once, and none for a given private key.

const P = 2n ** 256n - 2n ** 224n + 2n ** 192n + 2n ** 96n - 1n;
const ORDER = 0xffffffff00000000ffffffffffffffffbce6faada7179e84f3b9cac2fc632551n;
const BASE_X = 0x6b17d1f2e12c4247f8bce6e563a440f277037d812deb33a0f4a13945d898c296n;
const B = 0x5ac635d8aa3a93e7b3ebbd55769886bc651d06b0cc53b0f63bce3c3e27d2604bn;

/** @param {bigint} base @param {bigint} exponent @param {bigint} modulus */
export function power(base, exponent, modulus) {
  let result = 1n;
  for (let left = exponent, square = base; left; left >>= 1n, square = square ** 2n % modulus) {
    if (left & 1n) result = (result * square) % modulus;
  }
  return result;
}

/** Return the even y of the point with this x. @param {bigint} x */
function yOf(x) {
  const y = power((x ** 3n - 3n * x + B) % P, (P + 1n) / 4n, P);
  return y & 1n ? P - y : y;
}

/** Return a private key whose public key has an even y, and the x of the public key. @param {bigint} number */
function keyPair(number) {
  const privateKey = (number % (ORDER - 1n)) + 1n;
  const baseY = yOf(BASE_X);
  // Jacobian coordinates, because a division takes as long as hundreds of multiplications.
  let [x, y, z] = [BASE_X, baseY, 1n];
  for (const bit of privateKey.toString(2).slice(1)) {
    const square = y ** 2n % P;
    const product = (4n * x * square) % P;
    const slope = (3n * (x - z ** 2n) * (x + z ** 2n)) % P;
    z = (2n * y * z) % P;
    x = (slope ** 2n - 2n * product) % P;
    y = (slope * (product - x) - 8n * square ** 2n) % P;
    if (bit === "0") continue;
    const width = (BASE_X * z ** 2n - x) % P;
    const height = (baseY * z ** 3n - y) % P;
    const step = (x * width ** 2n) % P;
    const cube = width ** 3n % P;
    z = (z * width) % P;
    x = (height ** 2n - cube - 2n * step) % P;
    y = (height * (step - x) - y * cube) % P;
  }
  const inverse = power(z, P - 2n, P);
  const affine = (/** @type {bigint} */ value) => ((value % P) + P) % P;
  // The even one of the two points with BASE_X is the negative of the base point.
  const odd = affine(y * inverse ** 3n) & 1n;
  return { x: affine(x * inverse ** 2n), privateKey: odd ? privateKey : ORDER - privateKey };
}
