"""The page in a real browser: what is seen, heard and reached by keys, and what it refuses to run.

Needs Chromium (Debian: ``apt-get install chromium``), and no control plane.
"""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import pytest

from fracgpu.cards.annotations import write_cordons, write_used
from fracgpu.cards.card import CardUuid, Cordon
from fracgpu.state.move_object import MovePhase
from fracgpu.units import Mib
from process.clock import SystemClock
from simulator.envtest.ports import free_ports
from tests.support.chromium import Tab, find_chromium, open_tab
from tests.support.gpu import some_cards
from tests.support.moves import move_of
from tests.support.page import PageCluster, Served, serving

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

_FOCUSED: Final = "document.activeElement.getAttribute('aria-label')"
_TILES: Final = "[...document.querySelectorAll('.tile')].filter(each => each.checkVisibility())"

# WCAG 2.2, 1.4.3: the contrast of each text with what is behind it; 4.5 is wanted.
_POOR_CONTRAST: Final = """(() => {
  const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = (color) => {
    const [r, g, b] = color.slice(0, 3).map((value) => {
      const part = value / 255;
      return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let each = element; each; each = each.parentElement) {
      const color = rgb(getComputedStyle(each).backgroundColor);
      if (color.length < 4 || color[3] === 1) return color;
    }
    return [255, 255, 255];
  };
  const poor = [];
  for (const element of document.querySelectorAll('body *')) {
    const own = [...element.childNodes].some((each) => each.nodeType === 3 && each.data.trim());
    if (!own || !element.checkVisibility() || element.closest('.unseen, .skip')) continue;
    const [one, other] = [rgb(getComputedStyle(element).color), behind(element)].map(light);
    const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    if (ratio < 4.5) poor.push(`${element.className || element.tagName} ${ratio.toFixed(2)}`);
  }
  return [...new Set(poor)];
})()"""

# Whatever can be used has a name, and each id is used once: what assistive technology relies on.
_UNNAMED: Final = """(() => {
  const named = (each) =>
    each.getAttribute('aria-label') || each.textContent.trim() || each.labels?.length;
  const unnamed = [...document.querySelectorAll('button, a, input, select')]
    .filter((each) => each.checkVisibility() && !named(each)).map((each) => each.outerHTML);
  const ids = [...document.querySelectorAll('[id]')].map((each) => each.id);
  const missing = [...document.querySelectorAll('[aria-labelledby]')]
    .filter((each) => !document.getElementById(each.getAttribute('aria-labelledby')));
  return [...unnamed, ...ids.filter((id, at) => ids.indexOf(id) !== at), ...missing.map(String)];
})()"""


# Words, as people read them, of which a part is on the next line.
_BROKEN_WORDS: Final = """(() => {
  const broken = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let text = walker.nextNode(); text; text = walker.nextNode()) {
    const parent = text.parentElement;
    if (!parent.checkVisibility() || parent.closest('.unseen, .skip, code')) continue;
    for (const word of text.data.matchAll(/[^\\s\\/-]+/g)) {
      const range = document.createRange();
      range.setStart(text, word.index);
      range.setEnd(text, word.index + word[0].length);
      const lines = new Set([...range.getClientRects()].map((each) => Math.round(each.top)));
      if (lines.size > 1) broken.push(word[0]);
    }
  }
  return broken;
})()"""


@pytest.fixture
def chromium() -> str:
    found = find_chromium()
    if found is None:
        pytest.skip("no Chromium on the PATH; Debian: apt-get install chromium")
    return found


@asynccontextmanager
async def looking_at(page: Served, chromium: str, hash_: str = "") -> AsyncIterator[Tab]:
    """Open the page in a browser, and see at the end that it had no errors."""
    async with open_tab(chromium) as tab:
        await tab.resize(1280, 900)
        await tab.go(f"{page.url}/{hash_}")
        await tab.wait_for("document.body?.dataset.synced !== undefined")
        yield tab
        assert tab.troubles == []


def a_cluster() -> PageCluster:
    """Return two nodes of four cards: a hot one with a slice, cool ones, and unknown ones."""
    cluster = PageCluster(SystemClock())
    cluster.node("gpu-1")
    cluster.heat("gpu-1", 0.93, 0.2, 0.0, 0.7)
    cluster.node("gpu-2", cards=some_cards("gpu-2", mib=48_000))
    cluster.pod("train-0", on="gpu-1", mib=12_000)
    return cluster


async def test_every_card_has_a_name_that_says_all_that_its_tile_says_in_words(
    chromium: str,
) -> None:
    async with serving(a_cluster()) as page, looking_at(page, chromium) as tab:
        await tab.wait_for(f"{_TILES}.length === 8")
        accessible = await tab.accessible()
        problems = await tab.evaluate(_UNNAMED)
        shown = await tab.evaluate(
            f"{_TILES}.map(each => [each.querySelector('.heat').textContent, each.dataset.heat])"
        )

    cards = [name for role, name in accessible if role == "button" and name.startswith("Card ")]
    assert len(cards) == 8
    assert cards[0].startswith("Card 0 of gpu-1, NVIDIA A30; hot, 93 % busy, reported ")
    assert cards[0].endswith("; 11.7 of 23.4 GiB taken by 1 pod")
    assert cards[4] == "Card 0 of gpu-2, NVIDIA A30; heat unknown; 0 of 46.9 GiB taken by 0 pods"
    assert ("heading", "gpu-2") in accessible
    assert ("navigation", "Views") in accessible
    assert problems == []
    # Not by colour alone.
    assert shown[:5] == [
        ["▲ 93 %", "hot"],
        ["20 %", "cool"],
        ["0 %", "cool"],
        ["70 %", "warm"],
        ["? heat", "unknown"],
    ]


async def test_all_can_be_reached_by_keys(chromium: str) -> None:
    async with serving(a_cluster()) as page, looking_at(page, chromium) as tab:
        await tab.wait_for(f"{_TILES}.length === 8")
        inorder = await tab.evaluate("document.querySelectorAll('.tile[tabindex=\"0\"]').length")
        await tab.evaluate("document.querySelector('.tile[tabindex=\"0\"]').focus()")
        for key, card in (
            ("ArrowRight", "Card 1 of gpu-1"),
            ("ArrowDown", "Card 1 of gpu-2"),
            ("ArrowLeft", "Card 0 of gpu-2"),
            ("ArrowUp", "Card 0 of gpu-1"),
            ("End", "Card 3 of gpu-2"),
            ("Home", "Card 0 of gpu-1"),
        ):
            await tab.press(key)
            assert (await tab.evaluate(_FOCUSED)).startswith(card), key
        await tab.press("Enter")
        await tab.wait_for("!document.querySelector('#details').hidden")
        title = await tab.evaluate("document.activeElement.textContent")
        text = await tab.evaluate("document.querySelector('#details').innerText")
        await tab.press("Escape")
        await tab.wait_for("document.querySelector('#details').hidden")
        back = await tab.evaluate(_FOCUSED)

    assert inorder == 1
    assert title == "Card 0 of gpu-1"
    assert "default/train-0" in text
    assert back.startswith("Card 0 of gpu-1")


async def test_a_view_is_an_address_that_can_be_sent_on(chromium: str) -> None:
    address = "#view=cards&state=hot&card=GPU-gpu-1-0"
    async with serving(a_cluster()) as page, looking_at(page, chromium, address) as tab:
        await tab.wait_for(f"{_TILES}.length === 1")
        await tab.wait_for(
            "document.querySelector('#details-title').textContent === 'Card 0 of gpu-1'"
        )
        await tab.evaluate(
            "(() => { const form = document.querySelector('#filters');"
            "form.elements.state.value = ''; form.elements.free.value = '40';"
            "form.elements.free.dispatchEvent(new Event('input', {bubbles: true})); })()"
        )
        await tab.wait_for(f"{_TILES}.length === 4")
        shown = await tab.evaluate("document.querySelector('#matching').textContent")
        address = await tab.evaluate("location.hash")

    assert shown == "4 of 8 cards shown"
    assert address == "#view=cards&free=40&card=GPU-gpu-1-0"


async def test_a_change_is_seen_without_a_reload_and_a_move_is_announced(chromium: str) -> None:
    cluster = a_cluster()
    async with serving(cluster) as page, looking_at(page, chromium) as tab:
        await tab.wait_for(f"{_TILES}.length === 8")
        cluster.pod("train-1", on="gpu-2", card=3, mib=6144)
        cluster.move(move_of("m1", phase=MovePhase.SURGING))

        await tab.wait_for(f"{_TILES}[7].innerText.includes('6 / 46.9 GiB')")
        announced = await tab.wait_for("document.querySelector('#announcer').textContent")
        live = await tab.evaluate("document.querySelector('#announcer').ariaLive")

    assert announced == ("Move of team-a/web-1 from node-1 card 0 to node-2 card 0: Surging.")
    assert live == "polite"


async def test_why_a_pod_waits_is_shown_card_by_card(chromium: str) -> None:
    cluster = a_cluster()
    cluster.pod("big", mib=60_000)
    address = "#view=waiting&pod=default%2Fbig"
    async with serving(cluster) as page, looking_at(page, chromium, address) as tab:
        await tab.wait_for(
            "document.querySelector('#details').innerText.includes('too little free memory')"
        )
        text = await tab.evaluate("document.querySelector('#details').innerText")

    assert "card 0, 48000 MiB free: too little free memory for 60000 MiB" in text
    assert "fracgpu explain default/big" in text


async def test_what_would_help_a_pod_that_waits_is_shown_first(chromium: str) -> None:
    cluster = a_cluster()
    cluster.pod("big", mib=40_000)
    cluster.pod("holds", on="gpu-2", mib=20_000)
    for card in range(1, 4):
        cluster.pod(f"holds-{card}", on="gpu-2", card=card, mib=20_000)
    address = "#view=waiting&pod=default%2Fbig"
    async with serving(cluster) as page, looking_at(page, chromium, address) as tab:
        text = "document.querySelector('#details').innerText"
        await tab.wait_for(f"{text}.includes('What would help')")
        shown = await tab.evaluate(text)

    assert shown.index("What would help") < shown.index("Why, on the nodes nearest to a fit")
    assert "it fits on gpu-2" in shown


async def test_the_slices_of_a_card_say_what_is_guaranteed_may_be_used_and_is_used(
    chromium: str,
) -> None:
    cluster = a_cluster()
    used = {"uid-train-0": Mib(13_000), "uid-bursts": Mib(6144), "uid-calm": Mib(2048)}
    cluster.node("gpu-1", used=write_used({CardUuid("GPU-gpu-1-0"): used}))
    cluster.pod("bursts", on="gpu-1", mib=4096, limit_mib=8192)
    cluster.pod("calm", on="gpu-1", mib=3072, limit_mib=6144)
    cluster.pod("new", on="gpu-1", mib=1024)
    rows = (
        "[...document.querySelectorAll('#details table tr')]"
        ".map(row => [...row.cells].map(cell => cell.innerText))"
    )
    async with serving(cluster) as page, looking_at(page, chromium, "#card=GPU-gpu-1-0") as tab:
        await tab.wait_for(f"{rows}.length === 5")
        shown = await tab.evaluate(rows)
        broken = await tab.evaluate(_BROKEN_WORDS)
        cut = await tab.evaluate(
            "(({scrollWidth, clientWidth}) => scrollWidth > clientWidth)"
            "(document.querySelector('#details'))"
        )

    assert not cut
    assert [[cell.replace("\u00a0", " ") for cell in row[:3]] for row in shown] == [
        ["Pod", "Memory", "Used"],
        ["default/train-0", "11.7 GiB", "12.7 GiB, more than its share"],
        ["default/bursts", "4 GiB, at most 8 GiB", "6 GiB, 2 GiB borrowed"],
        ["default/calm", "3 GiB, at most 6 GiB", "2 GiB"],
        ["default/new", "1 GiB", "not known"],
    ]
    assert broken == []


async def test_when_the_stream_breaks_it_says_so_and_comes_back_by_itself(chromium: str) -> None:
    cluster = a_cluster()
    (port,) = free_ports(1)
    state = "(document.querySelector('#connection')?.textContent ?? '')"
    async with open_tab(chromium) as tab:
        async with serving(cluster, port=port) as page:
            await tab.go(f"{page.url}/")
            await tab.wait_for(f"{state} === 'Live, from replica-a'")
            await tab.evaluate("document.querySelector('.tile').dataset.kept = 'yes'")
        await tab.wait_for(f"{state}.startsWith('Stale since ')")

        cluster.pod("train-1", on="gpu-2", mib=6144)
        async with serving(cluster, port=port):
            await tab.wait_for(f"{state} === 'Live, from replica-a'")
            await tab.wait_for(f"{_TILES}[4].innerText.includes('6 / 46.9 GiB')")
            # It went on where it had stopped: nothing was drawn anew.
            assert await tab.evaluate("document.querySelector('.tile').dataset.kept") == "yes"


async def test_texts_of_the_cluster_are_shown_and_never_run(chromium: str) -> None:
    evil = "<img src=x onerror='window.owned=1'><script>window.owned=1</script>"
    cluster = a_cluster()
    cluster.node("gpu-1", cordons=evil)
    until = cluster.clock.now().replace(year=2100)
    cluster.node(
        "gpu-2",
        cordons=write_cordons([Cordon(card=CardUuid("GPU-gpu-2-0"), until=until, reason=evil)]),
    )
    cluster.pod("waits", annotations={"fracgpu.io/fraction": evil, "fracgpu.io/memory": evil})
    cluster.move(move_of("m1", pod=("team-a", evil, "u")))
    async with serving(cluster) as page, looking_at(page, chromium, "#card=GPU-gpu-2-0") as tab:
        await tab.wait_for(f"document.querySelector('#details').innerText.includes({evil!r})")
        for view in ("moves", "waiting", "pods", "cards"):
            await tab.evaluate(f"location.hash = '#view={view}'")
            await tab.wait_for(f"!document.querySelector('#view-{view}').hidden")
        shown = await tab.evaluate("document.body.textContent")
        owned = await tab.evaluate("window.owned")
        foreign = await tab.evaluate("document.querySelectorAll('img, body script').length")

    assert evil in shown
    assert owned is None
    assert foreign == 0


async def test_the_browser_itself_refuses_markup_made_of_text_and_inline_scripts(
    chromium: str,
) -> None:
    async with serving(a_cluster()) as page, open_tab(chromium) as tab:
        await tab.go(f"{page.url}/")
        await tab.wait_for("document.body?.dataset.synced !== undefined")
        markup = await tab.evaluate(
            "(() => { try { document.body.innerHTML = '<b>x</b>'; return 'made'; }"
            "catch (error) { return error.name; } })()"
        )
        await tab.evaluate(
            "document.body.append(Object.assign(document.createElement('style'),"
            "{textContent: 'body { color: red }'}))"
        )
        color = await tab.evaluate("getComputedStyle(document.body).color")

    assert markup == "TypeError"
    assert color != "rgb(255, 0, 0)"
    assert any("style-src" in trouble for trouble in tab.troubles)


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_every_text_stands_out_in_light_and_dark(chromium: str, scheme: str) -> None:
    cluster = a_cluster()
    cluster.move(move_of("m1"))
    cluster.pod("big", mib=60_000)
    until = cluster.clock.now().replace(year=2100)
    cordon = Cordon(card=CardUuid("GPU-gpu-1-0"), until=until, reason="hot")
    cluster.node("gpu-1", cordons=write_cordons([cordon]))
    poor: dict[str, list[str]] = {}
    async with serving(cluster) as page, looking_at(page, chromium) as tab:
        await tab.emulate(prefers_color_scheme=scheme, prefers_reduced_motion="reduce")
        await tab.wait_for(f"{_TILES}.length === 8")
        for view in ("cards&card=GPU-gpu-1-0", "pods", "moves&move=m1", "waiting"):
            await tab.evaluate(f"location.hash = '#view={view}'")
            await tab.wait_for(f"!document.querySelector('#view-{view.split('&')[0]}').hidden")
            poor[view] = await tab.evaluate(_POOR_CONTRAST)
        back = await tab.evaluate("getComputedStyle(document.body).backgroundColor")
        moving = await tab.evaluate(
            "getComputedStyle(document.querySelector('.tile')).transitionDuration"
        )

    assert {view: found for view, found in poor.items() if found} == {}
    assert (sum(map(int, re.findall(r"\d+", back))) < 384) == (scheme == "dark")
    assert moving == "0s"


@pytest.mark.parametrize("width", [360, 420, 800, 1280])
async def test_no_word_is_broken_in_its_middle_and_nothing_is_cut_off(
    chromium: str, width: int
) -> None:
    cluster = a_cluster()
    cluster.pod("burner-wvdj2lk6hc-4kf4w", on="gpu-1", mib=4096)
    cluster.move(
        move_of("20261123-210411-df7bf600", pod=("default", "burner-wvdj2lk6hc-4kf4w", "u"))
    )
    cluster.pod("embed-8h79l2894s-mzbnj", mib=60_000)
    broken: dict[str, list[str]] = {}
    async with serving(cluster) as page, looking_at(page, chromium) as tab:
        await tab.resize(width, 900)
        await tab.wait_for(f"{_TILES}.length === 8")
        for view in ("cards&card=GPU-gpu-1-0", "pods", "moves", "waiting"):
            name = view.split("&")[0]
            await tab.evaluate(f"location.hash = '#view={view}'")
            await tab.wait_for(f"!document.querySelector('#view-{name}').hidden")
            if name != "cards":
                await tab.wait_for(f"document.querySelector('#{name} td') !== null")
            broken[view] = await tab.evaluate(_BROKEN_WORDS)
            beyond = await tab.evaluate(
                "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            )
            assert beyond <= 0, view

    assert {view: words for view, words in broken.items() if words} == {}


async def test_a_pod_is_shown_with_its_share_of_each_card_and_how_busy_these_are(
    chromium: str,
) -> None:
    async with serving(a_cluster()) as page, looking_at(page, chromium, "#view=pods") as tab:
        await tab.wait_for("document.querySelector('#pods td') !== null")
        shown = await tab.evaluate(
            "[...document.querySelectorAll('#pods td')].map(each => each.textContent)"
        )
        aligned = await tab.evaluate(
            "[...document.querySelectorAll('#pods th')].map((head, at) =>"
            "  getComputedStyle(head).textAlign ==="
            "  getComputedStyle(document.querySelectorAll('#pods td')[at]).textAlign)"
        )

    assert shown == ["default/train-0", "gpu-1", "0", "11.7 GiB", "50 %", "93 %", "bound"]
    assert aligned == [True] * 7


@pytest.mark.slow
async def test_four_thousand_cards_are_all_there(chromium: str) -> None:
    cluster = PageCluster(SystemClock())
    for number in range(500):
        cluster.node(f"gpu-{number}", cards=some_cards(f"gpu-{number}", count=8))
    async with serving(cluster) as page, looking_at(page, chromium) as tab:
        await tab.wait_for("document.querySelectorAll('.tile').length === 4000")
        await tab.wait_for(
            "document.querySelector('#matching').textContent === '4000 of 4000 cards shown'"
        )
        await tab.evaluate("document.querySelector('.tile[tabindex=\"0\"]').focus()")
        await tab.press("End")
        last = await tab.evaluate(_FOCUSED)
        await tab.evaluate("location.hash = '#text=gpu-499'")
        await tab.wait_for(f"{_TILES}.length === 8")

    assert last.startswith("Card 7 of gpu-499")
