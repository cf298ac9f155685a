"""The ``nnterp`` command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; its exit status."""
    parser = argparse.ArgumentParser(prog="nnterp", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    demo = commands.add_parser(
        "demo",
        help="one block of code on both engines, side by side",
        description="Load a model on transformers and on vLLM, read every standard value of one "
        "block on both, edit the residual stream on both, and show how far they are apart.",
    )
    demo.add_argument(
        "--model", help="a hub id or a checkpoint's folder (default: the packaged SmolLM2-135M)"
    )
    demo.add_argument("--prompt", default="The Eiffel Tower is in")
    demo.add_argument(
        "--donor",
        default="The Colosseum is in",
        help="the prompt whose residual stream is patched into the first",
    )
    demo.add_argument("--layer", type=int, help="the block to look at (default: the middle one)")
    demo.add_argument("--dtype", default="float32")
    parsed = parser.parse_args(arguments)

    from .demo import run

    return run(parsed.model, parsed.prompt, parsed.donor, parsed.layer, parsed.dtype)


if __name__ == "__main__":
    sys.exit(main())
