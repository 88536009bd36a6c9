// Replaces webrtc-polyfill, whose native part is downloaded at installation, by the native WebRTC of @roamhq/wrtc.

import { register } from "node:module";

export async function resolve(name, context, next) {
  return next(name === "webrtc-polyfill" ? new URL("wrtc.mjs", import.meta.url).href : name, context);
}

register(import.meta.url);
