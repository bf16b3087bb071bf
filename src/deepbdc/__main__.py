"""The program ``deepbdc``, also as ``python -m deepbdc``. It imports nothing slow, so that Ctrl-C always ends it."""

import signal
import sys


def main() -> None:
    """Run the command line. Ctrl-C while it is still being imported ends the program without a traceback."""
    try:
        from deepbdc.cli import main as run
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the next Ctrl-C would interrupt the exit
        print("deepbdc: interrupted.", file=sys.stderr)
        raise SystemExit(130) from None
    run()


if __name__ == "__main__":
    main()
