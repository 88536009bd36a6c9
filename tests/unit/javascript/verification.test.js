import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { scopeOf } from "../../../tornado_signal/web/client/identity.js";
import { verification } from "../../../tornado_signal/web/client/verification.js";

const text = readFileSync(new URL("../../room-vectors.json", import.meta.url), "utf8");
const { origin, topic, verified, "not verified": refused } = JSON.parse(text);
const scope = scopeOf(origin, topic);

for (const { what, members, emoji, digits } of verified) {
  test(`number: ${what}`, async () => assert.deepEqual(await verification(scope, members), { emoji, digits }));
}

for (const { what, sdp } of refused) {
  test(`no number: ${what}`, async () => {
    const [other] = verified[0].members;
    for (const members of [
      [other, { id: "a", sdp }],
      [{ id: "a", sdp }, other],
    ]) {
      await assert.rejects(verification(scope, members), { code: "not-verifiable" });
    }
  });
}

test("the number is of one room and one application", async () => {
  const [{ members, digits }] = verified;
  for (const other of [scopeOf(origin, "room~other"), scopeOf("https://other.example", topic)]) {
    assert.notEqual((await verification(other, members)).digits, digits);
  }
});
