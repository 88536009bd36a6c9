/* Random names, and names with keys that prove them. */

export const random = (parts = 8) =>
  Array.from(crypto.getRandomValues(new Uint32Array(parts)), (part) => part.toString(36)).join("-");

let made; // when it is needed: not every Node can
export const ownInfo = () => (made ??= random());

export const MAX_NAME = 256;
const STORED = "tornado-signal secret"; // what a page keeps its secret as

const base64 = (bytes) =>
  btoa(String.fromCharCode(...new Uint8Array(bytes))).replace(/[+/=]/g, (sign) => ({ "+": "-", "/": "_" })[sign] ?? "");

const unbase64 = (text) =>
  Uint8Array.from(atob(text.replace(/[-_]/g, (sign) => (sign === "-" ? "+" : "/"))), (byte) => byte.charCodeAt());

const utf8 = (text) => new TextEncoder().encode(text);

/** A key from PKCS #8, which has a prefix before its bytes. */
const privateKey = (name, prefix, bytes, use) =>
  crypto.subtle.importKey("pkcs8", Uint8Array.of(...unbase64(prefix), ...bytes), name, true, [use]);

/** What a member with a secret signs with: Ed25519. Its id is the public key. */
export class Identity {
  static async of(secret) {
    const { subtle } = crypto;
    if (!subtle) throw new Error("A name needs a page that came over HTTPS, or from localhost");
    const seed = new Uint8Array(await subtle.digest("SHA-256", utf8(`tornado-signal room\n${secret}`)));
    const identity = new Identity();
    identity.key = await privateKey("Ed25519", "MC4CAQAwBQYDK2VwBCIEIA==", seed, "sign");
    const { x } = await subtle.exportKey("jwk", identity.key).catch(() => identity.#publicKey(seed));
    identity.id = `@${x}`;
    return identity;
  }

  /** Firefox does not tell the public key. It is that of X25519 on another curve, and with a sign. */
  async #publicKey(seed) {
    const { subtle } = crypto;
    const hash = await subtle.digest("SHA-512", seed);
    const key = await privateKey("X25519", "MC4CAQAwBQYDK2VuBCIEIA==", new Uint8Array(hash, 0, 32), "deriveBits");
    const base = await subtle.importKey("raw", new Uint8Array(32).fill(9, 0, 1), "X25519", true, []);
    const bits = new Uint8Array(await subtle.deriveBits({ name: "X25519", public: base }, key, 256));
    const u = bits.reduceRight((sum, byte) => sum * 256n + BigInt(byte), 0n);
    const p = 2n ** 255n - 19n;
    let y = u - 1n + p; // divided by u + 1, which is multiplied by its power of p - 2
    for (let n = p - 2n, power = u + 1n; n; n >>= 1n, power = power ** 2n % p) if (n & 1n) y = (y * power) % p;
    const bytes = bits.map((_, place) => Number((y >> BigInt(8 * place)) & 255n));
    if (!(await Identity.signed(`@${base64(bytes)}`, await this.sign(""), ""))) bytes[31] += 128;
    return { x: base64(bytes) };
  }

  async sign(text) {
    return base64(await crypto.subtle.sign("Ed25519", this.key, utf8(text)));
  }

  static async signed(id, signature, text) {
    try {
      const jwk = { kty: "OKP", crv: "Ed25519", x: id.slice(1) };
      const key = await crypto.subtle.importKey("jwk", jwk, "Ed25519", false, ["verify"]);
      return await crypto.subtle.verify("Ed25519", key, unbase64(signature), utf8(text));
    } catch {
      return false;
    }
  }
}

export const isName = (me) => typeof me === "string" && me !== "" && me.length <= MAX_NAME;

/** A secret that a page keeps when it is reloaded, but no other page has. */
export function ownSecret() {
  try {
    return (sessionStorage[STORED] ??= random());
  } catch {
    return random(); // there is no such storage, or it may not be used
  }
}

/** What a text of somebody else is as JSON; nothing if it is none. */
export function parsed(text) {
  try {
    return JSON.parse(text) ?? {};
  } catch {
    return {};
  }
}

/** What a member says under a topic, as text, to another member or to all; with an identity signed. */
export async function seal(identity, topic, fields, to = "") {
  const json = JSON.stringify(fields);
  return `${(await identity?.sign(`${topic}\n${to}\n${json}`)) ?? ""}${json}`;
}

/** The fields of what a member has said; none if it is nonsense, or not signed as the id in `field` asks for. */
export async function unseal(topic, text, field, to = "") {
  const [, signature, json] = /^([^{]*)(.*)/s.exec(text);
  const { [field]: id, me, ...others } = parsed(json);
  if (typeof id !== "string" || id === "" || (id[0] === "@") !== (signature !== "")) return {};
  if (!signature) return { ...others, [field]: id };
  const signed = await Identity.signed(id, signature, `${topic}\n${to}\n${json}`);
  return signed ? { ...others, [field]: id, me: isName(me) ? me : undefined } : {};
}
