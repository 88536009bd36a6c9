// Types of SignalClient, without those of the DOM, which not all programs have.

/** The instances of a global class, if its type is known. */
type Known<Name extends string, Otherwise> =
  typeof globalThis extends Record<Name, { prototype: infer Instance }> ? Instance : Otherwise;

export type Side = "offerer" | "answerer";

/** `signal` stops a call, whose promise then rejects with the signal's reason. */
export interface Stoppable {
  signal?: Known<"AbortSignal", { readonly aborted: boolean; throwIfAborted(): void }>;
}

/** The secret of a side, 16 to 256 characters. A side that has sent one must send it with every call. */
export interface Owned extends Stoppable {
  secret?: string;
}

export interface Session {
  code: string;
  info: string;
  offer: string;
  offerCandidates: string[];
  /** Milliseconds since the Unix epoch, like all times. */
  createdAt: number;
  expiresAt: number;
}

/** The result of a poll. The offerer gets `answer` and `answerCandidates`, the answerer the other two. */
export interface News {
  answer?: string | null;
  answerCandidates?: string[];
  offer?: string;
  offerCandidates?: string[];
  /** The value for `since` in the next poll. It is present if the request had `wait` or `since`. */
  cursor?: string;
}

/** A STUN or TURN server, for the `iceServers` of an RTCPeerConnection. */
export interface IceServer {
  urls: string | string[];
  username?: string;
  credential?: string;
}

/** How an attempt to connect two peers has ended, after `ms`, and the candidates that connect them. */
export interface ConnectionReport {
  outcome: "connected" | "failed";
  local?: CandidateKind;
  remote?: CandidateKind;
  /** To the relay, or of the pair. */
  transport?: "udp" | "tcp" | "tls";
  ms: number;
}

type CandidateKind = "host" | "srflx" | "prflx" | "relay";

interface Gone {
  type: "gone";
  data: { code: string; reason: "answered" | "expired" | "withdrawn" };
}

export type TopicEvent = { id: string } & ({ type: "session"; data: Session } | Gone);
export type SessionEvent = { id: string } & (
  | { type: "offer"; data: { offer: string } }
  | { type: "answer"; data: { answer: string } }
  | { type: "candidate"; data: { candidate: string } }
  | Gone
);
export type SignalEvent = TopicEvent | SessionEvent;

type PageOptions = { page?: number; limit?: number; prefix?: string } & Stoppable;
type Pagination = { page: number; limit: number; total: number; hasMore: boolean };

/** The `code` of errors. docs/browser-client.md has a table. */
export type ErrorCode =
  | "already-answered"
  | "argument-invalid"
  | "connect-timeout"
  | "connection-lost"
  | "file-cancelled"
  | "file-incomplete"
  | "file-interrupted"
  | "file-refused"
  | "file-unreadable"
  | "ice-failed"
  | "insecure-context"
  | "invalid-message"
  | "invalid-request"
  | "invalid-url"
  | "invalid-origin"
  | "no-relay"
  | "no-webrtc"
  | "topic-invalid"
  | "max-invalid"
  | "info-invalid"
  | "message-failed"
  | "message-incomplete"
  | "message-too-large"
  | "name-invalid"
  | "name-taken"
  | "not-a-server"
  | "not-allowed"
  | "not-found"
  | "not-verifiable"
  | "option-invalid"
  | "origin-changed"
  | "origin-not-allowed"
  | "password-invalid"
  | "peer-left"
  | "peer-slow"
  | "replaced"
  | "room-left"
  | "rtc-failed"
  | "server-busy"
  | "server-unreachable"
  | "timeout"
  | "token-failed"
  | "unauthorized";

/** Every error of the module, except the reason of a `signal` and what a function of the page throws. */
export class SignalError extends Error {
  code: ErrorCode;
  /** Whether the same call may succeed later. */
  retryable: boolean;
  /** The HTTP status of an error response, whose text is the `message`. */
  status: number | undefined;
  /** Milliseconds after which to retry, if the server sends `Retry-After`. */
  retryAfterMs: number | undefined;
  /** Of `file-incomplete` and `message-incomplete`: the errors of the peers, each with its `peer`. */
  errors: SignalError[] | undefined;
  /** The peer of a room that it concerns. */
  peer: object | undefined;
  constructor(code: ErrorCode, message: string, options?: { cause?: unknown });
}

/**
 * A token of the application (docs/authorization.md), or a function that returns one. The function is called again
 * before the token expires, and after a 401.
 */
export type TokenSource = string | (() => string | Promise<string>);

export interface ClientOptions {
  /** The origin outside of browsers, which send their own. All requests then use HTTP. */
  origin?: string;
  /** Whether to use the server's WebSocket (true) or only HTTP. */
  socket?: boolean;
  /** The token, if the server requires one. */
  token?: TokenSource;
}

/**
 * The API of one server. Calls are not retried. A call rejects with a SignalError, or with the reason of its `signal`.
 *
 * All clients of a page with the same `token` share one WebSocket to each server. It opens with the first call, closes after 10 s without
 * waiting calls, and opens again with the next call. If it does not open within 1 s although the server responds, calls
 * use HTTP, for five minutes or until it opens. Over HTTP a `wait` ends after 12 s.
 */
export class SignalClient {
  /** @param url The server. The default is the one that served this file. Without either, the `code` is `invalid-url`. */
  constructor(url?: string | Known<"URL", { readonly href: string }>, options?: ClientOptions);
  readonly url: string;
  /** Return the WebSocket of the calls, and open it if necessary. Undefined if calls use HTTP. */
  open(): Promise<Known<"WebSocket", object> | undefined>;
  version(options?: Stoppable): Promise<{ version: string }>;
  health(options?: Stoppable): Promise<{ status: "ok"; timestamp: number }>;
  /** Return the topic, or name of a room, that only clients of the same network and origin get. */
  nearby(options?: Stoppable): Promise<{ topic: string }>;
  /** List the topics with unanswered sessions, in alphabetical order, or only those that begin with `prefix`. */
  topics(options?: PageOptions): Promise<{ topics: { topic: string; count: number }[]; pagination: Pagination }>;
  /** List the rooms with members, in alphabetical order, or only those whose names begin with `prefix`. */
  rooms(options?: PageOptions): Promise<{ rooms: { name: string; members: number }[]; pagination: Pagination }>;
  /**
   * List the unanswered sessions of a topic, newest first. With `wait` (seconds) and `since`, wait for a change. At most
   * `limit` or 1000 are listed, and fewer if these have more than 16 MiB.
   */
  sessions(
    topic: string,
    options?: { wait?: number; since?: string; limit?: number } & Stoppable,
  ): Promise<{ sessions: Session[]; cursor?: string }>;
  /**
   * Publish an offer. `ttl` is its lifetime in milliseconds. With `hold` it lives as long as the WebSocket and a few
   * seconds longer. Keep a `poll` or `events` waiting for it, since an unused WebSocket closes.
   */
  offer(
    topic: string,
    fields: { info: string; offer: string; ttl?: number; hold?: boolean } & Owned,
  ): Promise<{ code: string }>;
  answer(code: string, answer: string, options?: Owned): Promise<{ success: true }>;
  candidate(code: string, side: Side, candidate: string, options?: Owned): Promise<{ success: true }>;
  /** Send 1 to 100 candidates at once. */
  candidates(code: string, side: Side, candidates: string[], options?: Owned): Promise<{ success: true }>;
  /** Return the messages of the other side. With `wait` (seconds) and `since`, wait for newer ones. */
  poll(code: string, side: Side, options?: { wait?: number; since?: string } & Owned): Promise<News>;
  /** Restart the lifetime of a session. */
  refresh(code: string, side: Side, options?: Owned): Promise<{ expiresAt: number }>;
  /** Hold an offer whose WebSocket was lost. Over HTTP this is the same as `refresh`. */
  hold(code: string, side: "offerer", options: Owned & { secret: string }): Promise<{ expiresAt: number }>;
  /** End a session. */
  withdraw(code: string, side: Side, options?: Owned): Promise<{ success: true }>;
  /**
   * Withdraw without waiting for a response, also while the page is closing. The request is repeated for two minutes
   * while the server is unavailable.
   */
  leave(code: string, side: Side, options?: { secret?: string }): void;
  /**
   * Iterate over the events of a topic, or of one session until its end, in browsers and in Node.js.
   *
   * A stream that cannot start rejects like every call. A stream that is interrupted continues where it was, however
   * long the server is unavailable. No event is lost or repeated. A server with new data does not know the position
   * and sends everything from the beginning. If the session has ended in the meantime, the iteration rejects with a
   * SignalError of status 404.
   */
  events(about: string | { topic: string }, options?: Stoppable): AsyncGenerator<TopicEvent, void, void>;
  events(
    about: { code: string; side: Side; secret?: string },
    options?: Stoppable,
  ): AsyncGenerator<SessionEvent, void, void>;
  iceServers(options?: Stoppable): Promise<{ iceServers: IceServer[]; expiresAt: number; reports?: boolean }>;
  /** Send a report of a connection. Servers take them if `iceServers` says `reports: true`. */
  report(fields: ConnectionReport, options?: Stoppable): Promise<void>;
}
