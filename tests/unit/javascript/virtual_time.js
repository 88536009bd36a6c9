/** A clock that continues with the next timer as soon as nothing else is left to run. Load changes nothing. */

import { readdir } from "node:fs/promises";
import { after } from "node:test";

const CLIENT = new URL("../../../tornado_signal/web/client/", import.meta.url);
const TURNS = 5; // of the event loop without work, after which nothing is left to run: messages of ports take some

// Loading a part takes time that this clock does not count.
for (const name of await readdir(CLIENT)) if (name.endsWith(".js")) await import(new URL(name, CLIENT));

const beganMs = Date.now();
let nowMs = 0;
let working = 0; // promises that other threads settle
let idle = 0; // turns
let turning = false;
let over = false;
const timers = new Set();

function run() {
  if (turning || over) return;
  turning = true;
  setImmediate(turn);
}

function turn() {
  turning = false;
  idle = working ? 0 : idle + 1;
  if (idle > TURNS) {
    idle = 0;
    const [next] = [...timers].sort((one, other) => one.atMs - other.atMs);
    if (next) next.fire();
  }
  if (working || [...timers].some(({ held }) => held)) run();
}

// Rooms that a failed test leaves open do not keep the process alive.
after(() => (over = true));

class Timer {
  held = true;

  constructor(call, ms, repeats) {
    this.fire = () => {
      nowMs = Math.max(nowMs, this.atMs);
      if (repeats) this.atMs = nowMs + Math.max(1, ms);
      else timers.delete(this);
      call();
    };
    this.atMs = nowMs + Math.max(1, ms);
    timers.add(this);
    run();
  }

  unref() {
    this.held = false;
    return this;
  }
}

globalThis.setTimeout = (call, ms = 0, ...parameters) => new Timer(() => call(...parameters), ms, false);
globalThis.setInterval = (call, ms) => new Timer(call, ms, true);
globalThis.clearTimeout = globalThis.clearInterval = (timer) => timers.delete(timer);
Date.now = () => Math.floor(beganMs + nowMs);
performance.now = () => nowMs;

for (const [{ prototype }, ...names] of [
  [SubtleCrypto, "decrypt", "deriveBits", "digest", "encrypt", "exportKey", "importKey", "sign", "verify"],
  [Blob, "arrayBuffer"],
]) {
  for (const name of names) {
    const method = prototype[name];
    prototype[name] = async function (...parameters) {
      working += 1;
      try {
        return await method.apply(this, parameters);
      } finally {
        working -= 1;
        idle = 0;
        run();
      }
    };
  }
}
