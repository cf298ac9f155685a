"""`nnterp check` on tiny checkpoints of many families, on a GPU.

    python tests/gpu/check_tiny.py [--names NAME ...] [--at-once 8] [--reports FOLDER]

Makes a random checkpoint of each family here, has ``nnterp check`` hold vLLM against
transformers in float32, value by value, edit by edit, and prints each verdict and what failed.
The reports go to ``FOLDER``. Exits with the number of checkpoints that do not hold.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TESTS))

import checkpoints
from tiny import TINY


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--names", nargs="*")
    parser.add_argument("--at-once", type=int, default=8, help="checks that share the GPU")
    parser.add_argument("--reports", type=Path, default=Path("check_tiny"))
    arguments = parser.parse_args()
    # Those that vLLM must be told of cannot go through the command.
    plain = [name for name, row in TINY.items() if not row.not_on_vllm and not row.engine]
    names = arguments.names or plain
    with tempfile.TemporaryDirectory() as temporary:
        made = []
        for name in names:
            try:
                made.append(str(checkpoints.make(name, Path(temporary))))
            except (KeyError, ValueError) as error:
                print(f"{name}: this transformers cannot make it: {error!r}", flush=True)
        shares = [made[first :: arguments.at_once] for first in range(arguments.at_once)]
        arguments.reports.mkdir(parents=True, exist_ok=True)
        files = [arguments.reports / f"{number}.txt" for number in range(arguments.at_once)]
        with ThreadPoolExecutor(arguments.at_once) as pool:
            list(
                pool.map(lambda job: check(*job, arguments.device), zip(shares, files, strict=True))
            )
        told = [line for file in files for line in file.read_text().splitlines()]
        for line in told:
            if "FAILED" in line or "holds (" in line:
                print(line.replace(f"{temporary}/", ""))
        held = sum("holds (" in line for line in told)
        print(f"{held} of {len(names)} hold")
        sys.exit(len(names) - held)


def check(paths: list[str], report: Path, device: str) -> None:
    """Write what ``nnterp check`` says of some checkpoints."""
    with report.open("w") as file:
        if paths:
            command = [sys.executable, "-m", "nnterp", "check", *paths, "--device", device]
            subprocess.run(command, stdout=file, check=False)


if __name__ == "__main__":
    main()
