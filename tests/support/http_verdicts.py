"""What has to become of the requests of the corpus, and why this transport and Tornado's own server differ in some."""

from .http_corpus import CONTROLS, CORPUS

URL = "a URL that no client sends to a server (RFC 9112, 3.2) reaches no handler"
METHOD = "the parser has a closed list of methods, and ours are on it"
LINE_FEED = "a lone LF ends no line: readers who differ in that can be played against each other"
HOST = "what is no host and port cannot be an origin"
LENGTH = "a length is said once, even if both say the same"
CODING = "a transfer coding in HTTP/1.0 is one that somebody on the way has not understood (RFC 9112, 6.1)"
EXPECTATION = "an expectation that will not be met is answered as RFC 9110, 10.1.1 says"

# Refused here, taken by Tornado.
STRICTER = {
    "HTTP/1.2": "there is no such version",
    **dict.fromkeys(
        (
            *("relative target", "query alone", "target in UTF-8", "absolute-form, no host", "absolute-form, user"),
            *("absolute-form, bad host", "absolute-form, ftp", "absolute-form, bad port", "authority-form", "CONNECT"),
            *("asterisk-form, GET", "asterisk and more"),
            *(f"byte {byte:02x} in the target" for byte in CONTROLS if byte > 127),
        ),
        URL,
    ),
    **dict.fromkeys(("unknown method", "method of another protocol", "lower-case method"), METHOD),
    **dict.fromkeys(
        (
            *("bare LF everywhere", "bare LF behind the request line", "bare LF behind a header"),
            *("bare LF at the end of the head", "header smuggled behind LF in a value"),
            *("byte 0a behind a value", "byte 0a in Content-Length"),
        ),
        LINE_FEED,
    ),
    **dict.fromkeys(("Host with a bad port", "Host with two ports", "Host IPv6, broken"), HOST),
    **dict.fromkeys(("two equal lengths", "length list"), LENGTH),
    "more headers than are taken": "each header takes many times its length in memory",
    "length of 21 digits": "no body is so long, and thousands of digits are no number to Python",
    "coding with blanks behind": "the parser wants the bare word",
    **dict.fromkeys(("coding in HTTP/1.0", "coding in HTTP/1.0 with keep-alive"), CODING),
    **dict.fromkeys(("expectation of something else", "two expectations", "empty expectation"), EXPECTATION),
}

# Taken here, refused by Tornado.
LAXER = {
    "leading CRLFs": "empty lines before a request are to be ignored (RFC 9112, 2.2); Tornado ignores one",
    "chunk size with 100 zeros": "Tornado reads chunk sizes of at most 64 bytes; zeros change none",
    "chunk extension": "extensions that are not understood must be ignored (RFC 9112, 7.1.1)",
    "chunk extension, quoted": "the same",
    **dict.fromkeys(
        (
            *("trailer", "trailer Host", "trailer Origin", "trailer announced", "trailers, many", "trailer Expect"),
            *("trailer with a request in it", "trailer Upgrade", "upgrade with a trailer"),
        ),
        "trailers may be dropped (RFC 9110, 6.5.1); Tornado takes none",
    ),
}

# Taken by both, understood differently.
DIFFERENT = {
    **dict.fromkeys(
        ("absolute-form", "absolute-form, other host", "absolute-form, no path", "absolute-form, query alone"),
        "the path is split off, and the host in the target replaces the header (RFC 9112, 3.2.2); Tornado does neither",
    ),
    "close in a list": "Connection is a list (RFC 9110, 7.6.1); Tornado compares it as a whole",
    "coding hidden by Connection": "the same",
}

# The statuses of the refusals here; every other request is answered by the application.
REFUSED = {
    "HTTP/0.9 version": 505,
    "HTTP/2.0": 505,
    "target too long": 414,
    **dict.fromkeys(
        (
            *("header too long", "header name too long", "too many blanks in a header", "too many headers"),
            "more headers than are taken",
            *("chunk extension too long", "trailer too long", "trailers, too many"),
        ),
        431,
    ),
    **dict.fromkeys(
        (
            *("coding gzip, chunked", "coding identity", "coding identity, chunked", "coding identity then chunked"),
            *("coding xchunked", "coding chunkedx", "coding with a parameter", "coding quoted"),
            "coding with a comma",
        ),
        501,
    ),
    **dict.fromkeys(("expectation of something else", "two expectations", "empty expectation"), 417),
    **dict.fromkeys(
        (
            name
            for name in CORPUS
            if name.startswith("byte ") and (int(name[5:7], 16) < 128 or not name.endswith(" value"))
        ),
        400,
    ),
}
ALL_400 = """
leading space | leading NUL | no version | HTTP/0.9 | HTTP/1.2 | HTTP/1.10 | HTTP/01.1 | HTTP/1 | http/1.1 | ICE/1.0 |
RTSP/1.0 | RTSP/1.1 | RTSP/1.1 with a body | HTTP/2 preface | TLS ClientHello | two spaces before the target | two
spaces before the version | tab in the request line | space behind the version | CR in the request line | no target |
space in the target | relative target | query alone | target in UTF-8 | absolute-form, no host | absolute-form, user |
absolute-form, bad host | absolute-form, no Host | absolute-form, two Hosts | absolute-form, ftp | absolute-form, bad
port | authority-form | asterisk-form, GET | asterisk and more | CONNECT | unknown method | method of another protocol
| lower-case method | no method | method with a NUL | obsolete folding | obsolete folding with a tab | folding of the
first header | folded Content-Length | folded Transfer-Encoding | space before the colon | tab before the colon |
space before the colon of Content-Length | space in a name | empty name | no colon | no colon at the end | bare LF
everywhere | bare LF behind the request line | bare LF behind a header | bare LF at the end of the head | bare CR
behind a header | bare CR at the end of the head | CRCRLF | header smuggled behind LF in a value | Host missing | Host
twice | Host twice, different | Host list | Host with a comma | Host with a space | Host with a path | Host with a
user | Host with a bad port | Host with a percent | Host with two ports | Host IPv6, broken | Host escaped badly
| Host in UTF-8 | two Hosts
in HTTP/1.0 | length empty | length +5 | length -5 | length -0 | length 5.0 | length 0x5 | length 5e0 | length 5_0 |
length in other digits | length with a blank inside | length of 2^64 | length of 2^64 and 5 | length of 100 digits |
length of 21 digits | length of 5,000 zeros | length of 5,000 zeros and 5 | length of 5,000 digits |
two equal lengths | two lengths | length list | length list, different | length list, empty member | length quoted |
length and chunked | chunked and length | length and other coding | length and identity | chunk size huge | chunk size
2^64 and 5 | chunk size negative | chunk size signed | chunk size 0x | chunk size with an underscore | chunk size
empty | chunk size of letters | space before a chunk size | space behind a chunk size | tab behind a chunk size | no
CRLF behind a chunk | LF behind a chunk | chunk longer than its size | LF behind a chunk size | CR behind a chunk size
| LF behind the last chunk | LFs behind the last chunk size | no final CRLF | chunk extension, CRLF in quotes | chunk
extension, LF | chunk extension, LF hides a chunk | chunk extension, CR | chunk extension, empty | chunk extension,
blanks | trailer Content-Length | trailer Transfer-Encoding | trailer folded | trailer, space before the colon |
trailer behind LF | trailer without an end | trailer without a colon | coding with blanks behind |
coding with a vertical tab | coding chunked, gzip |
coding chunked, chunked | coding chunked twice | coding chunked, identity | coding chunked then identity | coding with
a comma behind | coding empty | coding empty, with a length | coding in HTTP/1.0 | coding in HTTP/1.0 with keep-alive
| upgrade with length and chunked
"""
REFUSED |= dict.fromkeys(ALL_400.replace("\n", " ").strip().split(" | "), 400)

# Answered, and the connection ends without an answer to what is behind them.
ENDS = {
    *("close", "Close, and blanks", "close in a list", "close with data behind", "coding hidden by Connection"),
    *("HTTP/1.0", "HTTP/1.0 close", "HEAD in HTTP/1.0", "Host in HTTP/1.0", "no Host in HTTP/1.0"),
    *("expectation in HTTP/1.0", "upgrade in HTTP/1.0"),
}
