"""``python -m twostagegp``: the command line."""

from twostagegp.cli import main

if __name__ == "__main__":
    main()
