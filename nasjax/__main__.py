"""``python -m nasjax``: the command line."""

from nasjax.cli import main

if __name__ == "__main__":
    main()
