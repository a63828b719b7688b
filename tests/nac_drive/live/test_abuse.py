"""Pages that order too much, read nothing or leave: the clock and everyone else go on."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter, deque
from collections.abc import Iterator
from typing import Any

import pytest

from nac_drive.data_collection.human import Human
from nac_drive.envs import FRAMES_PER_SECOND, EnvConfig
from nac_drive.live import messages
from nac_drive.live.arena import LiveRace
from nac_drive.live.orders import Orders
from nac_drive.live.race import Car, Race

TRACK = 900_003


@pytest.fixture
def race() -> Iterator[Race]:
    race = Race({}, ["human"], TRACK)
    yield race
    race.close()


class Socket:
    """A page without a network. `left` lets it leave."""

    def __init__(self, *orders: dict[str, Any], reads: bool = True) -> None:
        self.incoming = deque(json.dumps(order) for order in orders)
        self.more, self.idle = asyncio.Event(), asyncio.Event()
        self.reads, self.left = reads, False
        self.sent: list[Any] = []
        self.closed: dict[str, Any] = {}

    def send(self, type_: str, **fields: Any) -> None:
        self.incoming.append(json.dumps({"type": type_} | fields))
        self.idle.clear()
        self.more.set()

    def leave(self) -> None:
        self.left = True
        self.more.set()

    async def receive(self) -> dict[str, Any]:
        while not self.incoming and not self.left:
            self.idle.set()
            self.more.clear()
            await self.more.wait()
        return (
            {"type": "receive", "text": self.incoming.popleft()} if self.incoming else {"type": "websocket.disconnect"}
        )

    async def send_text(self, text: str) -> None:
        await self.send_bytes(json.loads(text))

    async def send_bytes(self, data: Any) -> None:
        if not self.reads:
            await asyncio.Event().wait()
        self.sent.append(data)

    async def close(self, **values: Any) -> None:
        self.closed = values

    def notes(self) -> list[str]:
        return [data["text"] for data in self.sent if isinstance(data, dict) and data["type"] == "note"]

    def setups(self) -> list[dict[str, Any]]:
        return [data for data in self.sent if isinstance(data, dict) and data["type"] == "setup"]

    def frames(self) -> int:
        return sum(isinstance(data, bytes) for data in self.sent)

    def cars(self) -> list[dict[str, Any]]:
        """The first car in every frame."""
        frames = (data for data in self.sent if isinstance(data, bytes))
        return [json.loads(data[4 : 4 + int.from_bytes(data[:4], "little")])["cars"][0] for data in frames]


async def until(condition: Any) -> None:
    """Return once a condition holds; a hang is ended by the time limit of the test."""
    while not condition():
        await asyncio.sleep(0.001)


def test_the_loop_goes_on_between_two_messages(race):
    async def play() -> list[int]:
        turns, moments = 0, []
        arena, page = LiveRace(race), Socket(*[{"type": "controls", "steer": 0, "gas": 0, "brake": 0}] * 200)
        race.steer = lambda *controls: moments.append(turns)  # type: ignore[method-assign]
        serving = asyncio.create_task(arena.serve(page))
        while not page.idle.is_set():
            turns += 1
            await asyncio.sleep(0)
        page.leave()
        await serving
        return moments

    moments = asyncio.run(play())
    assert len(set(moments[:200])) == 200


def test_a_burst_is_counted_as_it_comes(race):
    async def play() -> Socket:
        page = Socket(*[{"type": "blind", "car": 0, "on": True}] * 1000)
        await LiveRace(race).serve(page)
        return page

    page = asyncio.run(play())
    assert page.closed == {"code": 1008, "reason": "more than 240 messages a second"}
    assert len(page.incoming) == 1000 - 240


def test_waiting_restarts_are_one_and_leave_the_loop(race):
    async def play() -> tuple[list[Any], Socket]:
        restarts: list[Any] = []
        begin = race.restart

        def restart(track: int | None = None) -> None:
            restarts.append((track, threading.get_ident()))
            begin(track)

        race.restart = restart  # type: ignore[method-assign]
        tracks = [{"track": TRACK + number} for number in range(99)]
        arena, page = LiveRace(race), Socket(*({"type": "restart"} | track for track in [*tracks, *[{}] * 100]))
        serving = asyncio.create_task(arena.serve(page))
        await page.idle.wait()
        running = asyncio.create_task(arena.run())
        await until(lambda: page.setups() and page.setups()[-1]["track"] == TRACK + 98)
        page.leave()
        await serving
        running.cancel()
        return restarts, page

    restarts, page = asyncio.run(play())
    assert [track for track, _ in restarts] == [TRACK + 98]
    assert restarts[0][1] != threading.get_ident()
    assert page.notes() == []


def test_no_frame_passes_before_the_first_page_is_there_nor_before_a_person_starts(race):
    async def play() -> None:
        arena, page = LiveRace(race), Socket()
        tasks = [asyncio.create_task(arena.run())]
        arena.paused = False
        for _ in range(5):
            await asyncio.sleep(1 / FRAMES_PER_SECOND)
        assert race.frame == 0
        arena.paused = True  # a person drives
        tasks.append(asyncio.create_task(arena.serve(page)))
        await until(page.frames)
        assert page.setups()[0]["paused"]
        for _ in range(5):
            await asyncio.sleep(1 / FRAMES_PER_SECOND)
        assert race.frame == 0
        page.send("pause", on=False)
        await until(lambda: page.frames() > 3)
        decisions = [car["decisions"] for car in page.cars()]
        assert decisions == sorted(decisions)
        assert decisions[0] == 0
        page.leave()
        await tasks[1]
        tasks[0].cancel()

    assert LiveRace(race).paused
    asyncio.run(play())


def test_a_race_without_a_person_starts_with_its_first_page(race):
    race.offered = {"controller": "controller"}
    race.replace(0, "controller")

    async def play() -> None:
        arena, page = LiveRace(race), Socket()
        tasks = [asyncio.create_task(work) for work in (arena.run(), arena.serve(page))]
        await until(lambda: page.frames() > 3)
        assert page.cars()[0]["decisions"] == 0
        page.leave()
        await tasks[1]
        tasks[0].cancel()

    asyncio.run(play())


def test_a_page_may_come_while_another_one_restarts(race, monkeypatch):
    async def play() -> None:
        under_way, go_on = threading.Event(), threading.Event()

        def restart(track: int | None = None) -> None:
            under_way.set()
            assert go_on.wait(600)

        monkeypatch.setattr(race, "restart", restart)
        monkeypatch.setattr(race, "tick", lambda: under_way.is_set() and not go_on.is_set() and pytest.fail("ticked"))
        arena, first, second = (
            LiveRace(race),
            Socket({"type": "restart"}),
            Socket({"type": "blind", "car": 0, "on": True}),
        )
        tasks = [asyncio.create_task(work) for work in (arena.run(), arena.serve(first))]
        await until(under_way.is_set)
        tasks.append(asyncio.create_task(arena.serve(second)))
        await second.idle.wait()  # the loop goes on
        for _ in range(20):
            await asyncio.sleep(0)
        assert second.sent == []  # nobody looks at the race meanwhile
        assert not race.cars[0].env.blind
        go_on.set()
        await until(lambda: second.setups() and second.setups()[-1]["cars"][0]["blind"] and second.frames())
        assert second.sent[0]["type"] == "setup"
        for page in (first, second):
            page.leave()
        await asyncio.gather(*tasks[1:])
        tasks[0].cancel()

    asyncio.run(play())


def test_frames_go_on_under_dear_orders_of_two_pages(monkeypatch):
    """Two pages, 45 restarts a second each for a minute, and a restart takes a tenth of a second: by a false clock."""

    class Slow:
        cars, offered, over, frame = (), {}, False, 0

        def tick(self) -> None:
            self.frame += 1

        def restart(self, track: int | None) -> None:
            now[0] += 0.1
            restarts[track] += 1

    now, restarts, race = [0.0], Counter[Any](), Slow()
    arena, pages, due = LiveRace(race), [Orders(), Orders()], [0.0]  # type: ignore[arg-type]

    async def in_line(work: Any, *arguments: Any) -> Any:
        return work(*arguments)

    async def sleep(seconds: float) -> None:
        now[0] += seconds
        while due[0] < now[0]:
            due[0] += 1 / 45
            for number, orders in enumerate(pages):
                orders.put(messages.Restart(number))
                orders.put(messages.Perturb("shadows", 1))
        if now[0] > 60:
            raise asyncio.CancelledError

    arena.begun = True

    async def play() -> None:
        from nac_drive.live import arena as module

        for orders in pages:
            page = module._Page()
            page.orders = orders
            arena._pages.append(page)
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now[0])
        monkeypatch.setattr(asyncio, "to_thread", in_line)
        monkeypatch.setattr(asyncio, "sleep", sleep)
        monkeypatch.setattr(race, "perturb", lambda *arguments: None, raising=False)
        monkeypatch.setattr(arena, "_publish", lambda: None)
        await arena.run()

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(play())
    assert race.frame >= 0.5 * 50 * 60
    assert 60 < sum(restarts.values()) <= 60 / 0.3 + 1  # a third of the time
    assert abs(restarts[0] - restarts[1]) <= 1


def test_a_page_that_never_reads_holds_nobody_up_and_keeps_little(race):
    async def play() -> None:
        arena, deaf, page = LiveRace(race), Socket(reads=False), Socket()
        tasks = [asyncio.create_task(work) for work in (arena.run(), arena.serve(deaf), arena.serve(page))]
        await until(lambda: page.frames() and len(arena._pages) == 2)
        for number in range(60):
            page.send("blind", car=0, on=number % 2 == 0)
            deaf.send("head", car=0, index=0, on=True)  # answered by a note
            count = page.frames()
            await until(lambda count=count: page.frames() > count and deaf.idle.is_set())
        (waiting,) = (waiting for waiting in arena._pages if waiting.notes)
        assert len(waiting.notes) <= 20
        assert isinstance(waiting.setup, str)  # the latest alone
        assert isinstance(waiting.frame, bytes)
        assert len(page.setups()) > 1
        for socket in (deaf, page):
            socket.leave()
        await asyncio.gather(*tasks[1:])
        tasks[0].cancel()

    asyncio.run(play())


def test_an_order_that_fails_is_a_note_and_the_race_goes_on(race):
    def fail(name: str) -> None:
        raise FileNotFoundError("no folder mine; it was there before")

    async def play() -> None:
        race.add = fail  # type: ignore[method-assign]
        arena, page = LiveRace(race), Socket({"type": "add", "driver": "mine"}, {"type": "remove", "car": 0})
        arena.paused = False
        tasks = [asyncio.create_task(work) for work in (arena.run(), arena.serve(page))]
        await until(lambda: len(page.notes()) == 2)
        count = page.frames()
        await until(lambda: page.frames() > count)
        assert page.notes() == [
            "no folder mine; it was there before",
            "the last car stays; choose another driver for it.",
        ]
        page.leave()
        await tasks[1]
        tasks[0].cancel()

    asyncio.run(play())


# A person at the page


class Hands:
    """Takes the episodes of a person."""

    def __init__(self) -> None:
        self.episodes: list[Any] = []

    def add(self, driven: Any) -> dict[str, Any]:
        self.episodes.append(driven)
        return {"index": len(self.episodes) - 1, "return": driven.episode.episode_return}


def test_an_episode_that_ends_by_a_step_is_recorded(race):
    config = EnvConfig("continuous", max_steps=3)
    race.cars[0].close()
    race.cars[0] = Car("human", Human("continuous"), config)
    race.restart()

    async def play() -> list[Any]:
        hands = Hands()
        arena, page = LiveRace(race, hands), Socket({"type": "pause", "on": True}, *[{"type": "step"}] * 3)  # type: ignore[arg-type]
        serving = asyncio.create_task(arena.serve(page))
        await page.idle.wait()
        running = asyncio.create_task(arena.run())
        await until(page.notes)
        assert page.notes() == [f"recorded as episode 0: return {hands.episodes[0].episode.episode_return:.0f}"]
        page.leave()
        await serving
        running.cancel()
        return hands.episodes

    (driven,) = asyncio.run(play())
    assert len(driven.steps) == 3


@pytest.mark.parametrize("order", [{"type": "restart"}, {"type": "driver", "car": 0, "driver": "human"}])
def test_a_key_that_is_held_has_effect_after_a_restart(race, order):
    async def play() -> None:
        page, arena = Socket(), LiveRace(race)
        arena.paused = False
        tasks = [asyncio.create_task(work) for work in (arena.run(), arena.serve(page))]
        page.send("controls", steer=-1, gas=1, brake=0)
        await until(lambda: page.cars() and page.cars()[-1]["decisions"] > 5)
        page.sent.clear()
        page.incoming.append(json.dumps(order))
        page.more.set()
        await until(lambda: page.setups() and 2 < page.cars()[-1]["decisions"] < 5)
        assert page.cars()[-1]["command"] == [-1, 1, 0]
        page.leave()  # nobody holds it any more
        await tasks[1]
        count = race.cars[0].decisions
        await until(lambda: race.cars[0].decisions > count)
        assert race.cars[0].command == (0, 0, 0)
        tasks[0].cancel()

    asyncio.run(play())
