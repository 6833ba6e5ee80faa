"""Writes `infra/lock-<profile>.txt`: what pip resolves the requirement files to, as exact pins.

    python3 infra/lock.py cpu [--upgrade NAME ...]      a minute or two; run it after a change of a requirement file

Pins stay as they are, but for the packages named. `gpu` resolves on a machine without a GPU too, best with Python 3.12.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

INFRA = Path(__file__).resolve().parent
LEFT_OUT = {"torchvision", "torchaudio", "torchcodec"}
ONLY_X86 = {"intel-openmp", "intel-cmplr-lib-ur"}
HEADER = (
    "# Made by infra/lock.py from requirements.txt, -{0} and -dev. Installed with --no-deps; works with `-c` too.\n"
)


def canonical(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(path):
    """Name to version of each `name==version` line; comments, extras and markers are dropped."""
    found = re.findall(r"^([A-Za-z0-9._-]+)(?:\[[^]]*\])?==([^\s;#]+)", path.read_text(), flags=re.MULTILINE)
    return {canonical(name): version for name, version in found}


def resolve(files, constraints):
    """Name to version of everything that pip would install for `files`."""
    with tempfile.TemporaryDirectory() as folder:
        held, report = Path(folder, "held.txt"), Path(folder, "report.json")
        held.write_text("".join(f"{name}=={version}\n" for name, version in constraints.items()))
        command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed"]
        command += ["--report", str(report), "-c", str(held)]
        for file in files:
            command += ["-r", str(file)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            sys.exit(done.stdout[done.stdout.find("ERROR:") :])
        installs = json.loads(report.read_text())["install"]
    return {canonical(item["metadata"]["name"]): item["metadata"]["version"] for item in installs}


def main(profile, upgrade):
    lock = INFRA / f"lock-{profile}.txt"
    files = [INFRA / f"requirements{part}.txt" for part in ("", f"-{profile}", "-dev")]
    held = pins(lock) if lock.exists() else {}
    for name in upgrade:
        held.pop(canonical(name), None)
    found = resolve(files, held)
    left_out = LEFT_OUT if profile == "cpu" else set()
    lines = [
        f"{name}=={version}" + ('; platform_machine == "x86_64"' if name in ONLY_X86 else "")
        for name, version in sorted(found.items())
        if name not in left_out
    ]
    lock.write_text(HEADER.format(profile) + "\n".join(lines) + "\n")
    print(f"{lock.name}: {len(lines)} packages")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profile", choices=["cpu", "gpu"])
    parser.add_argument("--upgrade", nargs="+", default=[], metavar="NAME", help="packages whose pin may move")
    arguments = parser.parse_args()
    main(arguments.profile, arguments.upgrade)
