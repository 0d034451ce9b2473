"""`vizoo fit` and the traps of LightningCLI, each with a test of its own."""

import errno
import os
import re
import signal
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from terminal import run_code_in_terminal
from torch.utils.data import DataLoader, TensorDataset
from trainers import fit_forked

from vizoo.__main__ import main
from vizoo.cli._lightning import VizooCLI
from vizoo.vision import callbacks, progress
from vizoo.vision.configs.agreement import check_agreement

FIT = ["fit", "--config", "toy.yaml"]


def error(capsys, *words):
    """Run a command that must fail in one line; returns the line."""
    capsys.readouterr()
    assert main(list(words)) == 2
    streams = capsys.readouterr()
    lines = [line for line in streams.err.splitlines() if line.startswith("vizoo: error: ")]
    assert len(lines) == 1 and lines[0] == streams.err.splitlines()[-1]
    assert "Traceback" not in streams.err + streams.out
    return lines[0]


def checkpoint():
    return torch.load("checkpoints/last.ckpt", weights_only=True)


def test_fit_then_the_same_again_then_test(toy, capsys):
    assert main(FIT) == 0
    assert "last checkpoint: " in capsys.readouterr().out
    assert checkpoint()["epoch"] == 1
    assert yaml.safe_load(open("config.yaml"))["model"]["init_args"]["width"] == 3
    # A second run into the same folder, which SaveConfigCallback refuses by default.
    assert main([*FIT, "--model.lr", "0.2"]) == 0
    assert yaml.safe_load(open("config.yaml"))["model"]["init_args"]["lr"] == 0.2
    for verb in ("validate", "test"):
        assert main([verb, "-c", "toy.yaml", "--ckpt_path", "checkpoints/last.ckpt"]) == 0


def test_a_set_of_another_class_takes_nothing_over(tmp_path, monkeypatch, capsys):
    """The height of generated views would stretch photographs; one of the same class is changed."""
    monkeypatch.chdir(tmp_path)
    own = {"class_path": "vizoo.datasets.mvs.SceneFolders", "init_args": {"paths": ["scene"]}}
    same = {"class_path": "vizoo.datasets.worlds.views.WorldViews", "init_args": {"length": 4}}
    unnamed = {"init_args": {"length": 6}}
    sets = {"train": [own], "val": [same], "test": [unnamed]}
    data = {"class_path": "vizoo.datasets.mvs.MVSDataModule", "init_args": sets}
    Path("mine.yaml").write_text(yaml.safe_dump({"data": data}))
    configs = ["--config", "mvs/dispmvs_generated.yaml", "--config", "mine.yaml"]
    assert main(["fit", *configs, "--print_config"]) == 0
    made = yaml.safe_load(capsys.readouterr().out)["data"]["init_args"]
    train, val, test = (made[name][0]["init_args"] for name in ("train", "val", "test"))
    assert (train["height"], train["width"], train["views"]) == (None, None, 5)
    assert (val["length"], val["height"], val["seed"]) == (4, 128, 2)
    assert (test["length"], test["height"], test["seed"]) == (6, 128, 3)  # names no class


def test_a_task_may_choose_its_optimiser_itself(toy):
    """The config then names none of `OptimisedTask`'s arguments."""
    code = """import torch
from vizoo.vision.training import OptimisedTask
class Own(OptimisedTask):
    def __init__(self, width: int):
        super().__init__(optimizer="sgd", lr=0.5, lr_schedule="constant")
        self.net = torch.nn.Linear(4, width)
    def training_step(self, batch, index):
        return self.net(batch[0]).square().mean()
"""
    Path("own.py").write_text(code)
    words = [*FIT, "--model", "own.Own", "--model.width", "3"]
    assert main(words) == 0
    assert checkpoint()["optimizer_states"][0]["param_groups"][0]["lr"] == 0.5
    resumed = ["--trainer.max_epochs", "3", "--ckpt_path", "checkpoints/last.ckpt"]
    assert main([*words, *resumed]) == 0 and checkpoint()["epoch"] == 2


def test_a_task_may_name_its_network_itself(toy):
    """The config then names none of `NetworkTask`'s arguments, and a checkpoint holds none."""
    code = """from vizoo.vision.training import NetworkTask
class Own(NetworkTask):
    quantity = "truth"
    def __init__(self, width: int):
        super().__init__("fadnet_plus_micro", {"max_disparity": 64}, lr_schedule="constant")
    def outputs(self, batch):
        return next(self.net.parameters()).square().sum()
    def loss(self, outputs, batch):
        return outputs
    def training_step(self, batch, index):
        return super().training_step({"truth": batch[0]}, index)
"""
    Path("own.py").write_text(code)
    words = [*FIT, "--model", "own.Own", "--model.width", "3", "--trainer.limit_val_batches", "0"]
    assert main(words) == 0
    assert "model_args" not in checkpoint()["hyper_parameters"]
    resumed = ["--trainer.max_epochs", "3", "--ckpt_path", "checkpoints/last.ckpt"]
    assert main([*words, *resumed]) == 0 and checkpoint()["epoch"] == 2


@pytest.mark.parametrize("name", ["quantity", "val_metrics", "outputs"])
def test_what_a_task_lacks_is_named(toy, capsys, name):
    code = """import torch
from torchmetrics import MeanMetric
from vizoo.vision.training import NetworkTask
class Own(NetworkTask):
    quantity, shown = 0, "loss"
    def __init__(self):
        super().__init__("fadnet_plus_micro", {"max_disparity": 64})
        self.val_metrics = MeanMetric()
    def outputs(self, batch):
        return next(self.net.parameters()).square().sum()
    def loss(self, outputs, batch):
        return outputs
    def predictions(self, batch):
        return (torch.ones(1),)
"""
    Path(f"no_{name}.py").write_text(code.replace(name, f"other_{name}"))
    said = error(capsys, *FIT, "--model", f"no_{name}.Own", "--trainer.num_sanity_val_steps", "0")
    assert f"Own has no `{name}`, which a NetworkTask " in said


@pytest.mark.parametrize("name", ["config.yaml", "link.yaml"])
def test_the_config_that_was_named_stays(toy, name):
    """Without a logger a run's own lies in the current folder."""
    text = "# mine\n" + (toy / "toy.yaml").read_text()
    (toy / "config.yaml").write_text(text)
    (toy / "link.yaml").symlink_to("config.yaml")
    for verb in ("fit", "validate", "fit"):
        assert main([verb, "-c", name, "--trainer.logger=false", "--model.lr=0.3"]) == 0
    assert (toy / "config.yaml").read_text() == text
    assert yaml.safe_load(open("run_config.yaml"))["model"]["init_args"]["lr"] == 0.3


def test_a_config_that_cannot_be_written_is_said(toy, capsys):
    (toy / "config.yaml").mkdir()
    assert "the run's config cannot be written: " in error(capsys, *FIT, "--trainer.logger=false")


def test_the_parser_of_one_command_is_made(toy, monkeypatch):
    """Each takes a tenth of a second."""
    made = []
    monkeypatch.setattr(
        VizooCLI, "add_arguments_to_parser", lambda self, parser: made.append(self._command)
    )
    assert main(FIT) == 0 and made == ["fit"]


def test_the_seed_is_fixed_by_default(toy):
    weights = []
    for _ in range(2):
        assert main(FIT) == 0
        weights.append(checkpoint()["state_dict"]["net.weight"])
    assert torch.equal(*weights)
    assert yaml.safe_load(open("config.yaml"))["seed_everything"] == 0


def test_interrupt_and_resume(toy, capsys, monkeypatch):
    handler = signal.getsignal(signal.SIGINT)
    assert main([*FIT, "--model.interrupt_at=3"]) == 130
    assert signal.getsignal(signal.SIGINT) is handler
    said = capsys.readouterr().err
    command = said.partition("resume with: ")[2].splitlines()[0]
    assert command.startswith("vizoo fit --config toy.yaml --model.interrupt_at=3 --ckpt_path /")
    assert checkpoint()["global_step"] == 3

    monkeypatch.setenv("RESUMED", "1")
    assert main(command.split()[1:]) == 0
    assert checkpoint()["global_step"] == 4


def test_short_epochs_are_not_warned_of(toy, recwarn):
    assert main([*FIT, "--trainer.logger=true"]) == 0
    assert not [w for w in recwarn if "logging interval" in str(w.message)]


def test_more_workers_than_cores_are_not_warned_of(toy, recwarn, monkeypatch):
    import toytask

    data = TensorDataset(torch.ones(4, 4))
    loader = partial(DataLoader, data, 2, num_workers=2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)
    monkeypatch.setattr(toytask.ToyData, "train_dataloader", lambda _: loader())
    assert main([*FIT, "--trainer.max_epochs=1"]) == 0
    assert not [w for w in recwarn if "worker processes" in str(w.message)]


def test_an_interrupt_before_there_is_a_checkpoint(toy, capsys):
    assert main([*FIT, "--model.interrupt_at=0"]) == 130
    said = capsys.readouterr().err
    assert said.endswith("vizoo: stopped before last.ckpt was written: start it again\n")


def test_how_to_resume_is_not_told_where_torchrun_restarts(toy, capsys, monkeypatch):
    import toytask

    def step(self, batch, index):
        if self.global_step == 3:
            raise ValueError("no more")
        return self.net(batch[0]).square().mean()

    monkeypatch.setattr(toytask.Toy, "training_step", step)
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "2")
    for restarts in range(3):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", str(restarts))
        assert main(FIT) == 2
        said = capsys.readouterr().err
        assert "resume with: " in said
        assert ("stopped; if torchrun does not start it again, resume" in said) == (restarts < 2)


@pytest.mark.skipif(os.name != "posix", reason="needs SIGTERM")
def test_what_a_sigterm_kills_may_fail_in_any_hook(toy, monkeypatch):
    import toytask

    def step(self, batch, index):
        os.kill(os.getpid(), signal.SIGTERM)
        raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Terminated.")

    monkeypatch.setattr(toytask.Toy, "training_step", step)
    monkeypatch.setattr(callbacks.StopTogether, "on_exception", step)
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert main(FIT) == 143
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.skipif(os.name != "posix", reason="needs SIGINT")
def test_interrupt_by_signal(toy):
    words = ("--trainer.max_epochs=-1", "--model.lr=0.01")
    done = fit_forked(toy, (toy / "toy.yaml").read_text(), *words, SIGINT_AT="5")
    assert done.returncode == 130, done.stderr
    assert "resume with: vizoo fit" in done.stderr and "Traceback" not in done.stderr
    assert checkpoint()["global_step"] == 5


def test_a_checkpoint_may_not_override_the_config(toy, capsys):
    assert main(FIT) == 0
    last = ["--ckpt_path", "checkpoints/last.ckpt"]
    line = error(capsys, *FIT, "--model.width=5", "--model.lr=0.3", *last)
    assert "model.lr is 0.3 here and 0.1 there; model.width is 5 here and 3 there" in line
    assert "model.init_weights instead of ckpt_path" in line
    # What the user leaves to its default does not contradict: the checkpoint's value stays.
    assert main(["fit", "-c", "toy.yaml", "--model.lr=0.5"]) == 0
    assert main(["fit", "-c", "toy.yaml", "--trainer.max_epochs=3", *last]) == 0
    assert checkpoint()["hyper_parameters"]["lr"] == 0.5
    assert checkpoint()["epoch"] == 2


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("takes", [False, True])
def test_weights_alone_are_advised_where_the_task_takes_them(tmp_path, takes, wrapped):
    stored = {"lr": 0.1, **({"init_weights": None} if takes else {})}
    given = {"class_path": "own.Task", "init_args": {"lr": 0.2}}
    if wrapped:
        stored = {"task": {"class_path": "own.Task", "init_args": stored}}
        given = {"class_path": "own.Trained", "init_args": {"task": given}}
    content = {"pytorch-lightning_version": "2.6.6", "hyper_parameters": stored}
    torch.save(content, tmp_path / "own.ckpt")
    with pytest.raises(
        ValueError, match="lr is 0.2 here and 0.1 there; make them agree"
    ) as refused:
        check_agreement(tmp_path / "own.ckpt", given, "fit")
    assert ("init_weights" in str(refused.value)) == takes


def test_of_another_class_no_settings_are_compared(toy, capsys):
    assert main(FIT) == 0
    Path("other.py").write_text("import toytask\nclass Other(toytask.Toy):\n    pass\n")
    words = ["--model=other.Other", "--model.lr=0.3", "--ckpt_path", "checkpoints/last.ckpt"]
    line = error(capsys, *FIT, *words)
    assert "model.class_path is 'other.Other' here and 'toytask.Toy' there; make them" in line


def test_a_task_within_a_model_may_not_be_overridden(toy, capsys, monkeypatch):
    """The advice names the task's own argument."""
    model = {"class_path": "vizoo.nas.training.SupernetTask", "init_args": {}}
    config = {**yaml.safe_load((toy / "toy.yaml").read_text()), "model": model}
    config["data"] = {"class_path": "toy_regression.Data"}

    def fit(task, *words):
        model["init_args"]["task"] = task
        Path("wrapped.yaml").write_text(yaml.safe_dump(config))
        return ["fit", "-c", "wrapped.yaml", *words]

    own = {"class_path": "toy_regression.Regression", "init_args": {"lr": 0.1}}
    assert main(fit(own)) == 0
    last = ["--ckpt_path", "checkpoints/last.ckpt"]
    line = error(capsys, *fit({**own, "init_args": {"lr": 0.2}}, *last))
    assert "model.task.lr is 0.2 here and 0.1 there" in line
    assert "its weights alone: model.task.init_weights instead of ckpt_path" in line
    Path("similar.py").write_text("from toy_regression import Regression as Similar\n")
    line = error(capsys, *fit({**own, "class_path": "similar.Similar"}, *last))
    paths = "'similar.Similar' here and 'toy_regression.Regression' there; make them"
    assert f"model.task.class_path is {paths}" in line


def test_a_stage_starts_from_weights_and_resumes_without_them(toy):
    assert main(FIT) == 0
    os.rename("checkpoints/last.ckpt", "first.ckpt")
    start = "--model.init_weights=first.ckpt"
    # The learning rate of the first stage does not come along.
    assert main([*FIT, "--model.lr=0.3", start]) == 0
    assert checkpoint()["hyper_parameters"]["lr"] == 0.3
    os.remove("first.ckpt")
    last = ["--ckpt_path", "checkpoints/last.ckpt"]
    assert main([*FIT, "--trainer.max_epochs=3", "--model.lr=0.3", start, *last]) == 0
    assert checkpoint()["epoch"] == 2
    assert main(["test", *FIT[1:], *last]) == 0


def test_lightning_still_overrides_without_our_check(toy, monkeypatch):
    """When this fails Lightning has mended it, and the check may go."""
    from vizoo.cli import _lightning

    assert main(FIT) == 0
    monkeypatch.setattr(_lightning, "check_agreement", lambda *_: None)
    assert main([*FIT, "--model.lr=0.3", "--ckpt_path", "checkpoints/last.ckpt"]) == 0
    assert checkpoint()["hyper_parameters"]["lr"] == 0.1


def test_a_later_config_replaces_callbacks_unless_it_adds(toy):
    def seen(text):
        (toy / "more.yaml").write_text(text)
        (toy / "witness.txt").unlink(missing_ok=True)
        words = ["--trainer.callbacks+=toytask.Witness"]
        assert main([*FIT, *words, "-c", "more.yaml", "--trainer.enable_progress_bar=true"]) == 0
        return (toy / "witness.txt").read_text().splitlines()

    other = "[{class_path: toytask.Witness, init_args: {name: b}}]"
    replaced = seen(f"trainer: {{callbacks: {other}}}")
    added = seen(f"trainer: {{callbacks+: {other}}}")
    assert [line[0] for line in replaced] == ["b"]
    assert [line[0] for line in added] == ["a", "b"]
    for line in (*replaced, *added):
        assert "KeepLast" in line and "ProgressBar" in line


def test_checkpoints_can_be_switched_off(toy):
    assert main([*FIT, "--trainer.enable_checkpointing=false"]) == 0
    assert main([*FIT, "--trainer.fast_dev_run=true"]) == 0
    assert not (toy / "checkpoints").exists()


def test_last_lies_beside_a_model_checkpoint(toy):
    words = ["--trainer.callbacks+=ModelCheckpoint", "--trainer.callbacks.dirpath=kept"]
    assert main([*FIT, *words, "--trainer.callbacks.monitor=val"]) == 0
    assert (toy / "kept/last.ckpt").is_file() and len(list((toy / "kept").iterdir())) == 2


def test_the_last_one_is_found_in_a_folder_of_its_own(toy, capsys):
    """By Lightning, where a `ModelCheckpoint` names the folder; a first run has none yet."""
    words = [*FIT, "--trainer.callbacks+=ModelCheckpoint", "--trainer.callbacks.dirpath=kept"]
    words += ["--ckpt_path=last"]
    zeros = {"net.weight": torch.zeros(3, 4), "net.bias": torch.zeros(3)}  # which stay so
    torch.save({"state_dict": zeros}, "start.pt")
    with pytest.warns(UserWarning, match="there is no last checkpoint available"):
        assert main([*words, "--model.init_weights=start.pt"]) == 0
    assert main([*words, "--trainer.max_epochs=4"]) == 0
    last = torch.load("kept/last.ckpt", weights_only=True)
    assert last["epoch"] == 3 and not last["state_dict"]["net.weight"].any()
    nowhere = [*FIT, "--trainer.callbacks+=ModelCheckpoint", "--trainer.logger=true"]
    assert "--ckpt_path last: name the file" in error(capsys, *nowhere, "--ckpt_path=last")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--model.widht=3"], r"Option 'widht' is not accepted; did you mean 'width'\?"),
        (["--data.init_args.qqq=3"], "Option 'qqq' is not accepted; it takes length, root"),
        (
            ["--model.model_argz={a: 4}"],
            r"'model_argz\.a' is not accepted; did you mean 'model_args'",
        ),
        (["--model.model_argz.a=4"], r"arguments: --model_argz\.a=4; did you mean 'model_args'\?"),
        (["--model.init_argz.lr=4"], r"--init_argz\.lr=4; did you mean 'init_args'\?"),
        (
            ["--trainer.callbacks=[{class_path: toytask.Witness, init_args: {nme: a}}]"],
            r"class_path 'toytask\.Witness': Option 'nme' is not accepted; did you mean 'name'\?$",
        ),
        (
            ["--trainer.callbacks=[{class_path: toytask.Witnes}]"],
            r"'toytask' has no attribute 'Witnes'; did you mean 'Witness'\?$",
        ),
        (
            ["--trainer.callbacks=[3]"],
            'callbacks": Not a valid subclass of Callback. Got value: 3$',
        ),
        (["--model.width=abc"], 'Parser key "width": expected int, got abc'),
        (["--model=toytask.Toi"], "module 'toytask' has no attribute 'Toi'"),
        (["--trainer.max_epochs=x"], r"trainer\.max_epochs.*int"),
        (["--model.width=0"], "error: width must be positive$"),
        (["--data.root=/nowhere"], "error: /nowhere: no such data folder$"),
        (["--ckpt_path=no.ckpt"], "error: no.ckpt: no such checkpoint"),
        (["--ckpt_path=toy.yaml"], "toy.yaml: not a checkpoint"),
        (["--ckpt_path=last"], "--ckpt_path last: name the file, such as lightning_logs/version_0"),
        (["--ckpt_path=best"], "--ckpt_path best: name the file"),
        (["--trainer.default_root_dir=gone"], "dir gone: .*/gone is a link to what is not"),
        (["--trainer.logger=CSVLogger", "--trainer.logger.save_dir=gone"], "logger gone: .*/gone"),
        (["--trainer.accelerator=gpux"], "invalid accelerator name"),
        (["--frobnicate"], "unrecognized arguments: --frobnicate"),
        (["--trainer.max_epoch=3"], "--trainer.max_epoch=3; did you mean 'max_epochs'"),
        (["--trainer.max-epochs", "3"], "--trainer.max-epochs 3; did you mean 'max_epochs'"),
        (["--ckpt-path=toy.yaml"], "--ckpt-path=toy.yaml; did you mean 'ckpt_path'"),
        (["--seed-everything=1"], "--seed-everything=1; did you mean 'seed_everything'"),
        (["--confg=toy.yaml"], "--confg=toy.yaml; did you mean 'config'"),
        (["-c", "missing.yaml"], "missing.yaml: no such config here or built in"),
        (["-c", "broken.yaml"], "broken.yaml, line 2: not YAML"),
        (["-c", "-"], "error: -: a config is read more than once, so it cannot come from standard"),
        (["-c", "pipe"], "error: pipe: a config is read more than once"),
    ],
)
def test_errors_are_one_line(toy, capsys, words, says):
    (toy / "broken.yaml").write_text("model: [1\n")
    os.mkfifo(toy / "pipe")
    (toy / "gone").symlink_to("nowhere")
    line = error(capsys, *FIT, *words)
    assert re.search(says, line), line
    assert not (toy / "checkpoints").exists()


@pytest.mark.parametrize(
    ("callback", "says"),
    [("EarlyStopping", "metric `vol` .* of the following: .*`val`"), ("ModelCheckpoint", "'vol'")],
)
def test_a_mistyped_metric_is_one_line(toy, capsys, callback, says):
    words = [f"--trainer.callbacks+={callback}", "--trainer.callbacks.monitor=vol"]
    assert re.search(says, error(capsys, *FIT, *words))


@pytest.mark.parametrize("name", ["CSVLogger", "TensorBoardLogger"])
def test_a_run_whose_data_are_missing_leaves_no_folder(toy, capsys, monkeypatch, name):
    words = ["-c", "stereo/easnet_small_pairs.yaml"]
    words += ["--model=toytask.Toy", "--model.init_weights=null"]
    words += [f"--trainer.logger={name}", "--trainer.logger.save_dir=."]
    monkeypatch.delenv("PAIRS", raising=False)
    assert "PAIRS is not set" in error(capsys, "fit", *words)
    assert not (toy / "lightning_logs").exists()
    (earlier := toy / "lightning_logs" / "version_3").mkdir(parents=True)
    (earlier / "events.out.tfevents.1").write_text("of another run")
    error(capsys, "fit", *words)
    error(capsys, "fit", *words, "--trainer.logger.version=3")
    assert os.listdir("lightning_logs") == ["version_3"]
    assert (earlier / "events.out.tfevents.1").exists()


@pytest.mark.parametrize("name", ["CSVLogger", "TensorBoardLogger"])
def test_a_run_that_fails_before_its_first_step_leaves_no_folder(toy, capsys, monkeypatch, name):
    import toytask

    def step(self, batch, index):
        if self.global_step == self.hparams.interrupt_at:
            raise ValueError("too small")
        return self.net(batch[0]).square().mean()

    monkeypatch.setattr(toytask.Toy, "training_step", step)
    words = [*FIT, f"--trainer.logger={name}", "--trainer.logger.save_dir=."]
    assert "too small" in error(capsys, *words, "--model.interrupt_at=0")
    assert not (toy / "lightning_logs").exists()
    error(capsys, *words, "--model.interrupt_at=0", "--trainer.logger.version=mine")
    error(capsys, *words, "--model.interrupt_at=1")
    for run in ("mine", "version_0"):
        assert (toy / "lightning_logs" / run / "config.yaml").exists()


def test_what_a_run_or_an_earlier_one_logged_stays(toy, capsys, monkeypatch):
    import toytask

    def step(self, batch, index):
        if index == self.hparams.interrupt_at:
            raise ValueError("too small")
        return self.net(batch[0]).square().mean()

    monkeypatch.setattr(toytask.Toy, "training_step", step)
    words = [*FIT, "--trainer.logger=TensorBoardLogger", "--trainer.logger.save_dir=."]
    words += ["--trainer.accumulate_grad_batches=4", "--trainer.logger.version=3"]
    error(capsys, *words, "--model.interrupt_at=1")
    run = toy / "lightning_logs" / "version_3"
    kept = {path.name for path in run.iterdir()}
    assert {"config.yaml", "hparams.yaml"} < kept
    for path in run.iterdir():
        os.utime(path, (0, 0))
    error(capsys, *words, "--model.interrupt_at=0")
    assert kept <= {path.name for path in run.iterdir()}


def test_an_error_of_a_folder_in_use_hides_no_other(toy, capsys, monkeypatch):
    def in_use(folder):
        raise OSError(39, "Directory not empty", folder)

    monkeypatch.setattr("shutil.rmtree", in_use)
    monkeypatch.delenv("PAIRS", raising=False)
    assert "PAIRS is not set" in error(capsys, "fit", "-c", "stereo/easnet_small_pairs.yaml")


def test_a_folder_that_nothing_is_written_to(toy):
    (toy / "gone").symlink_to("nowhere")
    words = [*FIT, "--trainer.default_root_dir=gone"]
    assert main([*words, "--trainer.fast_dev_run=true"]) == 0
    assert main([*words, "--trainer.logger=CSVLogger", "--trainer.logger.save_dir=logs"]) == 0
    assert list(toy.glob("logs/**/last.ckpt"))


def test_nothing_given(toy, capsys):
    line = error(capsys, "fit")
    assert "fit: give a --config, such as vizoo fit --config stereo/fadnet_generated.yaml" in line


def test_help_with_a_config_lists_options_of_its_model_and_data(capsys):
    assert main(["fit", "--config", "stereo/fadnet_generated.yaml", "--help"]) == 0
    said = capsys.readouterr().out
    for piece in ("--trainer.max_epochs", "--model.round_epochs", "--data.batch_size"):
        assert piece in said
    assert (
        main(["fit", "--config", "stereo/fadnet_generated.yaml", "--trainer.max_epoch", "1"]) == 2
    )
    assert "--trainer.max_epoch" in capsys.readouterr().err


def test_help_with_a_config_that_is_typed(capsys):
    config = "{data: {class_path: vizoo.datasets.stereo.StereoDataModule}}"
    assert main(["fit", "--config", config, "--help"]) == 0
    assert "--data.batch_size" in capsys.readouterr().out


@pytest.mark.parametrize("verb", ["fit", "validate", "test", "predict"])
def test_help_shows_examples_first(capsys, verb):
    assert main([verb, "--help"]) == 0
    said = capsys.readouterr().out
    assert f"  vizoo {verb} --config stereo/" in said[:600]
    assert "callbacks+" in said and "--seed_everything" in said and "--data.seed" in said


def test_configs_by_name(tmp_path, monkeypatch):
    from vizoo.vision.configs import builtin as configs

    folder = tmp_path / "configs"
    (folder / "stereo").mkdir(parents=True)
    (folder / "stereo/fadnet_kitti.yaml").touch()
    monkeypatch.setattr(configs, "CONFIGS", folder)
    path = str(folder / "stereo/fadnet_kitti.yaml")
    monkeypatch.chdir(tmp_path)
    assert configs.resolve_config("stereo/fadnet_kitti.yaml") == path
    assert configs.resolve_config("stereo/fadnet_kitti") == path
    for name in ("stereo/fadnet_kiti.yaml", "fadnet_kitti", "kitti/fadnet_kitty"):
        with pytest.raises(FileNotFoundError, match=r"did you mean stereo/fadnet_kitti\.yaml\?"):
            configs.resolve_config(name)
    (tmp_path / "stereo").mkdir()
    (tmp_path / "stereo/fadnet_kitti.yaml").write_text("model: {}")
    assert configs.resolve_config("stereo/fadnet_kitti.yaml") == "stereo/fadnet_kitti.yaml"
    for name in ("stereo/fadnet_kitti.yaml", " {model: {}}"):
        assert configs.read_config(name) == {"model": {}}
    for name, says in (("{1", "not YAML"), ("{}: 1\n", "not YAML"), ("s3://a.yaml", "an address")):
        with pytest.raises(ValueError, match=says):
            configs.read_config(name)


@pytest.fixture
def logged(monkeypatch):
    """What the callbacks log; Lightning's handler keeps the stderr of its first import."""
    lines = []
    for module in (callbacks, progress):
        monkeypatch.setattr(module, "rank_zero_info", lines.append)
    return lines


def test_an_earlier_runs_last_checkpoint_is_kept(toy, logged):
    assert main(FIT) == 0
    first = checkpoint()
    for rank in (0, 11):  # what processes write beside it
        Path(f"checkpoints/last.ckpt.rank{rank}").write_text(str(rank))
    assert main([*FIT, "--model.lr=0.3"]) == 0
    assert logged[0].endswith("checkpoints/last.ckpt is now last-v1.ckpt")
    assert not list(Path("checkpoints").glob("last.ckpt.rank*"))
    for rank in (0, 11):
        beside = Path(f"checkpoints/last-v1.ckpt.rank{rank}")
        assert beside.read_text() == str(rank)
        beside.unlink()
    kept = torch.load("checkpoints/last-v1.ckpt", weights_only=True)
    assert torch.equal(kept["state_dict"]["net.weight"], first["state_dict"]["net.weight"])
    # A run that goes on writes its own file anew.
    last = ["--ckpt_path", "checkpoints/last.ckpt"]
    assert main([*FIT, "--model.lr=0.3", "--trainer.max_epochs=3", *last]) == 0
    assert sorted(os.listdir("checkpoints")) == ["last-v1.ckpt", "last.ckpt"]
    # What a ModelCheckpoint of the same run writes is no earlier run's.
    own = ["--trainer.callbacks+=ModelCheckpoint", "--trainer.callbacks.save_last=true"]
    assert main([*FIT, *own, "--trainer.callbacks.dirpath=kept"]) == 0
    assert not os.path.exists("kept/last-v1.ckpt")


def test_a_checkpoint_is_written_whole_or_not_at_all(toy, capsys, monkeypatch):
    """Every checkpoint goes through a rename: the earlier file stays until then."""
    assert main(FIT) == 0

    def full(path, content):
        with open(path, "wb") as file:
            file.write(content[:100])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", full)
    last = ["--ckpt_path", "checkpoints/last.ckpt"]
    line = error(capsys, *FIT, "--trainer.max_epochs=3", *last)
    assert line.endswith("last.ckpt: No space left on device")
    assert checkpoint()["epoch"] == 1
    assert os.listdir("checkpoints") == ["last.ckpt"]


def test_a_line_an_epoch_without_a_terminal(toy, logged):
    bar = "--trainer.enable_progress_bar=true"
    assert main([*FIT, bar, "--trainer.enable_checkpointing=false"]) == 0
    lines = [line.partition(":")[0] for line in logged]
    assert lines == ["epoch 1/2, step 2", "epoch 2/2, step 4"]
    assert main(FIT) == 0
    assert len(logged) == 2


def test_a_line_for_an_epoch_resumed_in_its_middle(toy, logged, monkeypatch):
    bar = "--trainer.enable_progress_bar=true"
    assert main([*FIT, bar, "--model.interrupt_at=1"]) == 130
    monkeypatch.setenv("RESUMED", "1")
    last = ["--model.interrupt_at=1", "--ckpt_path", "checkpoints/last.ckpt"]
    assert main([*FIT, bar, *last]) == 0
    lines = [line.partition(":")[0] for line in logged]
    assert lines == ["epoch 1/2, step 2", "epoch 2/2, step 4"]


SHOWN = ["--trainer.enable_progress_bar=true", "--trainer.enable_model_summary=true"]


def test_what_a_terminal_shows(toy):
    code = f"""
import os
from vizoo.__main__ import main
assert main({[*FIT, *SHOWN]}) == 0
print("PLAIN", flush=True)
os.environ["NO_COLOR"] = "1"
assert main({[*FIT, *SHOWN]}) == 0
"""
    done, said = run_code_in_terminal(code)
    assert done == 0, said
    coloured, plain = said.split("PLAIN\r\n")
    for shown in (coloured, plain):
        assert "15 params, 0 frozen" in shown and "FLOPs" not in shown
    assert "\x1b[2K" in coloured and "Epoch 2/2" in coloured and "epoch 2/2" not in coloured
    assert "\x1b" not in plain and "Epoch" not in plain and "epoch 2/2, step 4" in plain
    assert "\r" not in plain.replace("\r\n", "")


def test_what_a_pipe_gets(toy, capsys, logged):
    assert main([*FIT, *SHOWN]) == 0
    said = capsys.readouterr().out
    assert "\x1b" not in said and "Epoch" not in said
    assert "15 params" in said and "flops" not in said.lower()


def test_bars_and_tables_of_the_config_stay(toy):
    words = [f"--trainer.callbacks+={name}" for name in ("RichProgressBar", "toytask.Witness")]
    assert main([*FIT, *SHOWN, *words]) == 0
    seen = (toy / "witness.txt").read_text()
    assert (
        "'RichProgressBar'" in seen and "EpochProgressBar" not in seen and "ParameterTable" in seen
    )
    assert main([*FIT, "--trainer.callbacks+=toytask.Witness"]) == 0
    seen = (toy / "witness.txt").read_text().splitlines()[-1]
    assert "Bar" not in seen and "Table" not in seen


def test_a_random_network_is_said(toy, capsys):
    assert main(["validate", *FIT[1:]]) == 0
    assert "warning: no trained weights: validate runs a random" in capsys.readouterr().err
    assert main(["validate", *FIT[1:], "--model.model=easnet_small"]) == 0
    assert "warning: no trained weights: validate runs a random" in capsys.readouterr().err
    assert main(["validate", *FIT[1:], "--model.model=easnet_small.worlds"]) == 0
    assert "no trained weights" not in capsys.readouterr().err
    assert main(FIT) == 0
    assert main(["validate", *FIT[1:], "--ckpt_path", "checkpoints/last.ckpt"]) == 0
    assert "no trained weights" not in capsys.readouterr().err


def test_predictions_that_are_written_nowhere_are_said(toy, capsys, monkeypatch):
    monkeypatch.chdir(toy)
    words = [
        "predict",
        *("--config", "classification/skin_generated.yaml"),
        *("--trainer.accelerator", "cpu", "--trainer.logger", "false", "--data.workers", "0"),
    ]
    assert main(words) == 0
    assert "predictions are written nowhere" not in capsys.readouterr().err
    assert len((toy / "predictions" / "predictions.csv").read_text().splitlines()) == 17
    assert main([*words, "--trainer.callbacks", "[]"]) == 0
    assert "predictions are written nowhere: --trainer.callbacks+=" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"\x89PNG", "bad.yaml: not a config: not text at byte 0"),
        (b"", "bad.yaml: not a config: it holds no keys"),
        (b"model: [1\n", "bad.yaml, line 2: not YAML: "),
        (b"trainr: {max_epochs: 1}", "'trainr.max_epochs'; did you mean 'trainer'?"),
        (b"trainer: {max_epoch: 1}", "'trainer.max_epoch'; did you mean 'max_epochs'?"),
        (b"data: {class_path: toytask.ToyDatas}", "'ToyDatas'; did you mean 'ToyData'?"),
    ],
)
def test_a_config_that_is_none(toy, capsys, content, says):
    (toy / "bad.yaml").write_bytes(content)
    assert says in error(capsys, *FIT, "-c", "bad.yaml")


def test_a_module_of_this_folder(toy, capsys, monkeypatch):
    (toy / "own").mkdir()
    monkeypatch.chdir("own")
    Path("mine.py").touch()
    line = error(capsys, "fit", "-c", "../toy.yaml", "--data=mine.Data")
    assert "'mine'; `python -m vizoo` in place of `vizoo` finds modules of this folder" in line


def test_options_that_a_data_module_hands_on(toy, capsys):
    module = "--data=vizoo.datasets.stereo.StereoDataModule"
    line = error(capsys, *FIT, module, "--data.batchsize=3")
    assert line.endswith("did you mean 'batch_size'?")
    line = error(capsys, *FIT, module, "--data.zzz=3")
    assert "it takes augmentation, crop_height, crop_width, train, " in line
    assert "workers" in line and "common" not in line


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ("{class_path: vizoo.datasets.stereo.KITTI2015, init_args: {rot: x}}", "mean 'root'?"),
        ("{class_path: vizoo.datasets.stereo.KITI2015}", "mean 'KITTI2015'?"),
    ],
)
def test_a_typo_in_a_data_set(toy, capsys, entry, says):
    module = "--data=vizoo.datasets.stereo.StereoDataModule"
    line = error(capsys, *FIT, module, f"--data.train=[{entry}]")
    assert line.endswith(says) and "Callable" not in line and "Namespace" not in line


def test_ctrl_c_waits_for_no_other_process(monkeypatch):
    """They may be within a step, waiting for this one."""
    saved = []
    monkeypatch.setattr(callbacks.KeepLast, "_save", lambda self, trainer: saved.append(trainer))
    progress = SimpleNamespace(current=SimpleNamespace(started=2, processed=1))
    for error in (KeyboardInterrupt(), callbacks.SIGTERMException(), ValueError()):
        for world_size in (1, 2):
            trainer = SimpleNamespace(world_size=world_size, received_sigterm=False)
            trainer.fit_loop = SimpleNamespace()
            trainer.fit_loop.epoch_progress = progress
            callbacks.KeepLast().on_exception(trainer, SimpleNamespace(), error)
    assert [trainer.world_size for trainer in saved] == [1, 1, 2, 1]
