"""Listings of topics for a token that covers only some of them."""

from typing import Final

from ..auth import Grant
from ..session import TopicRange
from .request_context import RequestContext

RANGES_PER_UNIT: Final = 8


async def covered_topics(context: RequestContext, offset: int, limit: int) -> tuple[list[tuple[str, int]], int]:
    """Return a page of the topics of the origin that the token covers, and their number.

    Raises:
        TooMany: the address exceeds its rate.
    """
    grant, store = context.grant, context.service.store
    if grant is None or grant.topics is None:
        return await store.topics(context.origin, offset, limit)
    ranges = covered_ranges(grant)
    context.charge(len(ranges) // RANGES_PER_UNIT)
    return await store.topics(context.origin, offset, limit, ranges)


def covered_ranges(grant: Grant) -> list[TopicRange]:
    """Return the disjoint ranges of the topics that a token covers, in order."""
    ranges: list[TopicRange] = []
    single = [(topic, True) for topic in grant.topics or ()]
    for text, is_single in sorted([*single, *((prefix, False) for prefix in grant.prefixes)]):
        if not (ranges and ranges[-1].is_prefix and text.startswith(ranges[-1].text)):
            ranges.append(TopicRange(text, not is_single))
    return ranges
