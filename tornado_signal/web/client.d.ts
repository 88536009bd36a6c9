// Types of client.js: finding peers through tornado-signal, and connecting to them.

export type Side = "offerer" | "answerer";

/** Stops a call; what it returned then rejects with the signal's reason. */
export interface Stoppable {
  signal?: AbortSignal;
}

/** What a side shows that has shown a secret before: 16 to 256 characters. */
export interface Owned extends Stoppable {
  secret?: string;
}

export interface Session {
  code: string;
  info: string;
  offer: string;
  offerCandidates: string[];
  /** Milliseconds since the Unix epoch, as all times. */
  createdAt: number;
  expiresAt: number;
}

/** What a poll tells: the offerer sees `answer` and `answerCandidates`, the answerer the other two. */
export interface News {
  answer?: string | null;
  answerCandidates?: string[];
  offer?: string;
  offerCandidates?: string[];
  /** Goes into `since` of the next poll; only there if `wait` or `since` was asked for. */
  cursor?: string;
}

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

/** An EventTarget whose events have the types that belong to their names. */
export interface TypedEventTarget<Events> extends EventTarget {
  addEventListener<Name extends keyof Events>(
    type: Name,
    listener: (event: Events[Name]) => void,
    options?: boolean | AddEventListenerOptions,
  ): void;
  addEventListener(
    type: string,
    listener: EventListenerOrEventListenerObject | null,
    options?: boolean | AddEventListenerOptions,
  ): void;
  removeEventListener<Name extends keyof Events>(
    type: Name,
    listener: (event: Events[Name]) => void,
    options?: boolean | EventListenerOptions,
  ): void;
  removeEventListener(
    type: string,
    listener: EventListenerOrEventListenerObject | null,
    options?: boolean | EventListenerOptions,
  ): void;
}

/** A server's refusal: `status` is HTTP's, `message` the server's own text. */
export class SignalError extends Error {
  status: number;
  /** After how long (ms) to try again, if the server says so (`Retry-After`). */
  retryAfterMs?: number;
  constructor(status: number, message: string, retryAfterMs?: number);
}

export interface ClientOptions {
  /** Only outside of browsers, which send their own; then everything goes over HTTP. */
  origin?: string;
  /** Whether to use the server's WebSocket (true), or nothing but HTTP. */
  socket?: boolean;
}

/**
 * The API of one server, call by call. Nothing is retried: a call rejects with a SignalError that says why, a TypeError
 * if the server cannot be reached (or does not let this page in), a TimeoutError, or the reason of its `signal`.
 *
 * Calls of all clients of a page go over one WebSocket to each server. It opens with the first call, closes when nothing
 * has waited for it for 10 s, and opens again with the next call. Where it does not open within 4 s although the server
 * is there, calls go over HTTP, for five minutes before it is tried again.
 */
export class SignalClient {
  /** @param url The server; the one that this file came from unless given. */
  constructor(url?: string | URL, options?: ClientOptions);
  readonly url: string;
  /** The WebSocket that calls go over now, opened if there is none; undefined where they go over HTTP. */
  open(): Promise<WebSocket | undefined>;
  version(options?: Stoppable): Promise<{ version: string }>;
  health(options?: Stoppable): Promise<{ status: "ok"; timestamp: number }>;
  topics(options?: { page?: number; limit?: number } & Stoppable): Promise<{
    topics: { topic: string; count: number }[];
    pagination: { page: number; limit: number; total: number; hasMore: boolean };
  }>;
  /** The unanswered sessions of a topic, newest first; with `wait` (s) or `since`, as soon as they are not those. */
  sessions(
    topic: string,
    options?: { wait?: number; since?: string; limit?: number } & Stoppable,
  ): Promise<{ sessions: Session[]; cursor?: string }>;
  /**
   * Publish an offer; `ttl` is its lifetime in milliseconds. With `hold`, over a WebSocket, it lives as long as that and a
   * few seconds longer: wait for its news meanwhile (`poll`, `events`), else the WebSocket closes.
   */
  offer(
    topic: string,
    fields: { info: string; offer: string; ttl?: number; hold?: boolean } & Owned,
  ): Promise<{ code: string }>;
  answer(code: string, answer: string, options?: Owned): Promise<{ success: true }>;
  candidate(code: string, side: Side, candidate: string, options?: Owned): Promise<{ success: true }>;
  /** Send 1 to 100 candidates at once. */
  candidates(code: string, side: Side, candidates: string[], options?: Owned): Promise<{ success: true }>;
  /** What the other side has sent; with `wait` (s) or `since`, what is newer, as soon as there is anything. */
  poll(code: string, side: Side, options?: { wait?: number; since?: string } & Owned): Promise<News>;
  /** Let a session live for its time from now on. */
  refresh(code: string, side: Side, options?: Owned): Promise<{ expiresAt: number }>;
  /** Hold an offer that a WebSocket has held which is no more; the same as `refresh` over HTTP. */
  hold(code: string, side: "offerer", options: Owned & { secret: string }): Promise<{ expiresAt: number }>;
  /** End a session. */
  withdraw(code: string, side: Side, options?: Owned): Promise<{ success: true }>;
  /**
   * Withdraw without waiting for a response: also for a page that is going away. It is repeated for two minutes while
   * the server is unavailable.
   */
  leave(code: string, side: Side, options?: { secret?: string }): void;
  /**
   * The events of a topic, or of one session until its end, in browsers and in Node.js.
   *
   * A stream that cannot be begun rejects as every call does. One that has begun and breaks, or is silent, goes on where
   * it was, however long the server is away: nothing is lost and nothing told twice. A server that no longer
   * knows where it was (its data are new) tells everything from the beginning. A session that has ended meanwhile rejects
   * with a SignalError of status 404.
   */
  events(about: string | { topic: string }, options?: Stoppable): AsyncGenerator<TopicEvent, void, void>;
  events(
    about: { code: string; side: Side; secret?: string },
    options?: Stoppable,
  ): AsyncGenerator<SessionEvent, void, void>;
  iceServers(options?: Stoppable): Promise<{ iceServers: RTCIceServer[]; expiresAt: number }>;
}

/**
 * How far a connection has come, in the order of what usually happens:
 * - who joins: `peers` (how many there are), `trying` (its info), `answer`, `accepted`; or `taken`, `failed` (why), and
 *   then the next peer
 * - who publishes: `offer`, `published` (its code), `answered`
 * - both: `candidates sent`, `candidates received` (how many), the states of the RTCPeerConnection (`connecting`,
 *   `connected`, …), `open`
 */
export type OnStep = (step: string, detail?: unknown, connection?: RTCPeerConnection) => void;

export interface PeerOptions extends Stoppable, ClientOptions {
  /** The server, or several in the order in which they are asked; the one that this file came from unless given. */
  url?: string | URL | (string | URL)[];
  /** Who this is, at most 1024 characters; chosen at random, once for each page, unless given. */
  info?: string;
  /** Beside the ICE servers that the server names, or in their place. */
  rtc?: RTCConfiguration;
  /** How connections are made: the browser's own unless given. Node.js has none. */
  RTCPeerConnection?: new (
    configuration?: RTCConfiguration,
  ) => RTCPeerConnection;
  /** Called with each new connection before it is described: the place to add tracks. */
  prepare?: (connection: RTCPeerConnection) => void;
  onstep?: OnStep;
}

/** A connection whose data channel is open. */
export interface Connection {
  /** Tracks may be added at any time, on either side. */
  readonly peerConnection: RTCPeerConnection;
  /** Attach `onmessage` at once, without awaiting anything else: what arrives before is lost. */
  readonly channel: RTCDataChannel;
  readonly code: string;
  readonly side: Side;
  /** Who the other side is, if it has published. */
  readonly info?: string;
  /** Resolves when the connection has ended, whoever ended it. */
  readonly closed: Promise<void>;
  /** Send what is still to be sent, then close. */
  close(): Promise<void>;
}

export interface PublicationEvents {
  /** Another peer is connected. */
  connection: Event & { readonly connection: Connection };
  /** What went wrong; it goes on unless `close` follows at once. */
  error: Event & { readonly error: Error };
  close: Event;
}

/** An offer under a topic, and after its answer the next one. */
export interface Publication extends TypedEventTarget<PublicationEvents> {
  /** Take the offer back. Connections that are open stay. */
  close(): void;
}

/** Be found under a topic until `signal` or `close()`; `channel` is how the data channels are made. */
export function publish(topic: string, options?: PeerOptions & { channel?: RTCDataChannelInit }): Publication;

/**
 * Connect to a peer that has published under a topic, as soon as there is one. A peer that is taken is passed over; beside
 * one that says nothing the next one is tried, and after 5 s it is given up.
 *
 * `choose` gets the sessions in any order and returns those to try, in that order. With `wait: false` null is returned
 * when no peer is there.
 */
export function join(
  topic: string,
  options: PeerOptions & { choose?: (sessions: Session[]) => Session[]; wait: false },
): Promise<Connection | null>;
export function join(
  topic: string,
  options?: PeerOptions & { choose?: (sessions: Session[]) => Session[]; wait?: boolean },
): Promise<Connection>;

/**
 * Connect with the next one that calls this with the same topic: two and two, in the order in which they come, whether they
 * come one after the other or at once.
 */
export function pair(topic: string, options?: PeerOptions & { channel?: RTCDataChannelInit }): Promise<Connection>;

/** Another member of a room, connected. */
export interface Peer {
  /** Made up anew by each `room()`; of a member with a secret it is made from that, and no other can have it. */
  readonly id: string;
  /** Its `me`, if it has a name of its own. */
  readonly name?: string;
  /** The `info` that it gave. */
  readonly info: string;
  /** Tracks may be added at any time, on either side. */
  readonly peerConnection: RTCPeerConnection;
  readonly channel: RTCDataChannel;
  /** The streams that it sends. */
  readonly streams: readonly MediaStream[];
}

export interface RoomEvents {
  /** `listed` has changed. */
  listed: Event;
  /** A peer is connected, and in `peers`. */
  join: Event & { readonly peer: Peer };
  /** A peer is no more, or not connected any more; if it is still there, another `join` follows. */
  leave: Event & { readonly peer: Peer };
  /** What a peer has sent: text, or bytes. */
  message: Event & { readonly peer: Peer; readonly data: string | ArrayBuffer };
  /** A peer sends a stream. */
  stream: Event & { readonly peer: Peer; readonly stream: MediaStream };
  /** A peer does not send it any more, and is still there. */
  streamend: Event & { readonly peer: Peer; readonly stream: MediaStream };
  /** What went wrong; it goes on unless `close` follows at once. */
  error: Event & { readonly error: Error };
  close: Event;
}

/**
 * Everybody who is there, connected to everybody. A peer whose network changes or is away for some seconds stays in
 * `peers`, and what is sent to it arrives afterwards; one that is away for longer leaves and joins again.
 */
export interface Room extends TypedEventTarget<RoomEvents> {
  /** This member's own; with a name or secret undefined until the first `join`. */
  readonly id?: string;
  /** Whether the server has listed this page, so that peers that come find it. */
  readonly listed: boolean;
  /** By their ids, in the order in which they joined. */
  readonly peers: ReadonlyMap<string, Peer>;
  /** Send to one peer (or to the id of one), or to all. Nothing is sent to whoever is not in `peers`. */
  send(data: string | Blob | ArrayBuffer | ArrayBufferView, to?: Peer | string): void;
  /** Send the tracks of a stream to all who are there, and to all who come; after it has got another track, again. */
  addStream(stream: MediaStream): void;
  removeStream(stream: MediaStream): void;
  /** Send what is still to be sent, then close all connections and be no more in the room. */
  leave(): Promise<void>;
}

export interface RoomOptions extends Omit<PeerOptions, "onstep"> {
  /** How the data channels are made. */
  channel?: RTCDataChannelInit;
  /**
   * A name that others see, at most 256 characters. A room that has another member of that name is closed with an error,
   * as is one whose name and secret are used by another page afterwards.
   */
  me?: string;
  /** What the id is made from; with `me`, one that this page keeps when it is reloaded, unless given. */
  secret?: string;
}

/**
 * Be in a room until `signal` or `leave()`, connected to everybody who calls this with the same topic. Names and secrets
 * need a secure context (HTTPS, or localhost) on all sides.
 */
export function room(topic: string, options?: RoomOptions): Room;
