"""`python -m foreword` is the same as `foreword`."""

from foreword.cli import main

if __name__ == "__main__":
    main()
