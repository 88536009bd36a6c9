// Respond to GET /?user=NAME with a token for that user. A real backend takes the name from its own login.

import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { SignJWT } from "jose";

const secret = new TextEncoder().encode(readFileSync("keys/main.secret", "utf8").trim());

createServer(async (request, response) => {
  const user = new URL(request.url, "http://localhost").searchParams.get("user");
  const token = await new SignJWT({ info: user, topics: ["room~lobby"] })
    .setProtectedHeader({ alg: "HS256", kid: "main" })
    .setSubject(user)
    .setExpirationTime("10m")
    .sign(secret);
  response.writeHead(200, { "Access-Control-Allow-Origin": "*" }).end(token);
}).listen(process.env.PORT ?? 4000, "127.0.0.1");
