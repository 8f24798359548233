"""Where ``darrm`` starts: imports nothing itself, so that Ctrl-C is answered in one line from the first moment."""

import sys

__all__ = ["main"]


def main() -> int:
    """Run the command line of this process; see :func:`darrm_torch.cli.main`."""
    try:
        from .cli import main as run

        return run()
    except KeyboardInterrupt:
        print("darrm: stopped", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
