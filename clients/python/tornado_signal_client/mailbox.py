"""The beacons of this member of a room, the mail to them, and how both are sealed."""

import asyncio
import itertools
import logging
import math
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import cast

from .api import SignalClient, new_secret
from .errors import SignalError
from .names import VERSION, Cipher, Identity
from .parsing import checked
from .records import Beacon, Mail, decode_beacon
from .room_peer import Member
from .tasks import back_off_s
from .types import Fields, Session, Token

log = logging.getLogger(__name__)

MAX_MAILS = 250  # of members to one beacon. The server's default limit is four times as high
MAX_TEXTS = 900  # to one beacon, with those of strangers. The server's default limit is 1000
MIN_TEXTS = 10  # to a beacon, before it is replaced because the server's limit may be lower
MAX_TEXT_BYTES = 900 * 1024  # of these. The server's default limit is 1 MiB
BATCH = 16  # texts that are verified between other work
CLOCK_MS = 30_000  # difference to the server's clock after which this member corrects its own
ALIVE_S = 5.0  # for a sign of life, and how long a replaced beacon is read


class Mailbox:
    """A published beacon, and the mail to it."""

    def __init__(self, code: Token, now_ms: float, since_ms: float) -> None:
        self.code, self.now_ms = code, now_ms  # `now_ms` is the time in the beacon
        self.since_ms = since_ms  # when this member entered, according to the beacon, or 0
        self.entry_ms = math.inf  # when it entered, as the others see it. Infinity before the beacon is listed
        self.published_s = time.monotonic()
        self.full = asyncio.Event()  # set when another beacon must replace this one
        self.texts = self.largest = 0  # their number, and the length of the longest one
        self.checked = 0  # the number of texts when the server last took one of this member, and that one
        self.reading: asyncio.Task[None]  # processes the mail. It ends with the beacon


class Mailboxes:
    """The beacons of this member. The last one counts, and the others are still read for `ALIVE_S`.

    Args:
        take: called with each text to a beacon and the beacon's code. It returns whether a member has sent the text.
        readable: awaited before the first text to a beacon is read.
    """

    def __init__(
        self,
        client: SignalClient,
        identity: Identity,
        room: str,
        info: str,
        take: Callable[[str, Token], Awaitable[bool]],
        readable: asyncio.Event | None,
    ) -> None:
        self.identity = identity
        self.cipher: Cipher | None = None  # of a room with a password
        self.current: Mailbox | None = None
        self._room = room  # its name
        self._client, self._info, self._take, self._readable = client, info, take, readable
        self._secret = new_secret()
        self._offers: set[str] = set()  # the texts of the beacons
        self._made_ms = 0  # when the last beacon was made
        self._offset_ms = 0.0  # of the server's clock
        self._since_ms = 0.0  # when this member entered, by the server's clock, or 0 if it does not know that yet
        self._max_texts = MAX_TEXTS  # or less, if the server takes less
        self._warned = False  # that the server refuses mail

    async def encrypt(self, password: str) -> None:
        identity = self.identity
        self.cipher = await asyncio.to_thread(Cipher, self._client.origin, identity.topic, password)
        identity.topic = self.cipher.topic

    async def publish(self) -> tuple[Mailbox | None, Mailbox]:
        """Publish a beacon and read its mail. Return the previous one, which has to be retired, and the new one."""
        clock_ms = time.time_ns() // 1_000_000
        self._made_ms = max(clock_ms, self._made_ms + 1)
        now_ms = clock_ms + self._offset_ms
        since_ms = min(self._since_ms, now_ms)
        fields: Fields = {"v": VERSION, "id": self.identity.id, "at": self._made_ms, "now": now_ms}
        if since_ms:
            fields["since"] = since_ms
        offer = self._seal(fields if self.cipher is None else {**fields, "info": self._info})
        self._offers.add(offer)
        info = self._info if self.cipher is None else "-"
        code = await self._client._publish(self.identity.topic, info, offer, self._secret)
        previous, self.current = self.current, Mailbox(code, now_ms, since_ms)
        self.current.reading = asyncio.create_task(self._read(self.current))
        return previous, self.current

    async def retire(self, mailbox: Mailbox, delay_s: float) -> None:
        """Read the mail to a replaced beacon a little longer. Then withdraw the beacon."""
        try:
            await asyncio.sleep(delay_s)
        finally:
            mailbox.reading.cancel()
            await asyncio.gather(mailbox.reading, return_exceptions=True)
            await self._client._try_to_withdraw(mailbox.code, self._secret)
            if self.cipher is not None:
                self.cipher.forget(mailbox.code)

    async def _read(self, mailbox: Mailbox) -> None:
        """Process the mail to a beacon. Only that of members counts, but strangers can fill the beacon's session."""
        mails = size = 0
        if self._readable is not None:
            await self._readable.wait()
        try:
            async with aclosing(self._client.news(mailbox.code, "offerer", secret=self._secret)) as updates:
                async for update in updates:
                    for text in update.candidates:
                        mails += await self._take(text, mailbox.code)
                        mailbox.texts += 1
                        mailbox.largest = max(mailbox.largest, len(text))
                        size += len(text.encode(errors="replace"))
                        if mailbox.texts % BATCH == 0:
                            await asyncio.sleep(0)
                    is_answered = update.description is not None  # nobody should answer a beacon
                    if is_answered or mails >= MAX_MAILS or mailbox.texts >= self._max_texts or size >= MAX_TEXT_BYTES:
                        mailbox.full.set()
        except SignalError as error:
            if error.status != 404:
                raise

    async def test(self, mailbox: Mailbox, is_complete: Callable[[], bool]) -> None:
        """Replace the beacon if the server takes no more mail to it.

        Its limits can be lower than the default ones. So while members are not connected and mail has arrived, this
        member sends mail to itself.
        """
        while True:
            await asyncio.sleep(ALIVE_S)
            if not is_complete() and mailbox.texts > mailbox.checked:
                mail = {"pad": "." * mailbox.largest}
                mailbox.checked = mailbox.texts + 1
                if 400 <= await self.send_once(mail, self.identity.id, mailbox.code) < 500:
                    self._max_texts = max(MIN_TEXTS, mailbox.texts)
                    mailbox.full.set()

    def is_own(self, session: Session) -> bool:
        """Return whether a session is a beacon of this member, or a copy. The current one shows the server's clock."""
        mailbox, published_ms = self.current, session["createdAt"]
        if mailbox is None or session["code"] != mailbox.code:
            return session["offer"] in self._offers
        self._since_ms = self._since_ms or published_ms
        mailbox.entry_ms = min(mailbox.since_ms or published_ms, published_ms)
        if abs(published_ms - mailbox.now_ms) > CLOCK_MS:
            self._offset_ms += published_ms - mailbox.now_ms
            mailbox.full.set()
        return True

    def read_beacon(self, session: Session) -> Beacon | None:
        info = session["info"] if self.cipher is None else None
        code, published_ms = cast(Token, session["code"]), session["createdAt"]
        decode = partial(decode_beacon, code=code, info=info, published_ms=published_ms)
        return self.identity.unseal(self._decrypt(session["offer"]), "id", decode)

    def read_mail(self, text: str, code: Token) -> Mail | None:
        decode = partial(checked, shape=Mail)
        return self.identity.unseal(self._decrypt(text, code), "from", decode, self.identity.id, code)

    async def send(self, mail: Fields, member: Member) -> None:
        """Send mail to a member as soon as its beacon is listed. If this beacon is gone, use the next one.

        Mail that the server refuses is lost. The first refusal is a warning.
        """
        for attempt in itertools.count():
            await member.listed.wait()
            code = cast(Token, member.code)
            try:
                return await self._send(mail, member.id, code)
            except SignalError as error:
                if error.lost_race:
                    if member.code == code:
                        member.code = None  # clears `listed`
                elif error.retryable:
                    await asyncio.sleep(back_off_s(attempt))
                else:
                    if not self._warned:
                        log.warning("the server refuses mail to members of the room %r: %s", self._room, error)
                    self._warned = True
                    return None

    async def send_once(self, mail: Fields, id: str, code: Token) -> int:
        """Send mail to a beacon of a member. Return the status of the response, or 0 without one."""
        try:
            await self._send(mail, id, code)
        except SignalError as error:
            return error.status
        return 200

    async def _send(self, mail: Fields, id: str, code: Token) -> None:
        own_code = None if self.current is None else self.current.code
        text = self._seal({"from": self.identity.id, "info": self._info, "code": own_code, **mail}, id, code)
        await self._client.candidates(code, "answerer", [text])

    def _seal(self, fields: Fields, recipient: str = "", code: str | None = None) -> str:
        """Return the text that is sent to a member, whose beacon has a code, or to all."""
        text = self.identity.seal(fields, recipient, code or "")
        return text if self.cipher is None else self.cipher.seal(text, code)

    def _decrypt(self, text: str, code: str | None = None) -> str:
        """Return a text to this member, whose beacon has a code, or to all."""
        return text if self.cipher is None else self.cipher.unseal(text, code)
