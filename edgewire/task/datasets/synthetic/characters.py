"""English sentences that a small grammar makes, as characters: text for a language model."""

from typing import NamedTuple

import numpy as np
import torch

from edgewire.task.datasets.data import Data, Split
from edgewire.task.datasets.synthetic import expect_at_least
from edgewire.task.errors import TaskError

ALPHABET = " abcdefghijklmnopqrstuvwxyz0123456789.,\n"


class Words(NamedTuple):
    """The words of a topic; the lists of all topics are equally long."""

    nouns: list[str]
    verbs: list[str]
    adjectives: list[str]
    places: list[str]


# fmt: off
TOPICS = {
    "town": Words(
        ["sensor", "meter", "pump", "valve", "battery", "motor", "camera", "window", "door",
         "garden", "kitchen", "driver", "teacher", "river", "station", "letter"],
        ["reads", "sends", "needs", "moves", "holds", "opens", "helps", "watches", "passes",
         "carries"],
        ["small", "old", "new", "quiet", "heavy", "cold", "empty", "distant"],
        ["near the river", "in the north", "behind the house", "at night", "on the hill",
         "every morning"],
    ),
    "sea": Words(
        ["boat", "anchor", "captain", "wave", "sail", "harbour", "gull", "rope", "ferry", "lamp",
         "island", "sailor", "current", "tide", "net", "compass"],
        ["finds", "follows", "pulls", "turns", "hears", "lifts", "loses", "reaches", "misses",
         "worries"],
        ["white", "slow", "wet", "broken", "deep", "loud", "rusty", "green"],
        ["far from land", "in the fog", "below the deck", "at dawn", "on the pier",
         "after the storm"],
    ),
}
# fmt: on
PLURALS = {"reads": "read", "watches": "watch", "passes": "pass", "carries": "carry"}
PLURALS |= {"reaches": "reach", "misses": "miss", "worries": "worry"}


def characters(
    samples: int = 12000, length: int = 32, writers: int = 20, topic: str = "town", seed: int = 0
) -> Data:
    """Return windows of text, int64 (N, length), and each character's next one, of one grammar.

    A character is its position in `ALPHABET`, 0 to 39. Every writer has equally many windows, at
    least `samples` in all. In a sentence the verb agrees with its subject in number, also across a
    relative clause. `topic` names the words, `TOPICS`. Each writer prefers own nouns and places.
    The groups are the writers. The last fifth of each writer's text is the test split.
    """
    expect_at_least(1, length=length, writers=writers)
    expect_at_least(2 * writers, samples=samples)
    if topic not in TOPICS:
        raise TaskError(f"topic={topic}: choose of {', '.join(TOPICS)}")
    random = np.random.RandomState(seed)
    each = -(-samples // writers)
    codes = np.zeros(256, np.int64)
    codes[np.frombuffer(ALPHABET.encode(), np.uint8)] = np.arange(len(ALPHABET))
    size = each * length + 1
    rows = []
    for _ in range(writers):
        text = _text(size, TOPICS[topic], random)
        read = codes[np.frombuffer(text.encode(), np.uint8)]
        rows.append(np.lib.stride_tricks.sliding_window_view(read, length + 1)[::length])
    tokens = torch.from_numpy(np.stack(rows))  # (writers, each, length + 1)
    writer = torch.arange(writers)[:, None].expand(-1, each)
    cut = each * 4 // 5
    train, test = (
        Split(part[..., :-1].flatten(0, 1), part[..., 1:].flatten(0, 1), names.flatten())
        for part, names in ((tokens[:, :cut], writer[:, :cut]), (tokens[:, cut:], writer[:, cut:]))
    )
    return Data(train, test)


def _text(size: int, words: Words, random: np.random.RandomState) -> str:
    """Return `size` characters by one writer."""
    likes = [random.dirichlet(np.full(len(each), 0.5)) for each in (words.nouns, words.places)]
    pieces: list[str] = []
    total = 0
    while total < size:
        count = max(8, size // 40)
        nouns = iter(random.choice(words.nouns, 3 * count, p=likes[0]).tolist())
        places = iter(random.choice(words.places, count, p=likes[1]).tolist())
        verbs = iter(random.choice(words.verbs, 2 * count).tolist())
        adjectives = iter(random.choice(words.adjectives, 3 * count).tolist())
        draws = random.random_sample((count, 8)).tolist()
        for draw in draws:
            many, number = draw[0] < 0.4, str(2 + int(draw[1] * 8))
            subject = _phrase(next(nouns), next(adjectives), draw[2], many, number)
            if draw[3] < 0.3:
                subject += f" that {_verb(next(verbs), many)} the {next(nouns)}"
            object_ = _phrase(next(nouns), next(adjectives), draw[4], False, "")
            place = f", {next(places)}" if draw[5] < 0.4 else ""
            end = ".\n" if draw[6] < 0.2 else ". "
            pieces.append(f"{subject} {_verb(next(verbs), many)} {object_}{place}{end}")
            total += len(pieces[-1])
    return "".join(pieces)[:size]


def _phrase(noun: str, adjective: str, draw: float, many: bool, number: str) -> str:
    described = f"{adjective} {noun}" if draw < 0.5 else noun
    if not many:
        return f"the {described}"
    plural = f"{described[:-1]}ies" if described[-1] == "y" else f"{described}s"
    return f"{number} {plural}" if draw % 0.5 < 0.25 else f"the {plural}"


def _verb(verb: str, many: bool) -> str:
    """Return a verb in the third person, singular or plural."""
    return PLURALS.get(verb, verb[:-1]) if many else verb
