"""Damages the folders of runs at random, as an accident or a stranger would."""

import json
import os
import random
import socket

from tests.report.made_runs import add_run, node, row, write_nodes

CANARY = "canary-of-this-machine"
NAMES = ("result.json", "history.jsonl", "nodes.json", "failed.json")
NAMES += (".hydra/overrides.yaml", ".hydra/config.yaml")
METRICS = (
    *("/tmp/abs", "../../up", "a/b", "", ".", "..", "con", "\0", "\x1b[31m\n", "A", "é" * 200),
    *("x" * 10**5, "\ud800", "‮rtl", "recall@1", "<b>", "$\\frac", "=1+1", "accuracy ", "loss"),
)
ODD = (
    *(None, True, "", "x", [], {}, [[]], -1, 0, 0.5, 1e308, -1e300, 10**4000, 2**63, 1e-320),
    *("nan", float("inf"), float("nan"), "${oc.env:CANARY}", "x" * 10**6, {"a": {"b": [{}]}}),
)
WORDS = (
    "lr=${oc.env:CANARY}", "noequal", "=", "seed=x", "seed=", "a=[[[[", "a=" + "[" * 5000, "a='",
    "+a={b:{c:1}}", "model=x\ny", "~a", "rounds=1e999", "algorithm=../x", "lr=choice(1,2)",
    "k=" + "v" * 3000, "strategy._target_=x", "experiment=/etc/passwd", "task=../../x", "seed=1,2",
)  # fmt: skip
SETTINGS = """
algorithm: "$"
nodes: 10
secret: ${oc.env:CANARY}
twice: "${algorithm}{oc.env:CANARY}"
lr: ${nodes}
strategy: {_target_: x}
"""


def write_run(folder, dice):
    """Write a finished run, or one that goes on, with all files that reports read."""
    name = dice.choice(("accuracy", "accuracy", "rmse"))
    values = [0.1, 0.5, 0.9][: dice.randint(1, 3)]
    add_run(folder, f"lr={dice.choice((1, 2))} seed={dice.randint(0, 3)}", values, SETTINGS,
            metrics={name: {"name": name, "higher": True, "share": True}}, name=name)  # fmt: skip
    write_nodes(folder, [node(at, waiting=at == 2, sent=11.0, heard=12.0) for at in range(5)])
    if dice.random() < 0.2:
        (folder / "result.json").unlink()
        rows = [row(number) for number in range(4)]
        (folder / "history.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    if dice.random() < 0.2:
        (folder / "failed.json").write_text('{"code": 1, "line": "no space"}')


def damage(top, seed):
    """Write a run, or a sweep of two, into a folder, damage its files; return what was done."""
    dice = random.Random(seed)
    runs = [top] if dice.random() < 0.6 else [top / "0", top / "1"]
    for run in runs:
        write_run(run, dice)
    chosen = [
        (dice.choice(HOW), dice.choice(runs) / dice.choice(NAMES))
        for _ in range(dice.choice((1, 1, 2, 4)))
    ]
    done = []
    for how, file in sorted(chosen, key=lambda each: each[0] is no_file):  # pipes come last
        try:
            how(file, dice)
        except (OSError, ValueError, LookupError, TypeError, RecursionError):  # too much already
            continue
        done.append((how.__name__, str(file.relative_to(top))))
    return done


def bytes_changed(file, dice):
    text = bytearray(file.read_bytes())
    for _ in range(dice.randint(1, 20)):
        text[dice.randrange(len(text))] = dice.randrange(256)
    file.write_bytes(text)


def part_removed(file, dice):
    text = file.read_bytes()
    at, to = sorted((dice.randrange(len(text)), dice.randrange(len(text))))
    file.write_bytes(text[:at] + text[to:])


def file_removed(file, dice):
    file.unlink()


def value_changed(file, dice):
    """Replace a value inside JSON, in any row of a history."""
    rows = [json.loads(line) for line in file.read_text().splitlines()] if (
        lines := file.suffix == ".jsonl"
    ) else [json.loads(file.read_text())]  # fmt: skip
    place = dice.choice(rows)
    if "nodes" in place and isinstance(place["nodes"], list) and dice.random() < 0.8:
        place = dice.choice(place["nodes"])
    place[dice.choice([*place, "stopped", "segments", "metrics", "new"])] = dice.choice(ODD)
    texts = [json.dumps(each) for each in rows]
    file.write_text("".join(text + "\n" for text in texts) if lines else texts[0])


def metric_renamed(file, dice):
    """Give the main metric another name in all files of the run."""
    folder, name = file.parent.parent if file.parent.name == ".hydra" else file.parent, None
    name = dice.choice(METRICS)
    for each in ("result.json", "history.jsonl"):
        text = (folder / each).read_text()
        for old in ("accuracy", "rmse"):
            text = text.replace(json.dumps(old), json.dumps(name))
            text = text.replace(json.dumps(f"best_{old}"), json.dumps(f"best_{name}"))
        (folder / each).write_text(text)


def deep(file, dice):
    count = dice.choice((20, 90, 400, 990, 5000, 200_000))
    start, inner, end = dice.choice((
        ("[", "", "]"), ('{"a":', "1", "}"), ('{"round": 1, "x": ', "1", "}"),
        ("- ", "a", ""), ("? ", "a", ""),
    ))  # fmt: skip
    file.write_text(start * count + inner + end * count * dice.choice((0, 1)))


def wide(file, dice):
    """Write some megabytes that a reader makes much more of."""
    text = dice.choice(("[],", "{},", "0,", '"ab",', '{"a":0},'))
    listed = f"[{text * (5_000_000 // len(text))}0]"
    start = file.read_text() if file.suffix == ".jsonl" else ""
    file.write_text(f'{start}{{"round": 3, "nodes": {listed}, "x": {listed}}}\n')


def odd_yaml(file, dice):
    file.write_text(dice.choice((
        "!!python/object/apply:os.system [x]", "- !!int '1:1:1'\n", "a: " + "1:" * 50_000 + "1",
        "? [a]\n: 1\n", "a: 2024-99-99", "- 1\n- [a]\n", "a: .inf\nb: .nan", "- ${oc.env:CANARY}",
        "- &a x=1\n- *a\n", "", "null", "a: &x 1\n<<: {a: 2}", "\tx",
        "\n".join(f"k{at}: {{a: ${{k{at + 1}}}}}" for at in range(20_000)),
        "1: {2: 3, null: 4, true: 5, 1.5: 6}", "a.b: 1\na: {b: 2}", f"{'a' * 10**5}: 1",
        "---\n---\n",
    )))  # fmt: skip


def odd_overrides(file, dice):
    folder = file.parent if file.parent.name == ".hydra" else file.parent / ".hydra"
    words = [dice.choice(WORDS) for _ in range(dice.choice((1, 3, 30)))]
    large = dice.choice(([], [], ["lr=" + "[" * 5_000_000], [f"k{at}={at}" for at in range(900)],
                         [f"key{at}=[{at},a]" for at in range(300_000)]))  # fmt: skip
    (folder / "overrides.yaml").write_text(json.dumps(words + large))


def no_file(file, dice):
    """Put something else in a file's place: a link, a pipe, a folder, a socket, a hole."""
    file.unlink(missing_ok=True)
    kind = dice.choice(("link", "zero", "loop", "secret", "pipe", "folder", "socket", "hole"))
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    elif kind == "hole":
        with file.open("wb") as made:
            made.truncate(dice.choice((10**7, 10**9, 10**12)))
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(file))
    else:
        secret = file.parent.parent / "elsewhere"
        secret.write_text(f'{{"line": "{CANARY}", "seed": "{CANARY}"}}')
        file.symlink_to({"zero": "/dev/zero", "loop": file.name, "secret": secret}.get(kind, "."))


def odd_history(file, dice):
    history = (
        file.parent.parent if file.parent.name == ".hydra" else file.parent
    ) / "history.jsonl"
    with history.open("a", errors="surrogatepass") as more:
        more.write(dice.choice((
            "\n\n", "null\n", '{"round": 1e999}\n',
            '{"round": 3, "x": "' + "y" * 3_000_000 + '"}\n', "z" * 10_000_000,
            '{"round": 2}\n{"round": 1}\n', "\x0c{}\n", '{"round": -1}\n' * 50_000,
            '{"round": 3, "loss": 1e308, "accuracy": -1e150, "seconds": -5}\n' * 3,
            "".join(json.dumps({"round": at, **{f"k{at}_{n}": 1 for n in range(100)}}) + "\n"
                    for at in range(500)),
            "".join(json.dumps(row(at)) + "\n" for at in range(3, 2000)),
        )))  # fmt: skip


HOW = (
    bytes_changed, bytes_changed, part_removed, file_removed, value_changed, value_changed,
    value_changed, metric_renamed, deep, wide, odd_yaml, odd_overrides, no_file, no_file,
    odd_history,
)  # fmt: skip
