"""`tensorgraft compare` and `tensorgraft bench`."""

import json

PROGRAM = """
    import torch

    def build(device):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)).to(device)
        x = torch.linspace(-1, 1, 12).reshape(3, 4).to(device)
        return model, (x,)

    def wrong(device):
        return (lambda: torch.ones(2) * (2 if device.type == "cpu" else 3)), ()

    def broken(device):
        if device.type != "cpu":
            raise RuntimeError("no such thing here")
        return (lambda: 1.0), ()
"""


def test_a_function_on_two_backends(tensorgraft, script, tmp_path):
    path = script(PROGRAM)
    done = tensorgraft(
        "compare", f"{path}:build", "--on", "pytorch", "--on", "numpy", "--repeat", "3",
        "--json", tmp_path / "out.json", "--plot", tmp_path / "out.png",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "pytorch" in done.stdout and "first call" in done.stdout
    native, ours = json.loads((tmp_path / "out.json").read_text())["outcomes"]
    assert native["backend"] == "pytorch" and native["results"] == 0
    assert 0 <= ours["results"] < 1e-5 and 0 <= ours["gradients"] < 1e-5
    assert len(ours["seconds"]) == 3 and ours["memory"] >= 0 and ours["first"] > 0
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


def test_what_differs_or_fails_is_said(tensorgraft, script):
    path = script(PROGRAM)
    done = tensorgraft("compare", f"{path}:wrong", "--on", "pytorch", "--on", "numpy", "--repeat", "1", "--json", "-")
    assert done.returncode == 1
    assert json.loads(done.stdout)["outcomes"][1]["results"] == 0.5
    done = tensorgraft("compare", f"{path}:broken", "--on", "pytorch", "--on", "numpy", "--repeat", "1")
    assert done.returncode == 1 and "numpy: RuntimeError: no such thing here" in done.stdout


def test_a_script_by_the_numbers_that_it_prints(tensorgraft, script):
    path = script(
        """
        import sys, torch
        device = torch.accelerator.current_accelerator() or "cpu"
        print("mean", torch.arange(int(sys.argv[1]), device=device).double().mean().item())
        """
    )
    done = tensorgraft("compare", path, "9", "--on", "pytorch", "--on", "numpy", "--json", "-")
    assert done.returncode == 0, done.stderr
    assert [o["results"] for o in json.loads(done.stdout)["outcomes"]] == [0, 0]


def test_wrong_usage(tensorgraft):
    done = tensorgraft("compare", "nothing")
    assert done.returncode == 2 and "expected script.py, module:function" in done.stdout
    done = tensorgraft("compare", "m:f", "--on", "nowhere")
    assert done.returncode == 2 and "there is no backend 'nowhere'" in done.stdout
    done = tensorgraft("bench", "arange", "--on", "numpy", "--shape", "2")
    assert done.returncode == 2
    done = tensorgraft("bench", "matmul", "--on", "numpy", "--shape", "2,2")
    assert done.returncode == 2 and "matmul takes --shape rows,inner,columns, got 2,2" in done.stdout


def test_one_operation(tensorgraft):
    done = tensorgraft("bench", "add", "--shape", "4,4", "--on", "numpy", "--repeat", "2", "--json", "-")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["backends"]
    assert row["backend"] == "numpy" and row["eager"] > 0 and row["compiled"] is None
