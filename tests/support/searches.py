def some(found):
    """Return the elements of an iterable as a list. Fail if there are none, because a loop would then check nothing."""
    elements = list(found)
    assert elements, "nothing to check"
    return elements
