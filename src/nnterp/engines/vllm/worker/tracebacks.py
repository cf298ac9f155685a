"""Reduces tracebacks of blocks to the frames that the user wrote."""

from __future__ import annotations

import os
import re

import greenlet
import nnsight
import torch
import vllm

import nnterp

#: The header of a frame in formatted traceback text; the frame's lines come under it.
_FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>.+)$')


#: The folders of the packages whose frames say nothing about what the user wrote.
_MACHINERY = tuple(
    f"{folder}{os.sep}"
    for package in (greenlet, nnsight, nnterp, torch, vllm)
    for folder in package.__path__
)


def own_frames(traceback: str, file: str) -> str:
    """Return the user's frames of a traceback, the block's own under the file that it is from.

    Args:
        traceback: The formatted text.
        file: The file that the user wrote the block in.
    """
    kept: list[str] = []
    wanted = False
    for line in traceback.splitlines():
        header = _FRAME.match(line)
        if header is not None:
            name = header["file"]
            in_block = name.startswith("<edit-")
            # nnsight gives a function that it sent the file name "[name:line] file".
            origin = file if in_block else re.sub(r"^\[[^\]]*\] ", "", name)
            wanted = in_block or not origin.startswith((*_MACHINERY, "<frozen "))
            line = f'  File "{origin}", line {header["line"]}, in {header["name"]}'
        if wanted:
            kept.append(line)
    return "\n".join(kept)
