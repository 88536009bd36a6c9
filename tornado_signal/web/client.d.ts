// Types of client.js: finding peers through tornado-signal, and connecting to them.

import type { ClientOptions, ErrorCode, Session, Side, Stoppable } from "./signal-client.js";

export * from "./signal-client.js";

/** An EventTarget with a type for each event name. */
export interface TypedEventTarget<Events> extends EventTarget {
  addEventListener: Listen<Events>;
  removeEventListener: Listen<Events>;
}

interface Listen<Events> {
  <Name extends keyof Events>(
    type: Name,
    listener: (event: Events[Name]) => void,
    options?: boolean | AddEventListenerOptions,
  ): void;
  (
    type: string,
    listener: EventListenerOrEventListenerObject | null,
    options?: boolean | AddEventListenerOptions,
  ): void;
}

/**
 * The progress of a connection, in the usual order:
 * - `join`: `peers` (their number), `trying` (the info of a peer), `answer`, `accepted`. After `taken` or `failed` (the
 *   reason) the next peer follows
 * - `publish`: `offer`, `published` (the code), `answered`
 * - both: `candidates sent`, `candidates received` (their number), the states of the RTCPeerConnection (`connecting`,
 *   `connected`, …), `open`
 */
export type OnStep = (step: string, detail?: unknown, connection?: RTCPeerConnection) => void;

export interface PeerOptions extends Stoppable, ClientOptions {
  /** The server, or several in order of preference. The default is the one that served this file. */
  url?: string | URL | (string | URL)[];
  /** A description of this peer, at most 1024 characters. The default is random for each page. */
  info?: string;
  /** The configuration of connections. Its `iceServers` replace those of the server. */
  rtc?: RTCConfiguration;
  /** The implementation of WebRTC. The default is the browser's. Node.js has none. */
  RTCPeerConnection?: new (
    configuration?: RTCConfiguration,
  ) => RTCPeerConnection;
  /** Called with each new connection before negotiation, for example to add tracks. */
  prepare?: (connection: RTCPeerConnection) => void;
  onstep?: OnStep;
}

/** A file that the other side sends. It sends nothing until `accept`. */
export interface IncomingFile extends TypedEventTarget<{ progress: Event; close: Event }> {
  /** The name at the sender, which can be any text; empty for a Blob without a name. */
  readonly name: string;
  /**
   * The media type that the sender claims, if it is harmless: an image except SVG, audio, video, or `text/plain`.
   * Otherwise `application/octet-stream`.
   */
  readonly type: string;
  /** In bytes. */
  readonly size: number;
  /** The number of bytes received so far. Each change is a `progress` event. */
  readonly received: number;
  /** Receive the file. Rejects if either side cancels it, or if the connection ends. */
  accept(): Promise<File>;
  /** Refuse the file, or cancel the transfer. The other side's `sendFile` rejects. */
  cancel(): void;
}

export interface FileOptions<Progress> extends Stoppable {
  /** Called as bytes are sent. */
  onprogress?: (progress: Progress) => void;
}

export interface ConnectionEvents {
  /** A message of the other side: a string, an ArrayBuffer, or a JSON value. */
  message: Event & { readonly data: unknown };
  /** The other side sends a file. Without a listener for this event, files are refused. */
  file: Event & { readonly file: IncomingFile };
  close: Event;
}

/** A connection whose data channel is open. Add listeners immediately, before any `await`: earlier events are lost. */
export interface Connection extends TypedEventTarget<ConnectionEvents> {
  /** Both sides can add tracks at any time. */
  readonly peerConnection: RTCPeerConnection;
  /** The data channel. `send` and the `message` event also handle JSON values. */
  readonly channel: RTCDataChannel;
  readonly code: string;
  readonly side: Side;
  /** Whether this side published the offer. It is true on one side and false on the other. */
  readonly initiator: boolean;
  /** The `info` of the other side; undefined if that is an older client which has not sent it. */
  readonly info?: string;
  /**
   * Send a string, bytes, or a value that JSON can represent, of up to 64 MiB. If the connection takes less, it fails
   * before anything is sent. Resolves when the data is in the buffer of the channel, or lost with the connection.
   */
  send(data: unknown): Promise<void>;
  /** Send a file or Blob of any size. Resolves when the other side has all of it. */
  sendFile(file: Blob & { name?: string }, options?: FileOptions<Omit<Progress, "peer">>): Promise<void>;
  /** Resolves when either side has closed the connection, or it was lost. */
  readonly closed: Promise<void>;
  /** Close after all buffered data has been sent. */
  close(): Promise<void>;
}

export interface PublicationEvents {
  /** A peer has connected. */
  connection: Event & { readonly connection: Connection };
  /** As in a room. */
  error: RoomEvents["error"];
  close: Event;
}

/** An offer under a topic. After its answer the next offer is published. */
export interface Publication extends TypedEventTarget<PublicationEvents> {
  /** Withdraw the offer. Open connections stay. */
  close(): void;
}

/** Publish offers under a topic until `signal` or `close()`. `channel` has the options of the data channels. */
export function publish(topic: string, options?: PeerOptions & { channel?: RTCDataChannelInit }): Publication;

/**
 * Connect to a peer that has published under a topic, as soon as there is one. Peers that another page has taken are
 * skipped. If a peer is silent, the next one is tried in parallel. The silent one is abandoned after 5 s.
 *
 * `choose` gets the sessions in any order and returns those to try, in order. With `wait: false` the result is null if
 * there is no peer.
 */
export function join(topic: string, options: JoinOptions & { wait: false }): Promise<Connection | null>;
export function join(topic: string, options?: JoinOptions): Promise<Connection>;
export type JoinOptions = PeerOptions & { choose?: (sessions: Session[]) => Session[]; wait?: boolean };

/**
 * Connect with the next page that calls this with the same topic. Pages are paired in the order of their calls, also if
 * they call it at the same time.
 */
export function pair(topic: string, options?: PeerOptions & { channel?: RTCDataChannelInit }): Promise<Connection>;

export interface PeerEvents<Message = unknown> {
  /** A message of the peer: a string, an ArrayBuffer, or a JSON value. `size` is in bytes, or in characters for a text. */
  message: Event & { readonly data: Message; readonly size: number };
  /** The peer has started to send a stream. */
  stream: Event & { readonly stream: MediaStream };
  /** The peer has stopped sending a stream, and is still connected. */
  streamend: Event & { readonly stream: MediaStream };
}

/** Another member of a room, connected. Its events follow as those of the room. */
export interface Peer<Message = unknown> extends TypedEventTarget<PeerEvents<Message>> {
  /** Made from a key of the `room()`, or from its secret. No other member can have it, except on pages over plain HTTP. */
  readonly id: string;
  /** The `me` of the peer, if it has a name. */
  readonly name?: string;
  /** The `info` of the peer. */
  readonly info: string;
  /** Both sides can add tracks at any time. */
  readonly peerConnection: RTCPeerConnection;
  readonly channel: RTCDataChannel;
  /** The streams that the peer sends. */
  readonly streams: readonly MediaStream[];
  /**
   * Return what both people compare, such as by phone. It is the same for both unless somebody is in between. All of it
   * counts. Rejects with the code `not-verifiable` or `insecure-context`.
   */
  verification(): Promise<{ readonly emoji: readonly string[]; readonly digits: string }>;
  /** As `room.send` to this peer. Rejects with the code `peer-left` if it is not in the room. */
  send(data: Message): Promise<void>;
  /** As `room.sendFile` to this peer. */
  sendFile(file: Blob & { name?: string }, options?: FileOptions<Omit<Progress, "peer">>): Promise<void>;
}

/** The event of a room for an event of a peer. */
type OfRoom<Events, Message> = {
  [Name in keyof Events]: Events[Name] & { readonly peer: Peer<Message> };
};

export interface RoomEvents<Message = unknown> extends OfRoom<PeerEvents<Message>, Message> {
  /** `listed` has changed. */
  listed: Event;
  /** `full` has changed. */
  full: Event;
  /** A peer has connected and is in `peers`. */
  join: Event & { readonly peer: Peer<Message> };
  /** A peer has left or lost its connection. If it is still in the room, another `join` follows. */
  leave: Event & { readonly peer: Peer<Message> };
  /** A peer sends a file. Without a listener for this event, files are refused. */
  file: Event & { readonly peer: Peer<Message>; readonly file: IncomingFile };
  /** An error. Work continues unless `close` follows immediately. Without a listener it is written to the console. */
  error: Event & { readonly error: Error & { code?: ErrorCode; retryable?: boolean } };
  close: Event;
}

/** A channel of a room. Its messages wait for no others. */
export interface Channel<Message = unknown>
  extends TypedEventTarget<{
    message: Event & { readonly peer: Peer; readonly data: Message; readonly size: number };
  }> {
  /** As `room.send`. */
  send(data: Message, to?: Peer | string): Promise<void>;
}

/** The progress of a file to one peer, in bytes. */
export interface Progress {
  readonly peer: Peer;
  readonly loaded: number;
  readonly total: number;
}

/**
 * A room in which every member is connected to every other one. A peer whose network changes or fails for some seconds
 * stays in `peers`, and messages to it arrive afterwards. After a longer failure it leaves and joins again.
 */
export interface Room<Message = unknown> extends TypedEventTarget<RoomEvents<Message>> {
  /** The id of this member. With the option `secret` it is undefined until the first `listed`. */
  readonly id?: string;
  /** Whether the server lists this page, so that new peers find it. */
  readonly listed: boolean;
  /** Whether this page waits for a place, because `max` others entered before. It is then connected to nobody. */
  readonly full: boolean;
  /** The peers by id, in the order in which they joined. */
  readonly peers: ReadonlyMap<string, Peer<Message>>;
  /** Resolves when the server lists this page for the first time. Rejects with the reason if the room closes before. */
  readonly ready: Promise<void>;
  /** Resolves when the room is closed. */
  readonly closed: Promise<void>;
  /** How many messages iterations of `messages()` have dropped, because 16 MiB were not read yet. */
  readonly dropped: number;
  /** With a password: how many entries and messages of others could not be decrypted, or were repeated. */
  readonly ignored: number;
  /**
   * Send a string, bytes, or a value that JSON can represent. `to` is a peer or its id, by default all peers. Rejects with the
   * code `peer-left` if it is not in `peers`. The data has up to 64 MiB. Rejects before anything is sent if it is too large for
   * one of the connections. Resolves when the data is in the buffers of the channels, or lost with its connection.
   *
   * While more than 1 MiB is in the buffer of a peer, messages to it wait for each other. A message to a peer for which more
   * than 64 MiB wait is the error `peer-slow`. If that holds for some of all peers, it is one of the `errors` of
   * `message-incomplete`, and the others get the message.
   */
  send(data: Message, to?: Peer | string): Promise<void>;
  /**
   * Yield the messages of all peers until the room closes. Throws what closes the room, or the reason of `signal`.
   */
  messages(options?: Stoppable): AsyncGenerator<{ peer: Peer<Message>; data: Message }, void, void>;
  /**
   * Return the channel with a name, which has its own messages. Members receive those of the channels that they also have.
   * `options` are those of the data channel, for example `{ ordered: false, maxRetransmits: 0 }`.
   */
  channel<Message = unknown>(name: string, options?: RTCDataChannelInit): Channel<Message>;
  /**
   * Send a file or Blob of any size to one peer, given as object or id, or to all. Resolves when they have all of it.
   *
   * Rejects with the reason of `signal`, or with the error of the one peer. If it fails for some of all peers, it rejects
   * with `file-incomplete` when the others have the file. Each of its `errors` has a `peer`.
   */
  sendFile(file: Blob & { name?: string }, options?: FileOptions<Progress> & { to?: Peer | string }): Promise<void>;
  /** Send a stream to all current and later peers. Call it again after adding a track to the stream. */
  addStream(stream: MediaStream): void;
  removeStream(stream: MediaStream): void;
  /** Leave the room: close all connections after buffered data has been sent. */
  leave(): Promise<void>;
}

export interface RoomOptions extends Omit<PeerOptions, "onstep"> {
  /** The options of the data channels. */
  channel?: RTCDataChannelInit;
  /**
   * A name that others see, at most 256 characters. The room closes with an error if another member has that name, or if
   * another page uses the same name and secret later.
   */
  me?: string;
  /**
   * The most members that are connected, this one included: the first ones to enter. Later ones wait for a place. All
   * pages pass the same number.
   */
  max?: number;
  /** The secret from which the id is derived. With `me`, the default is a random one that survives a reload. */
  secret?: string;
  /**
   * Only pages with the same password are in the room. The server learns neither the password, nor the names of the
   * room and of its members. A room with another password is another room. Needs a secure context (HTTPS, or localhost).
   */
  password?: string;
}

/**
 * Enter a room until `signal` or `leave()`, and connect to all pages that call this with the same topic. Names and secrets
 * need a secure context (HTTPS, or localhost) on all sides.
 */
export function room<Message = unknown>(topic: string, options?: RoomOptions): Room<Message>;

/**
 * Enter the room of all devices in the same network, by their public addresses. Rejects with the code `not-found` if the
 * server has turned this off. Mobile networks share addresses, so strangers can be in it.
 */
export function nearby<Message = unknown>(options?: RoomOptions): Promise<Room<Message>>;
