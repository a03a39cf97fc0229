"""What the other half of a call would be worth at each place, against looking at every pair."""

from random import Random

from pdgate.protocols.instance import Instance, Role
from pdgate.protocols.place import Distance, Place
from pdgate.scheduling.endpoint import Endpoint
from pdgate.scheduling.partners import Partners

NEAR = 0.3


def engine(id: str, place: Place, protocol: str = "vllm-nixl") -> Endpoint:
    return Endpoint(Instance(id, f"http://{id}", Role.BOTH, protocol, place=place), up=True)


def somewhere(random: Random) -> Place:
    zone = random.randrange(2)
    rack = random.randrange(3)
    host = random.randrange(3)
    return Place(
        f"{zone}.{rack}.{host}" if random.random() < 0.8 else "",
        f"{zone}.{rack}" if random.random() < 0.8 else "",
        f"{zone}" if random.random() < 0.8 else "",
    )


def best_of_all(one: Endpoint, others: list[tuple[Endpoint, float]]) -> float:
    distance = one.instance.place.distance
    return max(
        score + NEAR * (1 - distance(other.instance.place) / Distance.FAR)
        for other, score in others
        if other.instance.id != one.instance.id
    )


def test_the_best_pair_is_found_without_looking_at_every_pair() -> None:
    random = Random(1)
    for _ in range(200):
        prefill = [engine(f"p{n}", somewhere(random)) for n in range(4)]
        decode = [(engine(f"d{n}", somewhere(random)), random.random()) for n in range(5)]
        partners = Partners(decode, NEAR)
        for one in prefill:
            found = partners.worth(one.instance)
            # A rack whose zone one of the two has not named counts as its zone does, or as far.
            assert found <= best_of_all(one, decode) + 1e-9
            if one.instance.place.zone and all(d.instance.place.zone for d, _ in decode):
                assert abs(found - best_of_all(one, decode)) < 1e-9


def test_an_engine_is_not_its_own_other_half() -> None:
    place = Place("h0", "r0", "z0")
    one, other = engine("one", place), engine("other", place)
    partners = Partners([(one, 0.9), (other, 0.5)], NEAR)

    assert partners.worth(one.instance) == 0.5 + NEAR
    assert partners.worth(other.instance) == 0.9 + NEAR


def test_who_speaks_something_else_is_nobodys_other_half() -> None:
    place = Place("h0")
    one, other = engine("one", place), engine("other", place, "sglang")

    assert Partners([(other, 1.0)], NEAR).worth(one.instance) == 0
