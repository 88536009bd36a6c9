"""The one table from errors to HTTP statuses, which every protocol uses."""

from typing import Final

from .. import errors

OK: Final = 200  # reading a member of an enumeration costs more
STATUS: Final[dict[type[BaseException], int]] = {
    errors.InvalidParameter: 400,
    errors.Unauthorized: 401,
    errors.OriginNotAllowed: 403,
    errors.NotAllowed: 403,
    errors.SessionNotFound: 404,
    errors.PathNotFound: 404,
    errors.MethodNotAllowed: 405,
    errors.AlreadyAnswered: 409,
    errors.BodyTooLarge: 413,
    errors.TooMany: 429,
    errors.Unavailable: 503,
}
