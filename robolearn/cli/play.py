"""``robolearn play``."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from robolearn.cli.parser import Parser, at_least, failures, positive
from robolearn.playing import Playback, fix_command, record
from sim.errors import UserError


def run(arguments: Sequence[str]) -> int:
    """Play."""
    parser = Parser("play", "Watch a policy act in one world, without noise and disturbances.")
    parser.add_argument("policy", metavar="RUN|FILE.onnx", help="a run, a checkpoint or an exported policy")
    way = parser.add_mutually_exclusive_group()
    way.add_argument("--video", metavar="FILE.mp4", type=Path, help="write a video file")
    way.add_argument("--viewer", choices=("web", "native"), default="web", help="the browser, or MuJoCo's window")
    parser.add_argument("--seconds", metavar="S", type=positive, help="how long; a video is 10 s if not given")
    parser.add_argument(
        "--command", metavar="C", type=float, nargs="+", help="command this, e.g. 0.5 0 0, not at random"
    )
    parser.add_argument("--seed", metavar="S", type=at_least(0), default=0, help="decides the episode")
    parser.add_argument("--host", default="127.0.0.1", help="address of the web viewer; 0.0.0.0 for other machines")
    parser.add_argument("--port", type=_port, default=8080, help="port of the web viewer; the next free one")
    parser.add_argument("--size", metavar=("W", "H"), type=at_least(16), nargs=2, help="of a video; 640 480")
    options = parser.parse(arguments)
    if options.video is not None and options.video.suffix.lower() != ".mp4":
        raise UserError(f"--video: expected a file name that ends in .mp4, not {str(options.video)!r}")
    playback = Playback.of(options.policy, options.seed)
    if options.video is None:
        _ = playback.worlds  # before there is a page or a window without a scene
    fix_command(playback, options.command)
    if options.video is not None:
        size = None if options.size is None else (options.size[0], options.size[1])
        with failures():
            record(playback, options.video, options.seconds or 10.0, size)
        print(options.video)
        return 0
    with failures():
        _live(playback, options)
    return 0


def _live(playback: Playback, options: argparse.Namespace) -> None:
    from robolearn import viewer

    if options.viewer == "native":
        viewer.show_in_window(playback, options.seconds)
        return
    page = viewer.WebViewer(playback, options.host, options.port)
    print(f"{page.url}  (Ctrl-C ends it)", flush=True)
    try:
        page.run(options.seconds)
    finally:
        page.close()


def _port(word: str) -> int:
    if not (word.isdecimal() and 1 <= int(word) <= 65535):
        raise argparse.ArgumentTypeError(f"expected a port from 1 to 65535, not {word!r}")
    return int(word)
