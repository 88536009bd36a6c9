"""The browser module, in real browsers on a page of another origin than the server's."""

import base64
import hashlib
import json
import re
import signal
from pathlib import Path

import pytest
from support.bare_server import BareServer
from support.browsers import listed, until
from support.documents import ADDRESS, blocks, sections

import tornado_signal

WEB = Path(tornado_signal.__file__).parent / "web"
MODULES = [WEB / "client.js", *sorted((WEB / "client").glob("*.js"))]


def published(server, site, topic="lobby"):
    return until(lambda: listed(server, site.origin, topic))[0]


def test_a_page_with_the_origin_null_is_warned_once(server, profiles, site):
    script = f'import {{ room }} from "{server.url}/client.js"; room("one"); room("two"); console.log("entered");'
    frame = f"<iframe sandbox=allow-scripts srcdoc='<script type=module>{script}</script>'></iframe>"
    site.pages["/frame"] = frame
    logged = []
    page = profiles.context().new_page()
    page.on("console", lambda message: logged.append(message.text))
    page.goto(f"{site.origin}/frame")
    until(lambda: page.evaluate("1") and len(logged) > 1)
    assert sorted("origin null is not private" in text for text in logged) == [False, True]


def test_worker_signals_and_gets_an_error_for_connections(server, site, profiles):
    script = f"""
        import {{ join, nearby, pair, publish, room, SignalClient }} from "{server.url}/client.js";
        const client = new SignalClient();
        const {{ code }} = await client.offer("lobby", {{ info: "i", offer: "o", secret: "s".repeat(16), hold: true }});
        const {{ value }} = await client.events("lobby").next();
        const [{{ name, members }}] = (await client.rooms()).rooms;
        const errors = [];
        for (const call of [join, pair, publish, room, () => nearby()]) {{
          await Promise.resolve().then(() => call("lobby")).catch((error) => errors.push(error.code));
        }}
        postMessage([value.data.code === code, Boolean(await client.open()), name, members, errors]);
    """
    server.call("/room~x/offer", {"info": "i", "offer": "o"}, origin=site.origin)
    page = profiles.context().new_page()
    page.goto(site.origin)
    answer = page.evaluate(
        """(script) => new Promise((resolve, reject) => {
          const url = URL.createObjectURL(new Blob([script], { type: "text/javascript" }));
          const worker = new Worker(url, { type: "module" });
          worker.onmessage = ({ data }) => resolve(data);
          worker.onerror = ({ message }) => reject(new Error(message));
        })""",
        script,
    )
    assert answer == [True, True, "x", 1, ["no-webrtc"] * 5]


def names(page):
    return [name for name, _ in page.evaluate("steps")]


def test_module_has_no_dependencies():
    sources = [each.read_text() for each in MODULES]
    imported = [name for each in sources for name in re.findall(r'^(?:import|export) .*"(.*)";$', each, re.MULTILINE)]
    assert {name for name in imported if not re.fullmatch(r"\./(client/)?[a-z-]+\.js", name)} == set()
    assert not any("import(" in re.sub(r'import\("\./[a-z-]+\.js"\)', "", each) for each in sources)


def test_a_page_loads_few_parts_for_a_room(server, site, profiles):
    """The part for connections loads while the page enters. Over HTTP alone one more is needed."""
    pages = {}
    for way, before_module in (("socket", ""), ("http", "globalThis.WebSocket = undefined;")):
        page = profiles.context().new_page()
        # Timers are slow, so that no part is needed because the machine is busy.
        page.add_init_script(f"{before_module} const set = setTimeout; setTimeout = (call, ms) => set(call, 30 * ms);")
        pages[way] = asked = []
        page.on("request", lambda request, asked=asked: asked.append(request.url.removeprefix(server.url)))
        page.goto(site.origin)
        enter = """async ([url, topic]) => {
          const { room } = await import(`${url}/client.js`);
          window.here = room(topic, { info: "i" });
          await here.ready;
        }"""
        page.evaluate(enter, [server.url, way])
        if way == "http":
            page.evaluate("() => here.leave()")
    scripts = {way: {*re.findall(r"^/([\w/]+)(?:-\w+)?\.js$", "\n".join(each), re.M)} for way, each in pages.items()}
    advice = "client/mistakes"  # for developers, on loopback addresses
    common = {"client", "client/attempts", advice}
    assert scripts == {"socket": common, "http": {*common, "client/http"}}


def test_parts_load_as_soon_as_the_server_is_back(start, connect_page):
    server = start()
    alice, bob = connect_page(server), connect_page(server)
    server.stop()
    alice.evaluate("listen('lobby', {info: 'alice'})")
    alice.evaluate("() => { window.inside = room('club', {password: 'a b c d', max: 2, secret: 'of alice'}); }")
    bob.evaluate("() => { window.called = call('lobby', {}); }")
    until(lambda: "failed" in names(bob) and alice.evaluate("errors.length"))
    start(port=server.url.rpartition(":")[2])
    assert bob.evaluate("called") == ["alice", "alice: hello"]
    alice.evaluate("inside.ready")


def sha(content, name="sha384"):
    return f"{name}-{base64.b64encode(hashlib.new(name, content).digest()).decode()}"


def test_policy_and_integrity_of_the_documentation_let_the_module_in(server, site, profiles):
    (policy,) = re.findall(r"`(script-src .*?)`", sections("security")["Pages that use the module"])
    policy = policy.replace("https://signal.example.com", server.url)
    policy = policy.replace("wss://signal.example.com", server.url.replace("http", "ws"))
    contents = {path.stem: path.read_bytes() for path in (WEB / "built").glob("*.js")}
    names = {
        name: f"{'client/' * (name != 'client')}{name}-{hashlib.sha256(content).hexdigest()[:8]}.js"
        for name, content in contents.items()
    }
    site.pages["/page.js"] = f"""
      import("{server.url}/{names["client"]}").then(({{ room }}) => (window.here = room("lobby")),
        () => (window.refused = true));
    """

    def open_page(changed=b""):
        digests = {f"{server.url}/{names[name]}": sha(content + changed) for name, content in contents.items()}
        text = json.dumps({"integrity": digests})
        allowed = policy.replace("script-src", f"script-src '{sha(text.encode(), 'sha256')}'")
        site.pages["/"] = f"""<!DOCTYPE html><title>A page</title>
          <meta http-equiv="Content-Security-Policy" content="{allowed}">
          <script type="importmap">{text}</script><script type="module" src="/page.js"></script>"""
        return profiles.open(site.origin)

    for page in [open_page() for _ in range(2)]:
        page.wait_for_function("() => window.here?.peers.size === 1")
        code = page.evaluate("here.sendFile(new Blob()).catch(({errors}) => errors[0].code)")
        assert code == "file-refused"  # and not "server-unreachable", as without the part for files
    open_page(b"\n").wait_for_function("() => window.refused")


def test_calls_return_the_responses_of_their_endpoints(server, reached, connect_page):
    page = connect_page(reached(server))
    code, got = page.evaluate(
        """async () => {
          const api = new SignalClient(location.search.slice(1) + "/");
          const found = {};
          const secret = "a secret of the offerer";
          found.version = await api.version();
          found.health = await api.health();
          const waiting = api.sessions("a/b c", {wait: 20, since: (await api.sessions("a/b c", {wait: 0})).cursor});
          const {code} = await api.offer("a/b c", {info: "i", offer: "o", ttl: 60000, secret});
          found.waited = await waiting;
          found.topics = await api.topics({page: 1, limit: 10});
          found.answer = await api.answer(code, "a");
          found.candidate = await api.candidate(code, "offerer", "1", {secret});
          found.candidates = await api.candidates(code, "offerer", ["2", "3"], {secret});
          found.poll = await api.poll(code, "answerer");
          const {cursor} = await api.poll(code, "offerer", {secret, wait: 0});
          const news = api.poll(code, "offerer", {secret, wait: 20, since: cursor});
          await api.candidate(code, "answerer", "4");
          found.news = await news;
          found.refresh = await api.refresh(code, "offerer", {secret});
          found.withdraw = await api.withdraw(code, "offerer", {secret});
          return [code, found];
        }"""
    )
    assert re.fullmatch("[0-9a-f]{40}|unknown", got["version"]["version"])
    assert got["health"]["status"] == "ok"
    assert [each["code"] for each in got["waited"]["sessions"]] == [code]
    assert got["topics"]["topics"] == [{"topic": "a/b c", "count": 1}]
    assert got["answer"] == got["candidate"] == got["candidates"] == got["withdraw"] == {"success": True}
    assert got["poll"] == {"offer": "o", "offerCandidates": ["1", "2", "3"]}
    assert (got["news"]["answer"], got["news"]["answerCandidates"]) == ("a", ["4"])
    assert got["refresh"]["expiresAt"] > 0


def test_chat_of_the_quickstart(server, site, profiles):
    (text,) = blocks("quickstart", "A chat on a web page", "html")
    assert len(re.search(r"<script.*?>\n(.*)</script>", text, re.DOTALL)[1].splitlines()) <= 10
    site.pages["/"] = text.replace(ADDRESS, server.url)
    assert server.url in site.pages["/"]
    alice, bob = pages = [profiles.open("about:blank") for _ in range(2)]
    for _ in range(3):
        for page in pages:
            page.goto(site.origin, wait_until="commit")
        for page in pages:
            page.get_by_text("Peers: 1").wait_for()
    for writer, reader in ((alice, bob), (bob, alice)):
        writer.get_by_placeholder("Say something").fill("hello")
        writer.keyboard.press("Enter")
        reader.get_by_text("hello").wait_for()


def test_single_connection_of_the_documentation(server, site, profiles):
    (text,) = blocks("browser-client", "Single connections", "html")
    site.pages["/"] = text.replace(ADDRESS, server.url)
    alice, bob = [profiles.open(site.origin) for _ in range(2)]
    bob.get_by_text("Join").click()
    alice.get_by_text("Be found").click()
    alice.get_by_text("hello alice").wait_for()
    bob.get_by_text("hello from the publisher").wait_for()


def test_reloaded_page_withdraws_its_offer_and_closes(server, reached, site, connect_page):
    seen = reached(server)
    alice, bob = connect_page(seen), connect_page(seen)
    alice.evaluate("listen('lobby', {info: 'alice'})")
    bob.evaluate("call('lobby', {})")
    left = published(server, site)["code"]
    alice.wait_for_function("left => steps.some(([, code]) => code === left)", arg=left)  # it knows what to take back
    alice.reload()
    until(lambda: left not in [each["code"] for each in listed(server, site.origin)])
    bob.evaluate("connection.closed")
    alice.wait_for_function("() => window.ready")
    alice.evaluate("listen('lobby', {info: 'alice again'})")
    assert bob.evaluate("call('lobby', {})") == ["alice again", "alice again: hello"]


def test_offer_that_has_expired_is_published_again(start, site, connect_page):
    server = start("--session-timeout-ms", 700)  # shorter than HTTP refreshes it
    alice, bob = connect_page(server), connect_page(server)
    alice.evaluate("listen('lobby', {info: 'alice', socket: false})")
    first = published(server, site)["code"]
    until(lambda: [each for each in listed(server, site.origin) if each["code"] != first])
    assert bob.evaluate("call('lobby', {})")[0] == "alice"


@pytest.mark.parametrize(("number", "over"), [(signal.SIGKILL, "http"), (signal.SIGTERM, "socket")])
def test_publishers_and_joiners_survive_a_restart(number, start, reached, site, connect_page):
    server = start()
    seen = reached(server)
    alice, bob, carol = (connect_page(seen) for _ in range(3))
    alice.evaluate("listen('lobby', {info: 'alice'})")
    bob.evaluate("call('lobby', {})")
    code = until(lambda: [each["code"] for each in listed(server, site.origin)])
    carol.evaluate("() => { window.called = call('other', {}); }")
    until(lambda: "peers" not in names(carol))
    server.stop(number)
    assert bob.evaluate("say('is anybody there?')") == "alice: is anybody there?"
    server = start(port=server.url.rpartition(":")[2])
    assert [each["code"] for each in listed(server, site.origin)] == code
    bob.evaluate("listen('other', {info: 'bob'})")
    assert carol.evaluate("called") == ["bob", "bob: hello"]
    assert carol.evaluate("call('lobby', {})") == ["alice", "alice: hello"]
    assert carol.evaluate("connection.code") == code[0]


def test_peers_fail_over_to_the_next_server(start, site, connect_page):
    first, second = start(data="one"), start(data="two")
    alice, bob = connect_page(second), connect_page(second)
    urls = ["http://127.0.0.1:9", first.url, second.url]
    alice.evaluate("url => listen('lobby', {info: 'alice', url})", urls)
    published(first, site)
    assert bob.evaluate("url => call('lobby', {url})", urls)[0] == "alice"
    assert listed(second, site.origin) == []
    first.stop()
    published(second, site)
    assert bob.evaluate("url => call('lobby', {url})", urls)[0] == "alice"
    assert alice.evaluate("errors.length > 0")


def test_pairs_meet_at_the_first_server_again(start, connect_page):
    first, second = start(data="one"), start(data="two")
    alice, bob = connect_page(second), connect_page(second)
    meet = "url => { window.met = meet('strangers', {info: '0', socket: false, url}); met.catch(() => {}); }"
    urls = [first.url, second.url]
    first.stop()
    alice.evaluate(meet, urls)
    until(lambda: listed(second, alice.evaluate("origin"), "pair~strangers"))
    start(data="one", port=first.url.rpartition(":")[2])
    alice.evaluate("dispatchEvent(new Event('online'))")  # it looks at once
    bob.evaluate(meet, urls)
    assert [page.evaluate("met")[1] for page in (alice, bob)] == ["0", "0"]


def test_background_tab_connects_and_exchanges_messages(server, connect_page, windowed):
    bob = connect_page(server)
    alice, browser = windowed(server)
    browser.context.new_page().bring_to_front()
    until(lambda: alice.evaluate("document.visibilityState") == "hidden")
    alice.evaluate("listen('lobby', {info: 'alice'})")
    for _ in range(2):
        assert bob.evaluate("call('lobby', {})") == ["alice", "alice: hello"]
    assert alice.evaluate("document.visibilityState") == "hidden"


def test_server_of_the_bare_specification_is_enough(server, connect_page, profiles):
    with BareServer(server.url) as bare:
        alice, bob = (connect_page(bare) for _ in range(2))
        bob.evaluate("() => { window.called = call('lobby', {}); }")
        alice.evaluate("listen('lobby', {info: 'alice'})")
        assert bob.evaluate("called") == ["alice", "alice: hello"]
        assert bob.evaluate("call('lobby', {})") == ["alice", "alice: hello"]
        assert bare.asked.count("/poll") > 3
        assert "/ice-servers" in bare.asked
        profiles.close()
