"""Entry point of `python -m foreword`, the same as `foreword`."""

from foreword.cli import main

if __name__ == "__main__":
    main()
