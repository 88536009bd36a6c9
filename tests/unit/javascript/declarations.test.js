import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";

// tests/lint compares the types of both files and the module. This finds what is declared and never used.
const WEB = new URL("../../../tornado_signal/web/", import.meta.url);
const types = ["client", "signal-client"].map((name) => readFileSync(new URL(`${name}.d.ts`, WEB), "utf8")).join("\n");
const source = readdirSync(new URL("client/", WEB))
  .filter((name) => name.endsWith(".js"))
  .map((name) => readFileSync(new URL(`client/${name}`, WEB), "utf8"))
  .join("\n")
  .replace(/\/\*.*?\*\//gs, "")
  .replace(/\/\/ .*$/gm, "");

function members(name) {
  const [, body] = new RegExp(`^(?:export )?interface ${name}\\b[^{]*\\{\n(.*?)^\\}`, "ms").exec(types);
  return [...body.matchAll(/^ {2}(?:readonly )?(\w+)\??:/gm)].map(([, member]) => member);
}

for (const name of ["ConnectionEvents", "PublicationEvents", "PeerEvents", "RoomEvents"]) {
  test(`the module dispatches all events of ${name}`, () => {
    const events = members(name);
    assert.ok(events.length);
    for (const event of events)
      assert.match(source, new RegExp(`(tell\\(|dispatch\\(\\w+, |new Event\\()"${event}"`), event);
  });
}

test("all errors that the module makes for a page are of one class", () => {
  const made = new Set(source.match(/\bnew \w*(Error|DOMException)\b/g));
  // A SyntaxError becomes `not-a-server` or is ignored, and an Error ends what nothing waits for.
  assert.deepEqual([...made].sort(), ["new Error", "new SignalError", "new SyntaxError"]);
});

for (const name of ["ClientOptions", "PeerOptions", "RoomOptions"]) {
  test(`the module reads all options of ${name}`, () => {
    const options = members(name);
    assert.ok(options.length > 1);
    for (const option of options) {
      assert.match(source, new RegExp(`options\\.${option}\\b|\\{[^{}]*\\b${option}\\b[^{}]*\\}`), option);
    }
  });
}
