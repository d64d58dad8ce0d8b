"""The benchmark of other Flower apps adds compression to their source, and counts bytes."""

import ast

import pytest

from papers.benchmarks.apps.compressed_apps import with_compressed_grid, with_compression_mod
from papers.benchmarks.apps.example_apps import run
from tests.simulation.any_app.apps import CLIENT, SERVER, write

MAIN = """
from flwr.serverapp import Grid, ServerApp

app = ServerApp()


@app.main()
def main(driver: Grid, context) -> None:
    {first}
    strategy = FedAvg()
    strategy.start(
        grid=driver,
    )


def another(driver):
    pass
"""


@pytest.mark.parametrize("first", ['"""What it does."""', "rounds = 3"])
def test_a_main_function_begins_with_the_compressed_grid(first):
    text = with_compressed_grid(
        MAIN.format(first=first), "from lib import", ', downlink="int8"', tell=True
    )
    tree = ast.parse(text)
    (main,) = [each for each in tree.body if getattr(each, "name", "") == "main"]
    body = [ast.unparse(each) for each in main.body]
    assert "driver = compressed = CompressedGrid(driver, downlink='int8')" in body[:2]
    assert "print('traffic'" in body[-1]
    assert "from lib import CompressedGrid" in map(ast.unparse, tree.body[:2])


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        ("ClientApp()", "ClientApp(mods=[CompressionMod('int8')])"),
        ("ClientApp(client_fn=f)", "ClientApp(mods=[CompressionMod('int8')], client_fn=f)"),
        ("ClientApp(\n    f,\n)", "ClientApp(f, mods=[CompressionMod('int8')])"),
        (
            "ClientApp(\n    client_fn=f,\n    mods=[\n        # one\n        other(),\n    ],\n)",
            "ClientApp(client_fn=f, mods=[CompressionMod('int8'), other()])",
        ),
    ],
)
def test_a_clientapps_first_mod_is_the_compression_mod(made, expected):
    text = with_compression_mod(f"import flwr\n\napp = {made}\n", "from lib import", '"int8"')
    _, imported, app = map(ast.unparse, ast.parse(text).body)
    assert imported == "from lib import CompressionMod"
    assert app == f"app = {expected}"


def test_every_message_is_counted_a_second_time(tmp_path):
    server = SERVER + (
        "    grid.push_messages(ask(grid, 'train'))\n"
        "    replies = grid.send_and_receive(ask(grid, 'query'))\n"
        "    print('accuracy', {'loss': replies[0].content['c']['loss']})\n"
    )
    answer = "    return Message(RecordDict({'c': ConfigRecord({'loss': 0.25})}), reply_to=m)\n"
    client = CLIENT + f"\n@app.train()\ndef train(m, c):\n{answer}\n"
    client += f"@app.query()\ndef query(m, c):\n{answer}"
    app = write(tmp_path / "toy", {"server.py": server, "client.py": client})
    before = tmp_path / "before.py"
    before.write_text("import builtins\nbuiltins.first = True\n")
    row = run(app, nodes=2, run_config="", before=str(before))
    assert (row["rc"], row["true"], row["said"]) == (0, True, [])
    assert row["messages"] == [4, 2, 0]
    assert row["up"] > 0
    assert row["node_up"] == 2 * row["up"] == row["up"] + row["unfetched"]
    assert row["metrics"] == {"loss": 0.25}
