"""The ``nnterp`` command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status.

    Args:
        arguments: The command's arguments; ``sys.argv[1:]`` if None.
    """
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
    check = commands.add_parser(
        "check",
        help="whether a checkpoint is served as it should be",
        description="Load a checkpoint on both engines, or one, read and edit every value of every "
        "block, and say how far apart they are and whether what attention and MLP add is the "
        "difference each block makes. The exit status is the number of checkpoints that fail.",
    )
    check.add_argument("models", nargs="+", help="hub ids, checkpoints' folders, or GGUF files")
    check.add_argument(
        "--engines", nargs="+", default=["transformers", "vllm"], choices=["transformers", "vllm"]
    )
    check.add_argument("--prompt", default="The Eiffel Tower is in the city of")
    check.add_argument("--device", help="where transformers runs (default: a GPU if there is one)")
    check.add_argument("--dtype", default="float32")
    check.add_argument("--family", help="a family in place of the checkpoint's own")
    families = commands.add_parser(
        "families",
        help="the families, what each serves on which engine, and how that is known",
    )
    families.add_argument("names", nargs="*", help="model_types (default: all)")
    parsed = parser.parse_args(arguments)
    if parsed.command == "families":
        from nnterp.tools.checking import table

        print("\n".join(table.matching(parsed.names)))
        return 0
    if parsed.command == "check":
        from nnterp.tools.checking import command

        return command.run(
            parsed.models,
            parsed.engines,
            parsed.prompt,
            parsed.device,
            parsed.dtype,
            parsed.family,
        )

    from nnterp.tools.demo import run

    return run(parsed.model, parsed.prompt, parsed.donor, parsed.layer, parsed.dtype)


if __name__ == "__main__":
    sys.exit(main())
