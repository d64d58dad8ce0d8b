"""A new run gets finished values from its data, and its metrics reach all that shows them."""

import numpy as np
import pytest
from omegaconf import OmegaConf
from sklearn.utils.class_weight import compute_class_weight

from edgewire.command.from_data import from_data, with_noise
from edgewire.conf.build import data_of
from edgewire.conf.privacy import Privacy
from edgewire.conf.schema import ConfigError
from edgewire.report.runs import read_run
from edgewire.strategy.privacy.accounting import Spent, noise_for
from tests.runs import composed, configured, history_of, result_of

QUICKER = ["rounds=2", "nodes=2", "engine.workers=1"]


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Return words for a table of two classes, of which `yes` is the rarer one."""
    random = np.random.default_rng(0)
    x = random.normal(size=(200, 3))
    kinds = np.where(x[:, 0] + random.normal(size=200) > 1, "yes", "no")
    file = tmp_path_factory.mktemp("table") / "table.csv"
    rows = [
        ",".join([*map("{:.4f}".format, row), kind]) for row, kind in zip(x, kinds, strict=True)
    ]
    file.write_text("\n".join(["a,b,c,target", *rows]))
    model = ["model=table_mlp", "model.columns=3", "model.outputs=2"]
    return ["dataset=csv", f"dataset.root={file}", *model, *QUICKER]


def objective_in(folder):
    """Return the group `objective` of the run's saved configuration."""
    return OmegaConf.to_container(OmegaConf.load(folder / ".hydra/config.yaml"))["objective"]


def test_balanced_weights_are_scikit_learns(command, table):
    evaluating = ["dataset.holdout=0.2", "strategy.fraction_evaluate=1"]
    code, printed, folder = command(*table, *evaluating, "objective.class_weights=balanced")
    assert (code, printed.err) == (0, "")
    labels = data_of(configured(*table, *evaluating)).train.targets.numpy()
    expected = compute_class_weight("balanced", classes=np.arange(2), y=labels)
    saved = objective_in(folder)
    assert saved["class_weights"] == pytest.approx(expected.tolist())
    assert saved["metrics"] == ["accuracy", "f1"]  # nodes send no scores unasked
    result = result_of(folder)
    assert list(result["metrics"]) == saved["metrics"]
    assert result["class_names"] == ["no", "yes"]
    assert np.sum(result["confusion"]) == 40
    assert result["constant"]["class"] == "no"
    assert result["constant"]["f1"] == 0
    assert 0 < history_of(folder)[-1]["node_accuracy"] < 1


def test_without_evaluations_by_nodes_two_classes_are_measured_by_their_scores_too(command, table):
    code, _, folder = command(*table)
    assert code == 0
    assert objective_in(folder)["metrics"] == ["accuracy", "f1", "auroc"]
    assert result_of(folder)["constant"]["auroc"] == 0.5


def test_ten_classes_have_no_top5_and_a_saved_configuration_is_left_alone(command):
    code, _, folder = command(*QUICKER)
    assert code == 0
    assert objective_in(folder)["metrics"] == ["accuracy"]
    code, _, again = command(
        "--config-path", str(folder / ".hydra"), "--config-name", "config",
        "objective.metrics=[accuracy,top5]",
    )  # fmt: skip
    assert code == 0
    assert "top5" in result_of(again)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["objective.metrics=[f2]"], "error: objective: metrics: f2 is none of the metrics, "),
        (["objective.metrics=f1"], "error: objective.metrics must be null or a list, not 'f1'"),
        (["objective.class_weights=equal"], "error: objective: class_weights must be numbers"),
        (["task=sensor_table", "objective.metrics=[f1]"], "Regression has mae, rmse, r2"),
    ],
)
def test_a_wrong_metric_is_one_line(command, words, said):
    code, printed, folder = command(*QUICKER, *words)
    assert code == 2
    (line,) = printed.err.strip().splitlines()
    assert said in line
    assert not (folder / "result.json").exists()


def test_weights_without_samples_here_are_refused(command, tmp_path):
    words = ["dataset=imagefolder", f"dataset.root={tmp_path}/none", "dataset.classes=[cat,dog]"]
    code, printed, _ = command(*QUICKER, *words, "objective.class_weights=balanced")
    assert code == 2
    assert len(printed.err.strip().splitlines()) == 1


def test_f1_is_the_main_metric_of_a_sweep_and_of_its_schedule(command):
    words = ["objective.metrics=[f1]", "schedule=plateau", "schedule.metric=f1"]
    plateau = ["schedule.patience=0", "schedule.threshold=0.9"]
    code, printed, folder = command("-m", *QUICKER, "rounds=3", *words, *plateau, "seed=0,1")
    assert code == 0
    assert "f1" in printed.out
    assert "accuracy" not in printed.out
    for number in range(2):
        run = read_run(folder / str(number))
        assert run.metric == ("f1", True, True)
        assert result_of(folder / str(number))["best_f1"] > 0
        rates = [row["lr"] for row in history_of(folder / str(number))]
        assert rates[0] > rates[-1]


def customers(folder, rows=120):
    """Write a table of texts, numbers with gaps, dates and a name that Hydra would read."""
    random = np.random.default_rng(0)
    lines = ["plan;age,${lr};income;since;churn"]
    for row in range(rows):
        age, income = random.integers(20, 70), f"{random.normal(3, 1):.2f}".replace(".", ",")
        cells = [random.choice(["basic", "${lr}", "???"]), age, income if row % 9 else "NA"]
        lines.append(
            ";".join(map(str, [*cells, f"{row % 28 + 1}.3.2024", "no" if row % 4 else "yes"]))
        )
    file = folder / "customers.csv"
    file.write_text("\n".join(lines))
    return file


def test_a_tables_columns_decide_the_model_the_objective_and_the_metric(command, tmp_path):
    words = ["task=table", f"dataset.root={customers(tmp_path)}", *QUICKER]
    code, printed, folder = command(*words, "dataset.target=churn")
    assert code == 0, printed.err
    for line in ("categories  plan (3 texts)", "missing)", "target      churn (no 90, yes "):
        assert line in printed.out
    saved = OmegaConf.load(folder / ".hydra/config.yaml")
    assert (saved.model.columns, saved.model.outputs) == (2 + 1 + 4 + 3 + 1, 2)
    assert saved.objective.metrics[0] == "balanced_accuracy"
    result = result_of(folder)
    assert result["class_names"] == ["no", "yes"]
    columns = ["--config-path", str(folder / ".hydra"), "--config-name", "config"]
    code, _, again = command(*columns)
    assert code == 0
    assert result_of(again)["loss"] == result["loss"]
    assert OmegaConf.load(again / ".hydra/config.yaml").dataset.columns == saved.dataset.columns
    code, _, other = command(
        *words, "dataset.target=churn", f"dataset.columns={folder}/.hydra/config.yaml"
    )
    assert code == 0
    assert result_of(other)["loss"] == result["loss"]
    code, _, number = command(*words, "dataset.target=income", "dataset.drop_missing=true")
    assert code == 0
    saved = objective_in(number)
    assert saved["_target_"].endswith("Regression")
    assert 0 < saved["scale"] < 2 < saved["mean"] < 4
    code, printed, _ = command(*words, "dataset.target=income")
    assert code == 2
    assert printed.err.splitlines()[-1] == "then add: dataset.drop_missing=true"


PRIVATE = ["privacy=sample", "privacy.noise=1"]


@pytest.mark.parametrize(
    "words",
    [["dataset=csv"], ["dataset=table"], ["dataset=table", "dataset.columns=survey"],
     ["dataset=digits", "objective.class_weights=balanced"]],
)  # fmt: skip
def test_nothing_is_learned_from_samples_that_are_private(words, tmp_path):
    with pytest.raises(ConfigError, match="would be sent without noise: give those of public data"):
        from_data(composed(*words, *PRIVATE), tmp_path, words)


def test_noise_that_is_given_stays_and_other_noise_is_found(tmp_path):
    words = ["dataset=csv", "dataset.mean=[0,0,0]", "dataset.std=[1,1,1]"]
    found = from_data(composed("dataset=digits", *PRIVATE), tmp_path, ())
    assert found.privacy.noise == 1
    assert with_noise(composed(*words, *PRIVATE)).privacy.noise == 1
    found = with_noise(composed("algorithm=fedavg", "rounds=7", "privacy=sample"))
    assert noise_for(Privacy(unit="sample", epsilon=8.0), 70, Spent()) == found.privacy.noise
