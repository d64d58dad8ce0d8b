"""A run of a cut model prints which node has which segment."""

from tests.runs import QUICK, result_of

CUT = (*QUICK, "algorithm=synthetic_gradients", "batch_size=64", "strategy.cuts=[1,3]", "nodes=3")


def test_a_cut_models_run_shows_which_node_holds_which_segment(command):
    code, printed, folder = command(*CUT)
    assert code == 0
    for layer in ("0 conv 5x5, 1 to 32", "1 dense, 128 to 256", "3 dense, 256 to 10"):
        assert layer in printed.out
    result = result_of(folder)
    assert sum(s["parameters"] for s in result["segments"]) == result["parameters"]
    assert all(f" {s['parameters']:,} " in printed.out for s in result["segments"])
