/* Rooms with a password: their topics and their encryption. `room` loads this file when it needs it. */

import { SignalError } from "./errors.js";
import { VERSION } from "./identity.js";
import { base64, unbase64, utf8 } from "./text.js";

const PBKDF2_ITERATIONS = 600_000; // of PBKDF2; about a third of a second on a laptop
const NONCE = 12; // bytes
const NONCE_TEXT = 16; // characters
const HASH = "SHA-256";

/** The key of a room with a password. docs/room-protocol.md describes the format. */
export class Cipher {
  ignored = 0; // texts that could not be decrypted, or that were repeated
  #key;

  /** @param {string} topic @param {CryptoKey} key */
  constructor(topic, key) {
    this.topic = topic;
    this.#key = key;
  }

  /**
   * Derive the topic on the server and the key from an application, a room's topic and its password.
   * @param {string} origin @param {string} topic @param {unknown} password
   */
  static async of(origin, topic, password) {
    const subtle = globalThis.crypto?.subtle;
    if (!subtle) throw new SignalError("insecure-context", "A password needs HTTPS or localhost");
    if (typeof password !== "string" || !password) throw new SignalError("password-invalid", "A password is a text");
    const secret = await subtle.importKey("raw", utf8(password.normalize()), "PBKDF2", false, ["deriveBits"]);
    const salt = utf8(`tornado-signal password ${VERSION}\n${origin}\n${topic}`);
    const bits = await subtle.deriveBits(
      { name: "PBKDF2", hash: HASH, salt, iterations: PBKDF2_ITERATIONS },
      secret,
      256,
    );
    const root = await subtle.importKey("raw", bits, { name: "HMAC", hash: HASH }, false, ["sign"]);
    const mac = (/** @type {string} */ text) => subtle.sign("HMAC", root, utf8(text));
    const key = await subtle.importKey("raw", await mac("key"), "AES-GCM", false, ["encrypt", "decrypt"]);
    return new Cipher(topic.replace(/~.*/s, `~${base64(await mac(topic))}`), key);
  }

  /** Encrypt a beacon, or mail to the beacon with a code. @param {string} text @param {string} [code] */
  async seal(text, code) {
    const iv = crypto.getRandomValues(new Uint8Array(NONCE));
    const sealed = await crypto.subtle.encrypt(parameters(iv, code), this.#key, utf8(text));
    return base64(iv) + base64(sealed); // 12 bytes are 16 characters
  }

  /**
   * Decrypt a beacon, or mail to the beacon with a code; `""` for anything else.
   * @param {string} text @param {string} [code] @param {Set<string>} nonces those of the mail received at the beacon
   */
  async unseal(text, code, nonces = new Set()) {
    try {
      const bytes = unbase64(text);
      if (base64(bytes) !== text) throw new Error("another form"); // each text has one form, so a copy is known
      const iv = bytes.subarray(0, NONCE);
      const plain = await crypto.subtle.decrypt(parameters(iv, code), this.#key, bytes.subarray(NONCE));
      if (nonces.size === nonces.add(text.slice(0, NONCE_TEXT)).size) throw new Error("repeated");
      return new TextDecoder().decode(plain);
    } catch {
      this.ignored += 1;
      return "";
    }
  }
}

/** A text is valid only as what it was encrypted for. @param {Uint8Array<ArrayBuffer>} iv @param {string} [code] */
const parameters = (iv, code) => ({
  name: "AES-GCM",
  iv,
  additionalData: utf8(code === undefined ? "beacon" : `mail\n${code}`),
});
