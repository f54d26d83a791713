"""The asker against every fault, in simulated time: what each costs, exactly."""

from __future__ import annotations

import asyncio

import pytest
from ansible_collections.gb10.serving.plugins.module_utils._gate.config import Ejection, Limits
from ansible_collections.gb10.serving.plugins.module_utils._gate.verdict import Cause, Fault, Verdict

from tests.unit.gate.simulation import (
    ERROR,
    FORBIDS,
    GARBAGE,
    GOOD,
    LATE_ERROR,
    NO_ROUTE,
    REFUSED,
    RESET_LATE,
    SILENT,
    SLOW,
    World,
    run,
)

SINGLE_FAULTS = [REFUSED, RESET_LATE, ERROR, GARBAGE, SILENT, NO_ROUTE, SLOW]


def verdicts(results) -> int:
    return sum(isinstance(asked.result, Verdict) for asked, _ in results)


def p99(results) -> float:
    times = sorted(took for _, took in results)
    return times[int(len(times) * 0.99)]


@pytest.mark.parametrize("fault", SINGLE_FAULTS, ids=lambda fault: fault.name)
@pytest.mark.parametrize("seed", range(5))
def test_one_of_three_fails_under_load(fault, seed):
    async def story():
        world = World(3, seed=seed)
        probes = asyncio.ensure_future(world.asker.run_probes())
        before = await world.stream(50, 2)
        world.set(fault, GOOD, GOOD)
        during = await world.stream(50, 10)
        world.set(GOOD, GOOD, GOOD)
        await asyncio.sleep(12)
        after = await world.stream(50, 2)
        probes.cancel()
        return world, before, during, after

    world, before, during, after = run(story())
    assert verdicts(before) == len(before)
    assert verdicts(during) == len(during)
    assert verdicts(after) == len(after)
    assert p99(during) <= 0.02 + 0.05 + 0.03
    ejected = {url for url, times in world.pool.ejections.items() if times}
    assert ejected <= {world.endpoints[0].url}
    assert bool(ejected) == (fault is not SLOW)
    assert not any(member.out for member in world.pool.members), "the healed endpoint is asked again"
    assert {url for _, url, _ in world.sent[-100:]} == {endpoint.url for endpoint in world.endpoints}


@pytest.mark.parametrize("first", SINGLE_FAULTS[:-1], ids=lambda fault: fault.name)
@pytest.mark.parametrize("second", SINGLE_FAULTS[:-1], ids=lambda fault: fault.name)
def test_two_of_three_dead(first, second):
    async def story():
        world = World(3, seed=7)
        await world.stream(50, 1)
        world.set(first, second, GOOD)
        return await world.stream(50, 5)

    results = run(story())
    assert verdicts(results) == len(results)


@pytest.mark.parametrize("fault", SINGLE_FAULTS[:-1], ids=lambda fault: fault.name)
def test_all_dead_costs_milliseconds_and_ends_with_one_probe(fault):
    async def story():
        world = World(3, seed=3)
        probes = asyncio.ensure_future(world.asker.run_probes())
        await world.stream(50, 1)
        world.set(fault, fault, fault)
        await world.stream(50, 1.5)
        outage = await world.stream(50, 5)
        world.set(GOOD, GOOD, GOOD)
        recovering = await world.stream(50, 2)
        probes.cancel()
        return world, outage, recovering

    world, outage, recovering = run(story())
    assert verdicts(outage) == 0
    expected = {Cause.TIMEOUT} if fault in (SILENT, NO_ROUTE) else {fault.result.cause}
    assert {asked.result.cause for asked, _ in outage} == expected
    # Never more than a good answer is waited for (20 ms, then 50 ms more), whatever the budget.
    assert max(took for _, took in outage) <= 0.08
    unanswered = [number for number, (asked, _) in enumerate(recovering) if isinstance(asked.result, Fault)]
    # What still hung when the API came back must end first (attempt_s at most); then one answer is enough.
    assert max(unanswered, default=0) <= 0.6 * 50
    if fault in (REFUSED, ERROR, GARBAGE):
        assert not unanswered
    assert sum(member.ejected for member in world.pool.members) <= 2


def test_a_total_outage_of_three_hundred_is_not_asked_three_hundred_times():
    async def story():
        world = World(300, seed=3)
        world.set(*[REFUSED] * 300)
        await world.stream(100, 3)
        world.sent.clear()
        await world.stream(50, 2)
        return world

    assert len(run(story()).sent) <= 3 * 100


def test_one_endpoint_only():
    async def story():
        world = World(1)
        assert verdicts(await world.stream(50, 1)) == 50
        world.set(REFUSED)
        down = await world.stream(50, 1)
        assert verdicts(down) == 0
        assert not world.pool.ejections
        world.set(GOOD)
        return await world.stream(50, 1)

    results = run(story())
    assert verdicts(results) == len(results)


def test_a_single_reset_does_not_shut_out_the_last_endpoint_beside_a_dead_one():
    async def story():
        world = World(2, seed=5)
        await world.stream(50, 1)
        world.set(SILENT, GOOD)
        await world.stream(50, 2)
        world.set(SILENT, REFUSED)
        await world.ask()
        world.set(SILENT, GOOD)
        return await world.stream(50, 2)

    results = run(story())
    assert verdicts(results) == len(results)


@pytest.mark.parametrize("fault", [ERROR, GARBAGE], ids=lambda fault: fault.name)
def test_only_one_client_meets_a_replica_whose_answers_are_useless(fault):
    """Ejected at its third 5xx as asked for; the second and the third are the probes'."""

    async def story():
        world = World(3)
        probes = asyncio.ensure_future(world.asker.run_probes())
        await world.stream(50, 1)
        world.set(fault, GOOD, GOOD)
        world.sent.clear()
        results = await world.stream(50, 1.5)
        probes.cancel()
        return world, results

    world, results = run(story())
    assert verdicts(results) == len(results)
    assert sum(asked.retries for asked, _ in results) == 1
    assert world.pool.ejections == {world.endpoints[0].url: 1}
    assert world.hits()[world.endpoints[0].url] == 3


@pytest.mark.parametrize("fault", [SILENT, SLOW, LATE_ERROR], ids=lambda fault: fault.name)
def test_what_has_not_answered_yet_gets_no_second_question_before_anybody_can_know(fault):
    """Checks overlap, answers taking longer than the time between two. By chance alone a third of those that follow
    would meet the replica that just died too."""
    met = []

    async def story(seed):
        world = World(3, seed=seed)
        probes = asyncio.ensure_future(world.asker.run_probes())
        await world.stream(100, 1)
        world.set(fault, GOOD, GOOD)
        world.sent.clear()
        results = await world.stream(100, 0.5)
        probes.cancel()
        met.append(sum(took > 0.021 for _, took in results))
        return results

    for seed in range(40):
        results = run(story(seed))
        assert verdicts(results) == len(results)
    assert sum(met) <= 1.1 * len(met), "one client each, but where chance drew nothing else"


def test_a_single_5xx_ejects_nobody_and_is_soon_forgotten():
    async def story():
        world = World(3)
        probes = asyncio.ensure_future(world.asker.run_probes())
        await world.stream(50, 1)
        world.set(ERROR, GOOD, GOOD)
        world.sent.clear()
        world.on_send = lambda url, question: (
            world.set(*[GOOD] * 3) if world.hits()[world.endpoints[0].url] == 2 else None
        )
        results = await world.stream(50, 2)
        probes.cancel()
        return world, results

    world, results = run(story())
    assert sum(asked.retries for asked, _ in results) == 1
    assert not world.pool.ejections
    assert world.hits()[world.endpoints[0].url] > 20, "it is asked as often as its sisters again"
    assert verdicts(results) == len(results)


def test_an_endpoint_in_doubt_is_not_probed_without_pause_where_probes_say_nothing():
    async def story():
        world = World(2, seed=1)
        probes = asyncio.ensure_future(world.asker.run_probes())
        world.set(ERROR, ERROR)
        await world.ask()
        world.set(FORBIDS, FORBIDS)
        world.sent.clear()
        await asyncio.sleep(1.01)
        probes.cancel()
        return world

    assert 4 <= len(run(story()).sent) <= 2 * 6


def test_where_5xx_eject_nobody_nobody_is_avoided_for_one():
    async def story():
        world = World(3, ejection=Ejection(after_5xx=0))
        world.set(ERROR, GOOD, GOOD)
        await world.stream(50, 2)
        return world

    world = run(story())
    assert world.hits()[world.endpoints[0].url] > 20


def test_4xx_is_no_verdict_and_ejects_nobody():
    async def story():
        world = World(3)
        world.set(FORBIDS, FORBIDS, FORBIDS)
        results = await world.stream(20, 2)
        return world, results

    world, results = run(story())
    assert {asked.result.cause for asked, _ in results} == {Cause.BAD_ANSWER}
    assert not world.pool.ejections
    assert len(world.sent) == 2 * len(results), (
        "asked once more elsewhere, in case of one stray replica, and no oftener"
    )


@pytest.mark.parametrize("count", [3, 5])
def test_an_api_that_is_merely_slow_gets_at_most_a_tenth_more_load(count):
    async def story():
        world = World(count)
        world.set(*[SLOW] * count)
        results = await world.stream(50, 20)
        return world, results

    world, results = run(story())
    assert verdicts(results) == len(results)
    assert len(world.sent) <= 1.1 * len(results)
    assert not world.pool.ejections


def test_without_hedging_retries_alone_still_find_the_healthy():
    async def story():
        world = World(3, Limits(hedge_share=0), seed=2)
        await world.stream(50, 1)
        world.set(SILENT, GOOD, GOOD)
        results = await world.stream(50, 3)
        return world, results

    _world, results = run(story())
    assert verdicts(results) == len(results)
    assert sum(asked.hedges for asked, _ in results) == 0
    assert max(took for _, took in results) == pytest.approx(0.52, abs=0.03)


def test_no_retries_means_none():
    async def story():
        world = World(3, Limits(retries=0, hedge_share=0), Ejection(after_errors=0))
        world.set(REFUSED, REFUSED, REFUSED)
        results = await world.stream(20, 1)
        return world, results

    world, results = run(story())
    assert len(world.sent) == len(results)
    assert sum(asked.retries for asked, _ in results) == 0


def test_the_losing_hedge_runs_on_and_its_endpoint_is_ejected():
    async def story():
        world = World(3, seed=1)
        world.set(SILENT, GOOD, GOOD)
        while not any(url == world.endpoints[0].url for _, url, _ in world.sent):
            asked, took = await world.ask()
        assert isinstance(asked.result, Verdict)
        assert took == pytest.approx(0.07, abs=0.001)
        assert not world.pool.ejections
        await asyncio.sleep(0.45)
        return world

    world = run(story())
    assert world.pool.ejections == {world.endpoints[0].url: 1}


def test_a_timeout_while_our_own_loop_slept_ejects_nobody():
    async def story(asleep: bool):
        world = World(3, Limits(hedge_share=0), seed=1)
        loop = asyncio.get_running_loop()
        world.set(SILENT, SILENT, SILENT)
        ask = asyncio.ensure_future(world.ask())
        await asyncio.sleep(0.1)
        if asleep:
            world.asker._lag.note(loop.time(), loop.time() + 0.3)
            loop.now_s += 0.3
        await asyncio.sleep(0.45)
        ask.cancel()
        return world.pool.ejections

    assert run(story(asleep=True)) == {}
    assert len(run(story(asleep=False))) == 1


def test_our_own_lateness_is_no_excuse_where_another_endpoint_answered_meanwhile():
    """A busy proxy beside a dead node: it must still be ejected."""

    async def story():
        world = World(2, Limits(hedge_share=0), seed=1)
        loop = asyncio.get_running_loop()
        world.set(SILENT, GOOD)
        asks = [asyncio.ensure_future(world.ask()) for _ in range(6)]
        await asyncio.sleep(0.01)
        asks += [asyncio.ensure_future(world.ask()) for _ in range(6)]
        await asyncio.sleep(0.1)
        world.asker._lag.note(loop.time(), loop.time() + 0.3)
        loop.now_s += 0.3
        await asyncio.sleep(0.6)
        return world

    world = run(story())
    assert world.pool.ejections == {world.endpoints[0].url: 1}


def test_a_cancelled_request_leaves_its_try_to_end_and_be_counted():
    async def story():
        world = World(2)
        world.set(SILENT, SILENT)
        ask = asyncio.ensure_future(world.ask())
        await asyncio.sleep(0.01)
        ask.cancel()
        await asyncio.sleep(1)
        return world

    assert len(run(story()).pool.ejections) == 1


def test_without_endpoints_it_says_so_at_once():
    async def story():
        world = World(1)
        world.pool._members, world.pool._order = {}, []
        return await world.ask()

    asked, took = run(story())
    assert asked.result.cause is Cause.NO_ENDPOINTS
    assert took == 0


def test_more_endpoints_do_not_mean_more_questions():
    async def story(count):
        world = World(count)
        await world.stream(200, 2)
        return len(world.sent)

    assert run(story(3)) == run(story(300)) == 400


@pytest.mark.parametrize("seed", range(10))
def test_a_late_reset_and_then_silence_ends_at_the_deadline(seed):
    """Two tries of 0.5 s fit into the budget; after a reset at 0.12 s they would end at 1.12 s."""

    async def story():
        world = World(3, Limits(hedge_share=0), seed=seed)
        world.set(RESET_LATE, SILENT, SILENT)
        return await world.ask()

    asked, took = run(story())
    assert isinstance(asked.result, Fault)
    assert took <= 1.0 + 1e-6


def test_an_answer_to_a_question_from_before_the_ejection_brings_nobody_back():
    async def story():
        world = World(2, Limits(hedge_share=0), seed=1)
        url = world.endpoints[0].url
        early = world.pool.begin(world.endpoints[0], 1000.0)
        failed = world.pool.begin(world.endpoints[0], 1000.0)
        assert world.pool.end(failed, REFUSED.result, 1000.1)
        world.pool.end(early, GOOD.result, 1000.2)
        assert [m.ejected for m in world.pool.members if m.endpoint.url == url] == [True]
        probe = world.pool.begin(world.endpoints[0], 1002.0, probe=True)
        world.pool.end(probe, GOOD.result, 1002.1)
        assert not any(m.ejected for m in world.pool.members)

    run(story())


def test_a_failure_of_a_question_from_before_the_return_ejects_nobody_again():
    async def story():
        world = World(2, Limits(hedge_share=0), seed=1)
        early = world.pool.begin(world.endpoints[0], 1000.0)
        failed = world.pool.begin(world.endpoints[0], 1000.0)
        assert world.pool.end(failed, REFUSED.result, 1000.1)
        probe = world.pool.begin(world.endpoints[0], 1002.0, probe=True)
        world.pool.end(probe, GOOD.result, 1002.1)
        assert not world.pool.end(early, REFUSED.result, 1002.2)
        assert not any(m.out for m in world.pool.members)

    run(story())


def test_every_ejection_is_told_also_of_one_that_was_spared_until_another_came_back():
    """Seen: of three dead replicas the last, left out when the first was back, was missing in ejections_total."""

    async def story():
        world = World(3, Limits(hedge_share=0), seed=1)
        pool, told = world.pool, []
        pool.on_ejected = lambda endpoint, fault: told.append((endpoint.url, fault.cause))
        for endpoint in world.endpoints:
            pool.end(pool.begin(endpoint, 1000.0), REFUSED.result, 1000.1)
        assert len(told) == 2 and pool.all_out()
        back = pool.members[0].endpoint
        pool.end(pool.begin(back, 1002.0, probe=True), GOOD.result, 1002.1)
        assert told == [(endpoint.url, Cause.UNREACHABLE) for endpoint in world.endpoints]
        pool.replace(world.endpoints[1:])  # the one that answers leaves the list
        pool.replace(world.endpoints)
        assert sum(pool.ejections.values()) == len(told)

    run(story())


def test_a_failure_from_before_an_endpoint_left_the_list_does_not_eject_it_when_it_is_back():
    async def story():
        world = World(2, Limits(hedge_share=0), seed=1)
        early = world.pool.begin(world.endpoints[0], 1000.0)
        world.pool.replace(world.endpoints[1:])
        world.pool.replace(world.endpoints)
        assert not world.pool.end(early, REFUSED.result, 1000.2)
        assert not any(m.out for m in world.pool.members)

    run(story())
