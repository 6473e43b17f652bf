"""`python -m tensorgraft`, the same as the command `tensorgraft`."""

from tensorgraft.cli import main

if __name__ == "__main__":
    main()
