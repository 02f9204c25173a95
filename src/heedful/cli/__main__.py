"""`python -m heedful.cli` is `heed`."""

from heedful.cli import main

if __name__ == "__main__":
    main()
