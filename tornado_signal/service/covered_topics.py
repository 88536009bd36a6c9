"""Listings of topics for a token that covers only some of them."""

from typing import Final

from ..auth import Grant
from ..session import TopicRange
from .request_context import RequestContext

RANGES_PER_UNIT: Final = 8
TOPICS_PER_UNIT: Final = 1000  # topics before the page, which the store may have to read


async def covered_topics(
    context: RequestContext, offset: int, limit: int, prefix: str = ""
) -> tuple[list[tuple[str, int]], int]:
    """Return a page of the covered topics of the origin that begin with `prefix`, and their number.

    A token can cover some topics only. Without a token all are covered.
    """
    grant = context.grant
    covered = None if grant is None or grant.topics is None else covered_ranges(grant)
    context.charge(offset // TOPICS_PER_UNIT + len(covered or ()) // RANGES_PER_UNIT)
    if covered is not None:
        ranges: list[TopicRange] | None = ranges_within(covered, prefix)
    else:
        ranges = [TopicRange(prefix, True)] if prefix else None
    return await context.service.store.topics(context.origin, offset, limit, ranges)


def covered_ranges(grant: Grant) -> list[TopicRange]:
    """Return the disjoint ranges of the topics that a token covers, in order."""
    ranges: list[TopicRange] = []
    single = [(topic, True) for topic in grant.topics or ()]
    for text, is_single in sorted([*single, *((prefix, False) for prefix in grant.prefixes)]):
        if not (ranges and ranges[-1].is_prefix and text.startswith(ranges[-1].text)):
            ranges.append(TopicRange(text, not is_single))
    return ranges


def ranges_within(ranges: list[TopicRange], prefix: str) -> list[TopicRange]:
    """Return the parts of disjoint ranges whose topics begin with `prefix`, in order."""
    if any(each.is_prefix and prefix.startswith(each.text) for each in ranges):
        return [TopicRange(prefix, True)]
    return [each for each in ranges if each.text.startswith(prefix)]
