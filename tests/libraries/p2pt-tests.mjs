// Lets the tests in the package p2pt use other trackers than the addresses that they contain.

import { register } from "node:module";

const [first, second] = (process.env.TRACKERS ?? "").split(" ");

export async function load(url, context, next) {
  const loaded = await next(url, context);
  if (!url.includes("/p2pt/test/")) return loaded;
  const source = String(loaded.source)
    .replaceAll("ws://localhost:5000/", `${first}/announce`)
    .replaceAll("ws://localhost:5000", `${first}/tracker`)
    .replaceAll("ws://localhost:5001", `${second}/tracker`);
  return { ...loaded, source };
}

register(import.meta.url);
