"""`tensorgraft run`: the script sees what `python script.py` would show it, and the backend as its accelerator."""

import pytest

BACKENDS = ["numpy", "jax"]
slow_with = pytest.mark.slow_with  # a process each, which imports PyTorch


def lines(result):
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


# ---- as `python script.py` -------------------------------------------------------------------------------------------

LOOKS_ROUND = """
    import os, sys
    print(__name__, os.path.basename(__file__), sys.argv[1:], __spec__ if "__spec__" in globals() else None)
    print(sys.path[0] == os.path.dirname(os.path.realpath(__file__)), sys.modules["__main__"].__dict__ is globals())
    import neighbour
    print(neighbour.NAME)
"""


def test_compiled_programs_are_kept_unless_told_otherwise(tensorgraft, script, tmp_path):
    path = script("import os, torch; print(torch.ones(3).to('cuda').sum().item(), os.environ['TENSORGRAFT_CACHE'])")
    folder = tmp_path / "kept"
    where = {"TENSORGRAFT_CACHE_DIR": str(folder)}
    assert tensorgraft("run", "--no-compile-cache", path, **where).stdout == "3.0 0\n"
    assert not folder.exists()
    assert tensorgraft("run", "--eager", "compiled", "--compile-cache", path, **where).stdout == "3.0 1\n"
    assert list(folder.rglob("*-cache"))


def test_same_surroundings_as_python(tensorgraft, python, script):
    path = script(LOOKS_ROUND)
    script("NAME = 'found'", "neighbour.py")
    own = python(path, "--on", "x", "-m", "--steps=5").stdout
    assert tensorgraft("run", "--on", "numpy", path, "--on", "x", "-m", "--steps=5").stdout == own
    assert own.splitlines()[0] == "__main__ script.py ['--on', 'x', '-m', '--steps=5'] None"


def test_an_empty_script_loads_nothing(tensorgraft, script):
    """PyTorch is there, and is changed when it is first used, whichever of its modules a name is imported from."""
    path = script(
        """
        import sys
        print("tensorgraft.frontends.torch" in sys.modules)
        import torch, torch.nn as nn
        from torch.cuda import is_available
        from torch.amp import GradScaler
        print(is_available(), "tensorgraft.frontends.torch" in sys.modules, "jax" in sys.modules)
        x = torch.ones(3, device="cuda")
        print(x.is_cuda, torch.cuda.current_device(), nn.Linear(3, 1).cuda()(x).shape, "jax" in sys.modules)
        """
    )
    assert lines(tensorgraft("run", path)) == ["False", "True True False", "True 0 torch.Size([1]) False"]
    only = script("import atexit, sys; atexit.register(lambda: print('tensorgraft.frontends.torch' in sys.modules))")
    assert lines(tensorgraft("run", only)) == ["False"]


def test_module(tensorgraft, script):
    script("", "package/__init__.py")
    script("import sys; print(__name__, sys.argv[1:])", "package/tool.py")
    assert lines(tensorgraft("run", "--on", "numpy", "-m", "package.tool", "--on", "x")) == ["__main__ ['--on', 'x']"]
    missing = tensorgraft("run", "--on", "numpy", "-m", "package.nothing")
    assert (missing.returncode, missing.stderr) == (1, "tensorgraft: No module named package.nothing\n")


def test_classes_of_the_script_can_be_saved_and_found_at_exit(tensorgraft, script):
    path = script(
        """
        import atexit, pickle
        class Mine: pass
        atexit.register(lambda: print(type(pickle.loads(pickle.dumps(Mine()))).__module__))
        """
    )
    assert lines(tensorgraft("run", "--on", "numpy", path)) == ["__main__"]


@pytest.mark.parametrize(
    ("ending", "code", "said"),
    [
        ("raise SystemExit", 0, ""),
        ("raise SystemExit(7)", 7, ""),
        ("import sys; sys.exit('no data')", 1, "no data\n"),
        ("raise KeyboardInterrupt", 130, None),
        ("import os; os._exit(3)", 3, ""),
        ("1 / 0", 1, None),
    ],
    ids=["exit", "7", "a word", "an interrupt", "at once", "an error"],
)
@slow_with("exit", "7", "at once", "an error")
def test_exit_code(tensorgraft, script, ending, code, said):
    result = tensorgraft("run", "--on", "numpy", script(ending))
    assert result.returncode == code
    if said is not None:
        assert result.stderr == said


FAILURES = {
    "in a function": """
        def inner(x):
            return {}[x]

        inner("key")
    """,
    "chained": """
        try:
            1 / 0
        except ZeroDivisionError as error:
            raise ValueError("outer") from error
    """,
    "in a library": """
        import json
        json.loads("{")
    """,
    "syntax": """
        print("never"
    """,
    "in a module of PyTorch": """
        import torch
        torch.nn.Linear(2, 3)(torch.ones(1, 5))
    """,
}


@pytest.mark.parametrize("name", FAILURES)
@slow_with("in a function", "chained", "syntax")
def test_traceback_is_the_one_python_prints(tensorgraft, python, script, name):
    path = script(FAILURES[name])
    result = tensorgraft("run", "--on", "numpy", path)
    assert result.returncode == 1
    assert result.stderr == python(path).stderr


@pytest.mark.parametrize("on", BACKENDS)
@slow_with("numpy")
def test_traceback_of_an_operator_shows_no_frame_of_ours(tensorgraft, script, on):
    path = script(
        """
        import torch
        def forward(x):
            return torch.nn.functional.linear(x, torch.ones(4, 7, device="cuda"))
        forward(torch.ones(2, 3, device="cuda"))
        """
    )
    result = tensorgraft("run", "--on", on, path)
    assert result.returncode == 1
    assert result.stderr.startswith("Traceback (most recent call last):\n")
    assert "in forward\n" in result.stderr
    for word in ("tensorgraft", "jax", "runpy", "importlib"):
        assert word not in result.stderr.lower()
    assert result.stderr.splitlines()[-1].startswith("RuntimeError: ")


PACKAGES = {
    "empty/note.txt": "",
    "folder/__main__.py": "import sys, neighbour; print(__name__, sys.argv[1:], neighbour.__name__)",
    "folder/neighbour.py": "",
    "package/__init__.py": "",
}


@pytest.mark.parametrize(
    "program",
    [["nothing.py"], ["empty"], ["dangling.py"], ["-m", "nothing"], ["-m", "package"]],
    ids=" ".join,
)
def test_a_program_that_is_not_there(python, script, tmp_path, program):
    """As Python says it, and before PyTorch is imported."""
    for name, text in PACKAGES.items():
        script(text, name)
    (tmp_path / "dangling.py").symlink_to(tmp_path / "nowhere.py")
    hidden = "import sys; sys.modules['torch'] = sys.modules['numpy'] = None; from tensorgraft.cli import main; main()"
    ours = python("-c", hidden, "run", "--on", "numpy", *program)
    own = python(*program)
    assert ours.returncode == own.returncode and not ours.stdout
    said = own.stderr.partition(": ")[2]
    assert ours.stderr == f"tensorgraft: {said}"


def test_folders_and_packages(tensorgraft, python, script):
    for name, text in PACKAGES.items():
        script(text, name)
    own = python("folder", "--x")
    assert own.returncode == 0
    assert lines(tensorgraft("run", "--on", "numpy", "folder", "--x")) == own.stdout.splitlines()


# ---- the backend -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("on", "said"), [("pytorch3", "there is no backend 'pytorch3'"), ("jax:x:y:z", "is not a device")]
)
def test_unknown_backend(tensorgraft, script, on, said):
    result = tensorgraft("run", "--on", on, script("print('never')"))
    assert (result.returncode, result.stdout) == (2, "")
    assert said in result.stderr and "Traceback" not in result.stderr


def test_backend_that_is_not_installed(tensorgraft, script, tmp_path):
    hidden = "import sys; sys.modules['jax'] = None\nimport importlib.util as u\nfind = u.find_spec\n"
    hidden += "u.find_spec = lambda name, package=None: None if name == 'jax' else find(name, package)\n"
    (tmp_path / "sitecustomize.py").write_text(hidden)
    result = tensorgraft("run", "--on", "jax", script("print('never')"), PYTHONPATH=f"{tmp_path}:{source()}")
    assert (result.returncode, result.stdout) == (2, "")
    assert 'pip install "tensorgraft[jax]"' in result.stderr and "Installed: numpy" in result.stderr


def source():
    from tests.cli.conftest import SOURCE

    return SOURCE


def test_fallbacks_are_named_at_the_end(tensorgraft, script):
    path = script(
        "import torch; torch.frac(torch.ones(2)); torch.linalg.eig(torch.eye(2, device='cuda')); print('end')"
    )
    result = tensorgraft("run", "--on", "numpy", path, PYTHONWARNINGS="ignore")
    if "ran on the CPU" in result.stderr:  # as long as there is no kernel
        assert "linalg_eig" in result.stderr
        strict = tensorgraft("run", "--on", "numpy", "--strict-fallbacks", path)
        assert strict.returncode == 1 and "FallbackError" in strict.stderr
    quiet = tensorgraft("run", "--on", "numpy", script("import torch; print(torch.ones(2).cuda().sum().item())"))
    assert (quiet.stdout, quiet.stderr) == ("2.0\n", "")


@pytest.mark.parametrize("on", BACKENDS)
@slow_with("numpy")
def test_what_is_left_on_the_cpu_stays_there(tensorgraft, script, on):
    path = script(
        """
        import torch
        x = torch.ones(2)
        print(x.device, x.is_cuda, torch.nn.Linear(2, 2).weight.device, x.to("cpu").device, x.double().device)
        """
    )
    assert lines(tensorgraft("run", "--on", on, path)) == ["cpu False cpu cpu cpu"]


QUIET = """
    import warnings
    import torch
    import torch._dynamo  # which torch.compile imports, and by which Python forgets what it has shown
    from torch.utils.data import DataLoader, Dataset

    def mine():
        warnings.warn("the program's own")

    class Native(Dataset):
        def __len__(self):
            return 1
        def __getitem__(self, i):
            import jax.numpy as jnp
            return float(jnp.ones(2).sum())

    for n in range(2, 5):
        mine()
        x = torch.ones(n, device="cuda", requires_grad=True)
        (x * 2).cumsum(0).softmax(0).sum().backward()
        mine()
        torch.linalg.cholesky(torch.eye(n, device="cuda"))
        torch.nonzero(x)
        torch.compile(lambda y: y + 1)(x.detach())
        mine()
    import tensorgraft
    tensorgraft.jit(lambda y: y.mul_(2))(x.detach())
    mine()
    for batch in DataLoader(torch.arange(6.0), batch_size=3, num_workers=2):
        print(batch.cuda().sum().item())
    try:
        list(DataLoader(Native(), num_workers=1))
    except RuntimeError as error:
        print("Cannot use JAX" in str(error))
"""


@pytest.mark.parametrize("on", BACKENDS)
@slow_with("numpy")
def test_nothing_is_said_but_what_the_program_says(tensorgraft, script, on):
    """Warnings once for each place, whatever is compiled in between; workers of a loader fork without a word."""
    result = tensorgraft("run", "--on", on, script(QUIET))
    assert lines(result)[:2] == ["3.0", "12.0"]
    if on == "jax":
        assert lines(result)[2:] == ["True"]
    assert result.stderr.count("UserWarning: the program's own") == 1
    assert result.stderr.count("Warning") == 1, result.stderr


# ---- lazy mode -------------------------------------------------------------------------------------------------------

LOOP = """
    import torch
    device = torch.accelerator.current_accelerator()
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.arange(12.0).reshape(3, 4).to(device) / 10
    for step in range(6):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        print(f"{loss.item():.5f}")
"""


def test_lazy_mode_prints_the_same(tensorgraft, script):
    path = script(LOOP)
    eager = lines(tensorgraft("run", "--on", "jax", path))
    recorded = tensorgraft("run", "--on", "jax", "--eager", "compiled", "--lazy", "--jit-report", path)
    assert lines(recorded) == eager
    assert "run as 2 programs 6 times" in recorded.stderr


@pytest.mark.slow
def test_the_jit_report_tells_why(tensorgraft, script):
    path = script(
        """
        import torch, tensorgraft as tg
        double = tg.jit(lambda x: x * 2)
        for n in (2, 2, 3):
            double(torch.ones(n, device="cuda"))
        """
    )
    shown = " ".join(tensorgraft("run", "--eager", "compiled", "--jit-report", path, COLUMNS="200").stderr.split())
    assert "argument x: shape (3,), was (2,)" in shown
