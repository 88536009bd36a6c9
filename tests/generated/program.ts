// Uses all operations with the types that openapi-typescript generates from /openapi.json. A page would not set the
// Origin.

import createClient from "openapi-fetch";
import type { components, paths } from "./schema.js";

type Schemas = components["schemas"];
type Client = ReturnType<typeof createClient<paths>>;

const SECRET = "a secret of 16 and more";
const topic = { topic: "a topic / of Ωmega" };

function same(found: unknown, expected: unknown): void {
  const [one, other] = [JSON.stringify(found), JSON.stringify(expected)];
  if (one !== other) throw new Error(`${one} is not ${other}`);
}

function got<T>({ data, error }: { data?: T; error?: Schemas["Error"] }): T {
  if (data === undefined) throw new Error(`refused: ${error?.error}`);
  return data;
}

async function connectTwoPeers(client: Client): Promise<void> {
  const offer: Schemas["OfferRequest"] = { info: "me", offer: "an offer", ttl: 60_000, secret: SECRET };
  const { code } = got(await client.POST("/{topic}/offer", { params: { path: topic }, body: offer }));
  const params = { path: topic, query: { wait: 0.5, limit: 5 } };
  const { sessions, cursor } = got(await client.GET("/{topic}/sessions", { params }));
  const [session] = sessions;
  if (session === undefined) throw new Error("one session was to be listed");
  same([session.code, session.info, session.offer, session.offerCandidates], [code, "me", "an offer", []]);
  same([session.expiresAt - session.createdAt, typeof cursor], [60_000, "string"]);
  const { topics, pagination } = got(await client.GET("/topics", { params: { query: { page: 1, limit: 10 } } }));
  same([topics, pagination], [[{ ...topic, count: 1 }], { page: 1, limit: 10, total: 1, hasMore: false }]);

  for (const body of [
    { code, side: "answerer", answer: "an answer" },
    { code, side: "answerer", candidate: "one" },
    { code, side: "offerer", candidates: ["two", "three"], secret: SECRET },
  ] satisfies (Schemas["AnswerRequest"] | Schemas["CandidateRequest"] | Schemas["CandidatesRequest"])[]) {
    got(await client.POST("/answer", { body })).success satisfies true;
  }
  const owner: Schemas["OwnerRequest"] = { code, side: "offerer", secret: SECRET };
  const news = got(await client.POST("/poll", { body: owner }));
  if (!("answer" in news)) throw new Error("not the news of an offerer");
  same([news.answer, news.answerCandidates, news.cursor], ["an answer", ["one"], undefined]);
  const other = got(await client.POST("/poll", { body: { code, side: "answerer" } }));
  if (!("offer" in other)) throw new Error("not the news of an answerer");
  same([other.offer, other.offerCandidates], ["an offer", ["two", "three"]]);
  same(got(await client.POST("/refresh", { body: owner })).expiresAt >= session.expiresAt, true);
  got(await client.POST("/withdraw", { body: owner }));
}

async function beRefused(client: Client): Promise<void> {
  const { response, error } = await client.POST("/poll", { body: { code: "no UUID", side: "offerer" } });
  same([response.status, error?.error], [404, "Session not found, expired, or origin mismatch"]);
  // @ts-expect-error: an offer needs an offer
  const nothing = await client.POST("/{topic}/offer", { params: { path: topic }, body: { info: "i" } });
  same(nothing.error, { error: "Missing or invalid required parameter: offer" });
  // @ts-expect-error: there are two sides
  const anonymous = await client.POST("/poll", { body: { code: "no UUID", side: "third" } });
  same(anonymous.error, { error: "Missing or invalid required parameter: side" });
}

async function askTheServer(client: Client, anonymous: Client): Promise<void> {
  const { status, timestamp } = got(await client.GET("/health"));
  same([status satisfies "ok", timestamp > 0], ["ok", true]);
  same(typeof got(await client.GET("/")).version, "string");
  const forPeers: RTCIceServer[] = got(await client.GET("/ice-servers")).iceServers;
  same(
    forPeers.map(({ urls }) => urls),
    [["stun:stun.example:3478"], ["turn:turn.example:3478"]],
  );
  same((await anonymous.GET("/health")).error, { error: "Missing or invalid required parameter: Origin" });
  same(got(await anonymous.GET("/openapi.json"))["openapi"], "3.1.0");
  same(got(await anonymous.GET("/client.js", { parseAs: "text" })).includes("export"), true);
}

async function readAStream(client: Client): Promise<void> {
  const leaving = new AbortController();
  const params = { path: { topic: "streamed" } };
  const { code } = got(await client.POST("/{topic}/offer", { params, body: { info: "i", offer: "o" } }));
  const stream = got(await client.GET("/{topic}/events", { params, parseAs: "stream", signal: leaving.signal }));
  let text = "";
  const reader = (stream as ReadableStream<Uint8Array>).pipeThrough(new TextDecoderStream() as never).getReader();
  while (!text.includes(code)) {
    const { done, value } = await reader.read();
    if (done) throw new Error(`the stream ended: ${text}`);
    text += value;
  }
  same(text.includes("event: session"), true);
  leaving.abort();
}

export async function main(baseUrl: string, origin: string): Promise<void> {
  const client = createClient<paths>({ baseUrl, headers: { Origin: origin } });
  await connectTwoPeers(client);
  await beRefused(client);
  await askTheServer(client, createClient<paths>({ baseUrl }));
  await readAStream(client);
}
