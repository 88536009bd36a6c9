"""Listings of topics for a token that covers only some of them."""

from collections.abc import Callable
from typing import Final, NamedTuple

from ..auth import Grant
from .request_context import RequestContext
from .schemas import MAX_LIMIT

TopicPage = tuple[list[tuple[str, int]], int]

MAX_TOPICS_READ: Final = MAX_LIMIT  # topics that are read at once, of which the covered ones are selected


async def covered_topics(context: RequestContext, offset: int, limit: int) -> TopicPage:
    """Return a page of the topics of the origin that the token covers, and their number.

    Covered topics form ranges of the ordered listing of all topics. Their ends are searched by bisection, because an
    origin can have millions of topics. Each range counts as another request.

    Raises:
        TooMany: the address exceeds its rate.
    """
    grant, store = context.grant, context.service.store
    if grant is None or grant.topics is None:
        return await store.topics(context.origin, offset, limit)
    found, total = await store.topics(context.origin, 0, MAX_TOPICS_READ)
    if total <= len(found):
        covered = [entry for entry in found if grant.covers(entry[0])]
        return covered[offset : offset + limit], len(covered)
    ranges = covered_ranges(grant)
    context.charge(len(ranges))
    page: list[tuple[str, int]] = []
    covered_count = 0
    for each in ranges:
        await context.turn()  # the searches of many ranges take long
        start = await _rank(context, total, each.is_after)
        end = await _rank(context, total, each.is_after_or_within)
        skipped = max(offset - covered_count, 0)
        if len(page) < limit and start + skipped < end:
            entries, _ = await store.topics(
                context.origin, start + skipped, min(limit - len(page), end - start - skipped)
            )
            page += [entry for entry in entries if grant.covers(entry[0])]
        covered_count += max(end - start, 0)
    return page, covered_count


class TopicRange(NamedTuple):
    """A topic, or all topics with a prefix. They are adjacent in the order of code points."""

    text: str
    is_prefix: bool

    def is_after(self, topic: str) -> bool:
        """Return whether the range is after a topic."""
        return topic < self.text

    def is_after_or_within(self, topic: str) -> bool:
        """Return whether a topic is in the range, or the range is after it."""
        return topic <= self.text or (self.is_prefix and topic.startswith(self.text))


def covered_ranges(grant: Grant) -> list[TopicRange]:
    """Return the disjoint ranges of the topics that a token covers, in order."""
    prefixes: list[str] = []
    for prefix in sorted(grant.prefixes):
        if not prefix.startswith(tuple(prefixes)):
            prefixes.append(prefix)
    exact = [topic for topic in grant.topics or () if not topic.startswith(tuple(prefixes))]
    return sorted(TopicRange(text, text in prefixes) for text in (*exact, *prefixes))


async def _rank(context: RequestContext, total: int, is_before: Callable[[str], bool]) -> int:
    """Return the number of topics at the beginning of the listing for which `is_before` holds."""
    low, high = 0, total
    while low < high:
        middle = (low + high) // 2
        entries, _ = await context.service.store.topics(context.origin, middle, 1)
        if entries and is_before(entries[0][0]):
            low = middle + 1
        else:
            high = middle
    return low
