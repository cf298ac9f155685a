"""Tracebacks of blocks, reduced to the frames that the user wrote."""

from __future__ import annotations

import os
import re

import greenlet
import nnsight
import torch
import vllm

import nnterp

#: A frame in formatted traceback text: its header, and the lines under it.
_FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>.+)$')


#: The folders of the packages whose frames say nothing about what the user wrote.
_MACHINERY = tuple(
    f"{folder}{os.sep}"
    for package in (greenlet, nnsight, nnterp, torch, vllm)
    for folder in package.__path__
)


def own_frames(traceback: str, file: str) -> str:
    """The user's frames of formatted traceback text, the block's under the file it is from."""
    kept: list[str] = []
    wanted = False
    for line in traceback.splitlines():
        header = _FRAME.match(line)
        if header is not None:
            name = header["file"]
            in_block = name.startswith("<edit-")
            # nnsight names a function it carried over "[name:line] file".
            origin = file if in_block else re.sub(r"^\[[^\]]*\] ", "", name)
            wanted = in_block or not origin.startswith((*_MACHINERY, "<frozen "))
            line = f'  File "{origin}", line {header["line"]}, in {header["name"]}'
        if wanted:
            kept.append(line)
    return "\n".join(kept)
